"""Trials per minute of Train runs inside Tune: Ray's defaults, the best settings by hand, and a plan.

Every run has a Ray of its own with logical CPUs and GPUs, and two waves of trials. A trial's worker sleeps, so that the
cores of the machine, of which there may be fewer, do not decide. The settings by hand are tried once each; the best of
them and the plan are then run in turns.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import ray
import ray.train
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.integration.ray_train import TuneReportCallback

from tune_policies import CpuPolicy, GpuPolicy, PolicyScheduler, TrialPlan, probe_cluster
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import Spread, spread
from tune_policies.trainers import as_trainable

_WAVES: Final = 2
_MEMORY_ONLY: Final = tune.PlacementGroupFactory([{"memory": 1_000_000}])
"""What a driver may hold by hand instead of a CPU: Ray refuses one that holds nothing."""


class Shape(NamedTuple):
    """A cluster, and what one worker of a trial needs there; a trial has one worker."""

    cpus: int
    gpus: int
    worker_cpus: int
    worker_gpus: int = 0

    @property
    def num_slots(self) -> int:
        """How many workers the cluster holds."""
        return min(self.cpus // self.worker_cpus, self.gpus // self.worker_gpus if self.worker_gpus else self.cpus)

    @property
    def num_trials(self) -> int:
        """Two waves; with Ray's defaults so many drivers take every CPU."""
        return _WAVES * self.num_slots

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPU" if self.gpus else ""
        worker = f"{self.worker_cpus} CPU" + (f", {self.worker_gpus} GPU" if self.worker_gpus else "")
        return f"{self.cpus} CPU{gpus}; worker {worker}"


SHAPES: Final = {
    "2-cpus": Shape(2, 0, 1),
    "4-cpus": Shape(4, 0, 2),
    "8-cpus": Shape(8, 0, 2),
    "4-cpus-2-gpus": Shape(4, 2, 1, 1),
}


class Arm(NamedTuple):
    """Settings for Tune by hand: what a driver holds, and how many trials run at once (``None``: no limit)."""

    name: str
    driver: Any
    max_concurrent_trials: int | None


def arms_by_hand(shape: Shape) -> list[Arm]:
    """Return what somebody tries who knows that drivers count: for each share of a driver, as many trials as fit."""
    arms = []
    for driver_cpus in (1.0, 0.5):
        by_cpus = int(shape.cpus // (shape.worker_cpus + driver_cpus))
        at_once = min(by_cpus, shape.num_slots)
        arms.append(Arm(f"driver {driver_cpus:g} CPU, {at_once} at once", {"cpu": driver_cpus}, at_once))
    return [*arms, Arm(f"driver 1 MB, {shape.num_slots} at once", _MEMORY_ONLY, shape.num_slots)]


def measure_nested(names: Sequence[str], repetitions: int, work_s: float, cap_s: float) -> None:
    """Run all arms in each of the clusters, and print a table.

    Args:
        names: Of the clusters.
        repetitions: Runs of the best by hand, and of the plan.
        work_s: How long a trial's worker works.
        cap_s: When Ray's defaults are stopped.
    """
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    os.environ["TUNE_FORCE_TRIAL_CLEANUP_S"] = "5"  # a starved trial does not end by itself
    print(f"{describe_machine()}\n{own_command()}\n")
    print("| Cluster | Ray's defaults | By hand, once each | Best by hand | Plan | Plan / best |")
    print("|---|---|---|---:|---:|---:|")
    for name in names:
        print(_row(SHAPES[name], repetitions, work_s, cap_s), flush=True)


def _row(shape: Shape, repetitions: int, work_s: float, cap_s: float) -> str:
    _say(shape, "defaults")
    default = _run_by_hand(shape, Arm("defaults", {"cpu": 1}, None), work_s, cap_s)
    arms = arms_by_hand(shape)
    tried = {}
    for arm in arms:
        _say(shape, arm.name)
        tried[arm.name] = _run_by_hand(shape, arm, work_s).per_minute
    best = max(arms, key=lambda arm: tried[arm.name])
    runs: dict[str, Callable[[], Outcome]] = {
        "best": lambda: _run_by_hand(shape, best, work_s),
        "plan": lambda: _run_plan(shape, work_s),
    }
    order = [name for name in runs for _ in range(repetitions)]
    random.Random(0).shuffle(order)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for name in order:
        _say(shape, name)
        samples[name].append(runs[name]().per_minute)
    by_hand, plan = spread(samples["best"]), spread(samples["plan"])
    return (
        f"| {shape} | {default.num_done} in {default.seconds:.0f} s | "
        f"{'; '.join(f'{arm.name}: {tried[arm.name]:.1f}' for arm in arms)} | {best.name}: {_shown(by_hand)} | "
        f"{_shown(plan)} | {plan.median / by_hand.median:.2f} |"
    )


def _say(shape: Shape, name: str) -> None:
    print(f"{shape}: {name}", file=sys.stderr)


def _shown(value: Spread) -> str:
    return f"{value.median:.1f} ±{value.iqr / 2:.1f}"


class Outcome(NamedTuple):
    """What came of a run."""

    num_done: int
    seconds: float

    @property
    def per_minute(self) -> float:
        """Trials finished per minute."""
        return 60 * self.num_done / self.seconds


def _run_by_hand(shape: Shape, arm: Arm, work_s: float, cap_s: float | None = None) -> Outcome:
    def trial(config: dict[str, Any]) -> None:
        resources = {"CPU": shape.worker_cpus} | ({"GPU": shape.worker_gpus} if shape.worker_gpus else {})
        DataParallelTrainer(
            _work,
            train_loop_config=config,
            scaling_config=ScalingConfig(
                num_workers=1, use_gpu=bool(shape.worker_gpus), resources_per_worker=resources
            ),
            run_config=RunConfig(callbacks=[TuneReportCallback()], storage_path=config["folder"]),
        ).fit()

    with _cluster(shape):
        trainable = tune.with_resources(trial, arm.driver)
        return _timed(trainable, shape, {"max_concurrent_trials": arm.max_concurrent_trials}, work_s, cap_s)


def _run_plan(shape: Shape, work_s: float) -> Outcome:
    with _cluster(shape):
        plan = _policy(shape).plan(probe_cluster())
        return _timed(as_trainable(_builder(plan)), shape, {"scheduler": PolicyScheduler(plan)}, work_s)


def _policy(shape: Shape) -> CpuPolicy | GpuPolicy:
    if shape.worker_gpus:
        return GpuPolicy(gpus=shape.worker_gpus, cpus=shape.worker_cpus, num_workers=1)
    return CpuPolicy(cpus=shape.worker_cpus, num_workers=1)


def _builder(plan: TrialPlan) -> Callable[[dict[str, Any]], DataParallelTrainer]:
    def build(config: dict[str, Any]) -> DataParallelTrainer:
        return DataParallelTrainer(_work, train_loop_config=config, scaling_config=plan.scaling_config())

    return build


def _work(config: dict[str, Any]) -> None:
    time.sleep(config["work_s"])
    ray.train.report({"work_done": 1})


@contextmanager
def _cluster(shape: Shape) -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=shape.cpus,
        num_gpus=shape.gpus,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def _timed(
    trainable: Any, shape: Shape, options: Mapping[str, Any], work_s: float, cap_s: float | None = None
) -> Outcome:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        trials = tune.run(
            trainable,
            config={"seed": tune.grid_search(list(range(shape.num_trials))), "work_s": work_s, "folder": folder},
            **options,
            time_budget_s=cap_s,
            storage_path=folder,
            raise_on_failed_trial=False,
            verbose=0,
        ).trials
        seconds = time.perf_counter() - start
    return Outcome(sum(1 for trial in trials if (trial.last_result or {}).get("work_done")), seconds)
