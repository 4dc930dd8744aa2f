"""Tests of the GPU memory usage that trials report, with a simulated GPU and stand-ins for CuPy and NVML."""

import os
import subprocess
import warnings
from pathlib import Path

import pytest
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.marked_processes import ends
from tests.stand_ins import state_counts
from tune_policies import ClusterCapacity, GpuDevice, GpuMemoryPolicy, PolicyScheduler, Resources
from tune_policies.trainers import gpu_memory_usage
from tune_policies.trainers.gpu_memory.fraction_limits import LimitOptions
from tune_policies.trainers.train.build_trainer import build_trainer
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, read_usage
from tune_policies.trainers.usage.oom_report import OomReport

pytestmark = pytest.mark.ci

GIB = 2**30
MIB = 2**20


DEVICE = GpuDevice(index=0, uuid="GPU-0", name="Stand-in", memory_bytes=16 * GIB)
NODE = ClusterCapacity.of(Resources(cpus=4, gpus=1)).nodes[0].model_copy(update={"devices": (DEVICE,)})
CAPACITY = ClusterCapacity.of(NODE)
QUARTER = GpuMemoryPolicy(gpu_memory="4GiB").plan(CAPACITY)


def run(trainable, tmp_path, plan=QUARTER, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return tune.run(
            trainable,
            scheduler=PolicyScheduler(plan),
            storage_path=str(tmp_path),
            verbose=0,
            raise_on_failed_trial=False,
            **kwargs,
        ).trials


def use_two_gib(config):
    import cupy

    held = cupy.empty(2 * GIB)
    tune.report({"loss": 1, "held": held.size})


def report_own_key(config):
    with warnings.catch_warnings(record=True):
        tune.report({"gpu_memory": "mine", "other": gpu_memory_usage().gpus})


def run_out(config):
    import cupy

    held = cupy.empty(GIB)
    cupy.empty(20 * GIB - held.size)


def leave_processes(config):
    child = subprocess.Popen(["sleep", "100"]).pid
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"]))
    counts = Path(os.environ["STAND_IN_NVML"]).with_name("with_processes.json")
    memory_in_use = dict.fromkeys([child, orphan, config["bystander"]], GIB)
    state_counts(counts, total=16 * GIB, free=15 * GIB, processes=memory_in_use)
    os.environ["STAND_IN_NVML"] = str(counts)
    tune.report({"child": child, "orphan": orphan})


FUNCTIONS = {function.__name__: function for function in (use_two_gib, report_own_key, run_out, leave_processes)}


def run_function(config):
    FUNCTIONS[config["what"]](config)


@pytest.fixture(scope="module")
def trials(nvml, tmp_path_factory):
    """Run each function as a trial, and yield the trials keyed by function name, with the bystander process."""
    with subprocess.Popen(["sleep", "100"]) as bystander:
        config = {"what": tune.grid_search(list(FUNCTIONS)), "bystander": bystander.pid}
        trials = run(run_function, tmp_path_factory.mktemp("results"), config=config)
        by_function = {trial.config["what"]: trial for trial in trials}
        yield by_function | {"bystander": bystander}
        bystander.kill()


def test_a_result_contains_the_gpu_memory_usage_of_the_trial(trials):
    result = trials["use_two_gib"].last_result
    usage = GpuMemoryUsage.from_dict(result["gpu_memory"])

    assert result["loss"] == 1
    assert (usage.gpus, usage.device_bytes, usage.share_bytes) == (0.25, 16 * GIB, 4 * GIB)
    assert (usage.peak_allocated_bytes, usage.peak_reserved_bytes) == (None, 2 * GIB)
    assert (usage.process_bytes, usage.overhead_bytes) == (3 * GIB, GIB)
    assert (usage.share_kept, usage.num_ooms, usage.left_over_bytes) == (True, 0, 0)
    assert usage.sources["process_bytes"] == "NVML, now"


def test_a_users_metric_named_gpu_memory_is_not_overwritten(trials):
    result = trials["report_own_key"].last_result

    assert (result["gpu_memory"], result["other"]) == ("mine", 0.25)


def usages_in_error_file(trial):
    lines = [line for line in Path(trial.error_file).read_text().splitlines() if "out_of_memory: " in line]
    return [OomReport.from_text(line).gpu_memory for line in lines]


def test_the_error_file_of_an_out_of_memory_trial_contains_its_usage(trials):
    usages = usages_in_error_file(trials["run_out"])

    assert trials["run_out"].status == "ERROR"
    assert {(usage.num_ooms, usage.peak_reserved_bytes) for usage in usages} == {(1, GIB)}


def test_processes_that_still_use_gpu_memory_after_their_trial_are_terminated_and_recorded(trials):
    """A process that no trial started is not terminated."""
    trial = trials["leave_processes"]
    ended = sorted(trial.last_result[which] for which in ("child", "orphan"))

    (recorded,) = read_usage(Path(trial.path)).trials

    assert all(ends(pid) for pid in ended)
    assert recorded.usage.warnings == tuple(
        f"process {pid} of the trial still used 1 GiB of GPU memory after the end of the trial, and is terminated"
        for pid in ended
    )
    assert trials["bystander"].poll() is None


def leave_a_child(config):
    child = subprocess.Popen(["sleep", "100"]).pid
    counts = Path(os.environ["STAND_IN_NVML"]).with_name("with_a_child.json")
    state_counts(counts, total=16 * GIB, free=15 * GIB, processes={child: GIB})
    os.environ["STAND_IN_NVML"] = str(counts)
    for _ in range(100):
        tune.report({"child": child})


@pytest.mark.rest
def test_processes_left_by_a_stopped_trial_are_recorded_with_that_trial(nvml, tmp_path):
    space = {"trial": tune.grid_search([1, 2])}
    stop = {"training_iteration": 1}
    trials = run(leave_a_child, tmp_path, config=space, stop=stop, reuse_actors=True, max_concurrent_trials=1)

    recorded = [read_usage(Path(trial.path)).trials[0].usage for trial in trials]

    assert [usage.warnings for usage in recorded] == [
        (
            f"process {trial.last_result['child']} of the trial still used 1 GiB of GPU memory after the end of "
            "the trial, and is terminated",
        )
        for trial in trials
    ]


def grow(config):
    """Report twice within two seconds while the memory grows, and use even more memory before the end."""
    import cupy

    held = [cupy.empty(GIB)]
    for _ in range(2):
        tune.report({"score": len(held)})
        held.append(cupy.empty(GIB))


def test_a_peak_is_in_the_next_result_or_in_the_folder_of_the_trial(nvml, tmp_path):
    (trial,) = run(grow, tmp_path)

    (recorded,) = read_usage(Path(trial.path)).trials

    assert trial.last_result["gpu_memory"]["peak_reserved_bytes"] == 2 * GIB
    assert recorded.usage.peak_reserved_bytes == 3 * GIB


class RunningOut(tune.Trainable):
    """Runs out of memory in its second step, or when it saves its first checkpoint."""

    def step(self):
        return run_out({}) if self.iteration == 1 else {"loss": 1}

    def save_checkpoint(self, checkpoint_dir):
        if self.config["at"] == "save":
            run_out({})


@pytest.mark.rest
def test_the_usage_of_a_class_that_runs_out_of_memory_in_a_step_or_save_is_recorded(nvml, tmp_path):
    space = {"at": tune.grid_search(["step", "save"])}

    trials = run(RunningOut, tmp_path, config=space, checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1))

    assert [trial.last_result["training_iteration"] for trial in trials] == [1, 1]
    assert [{usage.num_ooms for usage in usages_in_error_file(trial)} for trial in trials] == [{1}, {1}]


def keep(config):
    import cupy

    take, kept = config["take_and_keep"]
    cupy.kept = cupy.empty(kept)
    held = cupy.empty(take)
    tune.report({"loss": held.size})


@pytest.mark.rest
@pytest.mark.ray_border
def test_peaks_and_leaks_are_recorded_per_trial_and_a_large_leak_replaces_the_process(nvml, tmp_path):
    """The third trial leaks a large amount of memory, and the next one gets a new process without a failure."""
    space = {"take_and_keep": tune.grid_search([[3 * GIB, 0], [GIB, MIB], [2 * GIB, GIB], [GIB, 0]])}

    trials = run(keep, tmp_path, config=space, reuse_actors=True, max_concurrent_trials=1)

    usages = [trial.last_result["gpu_memory"] for trial in trials]
    first, second, third, last = (trial.last_result["pid"] for trial in trials)
    assert [usage["peak_reserved_bytes"] for usage in usages] == [3 * GIB, GIB + MIB, 3 * GIB, GIB]
    assert [usage["left_over_bytes"] for usage in usages[2:]] == [MIB, 0]
    assert first == second == third != last
    assert (trials[-1].status, trials[-1].num_failures) == ("TERMINATED", 0)
    assert ends(third)


class Resetting(tune.Trainable):
    """Releases its device memory when it is reset. The last config runs out of memory."""

    def setup(self, config):
        import cupy

        self.model = cupy.empty(config["take"])

    def step(self):
        return {"done": True}

    def reset_config(self, new_config):
        if new_config["take"] > 4 * GIB:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        self.model = None
        self.setup(new_config)
        return True


@pytest.mark.rest
def test_a_class_with_reset_config_leaks_nothing_and_its_usage_is_recorded_per_trial(nvml, tmp_path):
    space = {"take": tune.grid_search([3 * GIB, GIB, 20 * GIB])}

    *trials, failed = run(Resetting, tmp_path, config=space, reuse_actors=True, max_concurrent_trials=1)

    usages = [GpuMemoryUsage.from_dict(trial.last_result["gpu_memory"]) for trial in trials]
    assert len({usage.pid for usage in usages}) == 1
    assert [(usage.peak_reserved_bytes, usage.left_over_bytes) for usage in usages] == [(3 * GIB, 0), (GIB, 0)]
    usage = usages_in_error_file(failed)[-1]
    assert (usage.num_ooms, usage.left_over_bytes) == (1, 0)


def train_loop(config):
    import tempfile

    import cupy

    rank = ray.train.get_context().get_world_rank()
    held = cupy.empty((1 + rank) * GIB)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"loss": held.size}, checkpoint=checkpoint)
    more = cupy.empty(GIB)
    del more


@pytest.mark.rest
@pytest.mark.ray_border
def test_train_workers_report_their_usage_and_save_it_in_the_folder_of_the_run(nvml, tmp_path):
    plan = GpuMemoryPolicy(gpu_memory="4GiB", num_workers=2, cpus=1).plan(CAPACITY)
    # Use Ray's trainer without a framework, because frameworks would not find the simulated GPU.
    run_config = ray.train.RunConfig(storage_path=str(tmp_path))
    trainer = build_trainer(DataParallelTrainer, train_loop, plan, {}, LimitOptions(), {"run_config": run_config})

    result = trainer.fit()

    usage = GpuMemoryUsage.from_dict(result.metrics["gpu_memory"])
    assert (usage.gpus, usage.share_bytes, usage.peak_reserved_bytes) == (0.25, 4 * GIB, GIB)
    (run,) = read_usage(Path(result.path)).trials
    assert (run.usage.gpus, run.usage.peak_reserved_bytes) == (0.25, 3 * GIB)
