"""The ways to run trials, and the program that runs one: ``python -m tests.evidence.faults.matrix.ways FOLDER``.

The program is a process of its own, so that faults may strike it too. It finds its :class:`Order` in the folder, and
leaves there what Tune says of the trials.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator

import tune_policies
from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    OomRetryScheduler,
    PolicyScheduler,
    ResourcePolicy,
    TrialPlan,
    plan_on_cluster,
)
from tune_policies.trainers import as_trainable
from tune_policies.values.sanitize import one_line

from .judge import TrialEnd
from .trial import Training, train, train_in_train

ORDER: Final = "order.json"
OUTCOME: Final = "outcome.json"
DRIVERS: Final = "drivers"
"""In this folder each trial that starts Train workers leaves the number of its own process, by its name."""
PLANNED: Final = "planned"
"""The program makes this file before it runs, and waits until it is gone if the order says so."""


@dataclass(frozen=True)
class Order:
    """What a program is to run.

    Attributes:
        address: The cluster.
        way: A name of :data:`WAYS`.
        num_trials: How many trials.
        step_s: How long a step takes, in seconds.
        max_failures: As for Tune.
        fail_fast: As for Tune.
        raises: What raises an error in the program once trials have come far: ``callback``, ``searcher``, ``logger``;
            or empty.
        waits_for_plan: Whether the program waits before it runs; with a fixed plan, it has planned then.
        resumes: Whether the program resumes the run that is in its folder.
    """

    address: str
    way: str
    num_trials: int
    step_s: float = 0.25
    max_failures: int = -1
    fail_fast: bool = False
    raises: str = ""
    waits_for_plan: bool = False
    resumes: bool = False


class OrderedError(Exception):
    """What the program was ordered to raise."""


RAISES_AT_STEP: Final = 8


class _RaisingCallback(tune.Callback):  # type: ignore[misc]  # Ray is not followed
    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        if result["step"] >= RAISES_AT_STEP:
            raise OrderedError("the callback was ordered to raise")


class _RaisingLogger(LoggerCallback):  # type: ignore[misc]
    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        if result["step"] >= RAISES_AT_STEP:
            raise OrderedError("the logger was ordered to raise")


class _RaisingSearcher(BasicVariantGenerator):  # type: ignore[misc]
    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if result["step"] >= RAISES_AT_STEP:
            raise OrderedError("the searcher was ordered to raise")


class Program:
    """Runs trials as an order says."""

    def __init__(self, folder: Path, order: Order) -> None:
        self._folder, self._order = folder, order

    def plan(self, policy: ResourcePolicy) -> TrialPlan:
        """Plan, and wait until the run may begin."""
        plan = plan_on_cluster(policy)
        self.wait()
        return plan

    def wait(self) -> None:
        """Say that the program is about to run, and wait until the run may begin."""
        marker = self._folder / PLANNED
        marker.touch()
        while self._order.waits_for_plan and marker.exists():
            time.sleep(0.05)

    @property
    def tune_arguments(self) -> dict[str, Any]:
        """What every way passes to Tune."""
        raising: dict[str, dict[str, Any]] = {
            "": {},
            "callback": {"callbacks": [_RaisingCallback()]},
            "logger": {"callbacks": [_RaisingLogger()]},
            "searcher": {"search_alg": _RaisingSearcher()},
        }
        order = self._order
        return {
            "config": {
                "folder": str(self._folder),
                "step_s": order.step_s,
                "index": tune.grid_search(list(range(order.num_trials))),
            },
            "max_failures": 0 if order.fail_fast else order.max_failures,
            "fail_fast": order.fail_fast,
            "storage_path": str(self._folder / "results"),
            "name": "run",
            "raise_on_failed_trial": False,
            "verbose": 0,
            "resume": "AUTO+ERRORED" if order.resumes else False,
            **raising[order.raises],
        }


_SHARE: Final = {"cpu": 0.5, "gpu": 0.25}


def _pbt() -> TrialScheduler:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        metric="score",
        mode="max",
        perturbation_interval=40,
        hyperparam_mutations={"lr": [0.1, 0.2]},
    )


def _asha() -> TrialScheduler:
    """Ends the worse trials early, of those that come to a milestone."""
    return ASHAScheduler(metric="score", mode="max", max_t=100_000, grace_period=240, reduction_factor=4)


def _by_ray(program: Program) -> Any:
    program.wait()
    return tune.run(train, resources_per_trial={"cpu": 1}, **program.tune_arguments)


def _by_ray_pbt(program: Program) -> Any:
    program.wait()
    return tune.run(train, resources_per_trial={"cpu": 1}, scheduler=_pbt(), **program.tune_arguments)


def _by_ray_with_gpus(program: Program) -> Any:
    program.wait()
    return tune.run(train, resources_per_trial=_SHARE, **program.tune_arguments)


def _by_ray_train(program: Program) -> Any:
    """Train runs as Ray's guide has them in Tune; but a driver holds no CPU, as under a plan."""

    def trial(config: dict[str, Any]) -> None:
        config = _in_trial(config)
        storage = Path(config["folder"], "results", "train")
        DataParallelTrainer(
            train_in_train,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(name=config["trial"], storage_path=str(storage), callbacks=[TuneReportCallback()]),
        ).fit()

    driver = tune.PlacementGroupFactory([{"memory": 1_000_000}])
    program.wait()
    return tune.run(tune.with_resources(trial, driver), **program.tune_arguments)


def _by_fixed_plan(program: Program) -> Any:
    plan = program.plan(CpuPolicy(cpus=1))
    return tune.run(train, scheduler=PolicyScheduler(plan), **program.tune_arguments)


def _by_class(program: Program) -> Any:
    plan = program.plan(CpuPolicy(cpus=1))
    arguments = program.tune_arguments | {"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)}
    return tune.run(Training, scheduler=PolicyScheduler(plan), reuse_actors=True, **arguments)


def _by_policy_scheduler(program: Program) -> Any:
    program.wait()
    return tune.run(train, scheduler=PolicyScheduler(CpuPolicy(cpus=1)), **program.tune_arguments)


def _by_tuner(program: Program) -> Any:
    """By a ``Tuner``; where the run is resumed, by ``Tuner.restore``."""
    program.wait()
    arguments = program.tune_arguments
    if arguments["resume"]:
        folder = Path(arguments["storage_path"], arguments["name"])
        restored = tune.Tuner.restore(str(folder), train, resume_errored=True)
        return restored.fit()._experiment_analysis
    run_config = tune.RunConfig(
        name=arguments["name"],
        storage_path=arguments["storage_path"],
        failure_config=tune.FailureConfig(arguments["max_failures"], fail_fast=arguments["fail_fast"]),
        verbose=0,
    )
    tuner = tune_policies.tuner(train, CpuPolicy(cpus=1), param_space=arguments["config"], run_config=run_config)
    return tuner.fit()._experiment_analysis


def _mixed(program: Program) -> Any:
    policy = MixedPolicy(GpuPolicy(gpus=0.5, cpus=0.5), CpuPolicy(cpus=1))
    program.wait()
    return tune.run(train, scheduler=PolicyScheduler(policy), **program.tune_arguments)


def _oom_retry(program: Program) -> Any:
    """Without a plan."""
    program.wait()
    return tune.run(train, resources_per_trial=_SHARE, scheduler=OomRetryScheduler(), **program.tune_arguments)


def _oom_retry_under_plan(inner: Callable[[], TrialScheduler]) -> Callable[[Program], Any]:
    def run(program: Program) -> Any:
        plan = program.plan(GpuPolicy(gpus=0.25, cpus=0.5))
        scheduler = PolicyScheduler(plan, OomRetryScheduler(inner()))
        return tune.run(train, scheduler=scheduler, **program.tune_arguments)

    return run


def _in_trial(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config for the Train workers of the trial in this process, which says where it is."""
    trial = tune.get_context().get_trial_id()
    Path(config["folder"], DRIVERS, trial).write_text(str(os.getpid()))
    return {**config, "trial": trial}


def _as_trainable(program: Program) -> Any:
    plan = program.plan(CpuPolicy(cpus=1, num_workers=1))

    def build(config: dict[str, Any]) -> Any:
        return DataParallelTrainer(
            train_in_train, train_loop_config=_in_trial(config), scaling_config=plan.scaling_config()
        )

    return tune_policies.run(as_trainable(build), plan, **program.tune_arguments)


def _by_builder(program: Program) -> Any:
    from tune_policies.trainers import build_torch_trainer  # the other ways need no torch

    policy = CpuPolicy(cpus=1, num_workers=1)
    program.wait()

    def build(config: dict[str, Any]) -> Any:
        return build_torch_trainer(train_in_train, plan=policy, train_loop_config=_in_trial(config))

    return tune_policies.run(as_trainable(build), policy, **program.tune_arguments)


WAYS: Final[Mapping[str, Callable[[Program], Any]]] = {
    "ray": _by_ray,
    "ray-pbt": _by_ray_pbt,
    "ray-gpus": _by_ray_with_gpus,
    "ray-train": _by_ray_train,
    "fixed-plan": _by_fixed_plan,
    "class-reused": _by_class,
    "policy-scheduler": _by_policy_scheduler,
    "tuner": _by_tuner,
    "mixed": _mixed,
    "oom-fifo": _oom_retry,
    "oom-asha": _oom_retry_under_plan(_asha),
    "oom-pbt": _oom_retry_under_plan(_pbt),
    "as_trainable": _as_trainable,
    "torch-builder": _by_builder,
}
RAY_ALONE: Final = ("ray", "ray-pbt", "ray-gpus", "ray-train")
WITH_OOM_RETRY: Final = ("oom-fifo", "oom-asha", "oom-pbt")
WITH_PBT: Final = ("ray-pbt", "oom-pbt")
WITH_TRAIN: Final = ("ray-train", "as_trainable", "torch-builder")


def read_outcome(folder: Path) -> tuple[dict[str, TrialEnd], str]:
    """Return how each trial ended, and the error of the run; nothing where the program has not said so."""
    path = folder / OUTCOME
    if not path.exists():
        return {}, ""
    found = json.loads(path.read_text())
    return {trial: TrialEnd(*end) for trial, end in found["trials"].items()}, found["error"]


def main(folder: Path) -> int:
    """Run what the folder's order says; return 1 where the run ends with an error."""
    # Each line with its second, so that it can be told how soon the user hears of a fault.
    logging.basicConfig(format="%(created).3f %(levelname)s %(name)s: %(message)s", level=logging.INFO, force=True)
    order = Order(**json.loads((folder / ORDER).read_text()))
    ray.init(address=order.address, logging_level="ERROR", log_to_driver=False)
    error, trials = "", []
    try:
        trials = WAYS[order.way](Program(folder, order)).trials
    except (OrderedError, InfeasibleRequestError, tune.TuneError) as raised:
        error = one_line(f"{type(raised).__name__}: {raised}")
        print(f"{time.time():.3f} ERROR {error}", file=sys.stderr)
    ends = {trial.trial_id: TrialEnd(trial.status, (trial.last_result or {}).get("step")) for trial in trials}
    (folder / OUTCOME).write_text(json.dumps({"trials": ends, "error": error}))
    return 1 if error else 0


def write_order(folder: Path, order: Order) -> None:
    """Write what the program in ``folder`` is to run."""
    (folder / ORDER).write_text(json.dumps(asdict(order)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
