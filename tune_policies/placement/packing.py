"""How many trials fit a cluster at once: per node and per device, never on sums.

A *worker* is one process that trains: the trial itself, or each of a trial's Train workers. The workers of
a plan are all alike, so it does not matter in which order Ray places them: the cluster holds as many as its
nodes hold one by one. Nodes of one shape are counted once and multiplied.
"""

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any, Final, Self

from pydantic import model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import NodeCapacity, NodeGroup
from tune_policies.placement.remaining import DRIVER_BYTES, slots_by_resource
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, Amounts, Bytes, Count, Resources, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

DRIVER: Final = Resources(memory_bytes=DRIVER_BYTES)
"""What Tune reserves for a trial whose training runs in Train workers.

A Train driver only waits, so it must not hold a CPU that its own workers queue for. Ray refuses a trial that
holds nothing, and takes one that holds a little host memory.
"""


_TYPE_TICKS: Final = to_ticks(ACCELERATOR_TYPE_AMOUNT)


class Request(Value):
    """What one trial needs.

    Attributes:
        worker: What one process that trains reserves.
        num_workers: Train workers in the trial; 0: the trial itself trains. Given as a pair, it is split.
        max_workers: To how many the trial may grow; ``None``: the number is fixed. It takes no part in packing.
        accelerator_type: Ray's name of the device type that the workers must have.
        gpu_memory_bytes: GPU memory that each worker wants. It takes no part in packing: the GPU share does.
    """

    worker: Resources
    num_workers: Count = 0
    max_workers: Count | None = None
    accelerator_type: str | None = None
    gpu_memory_bytes: Bytes | None = None

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: dict[str, Any]) -> dict[str, Any]:
        if isinstance(workers := data.get("num_workers"), tuple):
            return {**data, "num_workers": workers[0], "max_workers": workers[1]}
        return data

    @model_validator(mode="after")
    def _must_ask_for_something(self) -> Self:
        if not self.worker.ticks:
            raise InvalidResourcesError("a worker must ask for something: give it CPUs or GPUs above 0")
        return self

    @cached_property
    def amounts(self) -> Amounts:
        """What one worker takes of a node, its part of the device type included."""
        of_type = (
            {} if self.accelerator_type is None else {ACCELERATOR_TYPE_PREFIX + self.accelerator_type: _TYPE_TICKS}
        )
        return self.worker.ticks | of_type

    @property
    def processes(self) -> int:
        """How many processes train in one trial."""
        return max(1, self.num_workers)

    def __str__(self) -> str:
        each = str(self.worker)
        if self.gpu_memory_bytes:
            each += f" with {format_bytes(self.gpu_memory_bytes)} of GPU memory"
        if self.accelerator_type:
            each += f" on {self.accelerator_type}"
        if self.num_workers == 0:
            return each
        grown = f" to {self.max_workers}" if self.max_workers else ""
        return f"{self.num_workers}{grown} workers of {each}"


def request_of(slot: TrialSlot) -> Request:
    """Return what a trial in ``slot`` needs."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)


def equal_device_share(most_per_device: int, most_devices: float) -> int:
    """Return the share of a device with which at most so many workers are on one, in ticks.

    Ray's scheduler and autoscaler add up the shares of a node, but each share must find its place on one
    device. With ``floor(10 000 / k)`` for everybody both counts agree; with anything else Ray admits a trial
    that no device can hold, and it waits for ever. On a node with many devices and a large k, what rounding
    loses on each device adds up to one share too many; then a smaller k is taken.

    Args:
        most_per_device: Workers on one device at the most.
        most_devices: Devices of the node that has the most.
    """
    devices = to_ticks(most_devices) // TICKS
    for k in range(min(most_per_device, TICKS), 0, -1):
        share = TICKS // k
        lost_on_node = max(1, devices) * (TICKS - k * share)
        if lost_on_node < share:  # so on one device as well: of the shares for 141, there would be room for 142
            return share
    return TICKS


def slots_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> dict[str, int]:
    """Return for each resource that ``request`` names how many workers it alone would let ``node`` hold.

    The node holds the smallest of them. Host memory that is not known limits nothing.
    """
    return slots_by_resource(node.amounts, request.amounts, num_drivers=num_drivers)


def workers_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers ``node`` holds at once, beside so many Train drivers."""
    return min(slots_on_node(node, request, num_drivers=num_drivers).values(), default=0)


def count_workers(groups: Iterable[NodeGroup], request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers the nodes hold at once."""
    return sum(count * workers_on_node(node, request, num_drivers=num_drivers) for node, count in groups)


def count_trials(groups: Collection[NodeGroup], request: Request) -> int:
    """Return how many trials run at once, drivers included, wherever Ray puts the drivers."""
    most = count_workers(groups, request) // request.processes
    if request.num_workers == 0:
        return most
    if request.worker.memory_bytes is None:
        return min(most, count_drivers(groups, most))
    # More drivers leave less host memory for workers, so the answer is where the two meet.
    return largest(0, most, lambda trials: count_workers_beside(groups, request, trials) >= trials * request.processes)


def room_to_grow(groups: Collection[NodeGroup], request: Request, num_trials: int) -> tuple[int | None, int | None]:
    """Return the most workers of one trial, while ``num_trials`` - 1 others have their fewest, and while it runs alone.

    Both count all drivers. ``None`` twice: the number of workers is fixed.
    """
    if request.max_workers is None:
        return None, None
    workers = count_workers_beside(groups, request, num_trials)
    alone = min(request.max_workers, workers)
    return min(alone, workers - (num_trials - 1) * request.num_workers), alone


def count_workers_beside(groups: Collection[NodeGroup], request: Request, num_drivers: int) -> int:
    """Subtract the host memory of Train drivers, wherever Ray puts them, and return how many workers still fit.

    If all drivers together need less memory than a worker, a node loses one worker at the most. Drivers then do the
    most harm where they fill the smallest gaps. If they need more, count each node as if it held all drivers.
    """
    workers, needed = count_workers(groups, request), request.worker.memory_bytes
    if needed is None:
        return workers
    if num_drivers * DRIVER_BYTES >= needed:
        return count_workers(groups, request, num_drivers=num_drivers)
    gaps = []
    for node, count in groups:
        held = workers_on_node(node, request) * needed
        if held and node.resources.memory_bytes is not None:
            gaps.append(((node.resources.memory_bytes - held) // DRIVER_BYTES, count))
    for gap, count in sorted(gaps):
        lost = min(count, num_drivers // (gap + 1))
        workers -= lost
        num_drivers -= lost * (gap + 1)
    return workers


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number for which ``holds`` is true: it is at ``low``, and never again once it was false."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def count_drivers(groups: Iterable[NodeGroup], wanted: int) -> int:
    """Return how many Train drivers find room on otherwise idle nodes; ``wanted`` where nothing limits them."""
    room = 0
    for node, count in groups:
        if node.resources.memory_bytes is None:
            return wanted
        room += count * (node.resources.memory_bytes // DRIVER_BYTES)
    return room


def limiting_resource(groups: Collection[NodeGroup], request: Request) -> str:
    """Return the resource that stops one more trial, by Ray's name; ties go to the scarcest resource.

    On each node that can hold a worker, the resource with the fewest slots stops one more. Return the resource that
    does so for the most slots.
    """
    if request.num_workers and count_trials(groups, request) < count_workers(groups, request) // request.num_workers:
        return "memory"  # which the drivers hold
    stops: dict[str, int] = {}
    for node, count in groups:
        slots = slots_on_node(node, request)
        if slots and min(slots.values()) > 0:
            name = min(slots, key=lambda resource: (slots[resource], _scarcity(resource)))
            stops[name] = stops.get(name, 0) + slots[name] * count
    if not stops:
        return next((name for name in request.worker.ticks if name in DEVICE_RESOURCES), "CPU")
    return min(stops, key=lambda resource: (-stops[resource], _scarcity(resource)))


def _scarcity(resource: str) -> tuple[int, str]:
    order = ("GPU", "CPU", "memory")
    return (order.index(resource) if resource in order else len(order), resource)
