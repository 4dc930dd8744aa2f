"""The sweeps: 64 trials each, with known needs, drawn from a seed. ``SWEEPS`` maps the name of a sweep to its function.

The machine has 2 GPUs of 80 GiB unless the sweep is about other devices or about CPUs.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from .simulation import Machine, SimTrial

TWO_GPUS = Machine((80.0, 80.0), 64, 512)
NUM_TRIALS = 64


class Sweep(NamedTuple):
    """A machine and the trials that run on it."""

    machine: Machine
    trials: list[SimTrial]


def _minutes(rng: random.Random, minutes: float = 10) -> float:
    return 60 * minutes * rng.uniform(0.8, 1.2)


def _batch_and_width(rng: random.Random) -> dict[str, object]:
    return {"batch": rng.choice((16, 32, 64, 128)), "width": rng.choice((1, 2, 4)), "lr": rng.uniform(1e-4, 1e-1)}


def _memory_of(config: dict[str, object]) -> float:
    return 1.5 + float(str(config["batch"])) * float(str(config["width"])) / 20


def _of(make: Callable[[random.Random], SimTrial], machine: Machine = TWO_GPUS) -> Callable[[random.Random], Sweep]:
    return lambda rng: Sweep(machine, [make(rng) for _ in range(NUM_TRIALS)])


def _alike(rng: random.Random) -> SimTrial:
    return SimTrial({"lr": rng.random()}, _minutes(rng), gpu_gib=6 * rng.uniform(0.97, 1.03), utilization=0.15)


def _explained(rng: random.Random) -> SimTrial:
    config = _batch_and_width(rng)
    return SimTrial(config, _minutes(rng), gpu_gib=_memory_of(config) * rng.uniform(0.98, 1.02), utilization=0.15)


def _unexplained(rng: random.Random) -> SimTrial:
    return SimTrial(_batch_and_width(rng), _minutes(rng), gpu_gib=rng.uniform(2, 25), utilization=0.15)


def _heavy_tailed(rng: random.Random) -> SimTrial:
    gib = min(70.0, 4 * rng.lognormvariate(0, 0.9))
    return SimTrial(_batch_and_width(rng), _minutes(rng) * rng.lognormvariate(0, 0.4), gpu_gib=gib, utilization=0.15)


def _drifting(rng: random.Random) -> SimTrial:
    gib = 8 * rng.uniform(0.9, 1.1)
    return SimTrial({"lr": rng.random()}, _minutes(rng), gpu_gib=gib, utilization=0.15, early=0.5, peak_at=0.5)


def _two_populations(rng: random.Random) -> SimTrial:
    net = rng.choice(("mlp", "vit"))
    mean_gib = {"mlp": 3.0, "vit": 20.0}[net]
    gib = mean_gib * rng.uniform(0.97, 1.03)
    return SimTrial({"net": net, "lr": rng.random()}, _minutes(rng), gpu_gib=gib, utilization=0.15)


def _long_and_short(rng: random.Random) -> SimTrial:
    minutes = rng.choice((2, 2, 2, 30))
    config = _batch_and_width(rng)
    return SimTrial(config, _minutes(rng, minutes), gpu_gib=_memory_of(config), utilization=0.15)


def _compute_bound(rng: random.Random) -> SimTrial:
    return SimTrial({"lr": rng.random()}, _minutes(rng), gpu_gib=6 * rng.uniform(0.97, 1.03), utilization=0.5)


def _data_bound(rng: random.Random) -> SimTrial:
    return SimTrial({"lr": rng.random()}, _minutes(rng), gpu_gib=5.0, utilization=0.1, cpus=6)


def _early_stopping(rng: random.Random) -> SimTrial:
    config = _batch_and_width(rng)
    minutes = rng.choice((1, 1, 2, 4, 10))
    return SimTrial(config, _minutes(rng, minutes), gpu_gib=_memory_of(config), utilization=0.15)


def _failing_late(rng: random.Random) -> SimTrial:
    gib = rng.uniform(4, 12)
    return SimTrial(
        {"lr": rng.random()}, _minutes(rng), gpu_gib=gib, utilization=0.15, early=0.6, peak_at=0.85, saves=False
    )


def _waiting_on_cpus(rng: random.Random) -> SimTrial:
    return SimTrial({"lr": rng.random()}, _minutes(rng, 3), host_gib=0.5 * rng.uniform(0.9, 1.1), cpus=0.1)


def _shared_disk(rng: random.Random) -> SimTrial:
    return SimTrial({"lr": rng.random()}, _minutes(rng, 3), host_gib=0.5, cpus=0.1, disk=1 / 8)


def _host_memory_by_config(rng: random.Random) -> SimTrial:
    trees, depth = rng.choice((50, 100, 200, 400)), rng.choice((4, 8, 16))
    config = {"n_estimators": trees, "max_depth": depth}
    return SimTrial(config, _minutes(rng, 3), host_gib=0.3 + trees * depth / 800, cpus=1.0)


SWEEPS: Final[dict[str, Callable[[random.Random], Sweep]]] = {
    "alike": _of(_alike),
    "explained by config": _of(_explained),
    "unexplained": _of(_unexplained),
    "heavy-tailed": _of(_heavy_tailed),
    "drifting with training": _of(_drifting),
    "two populations": _of(_two_populations),
    "long and short": _of(_long_and_short),
    "compute-bound": _of(_compute_bound),
    "data-bound": _of(_data_bound),
    "early stopping": _of(_early_stopping),
    "mixed devices": _of(_alike, Machine((80.0, 24.0, 24.0), 64, 512)),
    "failing late": _of(_failing_late),
    "waiting, on CPUs": _of(_waiting_on_cpus, Machine((), 4, 32)),
    "shared disk": _of(_shared_disk, Machine((), 4, 32)),
    "host memory by config": _of(_host_memory_by_config, Machine((), 32, 32)),
}
