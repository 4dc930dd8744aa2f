"""The trials of a run are counted by their outcome, and its hours by the slots that the scheduler assigned."""

from types import SimpleNamespace

import pytest

from tests.clusters import GIB, gpu_node, nodes
from tests.unit.runner.metered_runs import GPU_OOM, NO_OOM, begin, finish, plan_of, trial
from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.trainers.usage.advice import Advice
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.process_usage import ProcessUsage
from tune_policies.trainers.usage.reservation_meter import HELD, NOTHING_RAN, ON_PURPOSE, PAUSED, SEARCH, STARTING
from tune_policies.trainers.usage.resource_usage import IdleHours, ResourceHours, ResourceUsage, TrialCounts
from tune_policies.trainers.usage.run_monitor import RunMonitor


@pytest.mark.parametrize(
    ("trials", "is_interrupted"),
    [
        pytest.param({"num_cut_off": 2}, True, id="trials were running"),
        pytest.param({"num_never_started": 1}, True, id="a trial was waiting"),
        pytest.param({"num_finished": 4, "num_unfinished": 1}, True, id="Tune did not end a waiting trial"),
        pytest.param({"num_finished": 4, "num_stopped_early": 1, "num_failed": 1}, False, id="all trials ended"),
    ],
)
def test_the_summary_says_that_a_run_was_interrupted(trials, is_interrupted):
    usage = ResourceUsage(is_final=True, trials=TrialCounts(**trials))

    line = usage.summary[0]

    assert line.endswith(" (the run was interrupted, for example by Ctrl-C, time_budget_s or fail_fast)") == (
        is_interrupted
    )


def test_idle_times_that_are_rounded_to_0_are_not_shown():
    idle = tuple(IdleHours(reason=reason, hours=hours) for reason, hours in [("a", 1.0), ("b", 1e-6), ("c", 1e-3)])
    usage = ResourceUsage(resources=(ResourceHours(resource="CPU", total_hours=100, used_hours=99, idle=idle),))

    assert [row[1] for row in usage.idle_rows] == ["a"]


@pytest.mark.parametrize(("pids", "reuses"), [((7, 7), True), ((7, 8), False)])
def test_a_record_states_whether_a_process_ran_several_trials(pids, reuses):
    run = RunMonitor(plan_of(1), None, 2, None)
    for one, pid in zip((trial("a"), trial("b")), pids, strict=True):
        begin(run, one, 0)
        run.note_result(one, {"node_ip": "10.0.0.1", "pid": pid})
        finish(run, one)

    assert run.record(1).reuses_processes is reuses


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

    assert {idle.reason for idle in run.record(10).resources[0].idle} == {STARTING}


def test_while_a_trial_starts_the_searcher_is_not_blamed_for_the_other_free_slots():
    """Tune asks a search algorithm for the next trial only after a trial has started."""
    run = RunMonitor(plan_of(3), None, 3, None)
    one = trial("a")
    run.step([one], 0)
    run.step([one], 10)
    begin(run, one, 10)
    run.step([one], 10)

    idle = run.record(12).resources[0].idle

    assert [(part.reason, round(part.hours * 3600)) for part in idle] == [(STARTING, 30), (SEARCH, 4)]


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

    assert (usage.num_rounds_planned, usage.num_rounds, usage.max_trials_at_once) == (3, 3, 1)
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
    run.note_use(one, ProcessUsage(elapsed_s=100, cpus=1, cpu_s=16, host_memory_bytes=2**30), None)

    (slot,) = run.record(3600).slots

    assert (slot.slot, slot.hours) == (str(with_workers), {"CPU": 2.0})
    assert slot.use_text.startswith(
        "workers used 0.16 of 1 CPU, 1 GiB of host memory per worker (trials with 2 workers"
    )


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


def test_the_advice_counts_the_gpu_time_of_a_retried_trial_for_the_fraction_of_its_retry():
    """The trial uses 80 % of the time of half a GPU, so the time of a GPU is enough for 5 such trials at once."""
    cluster = ClusterCapacity.of(gpu_node("a", gpus=1, cpus=16, gpu_memory_gib=64))
    run = RunMonitor(GpuPolicy(gpus=0.5, cpus=1).plan(cluster), None, 100, None)
    run.read_cluster(cluster, 0)
    waiting = [trial(f"t{number}") for number in range(9)]
    one = trial("a", gpus=0.25)
    run.step([one, *waiting], 0)
    begin(run, one, 0)
    run.fail(one, GPU_OOM, is_requeued=True)
    one.placement_group_factory.required_resources = {"GPU": 0.5}
    begin(run, one, 2)
    process = ProcessUsage(elapsed_s=98, cpus=1, cpu_s=10, host_memory_bytes=2**30, gpu_utilization=0.8)
    run.note_use(one, process, GpuMemoryUsage(gpus=0.5, device_bytes=64 * GIB, process_bytes=GIB))

    run.record(100)

    assert run.advice.at_once == 5


@pytest.mark.parametrize(("ends_all", "is_known"), [(True, True), (False, False)], ids=["to its end", "interrupted"])
def test_no_speed_is_estimated_from_a_run_that_was_interrupted(ends_all, is_known):
    cluster = nodes((8, 0))
    run = RunMonitor(CpuPolicy(cpus=4).plan(cluster), None, 8, None)
    run.read_cluster(cluster, 0)
    trials = [trial(f"t{number}", last_result={"trial_id": f"t{number}"}) for number in range(8)]
    for one in trials:
        one.placement_group_factory.required_resources = {"CPU": 4}
    run.step(trials, 0)
    for number, one in enumerate(trials):
        if number == 0 or ends_all:
            begin(run, one, 100 * number)
            run.note_use(one, ProcessUsage(elapsed_s=100, cpus=4, cpu_s=6, host_memory_bytes=2**30), None)
            finish(run, one)
            run.step(trials, 100 * number + 100)
        one.status = "TERMINATED"
    run.end(trials, 800)

    run.record(800, is_final=True)

    assert isinstance(run.advice, Advice)
    assert (run.advice.speedup is not None) == is_known


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


def used(elapsed_s, cpu_s, gib):
    return ProcessUsage(elapsed_s=elapsed_s, cpus=4, cpu_s=cpu_s, host_memory_bytes=gib * GIB)


def test_the_use_of_a_slot_in_a_restored_run_includes_the_part_before_the_restore():
    run = RunMonitor(plan_of(), None, 2, None)
    early, late = trial("early"), trial("late")
    begin(run, early, 0)
    run.note_use(early, used(300, 300, 2), None)
    finish(run, early)
    run.step([early, late], 300)
    saved = ResourceUsage.from_json(run.record(300).to_json())
    restored = RunMonitor(plan_of(), None, 2, saved)
    begin(restored, late, 0)
    before = restored.record(1)
    restored.note_use(late, used(100, 300, 1), None)

    (slot,) = restored.record(100).slots

    assert [each.use for each in before.slots] == [each.use for each in saved.slots]
    assert slot.use_text == "trials with 1 GPU used 1.5 of 4 CPUs, 2 GiB of host memory per trial"
    assert slot.use.num_trials == 2


def test_an_interrupted_and_continued_trial_counts_once_in_the_rounds():
    first = RunMonitor(plan_of(2), None, 4, None)
    trials = [trial(name) for name in "abcd"]
    for one in trials[:3]:
        begin(first, one, 0)
    finish(first, trials[0])
    trials[1].status = trials[2].status = "TERMINATED"
    first.end(trials, 10)
    interrupted = first.record(10, is_final=True)
    # Tune saved its state before it ended the running trials.
    saved = interrupted.model_copy(update={"trials": TrialCounts(num_finished=1, num_unfinished=3)})
    second = RunMonitor(plan_of(2), None, 4, saved)
    for one in trials[1:]:
        one.status = "PENDING"
        begin(second, one, 0)
        finish(second, one)
    second.end(trials, 10)

    assert [(usage.num_rounds_planned, usage.num_rounds) for usage in (interrupted, second.record(10))] == [(2, 2)] * 2


def test_a_run_that_is_restored_under_a_plan_with_equal_slots_has_the_same_plan():
    """The reasons of the plan may differ, for instance in what other programs use."""
    before = RunMonitor(plan_of(), None, 2, None).record(10)

    same = RunMonitor(plan_of().with_reasons("a program uses 1 CPU"), None, 2, before).record(0)
    other = RunMonitor(plan_of(3), None, 2, before).record(0)

    assert [any("the plan changed" in line for line in usage.summary) for usage in (same, other)] == [False, True]


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
