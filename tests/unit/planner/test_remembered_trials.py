"""Tests of the observations that a ``LearningPolicy`` keeps, and of what it plans and tells with few of them."""

import pytest

from tests.clusters import gpu_node
from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, LearningPolicy
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation

GIB = 2**30
ONE_GPU = ClusterCapacity.of(gpu_node("a", gpus=1, cpus=8, gpu_memory_gib=80, memory_gib=64))


def seen(name, gib=None, *, host_gib=None, **fields):
    used = TrialNeed(gpu_memory_bytes=gib and gib * GIB, host_memory_bytes=host_gib and host_gib * GIB)
    return TrialObservation(trial_id=str(name), used=used, **{"num_steps": 2, "is_saved": True} | fields)


def names_of(policy):
    return [int(trial.trial_id) for trial in policy.observations]


def test_512_trials_are_remembered():
    policy = LearningPolicy().learn(seen(i, 1) for i in range(512))

    assert names_of(policy) == [*range(512)]


@pytest.mark.parametrize("kind", ["gib", "host_gib"])
def test_of_more_trials_the_latest_and_those_with_the_most_memory_are_remembered_in_order(kind):
    policy = LearningPolicy().learn(seen(i, **{kind: 5 if i < 50 or 60 <= i < 266 else 1}) for i in range(600))

    assert names_of(policy) == [*range(50), *range(60, 266), *range(344, 600)]


def test_a_later_observation_of_a_trial_replaces_the_earlier_one_which_stays_its_first():
    policy = LearningPolicy().learn([seen(0, 2), seen(1, 2)]).learn([seen(0, 4, num_steps=9)])

    (other, trial) = policy.observations
    assert (other.trial_id, trial.trial_id) == ("1", "0")
    assert (trial.early, trial.used) == (TrialNeed(gpu_memory_bytes=2 * GIB), TrialNeed(gpu_memory_bytes=4 * GIB))


def test_an_observation_before_the_second_result_is_not_the_first_that_counts():
    policy = LearningPolicy().learn([seen(0, 1, num_steps=1)]).learn([seen(0, 2)])

    assert policy.observations[0].early == TrialNeed(gpu_memory_bytes=2 * GIB)


def test_the_same_observation_again_teaches_nothing():
    first = [seen(i, 2) for i in range(4)]
    policy = LearningPolicy().learn(first)

    assert policy.learn(first) == policy


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 trials observed, too few to plan again"), (1, "1 trial observed, too few to plan again")],
)
def test_before_the_policy_has_learned_the_sentence_states_how_many_trials_were_observed(number, text):
    assert LearningPolicy().learn([seen(i, 1) for i in range(number)]).describe(ONE_GPU) == text


def test_the_sentence_states_how_many_trials_run_if_these_are_fewer_than_fit():
    policy = LearningPolicy().learn([seen(i, 4) for i in range(4)])

    assert policy.describe(ONE_GPU, at_once="2 run at once") == "after 4 trials: 4.4 GiB of GPU memory; 2 run at once"


def test_a_need_above_the_largest_gpu_gets_all_of_it():
    plan = LearningPolicy(GpuPolicy(gpus=0.5)).learn([seen(i, 79) for i in range(4)]).plan(ONE_GPU)

    assert plan.slot_for({}).trial.gpus == 1


def test_the_plan_depends_on_the_config_as_soon_as_the_policy_has_learned():
    policy = LearningPolicy(CpuPolicy())

    assert not policy.depends_on_config
    assert policy.learn([seen(i, host_gib=1) for i in range(4)]).depends_on_config


def test_amounts_that_depend_on_the_config_are_not_one_policy_with_fixed_amounts():
    trials = [seen(i, host_gib=i, config={"n": i}, ended=True) for i in (1, 2, 4, 8)]
    policy = LearningPolicy(CpuPolicy()).learn(trials)

    assert policy.with_fixed_amounts() is None
    assert LearningPolicy(CpuPolicy()).with_fixed_amounts() is None


def test_the_first_trials_reserve_what_the_node_with_the_least_memory_has_for_each():
    nodes = [gpu_node(f"{gib}", gpus=0, cpus=8, memory_gib=gib) for gib in (64, 16)]

    plan = LearningPolicy(CpuPolicy()).plan(ClusterCapacity.of(*nodes))

    assert (plan.max_concurrent_trials, plan.common_slot.trial.memory_bytes) == (16, 2 * GIB)


def test_the_first_trials_on_gpus_reserve_their_part_of_the_memory_by_their_gpus():
    plan = LearningPolicy(GpuPolicy(gpus=0.25)).plan(ONE_GPU)

    assert (plan.max_concurrent_trials, plan.common_slot.trial.memory_bytes) == (4, 16 * GIB)


def test_the_policy_tells_how_many_trials_ran_out_of_memory():
    trials = [seen(i, host_gib=4) for i in range(4)]
    failed = seen(9, host_gib=4, too_little=TrialNeed(host_memory_bytes=5 * GIB))

    assert "ran out of memory" not in LearningPolicy(CpuPolicy()).learn(trials).learned
    assert "1 trial ran out of memory" in LearningPolicy(CpuPolicy()).learn([*trials, failed]).learned
