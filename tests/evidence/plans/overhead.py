"""What a plan costs a run of Ray Tune: trials that do nothing, under a plan and by hand.

Each round runs every arm once, in random order, and only runs of one round are compared: what drifts meets all of them.
"""

import contextlib
import io
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import ray
from ray import tune
from rich.progress import track

import tune_policies
from tune_policies import CpuPolicy, PolicyCallback, PolicyScheduler, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import Spread, spread
from tune_policies.files.terminal import TextConsole, TextTable

from .choices import Arm

GOAL: Final = 1.02
"""The most that a plan should cost: the time of a run under it, against that of the run by hand."""


class Size(NamedTuple):
    """How much is run.

    Attributes:
        num_trials: In each run.
        repetitions: Rounds that count, after one that does not.
        reuse_actors: Whether a trial takes over the process of another.
    """

    num_trials: int
    repetitions: int
    reuse_actors: bool


def measure_overhead(arms: list[Arm], size: Size) -> None:
    """Print a table: seconds of a run, and its ratio to the run by hand, as medians with their spread."""
    seconds = _run_rounds([Arm.BY_HAND, *(arm for arm in arms if arm is not Arm.BY_HAND)], size)
    table = TextTable(title=f"{size.num_trials} trials that do nothing: median ± half the interquartile range")
    table.add_column("Arm")
    for heading in ("Time (s)", "Time against by-hand", "Smallest", "Largest", f"At most {GOAL}"):
        table.add_column(heading, justify="right")
    for arm, times in seconds.items():
        ratios = [one / by_hand for one, by_hand in zip(times, seconds[Arm.BY_HAND], strict=True)]
        against = spread(ratios)
        told = [
            _precise(against),
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
            "yes" if against.median <= GOAL else "no",
        ]
        table.add_row(arm, str(spread(times)), *(["1"] + [""] * 3 if arm is Arm.BY_HAND else told))
    TextConsole(width=110).print(table)
    reused = "processes are used again" if size.reuse_actors else "a new process for each trial"
    print(f"{size.repetitions} rounds in one Ray after one that does not count; {reused}. {describe_machine()}")
    print(f"command: {own_command()}")


def _precise(value: Spread) -> str:
    return f"{value.median:.3f} ±{value.iqr / 2:.3f}"


def _run_rounds(arms: list[Arm], size: Size) -> Mapping[Arm, list[float]]:
    # Where two trials fit, chance decides whether Tune serves a run with both processes or, as one comes late, all
    # of it with the other, which takes half as long again: with one CPU each run has one process.
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        plan = CpuPolicy(cpus=1).plan(tune_policies.probe_cluster())
        seconds: dict[Arm, list[float]] = {arm: [] for arm in arms}
        order = random.Random(0)
        for number in track(range(size.repetitions + 1), "rounds", console=TextConsole(stderr=True)):
            for arm in order.sample(arms, len(arms)):
                taken = _time(_arguments(arm, plan), size)
                if number:
                    seconds[arm].append(taken)
        return seconds
    finally:
        ray.shutdown()


def _arguments(arm: Arm, plan: TrialPlan) -> Callable[[], dict[str, Any]]:
    """Return what makes the arguments of a run; to make them is part of what is timed."""

    def by_hand() -> dict[str, Any]:
        return {"run_or_experiment": _trainable(), "resources_per_trial": {"cpu": 1}}

    def under_plan() -> dict[str, Any]:
        return {"run_or_experiment": _trainable(), "scheduler": PolicyScheduler(plan)}

    def with_callback() -> dict[str, Any]:
        return {**under_plan(), "callbacks": [PolicyCallback()]}

    return {
        Arm.BY_HAND: by_hand,
        Arm.PLAN: under_plan,
        Arm.CALLBACK: with_callback,
    }[arm]


def _trainable() -> Callable[[dict[str, Any]], None]:
    """Return a function that reports once; it travels by value, so that a process by hand imports nothing of this."""

    def do_nothing(config: dict[str, Any]) -> None:
        tune.report({"x": config["x"]})

    return do_nothing


def _time(arguments: Callable[[], dict[str, Any]], size: Size) -> float:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        tune.run(
            **arguments(),
            config={"x": tune.uniform(0, 1)},
            num_samples=size.num_trials,
            reuse_actors=size.reuse_actors,
            storage_path=folder,
            verbose=0,
        )
        return time.perf_counter() - start
