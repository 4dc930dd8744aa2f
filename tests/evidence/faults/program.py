"""Runs the trials of the fault matrix: ``python -m tests.evidence.faults.program FOLDER ORDER``.

``ORDER`` contains the arguments of ``main`` as JSON. The program is a separate process, so that faults can also hit the
driver. Its trials take steps until the file ``finish`` exists in the folder. They record each step, and save a
checkpoint after it. A trial reads orders, such as ``fail``, from the folder ``orders``.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.schedulers import ASHAScheduler

from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy, OomRetryScheduler, PolicyScheduler, plan_on_cluster
from tune_policies import run as run_under_policy
from tune_policies.trainers import as_trainable

EVENTS: Final = "events"
ORDERS: Final = "orders"
FINISH: Final = "finish"
OUTCOME: Final = "outcome.json"
_STEP_S: Final = 0.25


class Event(NamedTuple):
    """An event that a trial recorded.

    Attributes:
        what: Whether a process started the trial (``"start"``) or began a step (``"step"``).
        at_s: The time of the event, in seconds since 1970.
        trial: The trial's ID.
        pid: The process ID.
        node: The ID of the node.
        step: The number of the step. For a start, it is the last step in the checkpoint.
    """

    what: str
    at_s: float
    trial: str
    pid: int
    node: str
    step: int


class Steps:
    """The steps of one trial in one process, starting from a checkpoint."""

    def __init__(self, config: Mapping[str, Any], trial: str, checkpoint: Any) -> None:
        self._folder, self._trial, self._score = Path(config["folder"]), trial, config["index"]
        self._done = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                self._done = json.loads(Path(folder, "done").read_text())
        self._record("start")

    def _record(self, what: str) -> None:
        node = ray.get_runtime_context().get_node_id()
        event = Event(what, time.time(), self._trial, os.getpid(), node, self._done)
        with Path(self._folder, EVENTS, f"{self._trial}-{os.getpid()}").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def take_all(self, report: Callable[..., None]) -> None:
        """Take steps until the file ``finish`` exists, and report each step with a checkpoint."""
        while not (self._folder / FINISH).exists():
            self._done += 1
            self._record("step")
            self._obey()
            time.sleep(_STEP_S)
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "done").write_text(json.dumps(self._done))
                result = {"score": self._score, "step": self._done}
                report(result, checkpoint=tune.Checkpoint.from_directory(folder))

    def _obey(self) -> None:
        path = self._folder / ORDERS / self._trial
        if not path.exists():
            return
        order = path.read_text()
        path.unlink()
        if order == "fail":
            raise RuntimeError("the trial was ordered to fail")
        # The class is a stand-in with the name of PyTorch's class, because PyTorch may not be installed.
        error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        raise error("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _train(config: dict[str, Any]) -> None:
    Steps(config, tune.get_context().get_trial_id(), tune.get_checkpoint()).take_all(tune.report)


def _train_in_train(config: dict[str, Any]) -> None:
    Steps(config, config["trial"], ray.train.get_checkpoint()).take_all(ray.train.report)


def _run_by_ray(**arguments: Any) -> Any:
    return tune.run(_train, resources_per_trial={"cpu": 1}, **arguments)


def _run_by_policy_scheduler(**arguments: Any) -> Any:
    return tune.run(_train, scheduler=PolicyScheduler(CpuPolicy(cpus=1)), **arguments)


def _run_mixed(**arguments: Any) -> Any:
    policy = MixedPolicy(GpuPolicy(gpus=0.5, cpus=0.5), CpuPolicy(cpus=1))
    return tune.run(_train, scheduler=PolicyScheduler(policy), **arguments)


def _run_with_oom_retry(**arguments: Any) -> Any:
    asha = ASHAScheduler(metric="score", mode="max", max_t=100_000, grace_period=240, reduction_factor=4)
    scheduler = PolicyScheduler(GpuPolicy(gpus=0.25, cpus=0.5), OomRetryScheduler(asha))
    return tune.run(_train, scheduler=scheduler, **arguments)


def _run_as_trainable(**arguments: Any) -> Any:
    plan = plan_on_cluster(CpuPolicy(cpus=1, num_workers=1))

    def build(config: dict[str, Any]) -> Any:
        loop_config = {**config, "trial": tune.get_context().get_trial_id()}
        return DataParallelTrainer(_train_in_train, train_loop_config=loop_config, scaling_config=plan.scaling_config())

    return run_under_policy(as_trainable(build), plan, **arguments)


WAYS: Final[Mapping[str, Callable[..., Any]]] = {
    "ray": _run_by_ray,
    "policy-scheduler": _run_by_policy_scheduler,
    "mixed": _run_mixed,
    "oom-retry": _run_with_oom_retry,
    "as_trainable": _run_as_trainable,
}


def main(folder: Path, *, address: str, way: str, num_trials: int, max_failures: int, resumes: bool) -> None:
    """Run the trials, and write their statuses and the error of the run to ``folder``."""
    logging.basicConfig(level=logging.INFO, force=True)
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    error, trials = "", []
    resume = "AUTO+ERRORED" if resumes else False
    try:
        trials = WAYS[way](
            config={"folder": str(folder), "index": tune.grid_search(list(range(num_trials)))},
            max_failures=max_failures,
            storage_path=str(folder / "results"),
            name="run",
            raise_on_failed_trial=False,
            verbose=0,
            resume=resume,
        ).trials
    except Exception as raised:  # noqa: BLE001 the matrix reports each error
        error = f"{type(raised).__name__}: {raised}"
    ends = {trial.trial_id: trial.status for trial in trials}
    (folder / OUTCOME).write_text(json.dumps({"trials": ends, "error": error}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
