"""Tests of what an observed trial needs, and of the observations after which a run learns."""

import pytest

from tune_policies.plan.learned_needs import learn_needs
from tune_policies.plan.trial_observation import NeededAmount, TrialNeed, TrialObservation, features_of
from tune_policies.plan.when_to_learn import is_time_to_learn

GIB = 2**30


def need(gib=None, **amounts):
    return TrialNeed(gpu_memory_bytes=gib and int(gib * GIB), **amounts)


def seen(gib=None, *, early=None, too_little=None, **fields):
    """Return the observation of a trial that has used this GPU memory in GiB."""
    known = {"trial_id": "t", "used": need(gib), "early": early and need(early), "too_little": need(too_little)}
    return TrialObservation(**known | fields)


@pytest.mark.parametrize(
    ("other", "is_covered"),
    [
        pytest.param(TrialNeed(cpus=2), True, id="as much"),
        pytest.param(TrialNeed(cpus=2.1), False, id="more"),
        pytest.param(TrialNeed(cpus=1, host_memory_bytes=1), False, id="more of one of two"),
        pytest.param(TrialNeed(), True, id="nothing known"),
    ],
)
def test_a_need_covers_another_one_if_no_known_amount_is_larger(other, is_covered):
    assert TrialNeed(cpus=2).covers(other) == is_covered


def test_the_union_of_two_needs_has_the_larger_of_the_known_amounts():
    union = TrialNeed(cpus=2, gpu_utilization=0) | TrialNeed(cpus=1, gpu_memory_bytes=GIB)

    assert union == TrialNeed(cpus=2, gpu_utilization=0, gpu_memory_bytes=GIB)


def test_the_text_of_a_need_lists_the_known_amounts():
    full = TrialNeed(cpus=1.234, host_memory_bytes=2 * GIB, gpu_memory_bytes=GIB, gpu_utilization=0.5)

    assert str(full) == "1 GiB of GPU memory, 50% of the GPU's time, 1.23 CPUs, 2 GiB of host memory"
    assert str(TrialNeed()) == "nothing measured"


@pytest.mark.parametrize(
    ("trial", "growth"),
    [
        pytest.param(seen(6, early=2), 1, id="it still runs, so its peak is not known"),
        pytest.param(seen(6, early=2, ended=True), 3, id="it has ended with three times its first amount"),
        pytest.param(seen(1, early=2, ended=True), 1, id="it has ended with less"),
        pytest.param(seen(early=2, too_little=8), 4, id="it ran out of memory with four times its first amount"),
        pytest.param(seen(6, early=2, too_little=4, ended=True), 3, id="it ended with more after it had run out"),
        pytest.param(seen(6, ended=True), 1, id="its first amount is not known"),
        pytest.param(seen(early=2, ended=True), 1, id="its last amount is not known"),
    ],
)
def test_the_growth_of_a_trial_is_known_when_it_ends_or_runs_out_of_memory(trial, growth):
    assert trial.growths == {"gpu_memory_bytes": growth, "host_memory_bytes": 1}


@pytest.mark.parametrize(
    ("trial", "counts"),
    [
        pytest.param(seen(num_steps=1), False, id="one result"),
        pytest.param(seen(num_steps=2), True, id="two results"),
        pytest.param(seen(ended=True), True, id="ended"),
        pytest.param(seen(too_little=1), True, id="out of memory"),
    ],
)
def test_a_trial_counts_when_its_use_is_known(trial, counts):
    assert trial.counts == counts


@pytest.mark.parametrize(
    ("trial", "gib"),
    [
        pytest.param(seen(), None, id="unknown"),
        pytest.param(seen(too_little=4), 6, id="half as much again as it ran out of"),
        pytest.param(seen(3, too_little=4, ended=True), 6, id="it has not needed more since then"),
        pytest.param(seen(4, too_little=4, ended=True), 6, id="nor as much"),
        pytest.param(seen(5, too_little=4, ended=True), 5, id="it has used more since then"),
        pytest.param(seen(2), 6, id="three times what a running trial uses"),
        pytest.param(seen(4, early=2), 6, id="three times what it used first"),
        pytest.param(seen(8, early=2), 8, id="it already uses more than three times what it used first"),
        pytest.param(seen(4, early=2, ended=True), 4, id="what an ended trial used"),
    ],
)
def test_the_memory_that_a_trial_needs_if_memory_grows_threefold(trial, gib):
    assert trial.amount("gpu_memory_bytes", 3.0) == (gib and gib * GIB)


@pytest.mark.parametrize(
    ("used", "reserved", "ticks"),
    [
        pytest.param(2.0, None, 19_000, id="95 % of the used CPUs"),
        pytest.param(2.0, 1.0, 10_000, id="at most the reserved CPUs"),
        pytest.param(2.0, 4.0, 19_000, id="not more if more are reserved"),
        pytest.param(0.00001, 1.0, 1, id="rounded up"),
    ],
)
def test_the_cpus_that_a_trial_needs(used, reserved, ticks):
    trial = TrialObservation(trial_id="t", used=TrialNeed(cpus=used), reserved=TrialNeed(cpus=reserved))

    assert trial.amount("cpus", 1.0) == ticks


@pytest.mark.parametrize(("used", "ticks"), [(0.25, 2_500), (0.00001, 1)])
def test_the_time_of_a_gpu_that_a_trial_needs_is_what_it_used_rounded_up(used, ticks):
    assert seen(used=TrialNeed(gpu_utilization=used)).amount("gpu_utilization", 1.0) == ticks


@pytest.mark.parametrize(
    ("trial", "needed"),
    [
        pytest.param(seen(4, config={"n": 2}), NeededAmount({"n": 2}, 4 * GIB, is_guess=False), id="measured"),
        pytest.param(seen(4, too_little=4), NeededAmount({}, 6 * GIB, is_guess=True), id="only assumed"),
        pytest.param(seen(), NeededAmount({}, 0, is_guess=True), id="unknown"),
    ],
)
def test_the_needed_amount_states_whether_it_is_assumed(trial, needed):
    assert trial.needed("gpu_memory_bytes", 1.0) == needed


def test_the_needed_amount_depends_on_the_growth():
    trial = seen(4)

    assert [trial.needed("gpu_memory_bytes", growth).amount for growth in (1.0, 2.0, 1.0)] == [
        4 * GIB,
        8 * GIB,
        4 * GIB,
    ]


def test_a_trial_is_known_to_have_had_what_it_used_or_ran_out_of():
    assert [trial.needed("gpu_memory_bytes", 1.0).had for trial in (seen(4), seen(too_little=4))] == [4 * GIB, 4 * GIB]


def test_whole_numbers_and_words_of_a_config_may_affect_memory():
    config = {"batch": 8, "lr": 0.1, "net": "mlp", "bias": True, "pool": None, "sizes": [1, 2]}

    assert features_of(config) == {"batch": 8, "net=mlp": 1, "bias=True": 1, "pool=None": 1}


def trials(number, **fields):
    return [seen(4, trial_id=f"t{i}", num_steps=2, config={"n": 8}, **fields) for i in range(number)]


@pytest.mark.parametrize(
    ("num_counting", "num_waiting", "learns"),
    [
        pytest.param(1, 0, False, id="one trial"),
        pytest.param(2, 0, True, id="two trials, and no other one has reported"),
        pytest.param(3, 1, False, id="three of four trials"),
        pytest.param(4, 1, True, id="all pilots"),
    ],
)
def test_a_run_first_learns_from_the_pilots_or_from_all_trials(num_counting, num_waiting, learns):
    remembered = [*trials(num_counting), *[seen(num_steps=1)] * num_waiting]

    assert is_time_to_learn(remembered, remembered, None, num_pilots=4) == learns


@pytest.mark.parametrize(
    ("num_trials", "new", "learns"),
    [
        pytest.param(7, seen(4), False, id="nothing new"),
        pytest.param(8, seen(4), True, id="twice as many trials"),
        pytest.param(5, seen(4, ended=True), True, id="the first trial that ended"),
        pytest.param(5, seen(2, too_little=3), True, id="a trial that ran out of memory"),
        pytest.param(5, seen(5), True, id="a trial that uses more than expected with headroom"),
        pytest.param(5, seen(4, config={"n": 9}), True, id="a config outside the observed range"),
        pytest.param(5, seen(4, config={"n": 8}), False, id="a config inside the observed range"),
    ],
)
def test_a_run_learns_again_if(num_trials, new, learns):
    needs = learn_needs(trials(4, is_saved=True))

    assert is_time_to_learn(trials(num_trials), [seen(4), new], needs, num_pilots=4) == learns


def test_a_second_trial_that_ends_is_no_reason_to_learn_again():
    needs = learn_needs(trials(4, ended=True))

    assert not is_time_to_learn(trials(5), [seen(4, ended=True)], needs, num_pilots=4)
