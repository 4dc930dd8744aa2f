"""How long a run of many trials takes on quarter GPUs and CPU slots together: makespans against the least there is.

The trials only sleep, for longer without a GPU, so that the bound has nothing in it but their lengths. Ray, Tune, the
scheduler and the processes are real, the GPUs logical. Beside it, the same decisions are simulated without Ray for
trials of random lengths.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import ray
from ray import tune
from rich.table import Table

from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, MixedPolicy, PolicyScheduler, Resources, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import spread
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.tune.slot_assignment import TrialDurations

from .pool_simulation import SlotType, least_makespan, simulate

_NUM_GPUS: Final = 2
_NUM_CPUS: Final = 16
_GPU_SLOTS: Final = GpuPolicy(gpus=0.25, cpus=1)
_CPU_SLOTS: Final = CpuPolicy(cpus=2)

_STARTS_S: Final = 300.0
"""How long the start of all processes may take."""


class PoolArm(Enum):
    """A way to use the slots."""

    POLICY = "PolicyScheduler, speeds known"
    LEARNS = "PolicyScheduler, speeds not known"
    NAIVE = "every slot whenever it is free"
    GPU_ONLY = "GPU slots only"


class Sizes(NamedTuple):
    """What is run.

    Attributes:
        trials: How many trials.
        seconds: How long each takes in a GPU slot.
        slowdown: How many times as long it takes in a CPU slot.
        repetitions: Runs of each arm.
        simulations: Simulated runs of each arm.
    """

    trials: int
    seconds: float
    slowdown: float
    repetitions: int
    simulations: int


class Run(NamedTuple):
    """Seconds of one run: from the start of all processes to its end, and of the whole run."""

    makespan_s: float
    whole_s: float


class Sleeper(tune.Trainable):  # type: ignore[misc] # Ray's class is Any here
    """Sleeps for as long as its slot takes for its work.

    The first trials, one for each slot, only wait until the processes of all slots have started.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Find out how long that is."""
        has_gpu = ray.get_runtime_context().get_assigned_resources().get("GPU", 0) > 0
        self._seconds = config["gpu_s"] if has_gpu else config["cpu_s"]
        self._number, self._num_slots, self._starts = config["number"], config["num_slots"], Path(config["starts"])

    def step(self) -> dict[str, Any]:
        """Do all the work."""
        if self._number < self._num_slots:
            self._await_all_starts()
        else:
            time.sleep(self._seconds)
        return {"ended_s": time.time(), "done": True}

    def _await_all_starts(self) -> None:
        (self._starts / str(self._number)).touch()
        deadline = time.monotonic() + _STARTS_S
        while len(list(self._starts.iterdir())) < self._num_slots:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the processes of {self._num_slots} slots did not start within {_STARTS_S:g} s")
            time.sleep(0.05)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin anew for another trial."""
        self.setup(new_config)
        return True


def measure_makespan(sizes: Sizes) -> None:
    """Print how long simulated runs with trials of random lengths take, and real ones with trials of one length."""
    slot_types = _slot_types(sizes.slowdown)
    TextConsole().print(_simulated(sizes, slot_types))
    bound_s = least_makespan([sizes.seconds] * sizes.trials, slot_types)
    runs = [arm for arm in PoolArm for _ in range(sizes.repetitions)]
    random.Random(0).shuffle(runs)
    found: dict[PoolArm, list[Run]] = {arm: [] for arm in PoolArm}
    with _local_ray():
        for number, arm in enumerate(runs, start=1):
            print(f"{number}/{len(runs)}: {arm}", file=sys.stderr)
            found[arm].append(run_arm(arm, sizes))
    table = _table(f"{sizes.trials} trials on a real Ray", "Makespan (s)", "Range", "Ratio", "With starts (s)")
    for arm, each in found.items():
        times = [run.makespan_s for run in each]
        median = spread(times).median
        row = (f"{median:.1f}", f"{min(times):.1f} to {max(times):.1f}", f"{median / bound_s:.3f}")
        table.add_row(arm.value, *row, f"{spread([run.whole_s for run in each]).median:.1f}")
    TextConsole().print(table)
    slots = ", ".join(f"{slot_type.num_slots} of speed {slot_type.speed:g}" for slot_type in slot_types)
    TextConsole().print(
        f"{sizes.repetitions} runs of each, medians; slots: {slots}; a trial takes {sizes.seconds:g} s at speed 1; the "
        f"shortest run that is possible takes {bound_s:.1f} s. {describe_machine()}",
        soft_wrap=True,
    )
    print(f"command: {own_command()}")


def run_arm(arm: PoolArm, sizes: Sizes) -> Run:
    """Run the trials on the Ray that this program is connected to."""
    plan = _plan(arm, sizes.slowdown)
    # What is switched off here is the one decision in which naive mixing differs.
    never_idle = patch("tune_policies.tune.slot_assignment.should_idle", return_value=False)
    decision = never_idle if arm is PoolArm.NAIVE else nullcontext()
    # What Tune says of a run is no part of the result.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, decision, redirect_stdout(sys.stderr):
        num_slots, starts = plan.max_concurrent_trials, Path(folder, "starts")
        starts.mkdir()
        began_s = time.perf_counter()
        trials = tune.run(
            Sleeper,
            config={
                "gpu_s": sizes.seconds,
                "cpu_s": sizes.seconds * sizes.slowdown,
                "starts": str(starts),
                "num_slots": num_slots,
                "number": tune.grid_search(list(range(num_slots + sizes.trials))),
            },
            scheduler=PolicyScheduler(plan),
            reuse_actors=True,
            storage_path=folder,
            verbose=0,
        ).trials
        whole_s = time.perf_counter() - began_s
    ends = [trial.last_result["ended_s"] for trial in trials]
    started_s = max(end for trial, end in zip(trials, ends, strict=True) if trial.config["number"] < num_slots)
    return Run(max(ends) - started_s, whole_s)


def _plan(arm: PoolArm, slowdown: float) -> TrialPlan:
    capacity = ClusterCapacity.of(Resources(cpus=_NUM_CPUS, gpus=_NUM_GPUS))
    if arm is PoolArm.GPU_ONLY:
        return _GPU_SLOTS.plan(capacity)
    speeds = None if arm is PoolArm.LEARNS else (1, 1 / slowdown)
    return MixedPolicy(_GPU_SLOTS, _CPU_SLOTS, speeds=speeds).plan(capacity)


def _slot_types(slowdown: float) -> list[SlotType]:
    return [SlotType(slot.max_concurrent_trials, slot.speed or 1) for slot in _plan(PoolArm.POLICY, slowdown).slots]


def _simulated(sizes: Sizes, slot_types: list[SlotType]) -> Table:
    """Return the ratios of simulated makespans to the bound: the mean, and the largest, for each way and spread."""
    lengths: dict[str, Callable[[random.Random], float]] = {
        "all of one length": lambda _: 1,
        "half to one and a half of the mean": lambda rng: rng.uniform(0.5, 1.5),
        "log-normal, sigma 0.5": lambda rng: rng.lognormvariate(0, 0.5),
        "log-normal, sigma 1": lambda rng: rng.lognormvariate(0, 1),
    }
    ratios: dict[PoolArm, dict[str, str]] = {arm: {} for arm in PoolArm}
    for name, length in lengths.items():
        for arm in PoolArm:
            found = []
            for seed in range(sizes.simulations):
                rng = random.Random(seed)
                work = [length(rng) for _ in range(sizes.trials)]
                found.append(_simulate(arm, work, slot_types) / least_makespan(work, slot_types))
            ratios[arm][name] = f"{statistics.mean(found):.3f} (to {max(found):.3f})"
    table = _table(f"{sizes.trials} simulated trials, mean ratio of {sizes.simulations} runs", *lengths)
    for arm in PoolArm:
        table.add_row(arm.value, *ratios[arm].values())
    return table


def _simulate(arm: PoolArm, work: list[float], slot_types: list[SlotType]) -> float:
    if arm is PoolArm.GPU_ONLY:
        return simulate(work, slot_types[:1], durations=None)
    speeds = [slot_type.speed if arm is PoolArm.POLICY else None for slot_type in slot_types]
    return simulate(work, slot_types, durations=None if arm is PoolArm.NAIVE else TrialDurations(speeds))


def _table(title: str, *headings: str) -> Table:
    table = TextTable(title=title)
    table.add_column("Slots")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


@contextmanager
def _local_ray() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=_NUM_CPUS,
        num_gpus=_NUM_GPUS,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()
