"""The used and idle resources of a run are metered in Ray's ticks, and trials are counted by their outcome."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tune_policies import CappedPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.oom import OutOfMemory
from tune_policies.trainers.usage.gpu_memory_usage import GpuMemoryUsage
from tune_policies.trainers.usage.process_usage import ProcessUsage, SlotUse
from tune_policies.trainers.usage.resource_meter import (
    HELD,
    LAST_RUNNING,
    LESS_THAN_SLOT,
    NOTHING_RAN,
    ON_PURPOSE,
    PAUSED,
    SEARCH,
    STARTING,
    AvailableResources,
    ResourceMeter,
    SlotRow,
    SlotType,
    TrialQueue,
    TrialReservation,
    available_resources,
    idle_by_reason,
)
from tune_policies.trainers.usage.resource_usage import (
    IdleHours,
    OutOfMemoryCounts,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
)
from tune_policies.trainers.usage.run_monitor import RunMonitor

ONE = 10_000
NO_OOM = OutOfMemory(kind="none")
GPU_OOM = OutOfMemory(kind="accelerator", framework="torch", cause="own_limit")
TWO_GPUS = AvailableResources({"GPU": 2 * ONE}, {}, (SlotType(2, {"GPU": ONE}),))


def reservation(gpus=1, slot_type=0):
    return TrialReservation(slot_type, SlotRow(f"{gpus} GPU"), {"GPU": int(gpus * ONE)})


def trial(name, status="PENDING", **changes):
    """Return a stand-in for a trial of Tune, by default with one GPU."""
    resources = SimpleNamespace(required_resources={"GPU": changes.pop("gpus", 1)}, bundles=[{}])
    return SimpleNamespace(trial_id=name, status=status, config={}, placement_group_factory=resources, **changes)


def plan_of(num_gpus=2):
    return GpuPolicy(gpus=1, cpus=0).plan(nodes((0, num_gpus)))


def begin(run, each, now_s):
    """Start a trial. Like Tune, call the callback before changing the status."""
    run.start(each, now_s)
    each.status = "RUNNING"


def finish(run, each, **kwargs):
    run.complete(each, **{"is_stopped": False, **kwargs})
    each.status = "TERMINATED"


# The reasons for idle resources.

amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.integers(0, 8 * ONE), max_size=2)
available_resources_drawn = st.builds(
    AvailableResources,
    total=amounts,
    unplanned=st.dictionaries(st.tuples(st.sampled_from(["CPU", "GPU"]), st.text(max_size=2)), st.integers(0, ONE)),
    slot_types=st.lists(st.builds(SlotType, st.integers(1, 4), amounts), min_size=1, max_size=3).map(tuple),
)
reservations = st.builds(TrialReservation, st.none() | st.integers(0, 2), st.just(SlotRow("slot")), amounts)
queues = st.builds(
    TrialQueue,
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
    st.dictionaries(st.integers(0, 2), st.integers(0, 3)),
)


@given(available_resources_drawn, st.lists(reservations, max_size=5), queues)
def test_idle_and_reserved_amounts_add_up_to_the_total(available, running, queue):
    held = Counter()
    for each in running:
        held.update(each.amounts)
    idle = Counter()
    for (name, _), ticks in idle_by_reason(available, running, queue).items():
        idle[name] += ticks

    assert idle == +Counter({name: max(0, ticks - held[name]) for name, ticks in available.total.items()})


@pytest.mark.parametrize(
    ("running", "queue", "reason"),
    [
        ([], TrialQueue(num_waiting=2), STARTING),
        ([], TrialQueue(num_paused=2), PAUSED),
        ([], TrialQueue(more_to_come=True), SEARCH),
        ([], TrialQueue(), NOTHING_RAN),
        ([reservation()], TrialQueue(), LAST_RUNNING),
        ([reservation()], TrialQueue(num_waiting=3, left_idle={0: 1}), ON_PURPOSE),
        ([reservation(0.5), reservation(0.5)], TrialQueue(num_waiting=3), LESS_THAN_SLOT),
    ],
)
def test_a_free_slot_is_idle_for_one_reason(running, queue, reason):
    found = idle_by_reason(TWO_GPUS, running, queue)

    assert found == {("GPU", reason): (2 - sum(each.amounts["GPU"] / ONE for each in running)) * ONE}


def test_a_waiting_trial_gets_the_better_slot_type():
    available = AvailableResources({"GPU": ONE, "CPU": ONE}, {}, (SlotType(1, {"GPU": ONE}), SlotType(1, {"CPU": ONE})))

    found = idle_by_reason(available, [], TrialQueue(num_waiting=1))

    assert found == {("GPU", STARTING): ONE, ("CPU", LAST_RUNNING): ONE}


def test_an_amount_that_the_plan_does_not_use_is_idle_for_the_reason_of_the_plan():
    capacity = nodes((8, 2), (8, 2))
    plan = CappedPolicy(inner=GpuPolicy(gpus=1, cpus=1), max_concurrent_trials=3).plan(capacity)

    found = available_resources(plan, capacity)

    assert (
        found.unplanned["GPU", "not in the plan: not needed, because max_concurrent_trials limits the number of trials"]
        == ONE
    )
    assert sum(ticks for (name, _), ticks in found.unplanned.items() if name == "CPU") == 13 * ONE


def test_after_nodes_are_removed_the_unplanned_resources_are_idle_because_of_the_limiting_resource():
    plan = CpuPolicy(cpus=2).plan(nodes((8, 1), (8, 0)))

    found = available_resources(plan, nodes((8, 1)))

    assert found.unplanned == {("GPU", "not in the plan: limited by CPU"): ONE}


def test_a_slot_type_includes_the_planned_train_workers():
    plan = CpuPolicy(cpus=2, num_workers=2).plan(nodes((8, 0)))

    assert available_resources(plan, None).slot_types == (SlotType(2, {"CPU": 4 * ONE}),)


# The meter.

steps = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.sampled_from(["start", "end", "queue", "available"]),
        st.integers(0, 3),
        queues,
        available_resources_drawn,
    ),
    max_size=20,
)


@given(steps)
def test_used_and_idle_hours_add_up_to_the_capacity_times_the_time(steps):
    meter, now_s = ResourceMeter(), 0.0
    meter.set_available(TWO_GPUS)
    for passed_s, what, number, queue, available in steps:
        now_s += passed_s
        meter.count_until(now_s)
        match what:
            case "start":
                meter.start_trial(str(number), reservation(slot_type=number))
            case "end":
                meter.end_trial(str(number))
            case "queue":
                meter.set_queue(queue)
            case "available":
                meter.set_available(available)

    for each in meter.record().resources:
        assert each.used_hours + sum(idle.hours for idle in each.idle) == pytest.approx(each.total_hours)


def test_two_trials_that_share_a_gpu_for_an_hour_use_one_gpu_hour():
    meter = ResourceMeter()
    meter.set_available(AvailableResources({"GPU": ONE}, {}, (SlotType(2, {"GPU": ONE // 2}),)))
    meter.start_trial("a", reservation(0.5))
    meter.start_trial("b", reservation(0.5))
    meter.count_until(3600)

    usage = meter.record()

    assert [(each.used_hours, each.total_hours, each.idle) for each in usage.resources] == [(1.0, 1.0, ())]
    assert [(each.trial_hours, each.hours, each.num_starts) for each in usage.slots] == [(2.0, {"GPU": 1.0}, 2)]


@given(steps)
def test_a_restored_meter_continues_from_its_record(steps):
    meter = ResourceMeter()
    meter.set_available(TWO_GPUS)
    meter.start_trial("a", reservation())
    meter.count_until(sum(step[0] for step in steps))
    record = meter.record()

    assert ResourceMeter(ResourceUsage.from_json(record.to_json())).record() == record


# A run.


def test_a_trial_uses_its_slot_only_while_it_runs():
    run = RunMonitor(plan_of(), None, 1, None)
    one = trial("a")
    for now_s in (10, 100):
        begin(run, one, now_s)
        run.step([one], now_s)
        one.status = "PAUSED"
        run.step([one], now_s + 5)

    (gpu,) = run.record(200).resources

    assert gpu.used_hours == 10 / 3600


@pytest.mark.parametrize(
    ("is_parked", "is_held", "reason"),
    [
        pytest.param(True, False, STARTING, id="a trial that waits for a slot"),
        pytest.param(True, True, HELD, id="a trial that the policy holds"),
        pytest.param(False, False, PAUSED, id="a trial that the inner scheduler paused"),
    ],
)
def test_a_trial_with_the_status_paused_counts_as_paused_only_if_the_inner_scheduler_paused_it(
    is_parked, is_held, reason
):
    one = trial("a")
    handler = SimpleNamespace(waiting=[one] * is_parked, holds_trials=is_held)
    run = RunMonitor(plan_of(1), None, 1, None, handler)
    one.status = "PAUSED"
    run.step([one], 0)

    assert {idle.reason for idle in run.record(10).resources[0].idle} == {reason}


def test_each_trial_is_counted_once_by_its_outcome():
    run = RunMonitor(plan_of(), None, 6, None)
    done, stopped, paused, failed, cut_off, _ = trials = [trial(name) for name in "abcdef"]
    for each in trials[:5]:
        begin(run, each, 0)
    paused.status = "PAUSED"
    run.step(trials, 1)
    finish(run, paused)
    finish(run, done)
    run.complete(stopped, is_stopped=True)
    finish(run, stopped)
    run.fail(failed, NO_OOM, is_requeued=False)
    failed.status, cut_off.status = "ERROR", "TERMINATED"
    run.end(trials, 2)

    assert run.record(2).trials.model_dump(exclude_defaults=True) == {
        "num_finished": 1,
        "num_stopped_early": 2,  # one of these trials was paused
        "num_failed": 1,
        "num_cut_off": 1,
        "num_unfinished": 1,
    }


@pytest.mark.parametrize(
    ("is_at_end", "outcome"),
    [(True, {"num_finished": 1}), (False, {"num_stopped_early": 1})],
    ids=["at max_t", "before max_t"],
)
def test_a_trial_that_a_scheduler_stops_at_its_max_t_counts_as_finished(is_at_end, outcome):
    run = RunMonitor(plan_of(), None, 1, None)
    one = trial("a")
    begin(run, one, 0)
    finish(run, one, is_stopped=True, is_at_end=is_at_end)
    run.step([one], 1)

    assert run.record(1).trials.model_dump(exclude_defaults=True) == outcome


def test_a_new_trial_is_found_even_if_a_retried_trial_follows_it_in_the_list():
    run = RunMonitor(plan_of(), None, None, None)
    a, b, new = trial("a"), trial("b"), trial("new")
    run.step([a, b], 0)
    for each in (a, b):
        begin(run, each, 0)
    run.step([b, new, a], 1)
    finish(run, a)
    finish(run, b)
    run.step([b, new, a], 2)

    assert {idle.reason for idle in run.record(10).resources[0].idle} == {STARTING, SEARCH}


@pytest.mark.parametrize(
    ("num_trials", "before", "reasons"),
    [
        pytest.param(2, None, {STARTING}, id="the number of trials is known"),
        pytest.param(None, None, {STARTING}, id="the number of trials is not known"),
        pytest.param(2, ResourceUsage(trials=TrialCounts(num_unfinished=2)), {STARTING}, id="restored"),
        pytest.param(
            2, ResourceUsage(trials=TrialCounts(num_finished=2)), {NOTHING_RAN}, id="restored after all trials ended"
        ),
    ],
)
def test_before_the_first_step_all_remaining_trials_count_as_starting(num_trials, before, reasons):
    run = RunMonitor(plan_of(), None, num_trials, before)

    assert {idle.reason for idle in run.record(5).resources[0].idle} == reasons


def test_a_trial_that_is_retried_with_more_gpus_counts_as_a_trial_with_raised_resources():
    run = RunMonitor(plan_of(1), None, 1, None)
    one = trial("a", gpus=0.5)
    begin(run, one, 0)
    run.fail(one, GPU_OOM, is_requeued=True)
    one.status = "PENDING"
    run.step([one], 1)
    one.placement_group_factory.required_resources = {"GPU": 1}
    begin(run, one, 2)

    usage = run.record(3)

    assert usage.out_of_memory.model_dump(exclude_defaults=True) == {"num_gpu_errors": 1, "num_raised": 1}
    assert usage.trials.num_retries == 1


def test_the_span_of_a_trial_with_raised_resources_has_the_raised_amounts():
    plan = GpuPolicy(gpus=0.25, cpus=1).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=24)))
    run = RunMonitor(plan, None, 1, None)
    one = trial("a", gpus=0.25)
    one.placement_group_factory.required_resources = {"CPU": 1, "GPU": 0.5}
    begin(run, one, 0)

    assert [span.slot for span in run.record(1).spans] == ["1 CPU, 0.5 GPU, 12 GiB of GPU memory"]


def test_refused_allocations_are_counted_by_process():
    run = RunMonitor(plan_of(), None, 1, None)
    for process, so_far in [(1, 1), (1, 3), (1, 3), (2, 1)]:
        run.note_use(trial("a"), None, GpuMemoryUsage(pid=process, num_ooms=so_far))

    assert run.record(0).out_of_memory.num_refused_allocations == 4


def test_the_record_has_the_number_of_rounds_and_the_maximum_number_of_concurrent_trials():
    run = RunMonitor(plan_of(2), None, 5, None)
    trials = [trial(name) for name in "abcde"]
    for each in trials:
        begin(run, each, 0)
        finish(run, each)
        run.step(trials, 1)

    usage = run.record(1)

    assert (usage.num_rounds_planned, usage.num_rounds, usage.max_trials_at_once) == (3, 5, 1)
    assert (
        ResourceUsage.from_json(usage.to_json().replace("num_rounds", "num_waves")) == usage
    )  # earlier versions used the name num_waves


class Planning:
    """A scheduler whose plan can change."""

    def __init__(self, *slots):
        self.plan = TrialPlan(slots=slots, limited_by="GPU")
        self.changes = []
        self.slots = {}
        self.held = {}
        self.num_fallbacks = 0

    def change(self, plan, why):
        self.plan = plan
        self.changes.append(SimpleNamespace(plan=plan, why=why, at_s=0.0))

    def slot_of(self, trial):
        return self.slots.get(trial.trial_id)

    def slots_left_idle(self):
        return self.held


GPU_SLOT = TrialSlot(trial=Resources(gpus=1), max_concurrent_trials=1)
CPU_SLOT = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1)


def test_hours_are_counted_by_the_slot_that_the_scheduler_assigned():
    planning = Planning(GPU_SLOT, CPU_SLOT)
    run = RunMonitor(planning.plan, planning, 2, None)
    fast, slow = trial("fast"), trial("slow")
    slow.placement_group_factory.required_resources = {"CPU": 2}
    planning.slots = {"fast": GPU_SLOT, "slow": CPU_SLOT}
    begin(run, fast, 0)
    begin(run, slow, 0)

    usage = run.record(3600)

    assert {each.slot: each.hours for each in usage.slots} == {"1 GPU": {"GPU": 1.0}, "2 CPUs": {"CPU": 2.0}}


def test_usage_counts_the_resources_that_a_trial_requests_and_not_the_resources_of_its_slot():
    run = RunMonitor(TrialPlan(slots=(GPU_SLOT,), limited_by="GPU"), None, 1, None)
    begin(run, trial("raised", gpus=2), 0)

    (slot,) = run.record(3600).slots

    assert (slot.slot, slot.hours) == ("2 GPUs", {"GPU": 2.0})


def test_a_trial_with_train_workers_is_counted_in_the_slot_type_with_workers():
    with_workers = TrialSlot(
        trial=Resources(memory_bytes=1), max_concurrent_trials=1, num_workers=2, per_worker=Resources(cpus=1)
    )
    run = RunMonitor(TrialPlan(slots=(GPU_SLOT, with_workers), limited_by="CPU"), None, 1, None)
    one = trial("a")
    one.placement_group_factory.required_resources = {"memory": 1}
    begin(run, one, 0)

    (slot,) = run.record(3600).slots

    assert (slot.slot, slot.hours) == (str(with_workers), {"CPU": 2.0})


def test_the_advice_for_a_slot_type_follows_from_the_use_of_its_trials():
    cluster = nodes((8, 0))
    run = RunMonitor(CpuPolicy(cpus=4).plan(cluster), None, 8, None)
    run.read_cluster(cluster, 0)
    trials = [trial(f"t{number}") for number in range(8)]
    for one in trials:
        one.placement_group_factory.required_resources = {"CPU": 4}
    run.step(trials, 0)
    begin(run, trials[0], 0)
    run.note_use(trials[0], ProcessUsage(elapsed_s=100, cpus=4, cpu_s=60, host_memory_bytes=2**30), None)

    (slot,) = run.record(100).slots

    assert slot.use.used_cpus == 0.6
    assert slot.advice == "LearningPolicy() would run up to 8 trials at once instead of 2."


def test_a_record_contains_the_forecast_until_the_run_has_ended():
    run = RunMonitor(plan_of(), None, 2, None)
    run.note_forecast("ends in 2.0 min", 60)

    assert run.record(70).summary[0] == "after 1.0 min: the run ends in 2.0 min"
    assert run.record(80, is_final=True).forecast == ""


def test_a_slot_that_the_scheduler_leaves_idle_is_idle_on_purpose():
    planning = Planning(GPU_SLOT, CPU_SLOT)
    run = RunMonitor(planning.plan, planning, 2, None)
    fast, waits = trial("fast"), trial("waits")
    planning.slots, planning.held = {"fast": GPU_SLOT}, {1: 1}
    begin(run, fast, 0)
    run.step([fast, waits], 0)

    cpu = run.record(3600).resources[0]

    assert [(idle.reason, idle.hours) for idle in cpu.idle] == [(ON_PURPOSE, 2.0)]


def test_a_new_plan_is_returned_once_and_metered_afterwards():
    planning = Planning(GPU_SLOT)
    run = RunMonitor(planning.plan, planning, 2, None)
    run.read_cluster(nodes((0, 2)), 0)
    planning.change(plan_of(2), "grew")

    returned = [[plan.why for plan in run.step([], now_s)] for now_s in (10, 20)]

    record = run.record(20)
    assert returned == [["grew"], []]
    assert [(plan.at_s, plan.why) for plan in record.plans] == [(0.0, ""), (10.0, "grew")]
    assert record.resources[0].idle[0] == IdleHours(reason=SEARCH, hours=20 / 3600)


def test_a_restored_run_continues_its_counts():
    run = RunMonitor(plan_of(), None, 2, None)
    done, waits = trial("done"), trial("waits")
    begin(run, done, 0)
    run.complete(done, is_stopped=True)
    done.status = "TERMINATED"
    run.step([done, waits], 10)
    restored = RunMonitor(plan_of(), None, 2, run.record(10))
    begin(restored, waits, 0)
    finish(restored, waits)
    restored.step([done, waits], 5)

    usage = restored.record(5)

    assert (usage.elapsed_s, usage.resources[0].used_hours) == (15, 15 / 3600)
    assert len(usage.plans) == 1
    assert (usage.trials.num_stopped_early, usage.trials.num_finished) == (1, 1)


def test_a_trial_that_is_retried_with_more_gpus_after_a_restore_counts_as_a_trial_with_raised_resources():
    before = RunMonitor(plan_of(), None, 1, None)
    one = trial("a", gpus=0.5)
    begin(before, one, 0)
    before.fail(one, GPU_OOM, is_requeued=True)
    restored = RunMonitor(plan_of(), None, 1, ResourceUsage.from_json(before.record(3).to_json()))

    begin(restored, trial("a", gpus=1), 1)

    usage = restored.record(2)
    assert usage.out_of_memory.model_dump(exclude_defaults=True) == {"num_gpu_errors": 1, "num_raised": 1}
    assert (usage.trials.num_retries, usage.ran_out_with) == (1, {})


def test_a_run_that_is_restored_under_another_plan_records_both_plans():
    before = RunMonitor(plan_of(1), None, 2, None).record(10)

    usage = RunMonitor(plan_of(2), None, 2, before).record(0)

    assert [plan.why for plan in usage.plans] == ["", "the run was restored"]


# The spans of trials in slots.


def spans_of(usage):
    return [(span.place, span.began_s, span.ended_s, span.end) for span in usage.spans]


def test_a_trial_gets_the_first_free_place():
    run = RunMonitor(plan_of(), None, 3, None)
    a, b, c = trials = [trial(name) for name in "abc"]
    begin(run, a, 0)
    begin(run, b, 1)
    finish(run, a)
    run.step(trials, 5)
    begin(run, c, 6)
    run.step(trials, 6)

    assert spans_of(run.record(9)) == [(0, 0, 5, "finished"), (1, 1, None, None), (0, 6, None, None)]


def test_a_retried_trial_has_a_span_for_each_attempt():
    run = RunMonitor(plan_of(1), None, 1, None)
    one = trial("a")
    begin(run, one, 0)
    run.fail(one, GPU_OOM, "CUDA out of memory: token=abc", is_requeued=True)
    begin(run, one, 2)  # no step has recorded the end of the first attempt yet
    run.fail(one, NO_OOM, "ValueError: no luck", is_requeued=False)
    one.status = "ERROR"
    run.step([one], 3)

    usage = run.record(3)
    assert spans_of(usage) == [(0, 0, 2, "tried_again"), (0, 2, 3, "failed")]
    assert [(span.out_of_memory, span.error) for span in usage.spans] == [
        (True, "CUDA out of memory: token=***"),
        (False, "ValueError: no luck"),
    ]


def test_trials_that_ran_when_the_run_was_killed_are_recorded_as_cut_off():
    before = RunMonitor(plan_of(), None, 1, None)
    begin(before, trial("a"), 1)

    restored = RunMonitor(plan_of(), None, 1, before.record(4))

    assert spans_of(restored.record(9)) == [(0, 1, 4, "cut_off")]


def test_a_result_without_usage_does_not_change_the_usage_of_its_trial():
    run = RunMonitor(plan_of(), None, 1, None)
    one = trial("a")
    begin(run, one, 0)
    used = GpuMemoryUsage(peak_reserved_bytes=1)
    run.note_use(one, None, used)

    run.note_use(one, None, None)

    assert run.status().gpu_memory == {("1 GPU", 0): used}


def test_only_the_first_spans_of_a_run_with_many_starts_are_recorded():
    run = RunMonitor(plan_of(1), None, None, None)
    one = trial("a")
    for number in range(2010):
        begin(run, one, number)
        one.status = "PAUSED"
        run.step([one], number + 0.5)

    usage = run.record(3000)
    assert len(usage.spans) == 2000
    assert usage.warnings == ("only the first 2000 periods in which a trial occupied a slot are recorded",)


def test_the_status_describes_the_latest_step():
    run = RunMonitor(plan_of(), None, 3, None)
    a, b = trial("a"), trial("b")
    begin(run, a, 0)
    run.step([a, b], 1)
    used = GpuMemoryUsage(peak_reserved_bytes=1)
    run.note_use(a, None, used)

    status = run.status()

    assert status.slots == {"1 GPU": (2, 1)}
    assert status.gpu_memory == {("1 GPU", 0): used}
    assert (status.available, status.idle) == ({"GPU": 2.0}, {("GPU", STARTING): 1.0})
    assert status.trials.num_unfinished == 2


def test_trials_that_never_started_are_not_cut_off():
    """If a run ends early, Tune also terminates the trials that wait."""
    run = RunMonitor(plan_of(), None, 3, None)
    running, *_ = trials = [trial(name, last_result={}) for name in "abc"]
    begin(run, running, 0)
    run.step(trials, 1)
    for each in trials:
        each.status = "TERMINATED"
    run.end(trials, 2)

    assert run.record(2).trials.model_dump(exclude_defaults=True) == {"num_cut_off": 1, "num_never_started": 2}


def test_after_retries_with_more_host_memory_the_summary_names_the_amount_to_start_with():
    use = SlotUse(num_trials=4, cpus=1, used_cpus=0.12, host_memory_bytes=2**30)
    usage = ResourceUsage(
        slots=(SlotHours(slot="1 CPU", use=use),),
        trials=TrialCounts(num_finished=4, num_retries=2),
        out_of_memory=OutOfMemoryCounts(num_host_errors=2, num_raised=2),
    )

    assert usage.summary[-1] == (
        'start with memory="1.1GiB" in the policy: 2 of 4 trials were retried because of host memory'
    )
    assert str(use).startswith("0.12 of 1 CPU, ")


def test_if_trials_mostly_start_the_summary_names_what_helps():
    idle = IdleHours(reason=STARTING, hours=6)
    hours = ResourceHours(resource="CPU", total_hours=10, used_hours=4, idle=(idle,))
    one_at_once, several = (ResourceUsage(resources=(hours,), max_trials_at_once=most) for most in (1, 5))

    assert one_at_once.summary[-1] == (
        "60% of the CPU time was idle while trials started. Reuse processes with reuse_actors=True, or let each trial "
        "run longer"
    )
    assert several.summary[-1] == (
        f"{one_at_once.summary[-1]}. Or run fewer trials at once: pass CappedPolicy(policy, 2) instead of the policy, "
        "or max_concurrent_trials=2 if the run has no policy"
    )
    assert CappedPolicy(CpuPolicy(), 2).plan(nodes((5, 0))).max_concurrent_trials == 2
