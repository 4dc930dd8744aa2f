"""An iterative job in two forms: as tasks of Ray that copy their data each time, and as an actor that keeps them.

One iteration is a step of the heat equation on a ring. As a chain of tasks, each iteration takes the numbers from Ray's
object store, moves them to the device, computes, moves them back, and puts them into the store for the next; as an
actor, it computes on what lies on the device.

Both forms run in the measured process itself, which has the device, the CPUs and the threads of a trial: a task that it
started would have to take them from it. So the two differ by the copies and nothing else; what Ray takes to start a
task, on any device, is not in the figures.
"""

import warnings
from typing import Any, Final

import numpy as np
import ray
import torch

from tune_policies.values.errors import ProbeError

from ..measuring.frameworks import torch_device
from ..measuring.workload import Steps

SEED: Final = 0
NUM_ITERATIONS: Final = 8
"""Of an epoch."""


def iterative_tasks(size: int, device: str) -> Steps:
    """Iterate on ``size`` numbers that go through Ray's object store each time; the first of them compares."""
    if not ray.is_initialized():  # or the first put would start one
        raise ProbeError(
            "iterative-tasks copies through Ray's object store, and no Ray runs: call ray.init() before it"
        )
    where = torch_device(device)
    # What comes from the store is read-only, and torch says so; it is only read.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    stored = ray.put(_first_numbers(size))

    def iterate() -> Any:
        nonlocal stored
        numbers = _iterated(torch.from_numpy(ray.get(stored)).to(where)).cpu().numpy()
        stored = ray.put(numbers)
        return numbers[0]

    # The copies are what such a task does: a time without them would be the actor's.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def iterative_actor(size: int, device: str) -> Steps:
    """Iterate on ``size`` numbers that stay on the device; the first of them compares."""
    numbers = torch.from_numpy(_first_numbers(size)).to(torch_device(device))

    def iterate() -> Any:
        nonlocal numbers
        numbers = _iterated(numbers)
        return numbers[0]

    # Nothing is moved, so both times of the other workloads would be the same here.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def _first_numbers(size: int) -> Any:
    return np.random.default_rng(SEED).random(size, dtype=np.float32)


def _iterated(numbers: torch.Tensor) -> torch.Tensor:
    return 0.5 * numbers + 0.25 * (torch.roll(numbers, 1) + torch.roll(numbers, -1))
