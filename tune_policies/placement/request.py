"""The resource request of a trial, and the limits on the number of trials that are not resources of Ray.

A *worker* is a process that trains: the trial itself, or one of its Train workers.
"""

from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Self

from pydantic import model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import (
    Amounts,
    Bytes,
    Count,
    Resources,
    to_ticks,
)
from tune_policies.values.units import MIB, format_bytes
from tune_policies.values.value import Value

DRIVER_BYTES: Final = MIB
"""The host memory that a Train driver reserves, in bytes. A driver reserves no other resources."""

DRIVER: Final = Resources(memory_bytes=DRIVER_BYTES)
"""The reservation of a trial whose training runs in Train workers.

A driver only waits, so it must not reserve a CPU that its workers need. Ray rejects a trial that reserves nothing, but
accepts a trial that reserves a little host memory.
"""


class Limit(StrEnum):
    """A limit on the number of trials that is not one of Ray's resources."""

    MAX_CONCURRENT_TRIALS = "max_concurrent_trials"
    MAX_TRIALS_PER_GPU = "max_trials_per_gpu"
    NUM_TRIALS = "num_trials"
    DEADLINE = "deadline_hours"
    GPU_MEMORY = "GPU memory"
    TPU_SLICES = "TPU slices"
    NODES = "nodes"

    @classmethod
    def of(cls, name: str) -> "Limit | str":
        """Return the limit with this name, or the name itself if it is a resource or a custom limit."""
        return next((member for member in cls if member == name), name)


class Request(Value):
    """The resource request of a trial.

    Attributes:
        worker: The resources that each training process reserves.
        num_workers: The number of Train workers in the trial, or 0 if the trial itself trains. A pair ``(min, max)``
            also sets ``max_workers``.
        max_workers: The maximum number of workers of an elastic trial. It does not affect the number of trials.
        accelerator_type: Ray's name of the device type that the workers need.
        gpu_memory_bytes: The GPU memory that each worker needs. Only the GPU fraction determines how many trials fit.
        is_any_share: Whether any GPU fraction with ``gpu_memory_bytes`` is enough. Messages then omit the fraction.
    """

    worker: Resources
    num_workers: Count = 0
    max_workers: Count | None = None
    accelerator_type: str | None = None
    gpu_memory_bytes: Bytes | None = None
    is_any_share: bool = False

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: dict[str, Any]) -> dict[str, Any]:
        workers = data.get("num_workers")
        if isinstance(workers, tuple):
            return {**data, "num_workers": workers[0], "max_workers": workers[1]}
        return data

    @model_validator(mode="after")
    def _must_request_resources(self) -> Self:
        if not self.worker.ticks:
            raise InvalidResourcesError("a worker must request resources. Set CPUs or GPUs above 0")
        return self

    @property
    def unit(self) -> str:
        """The name of the requesting unit in messages (``"worker"``, or ``"trial"`` if the trial itself trains)."""
        if self.num_workers:
            return "worker"
        return "trial"

    @cached_property
    def amounts(self) -> Amounts:
        """The amounts that a worker reserves on a node, by resource, including the resource of its device type."""
        if self.accelerator_type is None:
            return self.worker.ticks
        return self.worker.ticks | {ACCELERATOR_TYPE_PREFIX + self.accelerator_type: to_ticks(ACCELERATOR_TYPE_AMOUNT)}

    @cached_property
    def slots_beside_memory(self) -> dict[tuple[Any, ...], int]:
        """A cache that maps a node shape without host memory to the number of workers that fit on such a node."""
        return {}

    def with_cpus(self, cpus: float) -> "Request":
        """Return the request with this number of CPUs for each worker."""
        return self.model_copy(update={"worker": self.worker.replaced(cpus=cpus)})

    @property
    def processes(self) -> int:
        """The number of processes that train in a trial."""
        return max(1, self.num_workers)

    def __str__(self) -> str:
        worker = str(self.worker)
        if self.gpu_memory_bytes and self.is_any_share:
            others = self.worker.replaced(gpus=0)
            worker = f"a GPU fraction with {format_bytes(self.gpu_memory_bytes)}"
            if others.ticks:
                worker = f"{others}, {worker}"
        elif self.gpu_memory_bytes:
            worker += f" with {format_bytes(self.gpu_memory_bytes)} of GPU memory"
        if self.accelerator_type:
            worker += f" on {self.accelerator_type}"
        if self.num_workers == 0:
            return worker
        if self.max_workers:
            return f"{self.num_workers} to {self.max_workers} workers, each with {worker}"
        if self.num_workers == 1:
            return f"1 worker with {worker}"
        return f"{self.num_workers} workers, each with {worker}"


def request_of(slot: TrialSlot) -> Request:
    """Return the resource request of a trial in ``slot``."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)
