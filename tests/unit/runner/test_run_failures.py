"""Tests of what a run does after each kind of failure, and of the memory that similar trials then get."""

import pickle

import pytest
from ray import tune
from ray.exceptions import RayActorError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler

from tests.clusters import GIB, gpu_node
from tests.unit.runner.small_runs import UNUSABLE, QuietTrial, SmallRun, new_trial, reading
from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy
from tune_policies.oom import OutOfMemory
from tune_policies.ray_compat.tune_trial import to_be_replaced
from tune_policies.trainers.retries import oom_failure
from tune_policies.trainers.scheduling import run_events, run_failures
from tune_policies.trainers.scheduling.run_failures import FailureCause
from tune_policies.values.errors import ProbeError, UnenforcedLimitError

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
MIXED = MixedPolicy(HALVES, CPUS)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
OUT_OF_MEMORY = RuntimeError("CUDA error: out of memory")
UNENFORCED = RayTaskError("train", "…", UnenforcedLimitError("torch detects no GPU"))
ERROR = ValueError("a mistake")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


@pytest.fixture
def without_policy(monkeypatch):
    """A run with memory retries, but without a policy."""
    return SmallRun(monkeypatch, None, NODE, retries={})


def two_nodes():
    return gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2), gpu_node("c", gpus=0, cpus=2)


# Failures


class Recording(FIFOScheduler):
    """A scheduler that records the failures that Tune reports to it."""

    def __init__(self):
        super().__init__()
        self.failed = []

    def on_trial_error(self, tune_controller, trial):
        self.failed.append(trial)


def wrapped_by_ray(error):
    """Return an error as Ray passes it on from a process."""
    return pickle.loads(pickle.dumps(RayTaskError("train", "Traceback", error)))


@pytest.mark.parametrize("number_before", [0, 2])
def test_a_trial_whose_reused_process_is_replaced_is_requeued_without_counting_a_failure(run_of, number_before, caplog):
    inner = Recording()
    run = run_of(HALVES, inner=inner)
    trial = new_trial(0, max_failures=0)
    trial.run_metadata.num_failures = number_before
    run.add_trial(trial)
    run.run_all()
    error = wrapped_by_ray(to_be_replaced("it still uses 2 GiB of GPU memory"))

    assert run.fail(trial, error) == "requeued"
    assert trial.run_metadata.num_failures == number_before
    assert not run.controller._has_errored
    assert inner.failed == []
    assert run.core.records[trial].failure is None
    assert "is requeued, because process" in caplog.text
    assert run.step() is trial


def test_another_preempted_process_is_not_mistaken_for_a_replaced_process(run_of):
    inner = Recording()
    run = run_of(HALVES, inner=inner)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    run.fail(trial, wrapped_by_ray(RayActorError(preempted=True)))

    assert inner.failed == [trial]


def test_an_error_of_the_trial_is_left_to_tune(run_of):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=1)
    run.run_all()

    assert run.fail(trial, ERROR) == "requeued"
    assert trial.run_metadata.num_failures == 1
    assert list(run.core.waiting) == [trial]


def test_a_failure_beyond_the_maximum_fails_the_trial(run_of):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, ERROR) == "failed"
    assert not run.core.waiting
    assert not run.slots.assignments


def test_a_trial_of_a_lost_node_is_requeued_without_counting_the_failure(run_of, caplog):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    ended = run.fail(trial, RayActorError(), FailureCause(lost_node_id="0123456789"))

    assert ended == "requeued"
    assert trial.run_metadata.num_failures == 0
    assert not run.controller._has_errored
    assert run.controller.saves == [False]
    assert caplog.messages[-1] == (
        "train_00000000 was lost with node 01234567 and is requeued. This does not count as a failure"
    )


def test_a_trial_that_failed_before_the_run_was_resumed_is_requeued_without_counting_the_failure(run_of):
    """With ``resume_errored``, Tune keeps the count of failures of the trials that it resumes."""
    run = run_of(HALVES)
    trial = new_trial(0, max_failures=0)
    trial.run_metadata.num_failures = 1
    run.add_trial(trial)
    run.run_all()

    assert run.fail(trial, RayActorError(), FailureCause(lost_node_id="a")) == "requeued"
    assert trial.run_metadata.num_failures == 1
    assert not run.core.records[trial].is_hidden
    assert run.step() is trial


def test_a_failure_counts_again_after_a_failure_that_did_not_count(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    run.fail(trial, RayActorError(), FailureCause(lost_node_id="a"))
    run.run_all()

    assert run.fail(trial, ERROR) == "failed"
    assert trial.run_metadata.num_failures == 1


def test_the_experiment_that_is_saved_while_a_trial_is_requeued_has_the_count_of_tune(run_of, monkeypatch):
    run = run_of(HALVES)
    trial = new_trial(0, max_failures=0)
    trial.run_metadata.num_failures = 1
    run.add_trial(trial)
    run.run_all()
    saved = []
    monkeypatch.setattr(run.controller, "checkpoint", lambda **_: saved.append(trial.get_json_state()))

    run.fail(trial, RayActorError(), FailureCause(lost_node_id="a"))

    ((state, metadata),) = saved
    assert "should_recover" not in state
    assert '"num_failures": 1' in metadata


def test_a_node_that_lost_a_trial_is_avoided(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add(max_failures=0)
    run.run_all()
    lost = run.slots.assignments[trial].node_id

    run.fail(trial, RayActorError(), FailureCause(lost_node_id=lost))
    run.step()

    assert lost not in [placement.node_id for placement in run.slots.run_plan.placements]


def lose(run, trial, times):
    """Let the trial lose its node this many times. Return what Tune then did."""
    ends = []
    for number in range(times):
        ends.append(run.fail(trial, RayActorError(), FailureCause(lost_node_id=f"lost-{number}")))
        run.run_all()
    return ends


def test_a_trial_that_loses_its_node_three_times_in_a_row_fails(run_of, caplog):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert lose(run, trial, 3) == ["requeued", "requeued", "failed"]
    assert trial.run_metadata.num_failures == 1
    assert caplog.messages[-1] == (
        "train_00000000 was lost with its node 3 times in a row without progress, most recently with node lost-2. This "
        "counts as a failure"
    )


def test_a_third_loss_of_a_trial_is_retried_up_to_max_failures(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=1)
    run.run_all()

    assert lose(run, trial, 4) == ["requeued", "requeued", "requeued", "failed"]
    assert trial.run_metadata.num_failures == 2


def reach(run, trial, iteration):
    """Let the trial report this training iteration."""
    trial.run_metadata.last_result = {"training_iteration": iteration}
    run.core.note_result(trial, trial.run_metadata.last_result)


def save(trial, path, monkeypatch):
    """Let the trial save a checkpoint."""
    monkeypatch.setattr(QuietTrial, "checkpoint", tune.Checkpoint(path))


def test_progress_between_two_losses_shows_that_the_trial_is_not_the_cause(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    reach(run, trial, 1)
    lose(run, trial, 2)

    reach(run, trial, 2)

    assert lose(run, trial, 3) == ["requeued", "requeued", "failed"]


def test_a_checkpoint_between_two_losses_is_progress_even_in_the_same_iteration(run_of, monkeypatch):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    reach(run, trial, 1)
    lose(run, trial, 2)

    save(trial, "/checkpoint_000000", monkeypatch)

    assert lose(run, trial, 3) == ["requeued", "requeued", "failed"]


def test_a_trial_without_a_checkpoint_that_always_reports_before_it_is_lost_makes_no_progress(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    ends = []

    for iteration in (2, 1, 2):  # it starts again from the beginning each time
        reach(run, trial, iteration)
        ends += lose(run, trial, 1)

    assert ends == ["requeued", "requeued", "failed"]


def test_an_iteration_that_is_no_number_is_no_progress(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    reach(run, trial, "third")

    assert lose(run, trial, 3) == ["requeued", "requeued", "failed"]


def test_the_losses_of_other_trials_do_not_count(run_of):
    run = run_of(HALVES)
    first, second = run.add(2, max_failures=0)
    run.run_all()

    assert lose(run, first, 2) == ["requeued"] * 2
    assert lose(run, second, 2) == ["requeued"] * 2


def test_a_trial_of_a_lost_node_starts_again_on_another_node(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add(max_failures=0)
    run.run_all()
    lost = run.slots.assignments[trial].node_id
    run.fail(trial, RayActorError(), FailureCause(lost_node_id=lost))

    restarted = run.step()

    assert restarted is trial
    assert run.slots.assignments[trial].node_id != lost


def test_a_request_on_a_node_that_stays_is_kept_when_another_node_leaves(run_of):
    run = run_of(MIXED, *two_nodes())
    run.add(3)
    requested = {trial: run.slots.assignments[trial].node_id for trial in run.request_all()}
    stays, leaves, *_ = sorted(set(requested.values()))
    kept = [trial for trial, node_id in requested.items() if node_id == stays]

    run.cluster.nodes = tuple(node for node in run.cluster.nodes if node.node_id != leaves)
    run.watch.next_reading = reading(run.cluster.nodes)
    run.watch.latest = run.watch.next_reading
    run.step()
    run.step()

    assert {trial: run.slots.assignments[trial].node_id for trial in kept} == dict.fromkeys(kept, stays)


def test_a_lost_node_counts_as_a_failure_without_a_policy(without_policy):
    (trial,) = without_policy.add(max_failures=0)
    without_policy.run_all()

    assert without_policy.fail(trial, RayActorError(), FailureCause(lost_node_id="a")) == "failed"


def test_a_trial_that_cannot_use_its_device_falls_back(run_of):
    run = run_of(HALVES | CPUS, falls_back=True)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, UNUSABLE) == "requeued"
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 2}
    assert '"has_fallen_back":true' in trial.policy_record


def test_a_run_whose_first_trials_cannot_enforce_their_limit_ends_once_and_starts_no_further_trial(run_of):
    run = run_of(HALVES)
    first, second, *_ = run.add(6, max_failures=3)
    run.run_all()

    assert run.fail(first, UNENFORCED) == "failed"
    assert run.step() is None  # the second trial may still succeed
    assert run.fail(second, UNENFORCED) == "failed"
    with pytest.raises(UnenforcedLimitError, match=r"torch detects no GPU\. 4 waiting trials did not start"):
        run.step()


def test_a_run_continues_if_other_trials_can_enforce_their_limit(run_of):
    """One of several nodes may have a broken driver."""
    run = run_of(HALVES)
    first, second, third, *_ = run.add(6, max_failures=0)
    run.run_all()
    run.fail(first, UNENFORCED)

    run.core.note_result(second, {"loss": 1})

    assert run.step() is third


def test_a_trial_that_ran_out_of_memory_is_retried_with_more(run_of, caplog):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert trial.run_metadata.num_failures == 0
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 1}
    assert "ran out of GPU memory and is retried with 1 GPU instead of 0.5 GPU" in caplog.text


def test_without_a_policy_a_trial_that_ran_out_of_memory_is_retried_with_more(without_policy):
    run = without_policy
    run.add(bundles=[{"CPU": 1, "GPU": 0.25}], max_failures=0)
    (trial,) = run.request_all()
    run.begin(trial)
    run.watch.latest = reading([NODE])

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}


def test_a_trial_that_cannot_get_more_memory_fails_with_the_reason(run_of, caplog, tmp_path):
    run = run_of(GpuPolicy(gpus=1, cpus=1), retries={})
    (trial,) = run.add(max_failures=3)
    run.run_all()
    trial.local_path = str(tmp_path)
    trial.run_metadata.error_filename = "error.txt"
    error = RuntimeError("CUDA error: out of memory")

    assert run.fail(trial, error) == "failed"
    assert trial.max_failures == 3
    assert "more than 1 GPU" in caplog.text
    assert "more than 1 GPU" in error.__notes__[0]
    assert "more than 1 GPU" in (tmp_path / "error.txt").read_text()


@pytest.mark.parametrize(
    ("is_restoring", "error"),
    [
        pytest.param(True, OUT_OF_MEMORY, id="from a checkpoint, with TUNE_RESTORE_RETRY_NUM"),
        pytest.param(False, RayActorError(preempted=True), id="on a preempted node"),
        pytest.param(False, RayTaskError("fit", "…", RayActorError(preempted=True)), id="with a preempted worker"),
    ],
)
def test_a_trial_that_cannot_get_more_memory_fails_even_if_tune_would_not_count_the_failure(
    run_of, monkeypatch, is_restoring, error
):
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", "1")
    run = run_of(GpuPolicy(gpus=1, cpus=1), retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()
    if is_restoring:
        trial.temporary_state.restoring_from = "a checkpoint"

    ended = run.fail(trial, error, FailureCause(out_of_memory=OutOfMemory(kind="accelerator")))

    assert ended == "failed"
    assert trial.should_recover()  # only during the report


def test_the_reason_is_added_to_the_error_inside_an_error_of_ray(run_of):
    run = run_of(GpuPolicy(gpus=1, cpus=1), retries={})
    (trial,) = run.add()
    run.run_all()
    cause = RuntimeError("CUDA error: out of memory")
    error = RayTaskError("train", "Traceback", cause)

    run.fail(trial, error)

    assert "more than 1 GPU" in cause.__notes__[0]


def test_an_error_in_a_decision_leaves_the_failure_to_tune(run_of, monkeypatch, caplog):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=1)
    run.run_all()

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(run.core.retries, "decide", fails)

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert trial.run_metadata.num_failures == 1
    assert "the decision whether to retry train_00000000 failed" in caplog.text


def test_a_failure_of_a_trial_that_was_stopped_meanwhile_is_ignored(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    trial.set_status(Trial.TERMINATED)

    assert run.fail(trial, ERROR) is None


@pytest.mark.parametrize(
    ("inner", "is_saving", "reaches_inner"),
    [
        pytest.param(None, False, False, id="an error in a step is hidden"),
        pytest.param(None, True, True, id="an error while a checkpoint is saved is not"),
        pytest.param(HyperBandScheduler(metric="loss", mode="min"), False, True, id="HyperBand sees all errors"),
    ],
)
def test_the_inner_scheduler_does_not_see_a_retry_unless_it_must(run_of, inner, is_saving, reaches_inner):
    run = run_of(HALVES, inner=inner)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    if is_saving:
        trial.temporary_state.saving_to = "a checkpoint"
    seen = []
    innermost = run.scheduler.inner
    innermost.on_trial_error = lambda _, failed: seen.append(failed)
    innermost.on_trial_add = lambda _, added: None

    run.fail(trial, RayActorError(), FailureCause(lost_node_id="a"))

    assert seen == [trial] * reaches_inner
    assert list(run.core.waiting) == [trial]


def test_a_retried_trial_waits_until_its_pause_has_ended(run_of):
    run = run_of(CpuPolicy(cpus=2, memory="4GiB"), retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()
    killed = OutOfMemory(kind="host", used_bytes=GIB, requested_bytes=GIB)

    assert run.fail(trial, MemoryError(), FailureCause(out_of_memory=killed)) == "requeued"
    assert run.step() is None
    run.cluster.clock.now_s = 9.9
    assert run.step() is None
    run.cluster.clock.now_s = 10.0
    assert run.step() is trial


def test_the_cause_of_a_failure_is_looked_up_only_for_dead_processes(run_of, monkeypatch):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    monkeypatch.setattr(run_failures, "lost_node", lambda error: "a")
    dead = RayActorError(actor_id="0" * 32)

    assert run.core.look_up(trial.trial_id, ERROR) is None
    assert run.core.look_up(trial.trial_id, dead)() == FailureCause("a")


def test_no_process_is_looked_up_on_a_lost_node(run_of, monkeypatch):
    """The run would wait for the dead node up to 10 s, and no other trial could start."""
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    monkeypatch.setattr(run_failures, "lost_node", lambda error: "a")
    monkeypatch.setattr(oom_failure, "was_killed_by_kernel", lambda error: pytest.fail("the dead node is asked"))
    dead = RayActorError(actor_id="0" * 32)

    assert run.fail(trial, dead, run.core.look_up(trial.trial_id, dead)()) == "requeued"


def test_a_trial_whose_process_starts_on_a_lost_node_is_requeued_without_counting_the_failure(run_of):
    """Its status is pending until the process has started."""
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.step()
    run.processes.started.add(trial.trial_id)

    assert trial.status == Trial.PENDING
    assert run.fail(trial, RayActorError(), FailureCause(lost_node_id="a")) == "requeued"
    assert trial.run_metadata.num_failures == 0


def test_if_no_node_was_lost_the_error_is_classified(run_of, monkeypatch):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    monkeypatch.setattr(run_failures, "lost_node", lambda error: None)
    found = OutOfMemory(kind="host")
    monkeypatch.setattr(run_failures, "classify_failure", lambda error, actor_id: (found, actor_id))
    monkeypatch.setattr(run_events, "actor_of", lambda trial: "the actor")
    run.core.note_death(trial.trial_id)

    cause = run.core.look_up(trial.trial_id, RayActorError(actor_id="0" * 32))()

    assert cause == FailureCause(None, (found, "the actor"))


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(FailureCause(lost_node_id="a"), "requeued", id="its node was lost"),
        pytest.param(ProbeError("Ray does not respond"), "failed", id="the look-up failed"),
    ],
)
def test_the_decision_about_a_dead_process_does_not_ask_its_node_again(run_of, monkeypatch, caplog, cause, expected):
    """Tune's loop waits for the decision. A lost node does not answer, and an error would end the run."""
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    asked = []
    monkeypatch.setattr(oom_failure, "was_killed_by_kernel", asked.append)

    assert run.fail(trial, RayActorError(actor_id="0" * 32), cause) == expected
    assert not asked
    assert run.core.records[trial].failure == OutOfMemory(kind="none")
    is_reported = "could not determine why the process of train_00000000 died: Ray does not respond" in caplog.text
    assert is_reported == (expected == "failed")


def test_the_classified_error_of_a_failure_is_recorded(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()

    run.fail(trial, OUT_OF_MEMORY)

    assert run.core.records[trial].failure.kind == "accelerator"


# Memory of similar trials


def test_a_waiting_trial_with_a_similar_config_starts_with_the_memory_of_the_retry(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, *_ = run.add(4, config={"width": 8})
    run.run_all()
    similar, other = run.add(config={"width": 9})[0], run.add(config={"width": 7})[0]
    run.fail(first, OUT_OF_MEMORY)
    for trial in run.trials[:4]:
        if trial.status == Trial.RUNNING:
            run.complete(trial)
    run.request_all()

    gpus = [run.core.records[trial].needed.gpu_ticks for trial in (similar, other)]

    assert gpus == [10_000, 0]


def test_a_request_that_ray_has_not_granted_is_raised_after_an_error_of_a_similar_trial(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, second, third = run.add(3, config={"width": 8})
    run.begin(run.step())
    run.begin(run.step())
    run.step()
    run.fail(first, OUT_OF_MEMORY)

    run.step()

    assert run.controller.withdrawn == [third]
    assert run.core.records[third].needed.gpu_ticks == 10_000
    assert run.core.records[second].needed.gpu_ticks == 0


def test_a_request_with_a_process_keeps_its_memory_after_an_error_of_a_similar_trial(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, second = run.add(2, config={"width": 8})
    run.begin(run.step())
    run.step()
    run.processes.started.add(second.trial_id)
    run.fail(first, OUT_OF_MEMORY)

    run.step()

    assert not run.controller.withdrawn


def test_the_retries_of_a_restored_trial_apply_to_other_trials(run_of):
    run = run_of(HALVES, retries={})
    trial = new_trial(0, {"width": 8})
    trial.policy_record = '{"oom":{"records":[{"settings":{"width":8},"floor":{"gpu_ticks":10000}}]}}'
    run.add_trial(trial)

    assert run.core.retries.num_records == 1
    assert run.step().placement_group_factory.required_resources == {"CPU": 1, "GPU": 1}


def test_memory_keys_that_no_config_contains_are_reported_at_the_first_step(run_of, caplog):
    run = run_of(HALVES, retries={"memory_keys": ["seed"]})
    run.add(config={"width": 8})

    run.step()

    assert caplog.messages == ["no config of the first trials contains the key 'seed' of memory_keys"]
