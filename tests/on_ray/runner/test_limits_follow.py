"""Memory limits follow the trial's GPU fraction and the user's options, with stand-ins for CuPy and NVML."""

from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tune_policies import (
    ClusterCapacity,
    GpuDevice,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    OomRetryScheduler,
    PolicyScheduler,
    Resources,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement

pytestmark = pytest.mark.rest

GIB = 2**30
DEVICE = GpuDevice(index=0, uuid="GPU-0", name="Stand-in", memory_bytes=16 * GIB)
NODE = ClusterCapacity.of(Resources(cpus=4, gpus=1)).nodes[0].model_copy(update={"devices": (DEVICE,)})


def run(trainable, plan, tmp_path, scheduler=None, **options):
    return tune.run(
        trainable,
        config={"width": 1},
        scheduler=PolicyScheduler(plan, scheduler, **options),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    ).trials[0]


def use_six_gib(config):
    import cupy

    held = cupy.empty(6 * GIB)
    tune.report({"held": held.size})


def test_a_requeued_trial_gets_the_memory_limit_of_its_larger_gpu_fraction(nvml, tmp_path):
    measured = GpuMemoryMeasurement(config={"width": 1}, total_bytes=3 * GIB, overhead_bytes=GIB // 2)
    profile = GpuMemoryProfile(measurements=(measured,))
    plan = GpuMemoryPolicy(profile=profile).plan(ClusterCapacity.of(NODE))

    trial = run(use_six_gib, plan, tmp_path, OomRetryScheduler())

    used = trial.last_result["gpu_memory"]
    overhead = plan.slot_for({"width": 1}).gpu_overhead_bytes
    assert (plan.trial.gpus, used["gpus"], used["share_bytes"]) == (0.25, 0.5, 8 * GIB)
    assert used["limit_bytes"] == f"cupy: {8 * GIB - overhead}"
    assert '"share_bytes": 4294967296' in Path(trial.error_file).read_text()


class Widening(tune.Trainable):
    def step(self):
        return {"width": self.config["width"], "done": self.iteration == 1}

    def save_checkpoint(self, checkpoint_dir):
        pass

    def load_checkpoint(self, checkpoint):
        pass


class WidenOnce(FIFOScheduler):
    """Pauses each trial after its first result, and resumes the trial of width 2 with a width that is too large."""

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] > 1:
            return TrialScheduler.CONTINUE
        if result["width"] == 2:
            trial.set_config({"width": 8})
        return TrialScheduler.PAUSE


def test_a_paused_trial_with_an_infeasible_new_config_fails_without_affecting_other_trials(nvml, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1"
    )  # Tune's loggers do not close the files of paused trials
    measured = [
        GpuMemoryMeasurement(config={"width": width}, total_bytes=width * GIB, overhead_bytes=GIB // 2)
        for width in (1, 2)
    ]
    too_wide = GpuMemoryMeasurement(config={"width": 8}, total_bytes=16 * GIB, ended_by="out_of_memory")
    plan = GpuMemoryPolicy(profile=GpuMemoryProfile(measurements=(*measured, too_wide))).plan(ClusterCapacity.of(NODE))

    trials = tune.run(
        Widening,
        config={"width": tune.grid_search([1, 2])},
        scheduler=PolicyScheduler(plan, WidenOnce(), on_unenforced_limit="warn"),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    ).trials

    states = [(trial.status, trial.last_result["training_iteration"]) for trial in trials]
    assert states == [("TERMINATED", 2), ("ERROR", 1)]
    assert "one trial needs 18.5 GiB of GPU memory" in Path(trials[1].error_file).read_text()
