"""PolicyScheduler assigns free slots to trials, keeps their device type, and sets up processes for their slots."""

import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import (
    FIFOScheduler,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tests.on_ray.rays import wait_until
from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    OomRetryScheduler,
    PolicyScheduler,
    Resources,
    TrialPlan,
    TrialSlot,
)

GIB = 2**30


RAY = {"num_cpus": 6, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")


def plan_of(num_gpu_slots=2, num_cpu_slots=1, *, share=0.25, speeds=(None, None)):
    gpu = TrialSlot(
        trial=Resources(cpus=0.25, gpus=share),
        max_concurrent_trials=num_gpu_slots,
        gpu_memory_bytes=6 * GIB,
        speed=speeds[0],
    )
    cpu = TrialSlot(trial=Resources(cpus=1), max_concurrent_trials=num_cpu_slots, speed=speeds[1])
    return TrialPlan(slots=(gpu, cpu), limited_by="CPU")


GPU_SLOT = str(plan_of().slots[0])


def run(folder, scheduler, trainable, num_samples, **kwargs):
    """Run trials whose config contains ``folder``."""
    arguments = {
        "config": {"folder": str(folder)},
        "num_samples": num_samples,
        "scheduler": scheduler,
        "storage_path": str(folder / "results"),
        "name": "run",
        "raise_on_failed_trial": False,
        "verbose": 0,
    }
    return tune.run(trainable, **{**arguments, **kwargs}).trials


def note(config, text):
    with Path(config["folder"], "notes").open("a") as file:
        file.write(f"{text}\n")


def notes(folder):
    return (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []


def meet(config):
    """Wait until all ten trials run."""
    note(config, "here")
    wait_until(lambda: len(notes(Path(config["folder"]))) >= 10)
    return {"visible": os.environ["CUDA_VISIBLE_DEVICES"]}


def test_trials_in_slots_of_all_types_run_concurrently_and_only_gpu_trials_see_gpus(tmp_path):
    policy = MixedPolicy(GpuPolicy(gpus=0.25, cpus=0.25), CpuPolicy(cpus=2))

    trials = run(tmp_path, PolicyScheduler(policy), meet, 10)

    ran = Counter((trial.last_result["slot"], trial.last_result["visible"] != "") for trial in trials)
    assert ran == {("0.25 CPU, 0.25 GPU", True): 8, ("2 CPUs", False): 2}


class Counting(tune.Trainable):
    """Records the device type and the process of each step."""

    def setup(self, config):
        self.done = 0

    def reset_config(self, new_config):
        self.done = 0
        return True

    def step(self):
        self.done += 1
        has_gpu = "GPU" in ray.get_runtime_context().get_assigned_resources()
        note(self.config, f"{self.trial_id} {self.done} {'GPU' if has_gpu else 'CPU'} {os.getpid()}")
        self.before_step_ends(has_gpu)
        return {"done": self.done >= 3, "has_gpu": has_gpu, "score": self.done}

    def before_step_ends(self, has_gpu):
        pass

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "done.json").write_text(json.dumps(self.done))

    def load_checkpoint(self, checkpoint_dir):
        self.done = json.loads(Path(checkpoint_dir, "done.json").read_text())


def device_types(folder):
    """Return the device types of the steps of each trial, keyed by trial ID."""
    found = {}
    for line in notes(folder):
        trial_id, _, kind, _ = line.split()
        found.setdefault(trial_id, []).append(kind)
    return found


@pytest.mark.rest
@pytest.mark.ray_border
def test_processes_are_reused_only_for_the_same_slot_type(tmp_path):
    tuner = tune.Tuner(
        Counting,
        param_space={"folder": str(tmp_path)},
        tune_config=tune.TuneConfig(num_samples=6, scheduler=PolicyScheduler(plan_of()), reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(tmp_path / "results"), name="run", verbose=0),
    )
    results = tuner.fit()

    processes = {(kind, pid) for _, _, kind, pid in map(str.split, notes(tmp_path))}
    assert {kind for kind, _ in processes} == {"GPU", "CPU"}
    # There can be fewer than 3 processes, because a process that finishes a trial early also runs the next trial.
    assert len({pid for _, pid in processes}) == len(processes) <= 3
    assert all((result.metrics["slot"] == GPU_SLOT) == result.metrics["has_gpu"] for result in results)


class PausesAfterEachStep(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.PAUSE


@pytest.mark.ci
def test_paused_trials_reuse_one_process(tmp_path):
    scheduler = PolicyScheduler(CpuPolicy(cpus=6), PausesAfterEachStep())

    run(tmp_path, scheduler, Counting, 2, reuse_actors=True)

    assert len(notes(tmp_path)) == 2 * 3
    assert len({line.rpartition(" ")[2] for line in notes(tmp_path)}) == 1


class WaitForGpuTrial(Counting):
    """The trial on the CPU finishes its first step after the trial on the GPU has ended."""

    def before_step_ends(self, has_gpu):
        if not has_gpu and self.done == 1:
            wait_until(lambda: any(" 3 GPU " in line for line in notes(Path(self.config["folder"]))))
            time.sleep(1.5)  # wait until Tune has ended the trial on the GPU


@pytest.mark.slow
@pytest.mark.parametrize(
    ("may_move", "then"),
    [
        pytest.param(False, "CPU", id="may_move=False"),
        pytest.param(True, "GPU", id="may_move=True"),
    ],
)
def test_a_paused_trial_keeps_its_device_type_unless_may_move_is_true(tmp_path, may_move, then):
    scheduler = PolicyScheduler(plan_of(1, 1), PausesAfterEachStep(), may_move=may_move)

    run(tmp_path, scheduler, WaitForGpuTrial, 2)

    assert sorted(device_types(tmp_path).values()) == [["CPU", then, then], ["GPU", "GPU", "GPU"]]


class SlowCpuTrials(Counting):
    """GPU trials first wait for the CPU trial to start, and the ninth GPU trial waits for it to end."""

    def before_step_ends(self, has_gpu):
        if self.done != 1:
            return
        if not has_gpu:
            self.wait_for(" 3 GPU ", 8)
        elif self.count(" 3 GPU ") == 8:
            self.wait_for(" 3 CPU ", 1)
        else:
            self.wait_for(" 1 CPU ", 1)

    def count(self, text):
        return sum(text in line for line in notes(Path(self.config["folder"])))

    def wait_for(self, text, count):
        wait_until(lambda: self.count(text) >= count)


class RecordIdleSlots(tune.Callback):
    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.seen = []

    def on_step_end(self, iteration, trials, **info):
        self.seen.append(self.scheduler.slots_left_idle())


@pytest.mark.rest
def test_a_slow_slot_is_left_idle_near_the_end_of_a_run(tmp_path):
    scheduler = PolicyScheduler(plan_of(1, 1))
    recorder = RecordIdleSlots(scheduler)

    trials = run(tmp_path, scheduler, SlowCpuTrials, 12, reuse_actors=True, callbacks=[recorder])

    assert {trial.status for trial in trials} == {"TERMINATED"}
    assert Counter(each[0] for each in device_types(tmp_path).values()) == {"GPU": 11, "CPU": 1}
    assert {1: 1} in recorder.seen
    assert not any(0 in idle for idle in recorder.seen)


class RunsOut(Counting):
    def before_step_ends(self, has_gpu):
        gpus = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
        if self.done == 2 and gpus < 0.5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB")


@pytest.mark.slow
@pytest.mark.ray_border
def test_a_policy_scheduler_can_be_the_inner_scheduler_of_an_oom_retry_scheduler(tmp_path):
    plan = TrialPlan(slots=plan_of(4).slots[:1], limited_by="GPU")
    scheduler = OomRetryScheduler(PolicyScheduler(plan))

    checkpoints = tune.CheckpointConfig(checkpoint_frequency=1)
    trials = run(tmp_path, scheduler, RunsOut, 3, checkpoint_config=checkpoints, reuse_actors=True)

    assert [(trial.status, trial.num_failures) for trial in trials] == [("TERMINATED", 0)] * 3
    assert {trial.placement_group_factory.required_resources["GPU"] for trial in trials} == {0.5}


class ReplanWhenOneRuns(tune.Callback):
    def __init__(self, scheduler, plan):
        self.scheduler, self.plan = scheduler, plan

    def on_trial_start(self, iteration, trials, trial, **info):
        self.scheduler.replan(self.plan)


@pytest.mark.rest
def test_idle_processes_are_ended_if_a_new_plan_needs_their_resources(tmp_path):
    three, one = (
        TrialPlan(slots=(TrialSlot(trial=Resources(cpus=cpus), max_concurrent_trials=6 // cpus),), limited_by="CPU")
        for cpus in (2, 6)
    )
    scheduler = PolicyScheduler(three)
    callbacks = [ReplanWhenOneRuns(scheduler, one)]

    trials = run(tmp_path, scheduler, Counting, 4, reuse_actors=True, callbacks=callbacks, time_budget_s=90)

    assert {trial.last_result.get("done") for trial in trials} == {True}
    assert trials[-1].last_result["slot"] == "6 CPUs"


def exit_once(config):
    note(config, "started")
    if len(notes(Path(config["folder"]))) == 1:
        os._exit(1)
    tune.report({"score": 1})


@pytest.mark.rest
def test_a_crashed_process_counts_as_a_failure(tmp_path):
    [trial] = run(tmp_path, PolicyScheduler(plan_of()), exit_once, 1, max_failures=1)

    assert (trial.status, trial.num_failures) == ("TERMINATED", 1)


class DiesOnReset(tune.Trainable):
    """The process crashes once, when it is reset for another trial."""

    def step(self):
        return {"score": 1, "done": True}

    def reset_config(self, new_config):
        if not notes(Path(new_config["folder"])):
            note(new_config, "died")
            os._exit(1)
        return True

    def save_checkpoint(self, checkpoint_dir):
        return None

    def load_checkpoint(self, checkpoint_dir):
        pass


@pytest.mark.slow
@pytest.mark.ray_border
def test_a_trial_is_retried_once_if_its_reused_process_crashes(tmp_path):
    """Tune reports the crash of the process twice."""
    scheduler = PolicyScheduler(CpuPolicy(cpus=6))

    trials = run(tmp_path, scheduler, DiesOnReset, 2, reuse_actors=True, max_failures=1)

    assert notes(tmp_path) == ["died"]
    assert [(trial.status, trial.num_failures) for trial in trials] == [("TERMINATED", 0), ("TERMINATED", 1)]


def fail_first_on_a_cpu(config):
    has_gpu = os.environ["CUDA_VISIBLE_DEVICES"] != ""
    is_first = tune.get_checkpoint() is None
    note(config, f"{'first' if is_first else 'again'} on a {'GPU' if has_gpu else 'CPU'}")
    if is_first and not has_gpu:
        with tempfile.TemporaryDirectory() as folder:
            tune.report({"score": 1}, checkpoint=tune.Checkpoint.from_directory(folder))
        raise ValueError("not yet")
    wait_until(lambda: len(notes(Path(config["folder"]))) >= 2)
    tune.report({"score": 2})


@pytest.mark.slow
def test_restored_trials_keep_their_device_type_and_get_slots_of_the_new_plan(tmp_path):
    before, two_cpus = plan_of(1, 1), TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1)
    after = before.model_copy(update={"slots": (before.slots[0], two_cpus)})

    run(tmp_path, PolicyScheduler(before), fail_first_on_a_cpu, 2)
    trials = run(tmp_path, PolicyScheduler(after), fail_first_on_a_cpu, 2, resume="AUTO+ERRORED")

    assert sorted(trial.last_result["slot"] for trial in trials) == [GPU_SLOT, "2 CPUs"]
    assert notes(tmp_path)[2:] == ["again on a CPU"]


class ReportCpus(tune.Trainable):
    """Reports the CPUs of its process in each step."""

    def setup(self, config):
        self.done = 0

    def step(self):
        self.done += 1
        cpus = ray.get_runtime_context().get_assigned_resources()["CPU"]
        return {"done": self.done >= 6, "cpus": cpus, "threads": os.environ["OMP_NUM_THREADS"]}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "done.json").write_text(json.dumps(self.done))

    def load_checkpoint(self, checkpoint_dir):
        self.done = json.loads(Path(checkpoint_dir, "done.json").read_text())


def three_cpus_after_two_steps(tune_controller, trial, result, scheduler):
    return tune.PlacementGroupFactory([{"CPU": 3}]) if result["training_iteration"] >= 2 else None


class RecordResults(tune.Callback):
    def __init__(self):
        self.results = []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results.append((result["cpus"], result["threads"], result["slot"]))


@pytest.mark.slow
@pytest.mark.ray_border
def test_an_inner_resource_changing_scheduler_can_increase_the_resources_of_a_trial(tmp_path):
    scheduler = PolicyScheduler(CpuPolicy(cpus=1), ResourceChangingScheduler(None, three_cpus_after_two_steps))
    recorder = RecordResults()
    checkpoints = tune.CheckpointConfig(checkpoint_frequency=1)

    [trial] = run(tmp_path, scheduler, ReportCpus, 1, checkpoint_config=checkpoints, callbacks=[recorder])

    assert (trial.status, trial.last_result["training_iteration"]) == ("TERMINATED", 6)
    assert recorder.results[0] == (1, "1", "1 CPU")
    assert recorder.results[-1] == (3, "3", "3 CPUs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((None,), "policy must be a policy"), ((CpuPolicy(), "fifo"), "inner must be a scheduler")],
    ids=["no policy", "no scheduler"],
)
def test_an_invalid_policy_or_inner_scheduler_is_rejected(arguments, message):
    with pytest.raises(InvalidResourcesError, match=message):
        PolicyScheduler(*arguments)


def test_a_scheduler_has_no_plan_before_the_run():
    scheduler = PolicyScheduler(GpuPolicy(gpus=1000))

    assert (scheduler.plan, scheduler.changes) == (None, ())
