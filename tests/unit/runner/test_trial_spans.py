"""A run records when each trial ran in which slot, and what happened to it."""

import pytest

from tests.clusters import GIB
from tests.unit.runner.metered_runs import GPU_OOM, NO_OOM, begin, finish, plan_of, trial
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.process_usage import SlotUse
from tune_policies.trainers.usage.reservation_meter import STARTING
from tune_policies.trainers.usage.resource_usage import (
    IdleHours,
    OutOfMemoryCounts,
    RaisedMemory,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
)
from tune_policies.trainers.usage.run_monitor import RunMonitor


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
    """If a run ends early, Tune also terminates the trials that wait. A restored run does not start them."""
    run = RunMonitor(plan_of(), None, 3, None)
    running, *_ = trials = [trial(name, last_result={"trial_id": name}) for name in "abc"]
    begin(run, running, 0)
    run.step(trials, 1)
    for each in trials:
        each.status = "TERMINATED"
    run.end(trials, 2)

    assert run.record(2).trials.model_dump(exclude_defaults=True) == {"num_cut_off": 1, "num_never_started": 2}

    restored = RunMonitor(plan_of(), None, 3, run.record(2))
    restored.end(trials, 1)

    assert restored.record(1).trials == run.record(2).trials


def test_after_retries_with_more_host_memory_the_summary_names_the_amount_to_start_with():
    use = SlotUse(num_trials=4, cpus=1, used_cpus=0.12, host_memory_bytes=2**30)
    usage = ResourceUsage(
        slots=(SlotHours(slot="1 CPU", use=use),),
        trials=TrialCounts(num_finished=4, num_retries=2),
        out_of_memory=OutOfMemoryCounts(num_host_errors=2, num_raised=2),
        raised=RaisedMemory(memory_bytes=2**31, host_memory_bytes=2**30),
    )

    assert usage.advice[-1] == (
        'start with memory="1.1GiB" in the policy: 2 of 4 trials were retried because of host memory'
    )
    assert str(use).startswith("0.12 of 1 CPU, ")


def test_the_use_of_a_trial_with_workers_is_that_of_a_worker():
    use = SlotUse(num_trials=1, cpus=1, used_cpus=0.16, host_memory_bytes=2**30)

    alone = SlotHours(slot="4 CPUs", use=use)
    workers = SlotHours(slot="2 workers, each with 1 CPU; …", use=use.model_copy(update={"num_workers": 2}))

    assert alone.use_text == "trials with 4 CPUs used 0.16 of 1 CPU, 1 GiB of host memory per trial"
    assert workers.use_text == (
        "workers used 0.16 of 1 CPU, 1 GiB of host memory per worker (trials with 2 workers, each with 1 CPU; …)"
    )


def retry(run, one, gpus):
    run.fail(one, GPU_OOM, is_requeued=True)
    one.status = "PENDING"
    one.placement_group_factory.required_resources["GPU"] = gpus
    begin(run, one, 1)


def test_the_summary_counts_each_retried_trial_once_even_after_a_restore():
    run = RunMonitor(plan_of(1), None, 3, None)
    _, once, twice = trials = [trial(name, gpus=0.25) for name in "abc"]
    for one in trials:
        begin(run, one, 0)
    retry(run, once, 0.5)
    retry(run, twice, 0.5)
    restored = RunMonitor(plan_of(1), None, 3, ResourceUsage.from_json(run.record(2).to_json()))
    retry(restored, twice, 1)
    for one in trials:
        finish(restored, one)
    restored.step(trials, 9)
    restored.end(trials, 9)

    record = restored.record(9)

    assert "out of memory: 3 failures because of GPU memory; 2 trials retried with more memory" in record.summary
    assert record.advice_after_retries[-1] == "start with GpuPolicy(): 2 of 3 trials were retried because of GPU memory"


def test_a_record_of_an_earlier_version_does_not_contain_which_trials_were_retried():
    usage = ResourceUsage(
        trials=TrialCounts(num_finished=3, num_retries=3),
        out_of_memory=OutOfMemoryCounts(num_gpu_errors=3, num_raised=3),
    )

    assert "out of memory: 3 failures because of GPU memory; retried 3 times with more memory" in usage.summary


def test_the_next_trial_takes_at_least_as_long_to_start_as_it_already_has():
    run = RunMonitor(plan_of(1), None, 3, None)
    trials = one, two, _ = [trial(name) for name in "abc"]
    begin(run, one, 0)
    finish(run, one)
    run.step(trials, 10)
    begin(run, two, 14)
    finish(run, two)
    run.step(trials, 20)

    assert [run.slot_times(now_s).start_s for now_s in (22, 50)] == [4, 30]


def test_the_times_of_a_retried_trial_include_its_failed_attempt():
    run = RunMonitor(plan_of(1), None, 2, None)
    one, two = trials = [trial(name) for name in "ab"]
    begin(run, one, 0)
    run.note_result(one, {})
    run.fail(one, GPU_OOM, is_requeued=True)
    one.status = "PENDING"
    run.step(trials, 10)
    begin(run, one, 14)
    run.step(trials, 14)

    retried = run.slot_times(20)
    finish(run, one)
    run.step(trials, 30)
    begin(run, two, 36)
    run.note_result(two, {})

    later = run.slot_times(40)
    assert (retried.current_s, retried.reported, retried.start_s) == ({"a": 6}, set(), 4)
    assert (later.total_s["a"], later.current_s, later.reported, later.start_s) == (26, {"b": 4}, {"b"}, 5)


@pytest.mark.parametrize(
    ("memory", "advice"),
    [
        pytest.param(
            GpuMemoryUsage(gpus=0.5, share_bytes=8 * GIB, peak_reserved_bytes=int(4.7 * GIB)),
            [
                'start with GpuMemoryPolicy(gpu_memory="6.2GiB"), with which 2 trials fit on a GPU of 16 GiB: 1 of 2 '
                "trials was retried because of GPU memory"
            ],
            id="the memory that it used",
        ),
        pytest.param(
            GpuMemoryUsage(gpus=0.5),
            [
                "start with GpuPolicy(gpus=0.5), with which 2 trials fit on a GPU: 1 of 2 trials was retried because "
                "of GPU memory"
            ],
            id="the fraction, on simulated GPUs",
        ),
    ],
)
def test_after_a_retry_with_a_larger_fraction_the_summary_ends_with_what_the_trial_needed(memory, advice):
    run = RunMonitor(plan_of(1), None, 2, None)
    small, large = trials = [trial(name, gpus=0.25) for name in "ab"]
    for each in trials:
        begin(run, each, 0)
    run.fail(large, GPU_OOM, is_requeued=True)
    large.placement_group_factory.required_resources["GPU"] = 0.5
    begin(run, large, 1)
    run.note_use(small, None, GpuMemoryUsage(gpus=0.25, share_bytes=4 * GIB, peak_reserved_bytes=GIB))
    run.note_use(large, None, memory)
    run.step(trials, 2)

    assert list(run.record(2).advice) == advice


def test_the_summary_of_a_restored_run_keeps_what_retried_trials_needed():
    before = ResourceUsage(raised=RaisedMemory(gpus=0.5))

    assert RunMonitor(plan_of(1), None, 1, before).record(0).raised == before.raised


def test_host_memory_that_was_not_measured_is_advised_as_it_was_reserved():
    usage = ResourceUsage(raised=RaisedMemory(memory_bytes=2 * GIB))

    assert 'start with memory="2GiB" in the policy' in usage.advice[-1]


@pytest.mark.parametrize(
    ("num_starts", "rounds", "reuses", "remedy"),
    [
        pytest.param(
            4,
            2,
            False,
            "If the run does not reuse processes yet, pass reuse_actors=True to run or TuneConfig. Otherwise, let each "
            "trial run longer",
            id="later trials started processes",
        ),
        pytest.param(4, 2, True, "Let each trial run longer", id="the run reuses processes"),
        pytest.param(2, 2, False, "Let each trial run longer", id="each slot had one trial"),
        pytest.param(4, 1, False, "Let each trial run longer", id="trials ended before others of the round began"),
    ],
)
def test_if_trials_mostly_start_the_advice_names_what_helps(num_starts, rounds, reuses, remedy):
    idle = IdleHours(reason=STARTING, hours=6)
    usage = ResourceUsage(
        resources=(ResourceHours(resource="CPU", total_hours=10, used_hours=4, idle=(idle,)),),
        slots=(SlotHours(slot="1 CPU", num_starts=num_starts),),
        max_trials_at_once=2,
        num_rounds_planned=rounds,
        reuses_processes=reuses,
        trials=TrialCounts(num_finished=3),
    )

    assert usage.advice == (f"60% of the CPU time was idle while trials started. {remedy}",)
    if_all_failed = usage.model_copy(update={"trials": TrialCounts(num_failed=3)})
    assert if_all_failed.advice == ()
