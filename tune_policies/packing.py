"""How many trials fit a cluster at once: per node and per device, never on sums.

A *worker* is one process that trains: the trial itself, or each of a trial's Train workers. The workers of
a plan are all alike, so it does not matter in which order Ray places them: the cluster holds as many as its
nodes hold one by one.
"""

from collections.abc import Iterable
from typing import Final, Self

from pydantic import model_validator

from tune_policies.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.capacity import NodeCapacity
from tune_policies.errors import InvalidResourcesError
from tune_policies.resources import TICKS, Bytes, Count, Resources, to_ticks
from tune_policies.units import MIB, format_bytes
from tune_policies.values import Value

DRIVER: Final = Resources(memory_bytes=MIB)
"""What Tune reserves for a trial whose training runs in Train workers.

A Train driver only waits, so it must not hold a CPU that its own workers queue for. Ray refuses a trial that
holds nothing, and takes one that holds a little host memory.
"""


class Request(Value):
    """What one trial needs.

    Attributes:
        worker: What one process that trains reserves.
        num_workers: Train workers in the trial; 0: the trial itself trains.
        accelerator_type: Ray's name of the device type that the workers must have.
        gpu_memory_bytes: GPU memory that each worker wants. It takes no part in packing: the GPU share does.
    """

    worker: Resources
    num_workers: Count = 0
    accelerator_type: str | None = None
    gpu_memory_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _must_ask_for_something(self) -> Self:
        if not self.worker.ticks:
            raise InvalidResourcesError("a worker must ask for something: give it CPUs or GPUs above 0")
        return self

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
        return f"{self.num_workers} workers of {each}" if self.num_workers else each


def gpu_slots(node: NodeCapacity, share_ticks: int) -> int:
    """Return how many times ``share_ticks`` of GPU fit the devices of ``node``.

    A share below one GPU stays on one device; a share above takes whole devices.
    """
    gpus = to_ticks(node.resources.gpus)
    if share_ticks >= TICKS:
        return gpus // share_ticks
    return gpus // TICKS * (TICKS // share_ticks) + gpus % TICKS // share_ticks


def equal_gpu_share(most_per_gpu: int, nodes: Iterable[NodeCapacity]) -> int:
    """Return the share of a GPU with which at most so many workers are on one, in ticks.

    Ray's scheduler and autoscaler add up the GPU shares of a node, but each share must find its place on one
    device. With ``floor(10 000 / k)`` for everybody both counts agree; with anything else Ray admits a trial
    that no device can hold, and it waits for ever. On a node with many GPUs and a large k, what rounding
    loses on each device adds up to one share too many; then a smaller k is taken.
    """
    devices = max((to_ticks(node.resources.gpus) // TICKS for node in nodes), default=1)
    for k in range(min(most_per_gpu, TICKS), 0, -1):
        share = TICKS // k
        lost_on_node = devices * (TICKS - k * share)
        if lost_on_node < share:  # so on one device as well: of the shares for 141, there would be room for 142
            return share
    return TICKS


def slots_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> dict[str, int]:
    """Return for each resource that ``request`` names how many workers it alone would let ``node`` hold.

    The node holds the smallest of them. Host memory that is not known limits nothing.

    Args:
        node: Where the workers would run.
        request: What they need.
        num_drivers: Train drivers that may all be on this node; where Ray puts them cannot be known.
    """
    has = node.resources.ticks
    slots: dict[str, int] = {}
    for name, needed in request.worker.ticks.items():
        if name == "GPU":
            slots[name] = gpu_slots(node, needed)
        elif name == "memory":
            if node.resources.memory_bytes is not None:
                left = node.resources.memory_bytes - num_drivers * (DRIVER.memory_bytes or MIB)
                slots[name] = max(0, left) // needed
        else:
            slots[name] = has.get(name, 0) // needed
    if request.accelerator_type is not None:
        is_there = node.accelerator_type == request.accelerator_type
        per_node = TICKS // to_ticks(ACCELERATOR_TYPE_AMOUNT)
        slots[ACCELERATOR_TYPE_PREFIX + request.accelerator_type] = per_node if is_there else 0
    return slots


def count_workers(nodes: Iterable[NodeCapacity], request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers the nodes hold at once."""
    return sum(min(slots_on_node(node, request, num_drivers=num_drivers).values(), default=0) for node in nodes)


def count_trials(nodes: tuple[NodeCapacity, ...], request: Request) -> int:
    """Return how many trials run at once, drivers included, wherever Ray puts the drivers."""
    most = count_workers(nodes, request) // request.processes
    if request.num_workers == 0:
        return most
    if request.worker.memory_bytes is None:
        return min(most, _count_drivers(nodes, most))
    # More drivers leave less host memory for workers, so the answer is where the two meet.
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if count_workers(nodes, request, num_drivers=middle) >= middle * request.processes:
            low = middle
        else:
            high = middle - 1
    return low


def _count_drivers(nodes: Iterable[NodeCapacity], wanted: int) -> int:
    room = 0
    for node in nodes:
        if node.resources.memory_bytes is None:
            return wanted
        room += node.resources.memory_bytes // (DRIVER.memory_bytes or MIB)
    return room


def limiting_resource(nodes: Iterable[NodeCapacity], request: Request) -> str:
    """Return the resource that stops one more trial, by Ray's name; ties go to the scarcest kind.

    On each node that can hold a worker, the resource with the fewest slots is the one that stops it; the answer is
    the one that does so for the most slots.
    """
    nodes = tuple(nodes)
    if count_trials(nodes, request) < count_workers(nodes, request) // request.processes:
        return "memory"  # which the drivers hold
    stops: dict[str, int] = {}
    for node in nodes:
        slots = slots_on_node(node, request)
        if slots and min(slots.values()) > 0:
            name = min(slots, key=lambda resource: (slots[resource], _scarcity(resource)))
            stops[name] = stops.get(name, 0) + slots[name]
    if not stops:
        return "GPU" if request.worker.gpus else "CPU"
    return min(stops, key=lambda resource: (-stops[resource], _scarcity(resource)))


def _scarcity(resource: str) -> tuple[int, str]:
    order = ("GPU", "CPU", "memory")
    return (order.index(resource) if resource in order else len(order), resource)
