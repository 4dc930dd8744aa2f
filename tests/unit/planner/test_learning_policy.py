"""Tests of what a ``LearningPolicy`` learns from the trials of a run, and of its plans."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    LearningPolicy,
    MixedPolicy,
    ResourcePolicy,
)
from tune_policies.plan.learned_amount import most_productive
from tune_policies.plan.learned_needs import learn_needs
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.policies.learning import MOST_REQUESTS, _plan_of
from tune_policies.policies.policy import build_policy
from tune_policies.policies.policy_with_need import _choices_of, plan_for_need, with_need

GIB = 2**30
MIB = 2**20
TWO_GPUS = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=80, memory_gib=256))
CPUS = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=8, memory_gib=32))
ids = itertools.count()


def seen(config=None, *, gib=None, host_gib=None, cpus=None, utilization=None, **fields):
    """Return the observation of a trial with two results."""
    used = TrialNeed(
        cpus=cpus,
        host_memory_bytes=host_gib and int(host_gib * GIB),
        gpu_memory_bytes=gib and int(gib * GIB),
        gpu_utilization=utilization,
    )
    return TrialObservation(
        **{
            "trial_id": f"t{next(ids)}",
            "config": config or {},
            "used": used,
            "num_steps": 2,
            "is_saved": True,
            **fields,
        }
    )


def gpu_shares(policy, configs, capacity=TWO_GPUS):
    plan = policy.plan(capacity)
    return [round(1 / plan.slot_for(config).trial.gpus) for config in configs]


BY_BATCH = [seen({"batch": batch, "lr": 0.1}, gib=batch / 8) for batch in (16, 32, 64, 128)]


def test_before_anything_is_observed_the_plan_is_that_of_the_start_policy():
    plan = LearningPolicy(GpuPolicy(gpus=0.25, memory="1GiB")).plan(TWO_GPUS)

    assert (plan.slots, plan.by_config) == (GpuPolicy(gpus=0.25, memory="1GiB").plan(TWO_GPUS).slots, None)


def test_the_first_trials_reserve_equal_parts_of_the_host_memory_so_that_later_trials_find_what_is_left():
    plan = LearningPolicy(CpuPolicy()).plan(CPUS)

    assert (plan.max_concurrent_trials, plan.common_slot.trial.memory_bytes) == (8, 4 * GIB)


def test_a_config_that_explains_the_memory_determines_the_fraction():
    policy = LearningPolicy().learn(BY_BATCH)

    # The configs need 2, 4, 8 and 16 GiB of the 80 GiB, plus 10 %.
    assert gpu_shares(policy, [{"batch": batch, "lr": 0.5} for batch in (16, 32, 64, 128)]) == [36, 18, 9, 4]


def test_a_config_outside_the_observed_range_gets_twice_the_largest_amount():
    policy = LearningPolicy().learn(BY_BATCH)

    assert gpu_shares(policy, [{"batch": 256, "lr": 0.5}]) == [2]  # 32 GiB plus 10 %


@pytest.mark.parametrize("seen_value", [0, -4], ids=["0", "a negative number"])
def test_a_number_above_an_observed_number_without_a_ratio_gets_twice_the_largest_amount(seen_value):
    policy = LearningPolicy().learn([seen({"layers": seen_value}, gib=4) for _ in range(4)])

    assert gpu_shares(policy, [{"layers": 3}]) == [9]


def test_two_trials_with_checkpoints_determine_the_amount_for_configs_inside_their_range():
    policy = LearningPolicy().learn(BY_BATCH[:2])

    # 4 GiB plus 10 %, and twice as much for a config outside the range.
    assert gpu_shares(policy, [{"batch": 16, "lr": 0.1}, {"batch": 64, "lr": 0.1}]) == [18, 9]


def test_trials_without_checkpoints_get_twice_the_observed_memory_until_one_has_ended():
    running = [seen({"seed": i}, gib=4, is_saved=False) for i in range(4)]
    ended = [running[0].model_copy(update={"ended": True})]

    policies = [LearningPolicy().learn(running), LearningPolicy().learn(running).learn(ended)]

    assert [gpu_shares(policy, [{"seed": 0}]) for policy in policies] == [[9], [18]]


def test_a_config_with_an_unknown_word_gets_the_slot_of_a_pilot():
    policy = LearningPolicy().learn([seen({"net": "mlp"}, gib=4) for _ in range(4)])

    assert gpu_shares(policy, [{"net": "mlp"}, {"net": "vit"}]) == [18, 1]


def test_a_formula_that_gives_no_memory_for_a_config_still_requests_some():
    """The memory is proportional to the batch size, so the formula gives 0 bytes for a batch size of 0."""
    policy = LearningPolicy().learn([seen({"batch": batch}, gib=batch) for batch in (1, 2, 1, 2)])

    assert policy.needs.need_for({"batch": 0}).gpu_memory_bytes == MIB
    assert "up to 2.2 GiB of GPU memory" in policy.describe(TWO_GPUS)


def test_words_and_numbers_of_the_config_explain_memory_together():
    observed = [
        seen({"net": net, "batch": batch, "act": act}, gib=(4 if net == "vit" else 1) * batch / 16)
        for net in ("vit", "mlp")
        for batch in (16, 32, 64)
        for act in ("relu", "tanh")
    ]

    needs = learn_needs(observed)

    assert needs.amounts["gpu_memory_bytes"].explained > 0.99


WIDTHS = [16, 32, 48, 64, 96, 128]


@pytest.mark.parametrize(
    ("configs", "gib"),
    [
        pytest.param([{"layers": [width, width]} for width in WIDTHS], WIDTHS, id="the sum of a list"),
        pytest.param([{"layers": (3,) * number} for number in WIDTHS], WIDTHS, id="the length of a tuple"),
        pytest.param([{"net": {"layers": [width] * 3}} for width in WIDTHS], WIDTHS, id="a list in a dictionary"),
        pytest.param([{"net": {"width": width}} for width in WIDTHS], WIDTHS, id="a number in a dictionary"),
        pytest.param([{"layers": [{"units": width}, {"units": 1}]} for width in WIDTHS], WIDTHS, id="dicts in a list"),
        pytest.param([{"filters": [[width, [4, 4]], [1, [3, 3]]]} for width in WIDTHS], WIDTHS, id="lists in a list"),
        pytest.param([{"net": ["conv"] * number} for number in WIDTHS], WIDTHS, id="the number of equal words"),
        pytest.param(
            [{"net": net} for net in (["mlp"], ["mlp", "attention"], ["attention"]) * 2],
            [16, 48, 32, 16, 48, 32],
            id="the words of a list",
        ),
    ],
)
def test_lists_and_dictionaries_of_the_config_explain_the_memory(configs, gib):
    needs = learn_needs(
        [seen(config, gib=gib_of_config / 8) for config, gib_of_config in zip(configs, gib, strict=True)]
    )

    assert needs.amounts["gpu_memory_bytes"].explained > 0.95
    # The headroom is 10 %. A formula without a constant term is preferred, although the other numbers are not 0.
    for config, gib_of_config in zip(configs, gib, strict=True):
        assert 1 <= needs.need_for(config).gpu_memory_bytes / (gib_of_config / 8 * GIB) < 1.5


def test_a_longer_list_than_all_observed_ones_is_outside_the_observed_range():
    needs = learn_needs([seen({"layers": [64] * number}, gib=number) for number in (1, 2, 3, 4)])

    assert [needs.is_outside({"layers": [64] * number}) for number in (3, 5)] == [False, True]


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[0.9, 0.99], [0.8, 0.999], [0.7, 0.9], [0.6, 0.99]], id="fractional numbers"),
        pytest.param([[f"{trial}-{column}" for column in range(40)] for trial in range(4)], id="many words"),
    ],
)
def test_lists_of_fractional_numbers_or_of_many_words_count_only_with_their_length(lists):
    needs = learn_needs([seen({"list": values}, gib=2) for values in lists])
    new = {"list": ["a", *lists[0][1:]]} if len(lists[0]) > 2 else {"list": [0.1, 0.2]}

    assert not needs.is_outside(new)
    assert needs.is_outside({"list": [*lists[0], *lists[0]]})


def test_memory_that_the_config_does_not_explain_is_the_same_for_all():
    peaks = (3, 9, 4, 17, 5, 3.5, 20, 4.5)
    policy = LearningPolicy().learn([seen({"batch": 8 + i % 2}, gib=gib, elapsed_s=10) for i, gib in enumerate(peaks)])

    plan = policy.plan(TWO_GPUS)

    assert not policy.needs.depends_on_config
    assert plan.slot_for({"batch": 8}).trial.gpus == plan.slot_for({"batch": 9}).trial.gpus


@pytest.mark.parametrize(
    ("amounts", "lost", "attempts"),
    [
        pytest.param([4, 4, 4, 5], 1, [5], id="nearly equal amounts: the largest"),
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1, 1, 30], 1, [1, 30], id="one of ten trials needs much more"),
        pytest.param([3, 4, 5, 6], 1, [6], id="failing loses the whole trial"),
        pytest.param([1, 2, 4, 4], 0, [1, 2, 4], id="failing loses nothing"),
        pytest.param([1, 2, 4, 4], 0.5, [2, 4], id="failing loses a part"),
    ],
)
def test_the_amounts_of_the_attempts_have_the_highest_expected_throughput(amounts, lost, attempts):
    assert most_productive(amounts, lost) == attempts


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6).map(sorted), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_no_other_sequence_of_amounts_costs_less(amounts, lost):
    def cost(attempts):
        total = 0.0
        for needed in amounts:
            for amount in attempts:
                total += amount * (1 if amount >= needed else lost)
                if amount >= needed:
                    break
        return total

    steps = sorted(set(amounts))
    choices = [(*some, steps[-1]) for n in range(len(steps)) for some in itertools.combinations(steps[:-1], n)]

    assert cost(most_productive(amounts, lost)) == pytest.approx(min(map(cost, choices)))


def test_trials_that_mostly_wait_share_a_cpu():
    policy = LearningPolicy(CpuPolicy()).learn([seen(host_gib=0.5, cpus=0.04) for _ in range(2)])

    assert policy.plan(CPUS).max_concurrent_trials == 56  # limited by 576 MiB of host memory each


@pytest.mark.parametrize(("used", "at_once"), [(0.68, 12), (0.5, 16), (0.35, 24), (0.15, 48), (1, 8)])
def test_trials_that_use_a_part_of_a_cpu_reserve_a_simple_fraction(used, at_once):
    """8 CPUs run 12 trials with 2/3 of a CPU. Rounded to a whole CPU, only 8 would run, and a third would be idle."""
    policy = LearningPolicy(CpuPolicy()).learn([seen({"seed": i}, cpus=used) for i in range(4)])

    assert policy.plan(CPUS).max_concurrent_trials == at_once


@pytest.mark.parametrize(("used", "at_once"), [(0.75, 3), (0.6, 4), (0.5, 4), (1, 2)])
def test_trials_share_a_few_cpus_rather_than_leave_a_third_of_them_unused(used, at_once):
    policy = LearningPolicy(CpuPolicy()).learn([seen({"seed": i}, cpus=used) for i in range(4)])

    plan = policy.plan(ClusterCapacity.of(gpu_node("a", gpus=0, cpus=2, memory_gib=32)))

    assert plan.max_concurrent_trials == at_once


def test_a_trial_that_uses_all_its_cpus_keeps_them():
    policy = LearningPolicy(CpuPolicy(cpus=2)).learn([seen(cpus=2.0, reserved=TrialNeed(cpus=2)) for _ in range(4)])

    assert policy.plan(CPUS).slot_for({}).trial.cpus == 2


def test_trials_get_fewer_cpus_than_they_use_if_they_would_leave_many_unused():
    policy = LearningPolicy(GpuPolicy()).learn([seen(gib=1, cpus=12) for _ in range(4)])

    # 12 of the 32 CPUs of the node would leave 8 unused.
    assert policy.plan(TWO_GPUS).slot_for({}).trial.cpus == 8


@pytest.mark.parametrize(
    ("num_running", "speed"),
    [
        pytest.param(1, 1, id="a GPU has time for the trial"),
        pytest.param(5, 0.8, id="Ray starts all of them on the first GPU"),
        pytest.param(7, 1 / 1.75, id="the first GPU is busy, and the second one is idle"),
        pytest.param(8, 1, id="the GPUs have no time left"),
    ],
)
def test_trials_on_one_gpu_are_expected_to_slow_down_each_other_while_another_gpu_is_idle(num_running, speed):
    policy = LearningPolicy().learn([seen(gib=4, utilization=0.25) for _ in range(4)])

    assert policy.expected_speed(num_running, TWO_GPUS) == pytest.approx(speed)


@pytest.mark.parametrize(
    ("policy", "capacity"),
    [
        pytest.param(LearningPolicy(), TWO_GPUS, id="nothing was learned"),
        pytest.param(LearningPolicy().learn([seen(gib=4) for _ in range(4)]), TWO_GPUS, id="unknown utilization"),
        pytest.param(LearningPolicy().learn([seen(cpus=1, utilization=0.9) for _ in range(4)]), CPUS, id="no GPU"),
    ],
)
def test_otherwise_trials_are_not_expected_to_slow_down_each_other(policy, capacity):
    assert policy.expected_speed(1000, capacity) == 1


def test_the_utilization_limits_the_number_of_trials_on_a_gpu():
    policy = LearningPolicy().learn([seen(gib=1, utilization=0.5) for _ in range(4)])

    assert gpu_shares(policy, [{}]) == [4]  # a busy GPU may still have time


def test_a_busy_gpu_does_not_change_the_utilization_that_is_known_of_a_trial():
    alone = seen({"seed": 0}, gib=1, utilization=0.5)
    crowded = alone.model_copy(update={"used": TrialNeed(gpu_memory_bytes=GIB), "num_steps": 9})

    policy = LearningPolicy().learn([alone, seen({"seed": 1}, gib=1, utilization=0.5)]).learn([crowded])

    assert policy.observations[-1].used.gpu_utilization == 0.5


def test_peaks_of_running_trials_grow_as_those_of_ended_trials_did():
    early = seen({"seed": 1}, gib=2)
    later = early.model_copy(update={"used": TrialNeed(gpu_memory_bytes=4 * GIB), "ended": True, "num_steps": 9})
    others = [seen({"seed": 0}, gib=2) for _ in range(3)]

    policy = LearningPolicy().learn([early, *others]).learn([later])

    assert policy.needs.amounts["gpu_memory_bytes"].amount == 4 * GIB


def test_an_early_failure_does_not_make_late_failures_cheap_if_memory_grows_and_nothing_is_saved():
    """A trial that failed at once lost seconds. The memory of the others grows later, so they would lose all."""
    ended = seen(
        {"seed": 0}, gib=4, early=TrialNeed(gpu_memory_bytes=2 * GIB), is_saved=False, ended=True, elapsed_s=600.0
    )
    failed = seen({"seed": 1}, gib=7, too_little=TrialNeed(gpu_memory_bytes=6 * GIB), is_saved=False, lost_s=9.0)
    running = [seen({"seed": i}, gib=gib, is_saved=False) for i, gib in enumerate([2, 3] * 5)]

    needs = learn_needs([ended, failed, *running])

    # Half of the running trials grow from 2 to 4 GiB, the others from 3 to 6 GiB.
    assert needs.amounts["gpu_memory_bytes"].amount == 6 * GIB


def test_an_out_of_memory_error_teaches_the_policy_that_the_config_needs_more():
    policy = LearningPolicy().learn([seen({"batch": 8}, gib=4) for _ in range(4)])
    failed = seen({"batch": 8}, gib=4.4, too_little=TrialNeed(gpu_memory_bytes=5 * GIB))

    learned = policy.learn([failed])

    # Half as much again is the assumed need of a trial that has only run out of memory.
    assert learned.needs.need_after({"batch": 8}, failed.too_little).gpu_memory_bytes == 7.5 * GIB


def test_a_retry_gets_twice_the_memory_or_the_largest_observed_amount():
    needs = learn_needs([seen({"lr": 0.1 * i}, gib=gib) for i, gib in enumerate((1, 1, 10))])

    raised = [needs.need_after({}, TrialNeed(gpu_memory_bytes=gib * GIB)).gpu_memory_bytes for gib in (8, 12)]

    assert raised == [needs.observed.gpu_memory_bytes, 24 * GIB]


def test_a_retry_gets_the_next_amount_with_the_highest_expected_throughput():
    needs = learn_needs([seen(gib=gib) for gib in (1, 1, 1, 1, 1, 3, 3, 20)])

    raised = needs.need_after({}, TrialNeed(gpu_memory_bytes=GIB))

    assert raised.gpu_memory_bytes == 3 * GIB


@pytest.mark.parametrize(("is_saved", "failing"), [(True, 0.5), (False, 0)])
def test_four_trials_with_checkpoints_are_enough_for_an_amount_that_is_too_little_for_some(is_saved, failing):
    needs = learn_needs([seen(gib=gib, is_saved=is_saved) for gib in (1, 1, 8, 9)])

    assert needs.amounts["gpu_memory_bytes"].failing == failing


def test_the_policy_learns_again_only_when_twice_as_many_trials_are_known():
    policy = LearningPolicy().learn(BY_BATCH)

    after_7 = policy.learn([seen({"batch": 16, "lr": 0.2}, gib=2) for _ in range(3)])
    after_8 = after_7.learn([seen({"batch": 16, "lr": 0.2}, gib=2)])

    assert [after_7.needs.num_trials, after_8.needs.num_trials] == [4, 8]


def test_two_trials_are_enough_if_all_started_trials_have_reported():
    first = [seen(gib=2), seen(gib=2)]
    waiting = seen(num_steps=1)

    assert LearningPolicy().learn(first).needs is not None
    assert LearningPolicy().learn([*first, waiting]).needs is None


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(CpuPolicy(num_workers=2), id="Train workers"),
        pytest.param(GpuPolicy(gpus=2), id="several GPUs"),
        pytest.param(AcceleratorPolicy(resource="NPU"), id="other devices"),
        pytest.param(MixedPolicy(GpuPolicy(gpus=0.5), CpuPolicy(cpus=2)), id="different policies"),
    ],
)
def test_a_start_policy_whose_trials_are_not_learned_keeps_its_requests_and_says_so(start):
    capacity = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=80, custom={"NPU": 2}))

    plan = LearningPolicy(start).learn(BY_BATCH).plan(capacity)

    assert plan.slots == start.plan(capacity).slots
    assert any("is not learned" in reason for reason in plan.reasons)


class Listing(ResourcePolicy):
    """A policy without a hash, because a field is a list."""

    names: list[str]

    def plan(self, capacity):
        return CpuPolicy().plan(capacity)


def test_a_start_policy_needs_no_hash():
    policy = LearningPolicy(Listing(names=["a"])).learn(BY_BATCH)

    assert policy.plan(CPUS).slots == CpuPolicy().plan(CPUS).slots


def test_devices_of_different_sizes_each_run_as_many_trials_as_fit():
    nodes = [gpu_node(f"{gib}", gpus=1, cpus=32, gpu_memory_gib=gib, memory_gib=256) for gib in (80, 24)]

    plan = LearningPolicy().learn([seen(gib=5) for _ in range(4)]).plan(ClusterCapacity.of(*nodes))

    # 5 GiB plus 10 % fit 14 times on 80 GiB and 4 times on 24 GiB.
    assert sorted(slot.max_concurrent_trials for slot in plan.slots) == [4, 14]


def test_other_fields_of_the_start_policy_still_apply():
    start = CappedPolicy(GpuMemoryPolicy(gpu_memory="20GiB", max_trials_per_gpu=3), 5)

    plan = LearningPolicy(start).learn([seen(gib=1) for _ in range(4)]).plan(TWO_GPUS)

    assert plan.max_concurrent_trials == 5


def test_a_learned_policy_is_a_file_that_later_runs_can_use():
    policy = LearningPolicy(GpuPolicy()).learn(BY_BATCH)

    read = ResourcePolicy.from_json(policy.to_json())

    assert read == policy == build_policy(policy.model_dump(mode="json"))


def test_one_sentence_states_what_was_learned_and_what_changes():
    policy = LearningPolicy().learn([seen(gib=2.8, cpus=0.4, utilization=0.1) for _ in range(4)])

    assert policy.describe(TWO_GPUS) == (
        "after 4 trials: 3.1 GiB of GPU memory, 10% of the GPU's time, 0.4 CPU; 40 would fit at once instead of 2"
    )


def test_the_sentence_states_if_as_many_trials_run_as_before():
    policy = LearningPolicy().learn([seen(gib=60) for _ in range(4)])

    assert policy.describe(TWO_GPUS).endswith("; 2 would fit at once as before")


@pytest.mark.parametrize(
    ("start", "trial", "learned"),
    [
        pytest.param(
            LearningPolicy().start,
            {"host_gib": 0.3, "cpus": 0.09},
            'CpuPolicy(cpus=0.1, memory="344MiB")',
            id="the choice of AutoPolicy that was used",
        ),
        pytest.param(
            LearningPolicy().start,
            {"host_gib": 0.3, "uses_gpu": True},
            'GpuPolicy(memory="344MiB")',
            id="GPUs whose memory is not known",
        ),
        pytest.param(
            GpuPolicy(accelerator_type="A100"),
            {"gib": 8, "host_gib": 2, "utilization": 0.5},
            'GpuMemoryPolicy(gpu_memory="9024MiB", max_trials_per_gpu=4, accelerator_type="A100", memory="2304MiB")',
            id="the other fields of the start policy",
        ),
        pytest.param(
            CappedPolicy(CpuPolicy(), 3), {"host_gib": 1}, "at most 1.1 GiB of host memory", id="a wrapped start policy"
        ),
    ],
)
def test_what_was_learned_is_one_line_with_a_policy_if_it_does_not_depend_on_the_config(start, trial, learned):
    policy = LearningPolicy(start).learn([seen(ended=True, **trial) for _ in range(4)])

    assert policy.learned.startswith(f"learned from 4 trials: {learned}")


SHORT = [
    seen({"width": width}, host_gib=0.3, cpus=cpus, ended=True)
    for width, cpus in zip([32, 64, 128] * 4, [0.03, *[None] * 11], strict=True)
]
"""Trials with equal memory. Only the first one ran long enough to measure its CPUs."""


def test_observed_configs_get_the_same_slot_if_only_one_trial_measured_its_cpus():
    plan = LearningPolicy(CpuPolicy()).learn(SHORT).plan(CPUS)

    assert {str(plan.slot_for({"width": width})) for width in (32, 64, 128)} == {"0.05 CPU, 344 MiB of host memory"}
    assert not any(plan.by_config.why_unknown({"width": width}) for width in (32, 64, 128))


def test_a_config_outside_the_range_of_the_cpus_gets_the_usual_memory_and_the_reason_says_so():
    plan = LearningPolicy(CpuPolicy()).learn(SHORT).plan(CPUS)

    assert str(plan.slot_for({"width": 256})) == "0.0666 CPU, 344 MiB of host memory"
    assert plan.by_config.why_unknown({"width": 256}).endswith(
        "is outside the range that was observed for the CPUs, so it gets more CPUs than the trials used"
    )


def test_an_unknown_word_that_may_affect_only_the_cpus_leads_to_no_more_memory():
    words = [
        seen({"net": net}, host_gib=0.3, cpus=0.03 if index == 0 else None, ended=True)
        for index, net in enumerate(["mlp", "vit"] * 4)
    ]

    plan = LearningPolicy(CpuPolicy()).learn(words).plan(CPUS)

    assert str(plan.slot_for({"net": "cnn"})) == "0.0666 CPU, 344 MiB of host memory"


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        pytest.param(
            SHORT,
            "learned from 12 trials (the CPUs from 1): CpuPolicy(",
            id="the CPUs are from fewer trials",
        ),
        pytest.param([seen(host_gib=0.3, cpus=0.03)] * 4, "learned from 1 trial: CpuPolicy(", id="all are from one"),
    ],
)
def test_the_line_states_if_an_amount_is_from_fewer_trials(trials, text):
    policy = LearningPolicy(CpuPolicy(), num_pilots=1).learn(trials)

    assert policy.learned.startswith(text)
    assert text.partition(": ")[0] in str(policy)


def test_a_plan_states_when_the_larger_amounts_apply():
    policy = LearningPolicy(CpuPolicy()).learn([seen({"n": n}, host_gib=0.3, cpus=1) for n in (1, 2, 3, 4)])

    lines = policy.plan(CPUS).explain(CPUS).splitlines()
    assert lines[:3] == [
        "4 to 8 trials at once, depending on whether their configs are in the observed range, limited by CPU",
        "  at most 8 with 1 CPU, 344 MiB of host memory",
        "  at most 4 with 2 CPUs, 688 MiB of host memory for configs outside the observed range",
    ]
    assert "  - CPUs: the same amount for all configs in the observed range" in lines


def test_a_plan_of_several_learned_amounts_states_which_slots_only_other_configs_get():
    plan = LearningPolicy().learn(BY_BATCH).plan(TWO_GPUS)

    conditions = [plan.by_config.configs_of(slot) for slot in plan.by_config.slots]
    assert plan.headline.startswith("2 to 72 trials at once, depending on their configs")
    assert {plan.by_config.configs_of(plan.slot_for(seen.config)) for seen in BY_BATCH} == {""}
    assert conditions[-1] == "configs that may need more than the observed ones"


def test_a_plan_in_which_no_config_can_be_outside_the_range_has_one_slot_for_all():
    policy = LearningPolicy(CpuPolicy()).learn([seen({"lr": 0.1 * n}, host_gib=0.3, cpus=1) for n in (1, 2, 3, 4)])

    lines = policy.plan(CPUS).explain(CPUS).splitlines()
    assert lines[:2] == ["8 trials at once, limited by CPU", "  each trial: 1 CPU, 344 MiB of host memory"]
    assert "  - CPUs: the same amount for all configs" in lines
    assert "stays idle:" in lines


def test_a_plan_with_equal_needs_contains_no_earlier_slot_with_less():
    policy = LearningPolicy(CpuPolicy()).learn([seen({"n": 1}, host_gib=0.3) for _ in range(4)])

    later = policy.learn([seen({"n": 1}, host_gib=2) for _ in range(12)])

    assert len(later.sizes) > 2
    assert all(size.covers(later.needs.usual) for size in later.plan(CPUS).by_config.sizes)


def test_what_was_learned_names_the_numbers_of_the_config_that_explain_it():
    assert "GPU memory: batch of the config explains 100%" in LearningPolicy().learn(BY_BATCH).learned


def test_before_the_policy_has_learned_there_is_nothing_to_tell():
    assert LearningPolicy().learned == ""


def test_the_text_of_a_policy_states_what_it_has_learned_instead_of_all_observations():
    policy = LearningPolicy(GpuPolicy())
    learned = policy.learn([seen({"width": width}, gib=width, ended=True) for width in (2, 4, 6, 8)])

    assert str(policy) == (
        "LearningPolicy: starts with GpuPolicy(); learns from the first 4 trials, 0 trials observed so far"
    )
    assert str(learned).startswith("LearningPolicy: starts with GpuPolicy(); learned from 4 trials: at most 8")
    assert "GPU memory: width of the config explains 100% of the differences" in str(learned)
    assert "learned from 4 trials" in learned._repr_html_()
    assert "trial_id" not in str(learned) + learned._repr_html_()


def test_sizes_from_before_the_cpus_were_known_are_no_longer_planned():
    early = LearningPolicy(CpuPolicy()).learn([seen({"n": 1}, host_gib=0.2, is_saved=False) for _ in range(4)])

    later = early.learn([seen({"n": 1}, host_gib=0.2, cpus=0.1, ended=True) for _ in range(8)])

    assert {slot.trial.cpus for slot in later.plan(CPUS).by_config.slots} == {0.1, 0.2}


def test_if_only_the_memory_depends_on_the_config_a_plan_states_one_number_of_cpus_for_observed_configs():
    policy = LearningPolicy(CpuPolicy())
    for cpus in (0.06, 0.09, 0.02):  # the first mean is larger than the last one
        policy = policy.learn([seen({"n": n}, host_gib=0.2 * n, cpus=cpus, ended=True) for n in (1, 2, 3, 4)])
    usual = policy.needs.usual.cpus

    plan = policy.plan(CPUS)

    assert {slot.trial.cpus for slot in plan.by_config.slots} == {usual, policy.needs.outside.cpus}
    assert {plan.slot_for({"n": n}).trial.cpus for n in (1, 2, 3, 4)} == {usual}
    assert f"at most {policy.needs.usual}".partition(",")[0] in policy.learned
    assert not any("each trial reserves" in reason for reason in plan.reasons)


def test_an_earlier_size_with_slightly_more_cpus_is_used_again():
    capacity = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=64, memory_gib=64))
    policy = LearningPolicy(CpuPolicy(cpus=12))
    for cpus in (11.4, 9.6):  # first 11 CPUs, then 10
        policy = policy.learn([seen({"n": n}, host_gib=n, cpus=cpus, ended=True) for n in (1, 2, 3, 4)])

    plan = policy.plan(capacity)

    assert plan.slot_for({"n": 1}).trial.memory_bytes < plan.slot_for({"n": 4}).trial.memory_bytes < 5 * GIB


def test_two_configs_that_differ_in_their_cpus_get_few_sizes():
    policy = LearningPolicy(CpuPolicy())
    for number in range(16):
        n = 1 + number % 2
        policy = policy.learn([seen({"n": n}, host_gib=(220 + 30 * n) / 1024, cpus=0.045 * n, ended=True)])

    assert len(policy.plan(CPUS).by_config.slots) <= 6


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 64]), st.floats(0.1, 70)), min_size=4, max_size=60))
def test_a_run_has_at_most_32_distinct_requests(trials):
    policy, slots = LearningPolicy(), set()

    for batch, gib in trials:
        policy = policy.learn([seen({"batch": batch}, gib=gib, cpus=0.5)])
        plan = policy.plan(TWO_GPUS)
        slots |= {str(slot.trial) for slot in (plan.by_config or plan).slots}

    assert len(slots) <= MOST_REQUESTS


steps = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from([1, 2, 4, 8, 64]),
        st.floats(0.1, 70),
        st.sampled_from([None, 0.1, 0.6]),
        st.booleans(),
        st.none() | st.floats(0.1, 70),
    ),
    min_size=4,
    max_size=24,
)


@settings(deadline=None, max_examples=30)
@given(steps)
def test_a_decision_is_the_same_as_one_that_computes_everything_again(trials):
    policy = LearningPolicy()

    for number, batch, gib, busy, ended, too_little in trials:
        observed = seen(
            {"batch": batch, "net": f"n{number % 2}"},
            gib=gib,
            utilization=busy,
            ended=ended,
            trial_id=f"t{number}",
            too_little=TrialNeed(gpu_memory_bytes=too_little and int(too_little * GIB)),
        )
        fresh = ResourcePolicy.from_json(policy.to_json())
        policy, plan = policy.learn([observed]), policy.learn([observed]).plan(TWO_GPUS)
        for cache in (plan_for_need, _plan_of, _choices_of):
            cache.cache_clear()

        assert (fresh.learn([observed]), fresh.learn([observed]).plan(TWO_GPUS)) == (policy, plan)


@settings(deadline=None, max_examples=30)
@given(steps, st.sampled_from([(80,), (80, 24), (80, 40, 24)]))
def test_each_size_gets_its_memory_and_as_many_trials_as_equal_parts_of_a_gpu(trials, devices):
    nodes = [gpu_node(f"n{gib}", gpus=2, cpus=32, gpu_memory_gib=gib, memory_gib=256) for gib in devices]
    capacity = ClusterCapacity.of(*nodes)
    start = GpuPolicy()

    plan = LearningPolicy(start).learn([seen({"batch": trial[1]}, gib=trial[2]) for trial in trials]).plan(capacity)

    pilots = start.plan(capacity).common_slot
    pairs = zip(plan.by_config.sizes, plan.by_config.slots, strict=True) if plan.by_config else ()
    for size, slot in pairs:
        equal = with_need(start, size).plan(capacity).common_slot
        assert slot == pilots or (
            slot.max_concurrent_trials == equal.max_concurrent_trials
            and slot.trial.gpus <= equal.trial.gpus
            and size.gpu_memory_bytes <= slot.gpu_memory_bytes <= equal.gpu_memory_bytes
        )


def test_deciding_for_a_config_takes_less_than_5_ms_with_500_observed_configs():
    observed = [
        seen({"batch": 1 + i % 97, "width": 1 + i % 7}, gib=0.1 * (1 + i % 97) * (1 + i % 7)) for i in range(500)
    ]
    plan = LearningPolicy().learn(observed).plan(TWO_GPUS)
    configs = [{"batch": 1 + i % 97, "width": 1 + i % 7} for i in range(200)]

    begin = time.process_time()
    for config in configs:
        plan.slot_for(config)

    assert (time.process_time() - begin) / len(configs) < 0.005
