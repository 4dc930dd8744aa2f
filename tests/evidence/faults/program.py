"""The program of the fault matrix: ``python -m tests.evidence.faults.program FOLDER`` runs trials as its order says.

It is a process of its own, so that faults may strike it too. Its trials take steps with a checkpoint each until the
file ``finish`` is in the folder, and note each step. A file of a trial in ``orders`` tells the trial to fail.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import ray
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.schedulers import ASHAScheduler

from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy, OomRetryScheduler, PolicyScheduler, plan_on_cluster
from tune_policies import run as run_under_policy
from tune_policies.trainers import as_trainable

from .judge import Event, TrialEnd

EVENTS: Final = "events"
ORDERS: Final = "orders"
FINISH: Final = "finish"
_ORDER: Final = "order.json"
_OUTCOME: Final = "outcome.json"
_STEP_S: Final = 0.25


@dataclass(frozen=True)
class Order:
    """What a program runs.

    Attributes:
        address: The address of the cluster.
        way: A name of :data:`WAYS`.
        num_trials: How many trials.
        max_failures: As for Tune.
        resumes: Whether the program resumes the run in its folder.
    """

    address: str
    way: str
    num_trials: int
    max_failures: int = -1
    resumes: bool = False


def write_order(folder: Path, order: Order) -> None:
    """Write what the program in ``folder`` runs."""
    (folder / _ORDER).write_text(json.dumps(asdict(order)))


def read_outcome(folder: Path) -> tuple[dict[str, TrialEnd], str]:
    """Return how each trial ended, and the error of the run; nothing if the program did not come that far."""
    path = folder / _OUTCOME
    if not path.exists():
        return {}, ""
    found = json.loads(path.read_text())
    return {trial: TrialEnd(*end) for trial, end in found["trials"].items()}, found["error"]


class Steps:
    """The steps of one trial in one process, from a checkpoint on."""

    def __init__(self, config: Mapping[str, Any], trial: str, checkpoint: Any) -> None:
        self._folder, self._trial, self._score = Path(config["folder"]), trial, config["index"]
        self._done = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                self._done = json.loads(Path(folder, "done").read_text())
        self._note("start")

    def _note(self, what: Literal["start", "step", "order"]) -> None:
        node = ray.get_runtime_context().get_node_id()
        event = Event(what, time.time(), self._trial, os.getpid(), node, self._done)
        with Path(self._folder, EVENTS, f"{self._trial}-{os.getpid()}").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def take_all(self, report: Callable[..., None]) -> None:
        """Take steps until the run is to finish, and report each with a checkpoint."""
        while not (self._folder / FINISH).exists():
            self._done += 1
            self._note("step")
            self._obey()
            time.sleep(_STEP_S)
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "done").write_text(json.dumps(self._done))
                result = {"score": self._score, "step": self._done}
                report(result, checkpoint=tune.Checkpoint.from_directory(folder))

    def _obey(self) -> None:
        path = self._folder / ORDERS / self._trial
        if path.exists():
            name, _, argument = path.read_text().partition(" ")
            path.unlink()
            self._note("order")
            _OBEYED[name](argument)


def _fail(argument: str) -> None:
    raise RuntimeError("the trial was ordered to fail")


def _run_out(argument: str) -> None:
    # A framework's error is by its full name; a logical GPU does not have the framework.
    error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
    raise error("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _take_host_memory(argument: str) -> None:
    """Take so many bytes, until Ray ends this process."""
    taken = bytearray(b"x") * int(argument)
    time.sleep(60)
    del taken


_OBEYED: Final = {"fail": _fail, "run-out": _run_out, "take-host-memory": _take_host_memory}


def _train(config: dict[str, Any]) -> None:
    Steps(config, tune.get_context().get_trial_id(), tune.get_checkpoint()).take_all(tune.report)


def _train_in_train(config: dict[str, Any]) -> None:
    Steps(config, config["trial"], ray.train.get_checkpoint()).take_all(ray.train.report)


def _by_ray(**arguments: Any) -> Any:
    return tune.run(_train, resources_per_trial={"cpu": 1}, **arguments)


def _by_policy_scheduler(**arguments: Any) -> Any:
    return tune.run(_train, scheduler=PolicyScheduler(CpuPolicy(cpus=1)), **arguments)


def _mixed(**arguments: Any) -> Any:
    policy = MixedPolicy(GpuPolicy(gpus=0.5, cpus=0.5), CpuPolicy(cpus=1))
    return tune.run(_train, scheduler=PolicyScheduler(policy), **arguments)


def _oom_retry(**arguments: Any) -> Any:
    asha = ASHAScheduler(metric="score", mode="max", max_t=100_000, grace_period=240, reduction_factor=4)
    scheduler = PolicyScheduler(GpuPolicy(gpus=0.25, cpus=0.5), OomRetryScheduler(asha))
    return tune.run(_train, scheduler=scheduler, **arguments)


def _as_trainable(**arguments: Any) -> Any:
    plan = plan_on_cluster(CpuPolicy(cpus=1, num_workers=1))

    def build(config: dict[str, Any]) -> Any:
        loop_config = {**config, "trial": tune.get_context().get_trial_id()}
        return DataParallelTrainer(_train_in_train, train_loop_config=loop_config, scaling_config=plan.scaling_config())

    return run_under_policy(as_trainable(build), plan, **arguments)


WAYS: Final[Mapping[str, Callable[..., Any]]] = {
    "ray": _by_ray,
    "policy-scheduler": _by_policy_scheduler,
    "mixed": _mixed,
    "oom-retry": _oom_retry,
    "as_trainable": _as_trainable,
}


def main(folder: Path) -> None:
    """Run what the order in the folder says, and leave how the trials ended."""
    logging.basicConfig(level=logging.INFO, force=True)
    order = Order(**json.loads((folder / _ORDER).read_text()))
    ray.init(address=order.address, logging_level="ERROR", log_to_driver=False)
    error, trials = "", []
    try:
        trials = WAYS[order.way](
            config={"folder": str(folder), "index": tune.grid_search(list(range(order.num_trials)))},
            max_failures=order.max_failures,
            storage_path=str(folder / "results"),
            name="run",
            raise_on_failed_trial=False,
            verbose=0,
            resume="AUTO+ERRORED" if order.resumes else False,
        ).trials
    except Exception as raised:  # noqa: BLE001 the matrix reports whatever ends a run
        error = f"{type(raised).__name__}: {raised}"
    ends = {trial.trial_id: TrialEnd(trial.status, (trial.last_result or {}).get("step")) for trial in trials}
    (folder / _OUTCOME).write_text(json.dumps({"trials": ends, "error": error}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
