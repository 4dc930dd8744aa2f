"""Tests of what a run tells its ``LearningPolicy`` about its trials, and of the plans that follow."""

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)

from tests.clusters import GIB, gpu_node
from tests.unit.runner.learning_runs import (
    NODE,
    START,
    add_finished,
    end_pilots,
    policy_of,
    report,
    report_all,
    result_of,
    run_of_pilots,
)
from tests.unit.runner.small_runs import SmallRun, reading
from tune_policies import (
    CappedPolicy,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuPolicy,
    GrowingPolicy,
    LearningPolicy,
    Resources,
)
from tune_policies.oom import OutOfMemory
from tune_policies.plan.trial_observation import TrialNeed
from tune_policies.ray_compat.tune_request import bundles_of, with_bundles
from tune_policies.trainers.scheduling.run_learning import too_little_for


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on one node."""
    return lambda policy: SmallRun(monkeypatch, policy, NODE)


def test_after_the_pilots_have_reported_twice_smaller_slots_are_planned_and_a_few_more_trials_start(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    pilots = run.run_all()
    end_pilots(run)

    later = run.run_all()

    assert len(pilots) == 4
    assert run.slots.run_plan.plan.max_concurrent_trials == 28
    assert len(later) == 6


def test_running_trials_keep_their_slots_when_the_policy_learns(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    pilots = run.run_all()
    before = {trial: run.slots.assignments[trial].slot for trial in pilots}
    for trial in pilots:
        report(run, trial)

    run.run_all()

    assert {trial: run.slots.assignments[trial].slot for trial in pilots} == before


def test_one_result_of_each_pilot_teaches_nothing(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    for trial in run.run_all():
        report(run, trial, number=1)

    run.step()

    assert policy_of(run).needs is None


def test_the_finished_trials_of_a_restored_run_are_observed_again(run_of):
    run = run_of(LearningPolicy(START))
    run.add(1)
    add_finished(run, 4)

    run.step()

    assert policy_of(run).needs.num_trials == 4


def test_a_restored_run_starts_at_least_as_many_trials_as_the_start_policy(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    add_finished(run, 4)

    assert len(run.run_all()) == 4
    assert policy_of(run).needs is not None


def test_a_trial_that_ran_out_of_memory_teaches_that_its_memory_was_too_little(run_of):
    run = run_of(LearningPolicy(START))
    run.add(8)
    failing = run.run_all()[0]
    killed = OutOfMemory(kind="host", framework="python", used_bytes=4 * GIB)

    run.core.records[failing].failure = killed
    run.fail(failing, MemoryError(), cause=None)
    run.step()

    (seen,) = [seen for seen in policy_of(run).observations if seen.trial_id == failing.trial_id]
    assert seen.too_little.host_memory_bytes == 4 * GIB


def test_a_policy_that_wraps_the_learning_policy_still_applies(run_of):
    run = run_of(CappedPolicy(LearningPolicy(START), 3))
    run.add(20)
    for trial in run.run_all():
        report(run, trial)

    run.run_all()

    assert policy_of(run).needs is not None
    assert len(run.slots.assignments) == 3


def test_data_of_the_user_under_the_key_of_the_usage_is_ignored(run_of):
    run = run_of(LearningPolicy(START))
    run.add(4)
    (trial, *_) = run.run_all()

    run.scheduler.on_trial_result(run.controller, trial, {"usage": "high", "training_iteration": 2})
    run.step()

    assert policy_of(run).observations == ()


@pytest.mark.parametrize("policy", [LearningPolicy(START), GrowingPolicy(START, up_to=4)], ids=["learns", "grows"])
def test_a_policy_leaves_the_resources_to_a_resource_changing_scheduler(monkeypatch, caplog, policy):
    run = SmallRun(monkeypatch, policy, NODE, inner=ResourceChangingScheduler(None, lambda *_: None))
    run.add(4)
    for trial in run.run_all():
        report(run, trial)
    run.step()

    assert run.core.learning is run.core.growth is None
    assert run.slots.run_plan.plan.by_config is None
    assert "so the policy neither learns nor lets trials grow" in caplog.text


def test_a_run_without_a_learning_policy_observes_nothing(run_of):
    run = run_of(START)
    run.add(1)

    assert run.core.learning is None


def next_decision(run, trial):
    run.cluster.clock.advance(10)
    return run.scheduler.on_trial_result(run.controller, trial, result_of(training_iteration=4, cpus=0.2))


def test_a_pilot_that_reserves_far_more_than_it_needs_moves_to_a_smaller_slot(run_of):
    run = run_of(LearningPolicy(START))
    pilot = run_of_pilots(run)
    before = run.slots.assignments[pilot].slot

    decision = next_decision(run, pilot)
    run.pause(pilot)
    run.run_all()

    assert decision == "PAUSE"
    assert run.slots.assignments[pilot].slot.trial.cpus < before.trial.cpus


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"has_checkpoint": False}, id="without a checkpoint"),
        pytest.param({"number": 4}, id="if no trial waits"),
    ],
)
def test_a_pilot_keeps_its_slot(run_of, options):
    run = run_of(LearningPolicy(START))
    pilot = run_of_pilots(run, **options)

    assert next_decision(run, pilot) == "CONTINUE"


def test_a_retry_gets_the_memory_that_the_policy_has_learned(run_of):
    run = run_of(LearningPolicy(START))
    run.add(20)
    failing, *pilots = run.run_all()
    for number, trial in enumerate(pilots):
        report(run, trial, memory_bytes=(number + 3) * GIB)
    run.step()
    killed = OutOfMemory(kind="host", framework="python", used_bytes=4 * GIB)

    run.core.records[failing].failure = killed
    run.fail(failing, MemoryError(), cause=None)

    (raised,) = run.core.records[failing].oom.records
    needed = policy_of(run).needs.need_after({}, TrialNeed(host_memory_bytes=4 * GIB)).host_memory_bytes
    assert raised.floor.memory_bytes == pytest.approx(needed, rel=0.01)


@pytest.mark.parametrize(
    ("step_s", "at_once"),
    [
        pytest.param(10, 28, id="more trials at once are as fast as before"),
        pytest.param(27, 11, id="they are as fast together as before"),
        pytest.param(100, 4, id="they are slower together"),
    ],
)
def test_the_number_of_trials_follows_their_progress(run_of, step_s, at_once):
    run = run_of(LearningPolicy(START))
    run.add(60)
    pilots = run.run_all()
    report_all(run, (1, 2), step_s=10)
    for trial in pilots[:2]:
        run.complete(trial)
    learned = run.run_all()
    report_all(run, (3, 4, 5), step_s=step_s)

    for trial in list(run.slots.assignments)[:12]:
        run.complete(trial)
    run.run_all()

    assert len(learned) == 9
    assert len(run.slots.assignments) == at_once


def test_trials_with_several_bundles_keep_their_requests_and_the_log_says_that_nothing_is_learned(run_of, caplog):
    run = run_of(LearningPolicy(START))
    run.add(4, bundles=({"CPU": 1}, {"CPU": 2}))
    for trial in run.run_all():
        report(run, trial)
    run.step()

    assert policy_of(run).observations == ()
    assert {len(trial.placement_group_factory.bundles) for trial in run.trials} == {2}
    assert caplog.text.count("the policy does not learn from such trials") == 1


def test_trials_with_train_workers_keep_the_requests_of_the_start_policy_and_the_plan_says_so(run_of):
    run = run_of(LearningPolicy(CpuPolicy(cpus=1, num_workers=2)))
    run.add(4)
    for trial in run.run_all():
        report(run, trial)
    run.step()

    assert policy_of(run).observations == ()
    assert any("Train workers" in reason for reason in run.slots.run_plan.plan.reasons)


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(
            lambda: PopulationBasedTraining(
                "training_iteration", "loss", "min", 100, hyperparam_mutations={"lr": [0.1, 0.2]}
            ),
            id="PBT",
        ),
        pytest.param(lambda: ASHAScheduler("training_iteration", "loss", "min", max_t=100), id="ASHA"),
        pytest.param(lambda: HyperBandScheduler("training_iteration", "loss", "min", max_t=9), id="HyperBand"),
    ],
)
def test_a_run_learns_under_a_scheduler_that_stops_pauses_or_copies_trials(monkeypatch, inner):
    run = SmallRun(monkeypatch, LearningPolicy(START), NODE, inner=inner())
    run.add(20, config={"lr": 0.1})
    run.run_all()
    end_pilots(run, loss=1.0)

    assert len(run.run_all()) > 4


def test_a_paused_trial_resumes_in_the_slot_that_was_learned_meanwhile(monkeypatch):
    run = SmallRun(monkeypatch, LearningPolicy(START), NODE)
    run.add(8)
    paused, *others = run.run_all()
    report_all(run, (1, 2), step_s=10)
    run.pause(paused)
    for trial in others:
        run.complete(trial)

    run.run_all()

    assert run.slots.assignments[paused].slot.trial.cpus == 0.2


def follow(run, *nodes):
    """Let the run notice that the cluster has these nodes now."""
    run.cluster.nodes = nodes
    for _ in range(4):
        run.cluster.clock.advance(10)
        run.watch.next_reading = reading(nodes)
        run.step()


def test_what_is_learned_also_applies_to_a_node_that_joins(run_of):
    run = run_of(LearningPolicy(START))
    run.add(60)
    run.run_all()
    end_pilots(run)
    run.run_all()
    before = run.slots.run_plan.plan.max_concurrent_trials

    follow(run, NODE, NODE.model_copy(update={"node_id": "b"}))

    assert run.slots.run_plan.plan.max_concurrent_trials == 2 * before
    assert policy_of(run).needs is not None


def test_what_was_learned_stays_if_a_node_is_lost(monkeypatch):
    nodes = NODE, NODE.model_copy(update={"node_id": "b"})
    run = SmallRun(monkeypatch, LearningPolicy(START), *nodes)
    run.add(60)
    for trial in run.run_all():
        report(run, trial)
        run.complete(trial)
    run.run_all()
    before = run.slots.run_plan.plan.max_concurrent_trials

    follow(run, *nodes[:1])

    assert run.slots.run_plan.plan.max_concurrent_trials == before / 2
    assert policy_of(run).needs is not None


def test_a_policy_learns_beside_other_programs_on_the_free_resources(monkeypatch):
    node = NODE.model_copy(update={"in_use": Resources(cpus=4)})
    run = SmallRun(monkeypatch, FreeCapacityPolicy(LearningPolicy(START)), node)
    run.add(20)
    pilots = run.run_all()
    for trial in pilots:
        report(run, trial)
    run.step()

    assert len(pilots) == 2
    assert run.slots.run_plan.plan.max_concurrent_trials == 10  # 0.4 CPUs each of the free 4 CPUs


def observed(run, trial):
    """Return what the policy has observed about a trial."""
    run.step()
    return next(seen for seen in policy_of(run).observations if seen.trial_id == trial.trial_id)


def test_the_second_result_counts_although_it_has_no_usage(run_of):
    run = run_of(LearningPolicy(START))
    run.add(8)
    for trial in run.run_all():
        report(run, trial, number=1)
        run.scheduler.on_trial_result(run.controller, trial, {"training_iteration": 2, "time_total_s": 20.0})
    run.step()

    assert policy_of(run).needs is not None


def test_only_a_result_with_something_new_is_observed(run_of):
    run = run_of(LearningPolicy(START))
    run.add(8)
    (trial, *_) = run.run_all()
    report(run, trial, number=2)
    before = observed(run, trial)
    run.scheduler.on_trial_result(run.controller, trial, {"training_iteration": 3, "time_total_s": 90.0})

    assert observed(run, trial) == before


@pytest.mark.parametrize(
    ("has_checkpoint", "lost_s"), [(True, 40.0), (False, 120.0)], ids=["one step", "all steps without a checkpoint"]
)
def test_each_out_of_memory_error_loses_what_the_trial_must_repeat(run_of, has_checkpoint, lost_s):
    run = run_of(LearningPolicy(START))
    run.add(8)
    (failing, *_) = run.run_all()
    failing.has_checkpoint = lambda: has_checkpoint
    record = run.core.records[failing]
    record.failure = OutOfMemory(kind="host", framework="python", used_bytes=5 * GIB)
    failing.run_metadata.last_result = result_of(time_since_restore=60, iterations_since_restore=3)
    for _ in range(2):
        run.core.learning.note_too_little(record)

    seen = observed(run, failing)

    assert seen.lost_s == lost_s
    assert seen.too_little == TrialNeed(host_memory_bytes=5 * GIB)


def test_an_error_of_a_process_without_measured_memory_shows_that_the_request_was_too_little(run_of):
    run = run_of(LearningPolicy(START))
    run.add(8)
    (failing, *_) = run.run_all()
    record = run.core.records[failing]
    record.failure = OutOfMemory(kind="host", framework="python")
    failing.run_metadata.last_result = result_of()
    run.core.learning.note_too_little(record)

    assert observed(run, failing).too_little == TrialNeed(host_memory_bytes=4 * GIB)


def test_a_smaller_slot_releases_the_difference(run_of):
    run = run_of(LearningPolicy(START))
    pilot = run_of_pilots(run)
    planned = run.slots.run_plan.plan.common_slot

    released = run.core.learning.released_part(run.core.records[pilot])

    assert released == pytest.approx(1 - planned.trial.cpus / 2)


@pytest.mark.parametrize("status", [Trial.ERROR, Trial.TERMINATED])
def test_only_trials_that_have_completed_teach_a_restored_run(run_of, status):
    run = run_of(LearningPolicy(START))
    run.add(1)
    add_finished(run, 1, status)

    run.step()

    assert len(policy_of(run).observations) == (status == Trial.TERMINATED)


GPU_NODE = gpu_node("g", gpus=1, cpus=8, gpu_memory_gib=80, memory_gib=64)


@pytest.mark.parametrize(("gpus", "gib"), [(0.25, 20), (0.5, 40)], ids=["the slot", "a fraction that was raised"])
def test_a_trial_ran_out_of_the_gpu_memory_of_its_request(monkeypatch, gpus, gib):
    run = SmallRun(monkeypatch, LearningPolicy(GpuPolicy(gpus=0.25)), GPU_NODE)
    run.add(4)
    record = run.core.records[run.run_all()[0]]
    record.failure = OutOfMemory(kind="accelerator", framework="torch")
    record.changed = with_bundles(record.planned, [{**bundles_of(record.planned)[0], "GPU": gpus}])

    assert too_little_for(record) == TrialNeed(gpu_memory_bytes=gib * GIB)


@pytest.mark.parametrize(
    ("fields", "gib"),
    [
        pytest.param({"used_bytes": 3 * GIB, "requested_bytes": 2 * GIB}, 5, id="what it used and requested"),
        pytest.param({"used_bytes": GIB}, 4, id="at least its request"),
        pytest.param({"requested_bytes": 6 * GIB}, 6, id="what it requested at once"),
    ],
)
def test_a_trial_ran_out_of_the_host_memory_that_it_reserved_or_used(run_of, fields, gib):
    run = run_of(LearningPolicy(START))
    run.add(4)
    record = run.core.records[run.run_all()[0]]
    assert too_little_for(record) == TrialNeed()

    record.failure = OutOfMemory(kind="host", framework="python", **fields)

    assert too_little_for(record) == TrialNeed(host_memory_bytes=gib * GIB)


def test_a_failure_for_another_reason_is_not_observed(run_of):
    run = run_of(LearningPolicy(START))
    run.add(4)
    (trial, *_) = run.run_all()
    run.core.learning.note_too_little(run.core.records[trial])
    run.step()

    assert policy_of(run).observations == ()


def test_before_the_policy_has_learned_a_retry_has_no_learned_memory_and_no_slot_is_smaller(run_of):
    run = run_of(LearningPolicy(START))
    run.add(4)
    (trial, *_) = run.run_all()
    report(run, trial)
    record = run.core.records[trial]
    record.failure = OutOfMemory(kind="host", framework="python", used_bytes=5 * GIB)

    assert run.core.learning.retry_growth(record) is None
    assert run.core.learning.released_part(record) == 0.0


@pytest.mark.parametrize(("cpus", "released"), [(1.0, 0.5), (1.5, 0.0)])
def test_a_smaller_slot_must_release_at_least_half(run_of, cpus, released):
    run = run_of(LearningPolicy(START))
    run.add(20)
    pilots = run.run_all()
    report_all(run, (1, 2), step_s=10, cpus=cpus)

    assert run.core.learning.released_part(run.core.records[pilots[0]]) == released


def test_a_trial_that_used_more_than_a_smaller_slot_has_keeps_its_slot(run_of):
    run = run_of(LearningPolicy(START))
    pilot = run_of_pilots(run)
    record = run.core.records[pilot]
    run.core.learning.note_result(record, result_of(training_iteration=4, memory_bytes=3 * GIB))

    assert run.core.learning.released_part(record) == 0.0


def test_a_trial_that_ran_out_of_memory_keeps_its_slot(run_of):
    run = run_of(LearningPolicy(START))
    pilot = run_of_pilots(run)
    record = run.core.records[pilot]
    record.failure = OutOfMemory(kind="host", framework="python")
    run.core.learning.note_too_little(record)

    assert run.core.learning.released_part(record) == 0.0


def test_the_results_of_a_restored_trial_before_this_run_count(run_of):
    run = run_of(LearningPolicy(START))
    run.add(8, config={"n": 3})
    for trial in run.run_all():
        result = result_of(training_iteration=5, elapsed_s=50.0)
        run.scheduler.on_trial_result(run.controller, trial, result)
    run.step()

    assert policy_of(run).needs is not None
    seen = policy_of(run).observations[0]
    assert (seen.num_steps, seen.elapsed_s, seen.config, seen.uses_gpu) == (5, 50.0, {"n": 3}, False)
    assert seen.reserved == TrialNeed(cpus=2, host_memory_bytes=4 * GIB)
