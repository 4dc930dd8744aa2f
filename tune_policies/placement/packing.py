"""How many trials fit a cluster at once: per node and per device, never on sums.

A *worker* is one process that trains: the trial itself, or each of a trial's Train workers. The workers of
a plan are all alike, so it does not matter in which order Ray places them: the cluster holds as many as its
nodes hold one by one. Nodes of one shape are counted once and multiplied.

Amounts are by Ray's names and in ticks of 1/10 000, host memory in bytes. The same rules hold everywhere:

* Missing host memory is not known, and limits nothing. A node has nothing of any other resource that is missing.
* A share below one device stays on one device; whole devices are whole.
* A device type is an amount like any other: a node has one unit of ``accelerator_type:X``, a worker takes 0.001 of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from pydantic import model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.labels import matcher
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amounts,
    Bytes,
    Count,
    Resources,
    fewest_workers,
    from_ticks,
    ray_ticks,
    to_ticks,
)
from tune_policies.values.units import MIB, format_bytes
from tune_policies.values.value import Value

DRIVER_BYTES: Final = MIB
"""Host memory of a Train driver, of which it holds nothing else."""

DRIVER: Final = Resources(memory_bytes=DRIVER_BYTES)
"""What Tune reserves for a trial whose training runs in Train workers.

A Train driver only waits, so it must not hold a CPU that its own workers queue for. Ray refuses a trial that
holds nothing, and takes one that holds a little host memory.
"""

_UNLIMITED: Final = 2**63


def device_slots(ticks: int, share: int) -> int:
    """Return how many times a share fits idle devices of one node, both in ticks."""
    if share >= TICKS:
        return ticks // share
    return ticks // TICKS * (TICKS // share) + ticks % TICKS // share


def slots_by_resource(has: Mapping[str, int], worker: Mapping[str, int], *, num_drivers: int = 0) -> dict[str, int]:
    """Return for each resource of a worker how many workers it alone would let an idle node hold.

    Args:
        has: What the node has.
        worker: What each worker takes.
        num_drivers: Train drivers that may all be on this node; where Ray puts them cannot be known.
    """
    return {
        name: _slots_of(name, has.get(name, 0), needed, num_drivers)
        for name, needed in worker.items()
        if name in has or name != "memory"
    }


def _slots_of(name: str, amount: int, needed: int, num_drivers: int) -> int:
    if name in DEVICE_RESOURCES:
        return device_slots(amount, needed)
    if name == "memory":
        return max(0, amount - num_drivers * DRIVER_BYTES) // needed
    return amount // needed


def subtract(node: NodeCapacity, worker: Mapping[str, int], count: int = 1, *, num_drivers: int = 0) -> NodeCapacity:
    """Subtract workers and Train drivers from a node.

    Ray may spread shares of a device over all devices of the node, so shares leave none of these.
    """
    left = dict(node.resources.ticks)
    for name, ticks in left.items():
        needed = worker.get(name, 0)
        if name in DEVICE_RESOURCES and 0 < needed < TICKS:
            left[name] = 0
        elif name == "memory":
            # None would mean "not known": a node with nothing left keeps its last byte.
            left[name] = max(1, ticks - count * needed - num_drivers * DRIVER_BYTES)
        else:
            left[name] = ticks - count * needed
    custom = {name: from_ticks(left[name]) for name in node.resources.custom}
    cpus, gpus = (from_ticks(left.get(name, 0)) for name in ("CPU", "GPU"))
    return node.with_less(Resources(cpus=cpus, gpus=gpus, memory_bytes=left.get("memory"), custom=custom))


class RemainingNode:
    """What remains of a node while parts of it are allocated and released, device by device."""

    def __init__(self, has: Mapping[str, int]) -> None:
        self._left = {name: ticks for name, ticks in has.items() if name not in DEVICE_RESOURCES}
        # How many devices have so many ticks free: a cluster may claim more of them than fit a list.
        self._devices = {
            name: Counter({TICKS: ticks // TICKS, ticks % TICKS: 1})
            for name, ticks in has.items()
            if name in DEVICE_RESOURCES
        }
        self._held: Counter[str] = Counter()
        self._num_holders = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held on it."""
        return self._num_holders == 0

    def amount(self, name: str) -> int:
        """Return how much is left of a resource; 0 too where it is not known."""
        if name in self._devices:
            free = sum(ticks * count for ticks, count in self._devices[name].items())
            return max(0, free - self._held[name])
        return max(0, self._left.get(name, 0))

    def slots(self, worker: Mapping[str, int], most: int) -> int:
        """Return how many workers fit, up to ``most``.

        Nobody knows on which devices held shares are, so they count against the sum of the devices. So this may say
        that workers fit which do not, but never the reverse.
        """
        return min([most, *(self._slots_of(name, needed) for name, needed in worker.items() if needed)])

    def _slots_of(self, name: str, needed: int) -> int:
        if name not in self._devices:
            return _UNLIMITED if name == "memory" and name not in self._left else self.amount(name) // needed
        free = self._devices[name]
        by_device = sum(ticks // needed * count for ticks, count in free.items())
        return min(free[TICKS] * TICKS // needed if needed >= TICKS else by_device, self.amount(name) // needed)

    def hold(self, amounts: Mapping[str, int]) -> None:
        """Take what somebody holds, on devices that are not known."""
        self._add(amounts, 1)

    def release(self, amounts: Mapping[str, int]) -> None:
        """Give back what was held."""
        self._add(amounts, -1)

    def _add(self, amounts: Mapping[str, int], sign: int) -> None:
        self._num_holders += sign
        for name, ticks in amounts.items():
            if name in self._devices:
                self._held[name] += sign * ticks
            elif name in self._left:
                self._left[name] -= sign * ticks

    def allocate(self, bundle: Mapping[str, int]) -> bool:
        """Take all of a bundle, each share from the fullest device with room; ``False``: it does not fit."""
        devices = {}
        for name, ticks in bundle.items():
            if name in self._devices:
                if (left := _without(self._devices[name], ticks)) is None:
                    return False
                devices[name] = left
            elif ticks > self._left.get(name, _UNLIMITED if name == "memory" else 0):
                return False
        for name, ticks in bundle.items():
            if name in self._left:
                self._left[name] -= ticks
        self._devices |= devices
        return True


def _without(devices: Counter[int], ticks: int) -> Counter[int] | None:
    """Return the devices by their free ticks without so many, the fullest first; ``None``: there is no room."""
    whole, share = divmod(ticks, TICKS)
    left = Counter({free: count for free, count in devices.items() if count})
    if left[TICKS] < whole:
        return None
    left[TICKS] -= whole
    if share:
        fullest = min((free for free, count in left.items() if count and free >= share), default=None)
        if fullest is None:
            return None
        left[fullest] -= 1
        left[fullest - share] += 1
    return left


_MAY_BE_RAISED: Final = DEVICE_RESOURCES | {"CPU", "memory"}
"""The resources of which a scheduler may give a trial more than its slot has."""


def num_slots_for(reserved: Mapping[str, float], of_slot: Mapping[str, float]) -> int:
    """Return how many slots hold what a trial reserves. Both are amounts by Ray's names of the resources."""
    # A share is floor(10000 / k) ticks, up to one less than its part: a whole GPU is three slots of 0.3333.
    ratios = [
        -(-to_ticks(reserved[name]) // (to_ticks(of_slot[name]) + 1))
        for name in _MAY_BE_RAISED & reserved.keys()
        if of_slot.get(name, 0) > 0
    ]
    return max([1, *ratios])


Bundle = Mapping[str, float]
"""What Ray reserves in one place, by Ray's names of the resources: GPUs in units, ``memory`` in bytes."""

_Wanted = tuple[Amounts, Callable[[Mapping[str, str]], bool]]


class BundleGroup(NamedTuple):
    """The bundles that a trial reserves together.

    Attributes:
        bundles: The trainable's own first, though it be empty.
        strategy: Ray's name for where they may be: ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        selectors: The labels of the node that each bundle must have; empty: any node.
    """

    bundles: Sequence[Bundle]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()

    def with_bundles(self, bundles: Sequence[Bundle]) -> "BundleGroup":
        """Return the same with other bundles."""
        return self._replace(bundles=bundles)


def is_held(group: BundleGroup, nodes: Sequence[NodeCapacity]) -> bool:
    """Return whether ``nodes``, all of them idle, hold all bundles at once."""
    return count_groups(group, nodes, most=1) > 0


def count_groups(group: BundleGroup, nodes: Sequence[NodeCapacity], most: int) -> int:
    """Return how many such groups ``nodes``, all of them idle, hold at once, up to ``most``.

    Bundles go to the first node that has room, the largest bundle first, by three measures of size. That may miss what
    only a search would find. Ray does not search either.
    """
    selectors = [matcher(selector) for selector in group.selectors] or [matcher({})] * len(group.bundles)
    wanted = [(ray_ticks(bundle), selects) for bundle, selects in zip(group.bundles, selectors, strict=True) if bundle]
    if group.strategy == "STRICT_PACK":
        held = 0
        for node in nodes:
            held += _count_placed(wanted, [node], one_each=False, most=most - held)
        return held
    spreads = group.strategy == "STRICT_SPREAD"
    return max(
        _count_placed(sorted(wanted, key=size, reverse=True), nodes, one_each=spreads, most=most)
        for size in (_amount_of(*DEVICE_RESOURCES), _amount_of("memory"), _amount_of("CPU"))
    )


def _amount_of(*names: str) -> Callable[[_Wanted], int]:
    return lambda wanted: sum(wanted[0].get(name, 0) for name in names)


def _count_placed(wanted: Sequence[_Wanted], nodes: Sequence[NodeCapacity], *, one_each: bool, most: int) -> int:
    remaining = [(node, RemainingNode(node.amounts)) for node in nodes]
    for count in range(most):
        left = list(remaining)
        for bundle, selects in wanted:
            fits = (each for each in left if selects(each[0].ray_labels) and each[1].allocate(bundle))
            if (chosen := next(fits, None)) is None:
                return count
            if one_each:
                left.remove(chosen)
    return max(0, most)


class Request(Value):
    """What one trial needs.

    Attributes:
        worker: What one process that trains reserves.
        num_workers: Train workers in the trial; 0: the trial itself trains. Given as a pair, it is split.
        max_workers: To how many the trial may grow; ``None``: the number is fixed. It takes no part in packing.
        accelerator_type: Ray's name of the device type that the workers must have.
        gpu_memory_bytes: GPU memory that each worker wants. It takes no part in packing: the GPU share does.
        is_any_share: Whether every GPU share will do that holds ``gpu_memory_bytes``: texts then name no other amount.
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
        if self.accelerator_type is None:
            return self.worker.ticks
        return self.worker.ticks | {ACCELERATOR_TYPE_PREFIX + self.accelerator_type: to_ticks(ACCELERATOR_TYPE_AMOUNT)}

    def with_cpus(self, cpus: float) -> "Request":
        """Return the same request with other CPUs for each worker."""
        return self.model_copy(update={"worker": self.worker.replaced(cpus=cpus)})

    @property
    def processes(self) -> int:
        """How many processes train in one trial."""
        return max(1, self.num_workers)

    def __str__(self) -> str:
        each = str(self.worker)
        if self.gpu_memory_bytes and self.is_any_share:
            others = self.worker.replaced(gpus=0)
            each = f"{others}, " if others.ticks else ""
            each += f"a GPU share of {format_bytes(self.gpu_memory_bytes)}"
        elif self.gpu_memory_bytes:
            each += f" with {format_bytes(self.gpu_memory_bytes)} of GPU memory"
        if self.accelerator_type:
            each += f" on {self.accelerator_type}"
        if self.num_workers == 0:
            return each
        grown = f" to {self.max_workers}" if self.max_workers else ""
        noun = "worker with" if self.num_workers == 1 and not grown else "workers, each with"
        return f"{self.num_workers}{grown} {noun} {each}"


def as_told_apart(
    capacity: ClusterCapacity, *, memory: int | str | None, num_workers: int | tuple[int, int]
) -> ClusterCapacity:
    """Return the cluster with nodes as one shape that requests with so much host memory for a worker count alike.

    Without such a wish they count no host memory, and with one, how often it fits. The drivers of Train workers take
    whole mebibytes.
    """
    needed = None if memory is None else int(memory)
    if fewest_workers(num_workers) == 0:
        return capacity.in_steps_of_memory(needed or _UNLIMITED)
    return capacity if needed is not None and needed % DRIVER_BYTES else capacity.in_steps_of_memory(DRIVER_BYTES)


def request_of(slot: TrialSlot) -> Request:
    """Return what a trial in ``slot`` needs."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)


def slots_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> dict[str, int]:
    """Return for each resource that ``request`` names how many workers it alone would let ``node`` hold.

    The node holds the smallest of them. Host memory that is not known limits nothing.
    """
    return slots_by_resource(node.amounts, request.amounts, num_drivers=num_drivers)


def workers_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers ``node`` holds at once, beside so many Train drivers."""
    fewest, has = None, node.amounts
    for name, needed in request.amounts.items():  # not by slots_on_node: most nodes hold none, which is seen at once
        if name in has:
            slots = _slots_of(name, has[name], needed, num_drivers)
            if fewest is None or slots < fewest:
                fewest = slots
        elif name != "memory":
            return 0
    return fewest or 0


def holds(node: NodeCapacity, amounts: Resources) -> bool:
    """Return whether an idle node has so much of everything; nothing at all is held by every node."""
    return min(slots_by_resource(node.amounts, amounts.ticks).values(), default=1) > 0


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


def drivers_on_node(node: NodeCapacity) -> int:
    """Return for how many Train drivers an idle node has room."""
    memory = node.resources.memory_bytes
    return _UNLIMITED if memory is None else memory // DRIVER_BYTES


def count_drivers(groups: Iterable[NodeGroup], wanted: int) -> int:
    """Return how many Train drivers find room on otherwise idle nodes; ``wanted`` where nothing limits them."""
    room = 0
    for node, count in groups:
        if node.resources.memory_bytes is None:
            return wanted
        room += count * drivers_on_node(node)
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
