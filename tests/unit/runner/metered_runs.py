"""Trials and plans of runs whose resource usage is metered, without Ray and without Tune."""

from types import SimpleNamespace

from tests.clusters import nodes
from tune_policies import GpuPolicy
from tune_policies.oom import OutOfMemory

NO_OOM = OutOfMemory(kind="none")
GPU_OOM = OutOfMemory(kind="accelerator", framework="torch", cause="own_limit")


def trial(name, status="PENDING", **changes):
    """Return a stand-in for a trial of Tune, by default with one GPU."""
    resources = SimpleNamespace(required_resources={"GPU": changes.pop("gpus", 1)}, bundles=[{}])
    return SimpleNamespace(trial_id=name, status=status, config={}, placement_group_factory=resources, **changes)


def plan_of(num_gpus=2):
    """Return a plan of one trial per GPU."""
    return GpuPolicy(gpus=1, cpus=0).plan(nodes((0, num_gpus)))


def begin(run, trial, now_s):
    """Start a trial. Like Tune, call the callback before changing the status."""
    run.start(trial, now_s)
    trial.status = "RUNNING"


def finish(run, trial, **kwargs):
    """End a trial. Like Tune, call the callback before changing the status."""
    run.complete(trial, **{"is_stopped": False, **kwargs})
    trial.status = "TERMINATED"
