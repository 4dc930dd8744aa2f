"""Counts how many trials fit a cluster at once, per node and per device.

A *worker* is a process that trains: the trial itself, or one of its Train workers. All workers of a plan are equal, so
the order in which Ray places them does not matter. Nodes of one shape are counted together.

Amounts are keyed by Ray's resource names. Host memory is in bytes, and all other amounts are in ticks of 1/10,000.
These rules apply:

* If the host memory of a node is unknown, it limits nothing. The amount of any other missing resource is 0.
* A fraction of a device must fit on one device, and whole devices are not shared.
* A node has one unit of ``accelerator_type:X``, and a worker for that type reserves 0.001 of it.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from pydantic import model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.labels import matcher
from tune_policies.placement.trial_slot import TrialSlot
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
"""The host memory that a Train driver reserves, in bytes. A driver reserves no other resources."""

DRIVER: Final = Resources(memory_bytes=DRIVER_BYTES)
"""The reservation of a trial whose training runs in Train workers.

A driver only waits, so it must not reserve a CPU that its workers need. Ray rejects a trial that reserves nothing, but
accepts a trial that reserves a little host memory.
"""

_MOST_DRIVERS: Final = 10_000
"""The maximum number of Train drivers, each a process, that a plan places on a node with known host memory."""

_UNLIMITED: Final = 2**63


class Limit(StrEnum):
    """A limit on the number of trials that is not one of Ray's resources."""

    MAX_CONCURRENT_TRIALS = "max_concurrent_trials"
    MAX_TRIALS_PER_GPU = "max_trials_per_gpu"
    NUM_TRIALS = "num_trials"
    GPU_MEMORY = "GPU memory"
    TPU_SLICES = "TPU slices"
    NODES = "nodes"

    @classmethod
    def of(cls, name: str) -> "Limit | str":
        """Return the limit with this name, or the name itself if it is a resource or a custom limit."""
        return next((member for member in cls if member == name), name)


def device_slots(ticks: int, share: int) -> int:
    """Return how many workers with ``share`` ticks each fit on idle devices with ``ticks`` ticks in total."""
    if share >= TICKS:
        return ticks // share
    # Ray packs per device: a placement group of 0.6 GPU fits three times, not five times, on three GPUs.
    return ticks // TICKS * (TICKS // share) + ticks % TICKS // share


def _slots_by_resource(has: Mapping[str, int], worker: Mapping[str, int]) -> dict[str, int]:
    """Return, for each resource of an idle node, the number of workers that fit."""
    # If ``memory`` is missing, it is unknown and therefore no limit. A node has none of other missing resources.
    return {
        name: _slots_of(name, has.get(name, 0), needed)
        for name, needed in worker.items()
        if name in has or name != "memory"
    }


def _slots_of(name: str, amount: int, needed: int) -> int:
    if name in DEVICE_RESOURCES:
        return device_slots(amount, needed)
    return amount // needed


def subtract(node: NodeCapacity, worker: Mapping[str, int], count: int = 1, *, num_drivers: int = 0) -> NodeCapacity:
    """Return the node without the resources of ``count`` workers and ``num_drivers`` Train drivers.

    Workers with device fractions use all devices of the node, because Ray may spread them over all devices.
    """
    left = dict(node.resources.ticks)
    for name, ticks in left.items():
        needed = worker.get(name, 0)
        if name in DEVICE_RESOURCES and 0 < needed < TICKS:
            left[name] = 0  # a second fraction on the same devices could stay pending indefinitely
        elif name == "memory":
            # Keep at least one byte, because a node with 0 bytes would count as a node with unknown host memory.
            left[name] = max(1, ticks - count * needed - num_drivers * DRIVER_BYTES)
        else:
            left[name] = ticks - count * needed
    custom = {name: from_ticks(left[name]) for name in node.resources.custom}
    cpus, gpus = (from_ticks(left.get(name, 0)) for name in ("CPU", "GPU"))
    return node.with_less(Resources(cpus=cpus, gpus=gpus, memory_bytes=left.get("memory"), custom=custom))


class RemainingNode:
    """The remaining resources of a node, with each device counted separately."""

    def __init__(self, has: Mapping[str, int]) -> None:
        self._left = {name: ticks for name, ticks in has.items() if name not in DEVICE_RESOURCES}
        # Devices with equal free ticks are counted together, because a node can declare millions of devices.
        self._devices = {
            name: Counter({TICKS: ticks // TICKS, ticks % TICKS: 1})
            for name, ticks in has.items()
            if name in DEVICE_RESOURCES
        }
        self._held: Counter[str] = Counter()
        self._num_holders = 0

    @property
    def is_idle(self) -> bool:
        """Whether the node has no reservations."""
        return self._num_holders == 0

    def amount(self, name: str) -> int:
        """Return the remaining amount of a resource, or 0 if it is unknown."""
        if name in self._devices:
            free = sum(ticks * count for ticks, count in self._devices[name].items())
            return max(0, free - self._held[name])
        return max(0, self._left.get(name, 0))

    def slots(self, worker: Mapping[str, int], most: int) -> int:
        """Return how many workers fit, up to ``most``.

        Reserved fractions are subtracted from the sum of all devices, because it is unknown which devices they use. So
        the result can be too large.
        """
        return min([most, *(self._slots_of(name, needed) for name, needed in worker.items() if needed)])

    def _slots_of(self, name: str, needed: int) -> int:
        if name not in self._devices:
            if name == "memory" and name not in self._left:
                return _UNLIMITED
            return self.amount(name) // needed
        free = self._devices[name]
        if needed >= TICKS:  # whole devices
            by_device = free[TICKS] * TICKS // needed
        else:  # Ray never splits a fraction between devices
            by_device = sum(ticks // needed * count for ticks, count in free.items())
        return min(by_device, self.amount(name) // needed)

    def hold(self, amounts: Mapping[str, int]) -> None:
        """Subtract a reservation whose devices are unknown."""
        self._add(amounts, 1)

    def release(self, amounts: Mapping[str, int]) -> None:
        """Release a reservation that :meth:`hold` subtracted."""
        self._add(amounts, -1)

    def _add(self, amounts: Mapping[str, int], sign: int) -> None:
        self._num_holders += sign
        for name, ticks in amounts.items():
            if name in self._devices:
                self._held[name] += sign * ticks
            elif name in self._left:
                self._left[name] -= sign * ticks

    def allocate(self, bundle: Mapping[str, int]) -> bool:
        """Subtract a bundle if it fits, and return whether it fits. A fraction uses the fullest device with room."""
        devices = {}
        for name, ticks in bundle.items():
            if name in self._devices:
                left = _without(self._devices[name], ticks)
                if left is None:
                    return False
                devices[name] = left
                continue
            # Host memory that is not listed is unknown, so it is not a limit.
            unlisted = _UNLIMITED if name == "memory" else 0
            if ticks > self._left.get(name, unlisted):
                return False
        for name, ticks in bundle.items():
            if name in self._left:
                self._left[name] -= ticks
        self._devices |= devices
        return True


def _without(devices: Counter[int], ticks: int) -> Counter[int] | None:
    """Return the number of devices by free ticks after an allocation, or ``None`` if the allocation does not fit."""
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
"""The resources of a trial that a scheduler may increase above the amounts of its slot."""


def num_slots_for(reserved: Mapping[str, float], of_slot: Mapping[str, float]) -> int:
    """Return the number of slots whose total resources correspond to a trial's reservation."""
    # A slot of 1/k is rounded down to whole ticks, so a whole GPU must count as three slots of 0.3333.
    ratios = [
        -(-to_ticks(reserved[name]) // (to_ticks(of_slot[name]) + 1))
        for name in _MAY_BE_RAISED & reserved.keys()
        if of_slot.get(name, 0) > 0
    ]
    return max([1, *ratios])


BundleAmounts = Mapping[str, float]
"""The amounts that Ray reserves on one node, by resource name. ``memory`` is in bytes."""

_Wanted = tuple[Amounts, Callable[[Mapping[str, str]], bool]]


class BundleGroup(NamedTuple):
    """The bundles that a trial or the workers of a Train run reserve together.

    Attributes:
        bundles: The bundles. The first bundle of a trial is for its trainable and can be empty.
        strategy: Ray's placement strategy.
        selectors: The label selector of each bundle. The sequence is empty if no bundle has a selector.
    """

    bundles: Sequence[BundleAmounts]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()

    @property
    def common_selector(self) -> Mapping[str, str]:
        """The label selector that all bundles share, or an empty selector if there is none."""
        if self.selectors and all(selector == self.selectors[0] for selector in self.selectors):
            return self.selectors[0]
        return {}

    def with_bundles(self, bundles: Sequence[BundleAmounts]) -> "BundleGroup":
        """Return a copy of the group with these bundles."""
        return self._replace(bundles=bundles)


def is_held(group: BundleGroup, nodes: Sequence[NodeCapacity]) -> bool:
    """Return whether all bundles fit the idle ``nodes`` at once."""
    return count_groups(group, nodes, most=1) > 0


def count_groups(group: BundleGroup, nodes: Sequence[NodeCapacity], most: int) -> int:
    """Return how many groups of bundles fit the idle ``nodes`` at once, up to ``most``.

    Larger bundles are placed first, each on the node with the fewest devices and CPUs that has room. The size is
    measured in three ways, and the best result is returned. A search could find room for more groups, but Ray does not
    search either.
    """
    selectors = [matcher(selector) for selector in group.selectors] or [matcher({})] * len(group.bundles)
    wanted = [(ray_ticks(bundle), selects) for bundle, selects in zip(group.bundles, selectors, strict=True) if bundle]
    nodes = sorted(nodes, key=_smallest_first)
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


def _smallest_first(node: NodeCapacity) -> tuple[object, ...]:
    devices = sum(node.resources.ticks.get(name, 0) for name in DEVICE_RESOURCES)
    return devices, node.resources.cpus, repr(node.shape), node.sort_key


def _amount_of(*names: str) -> Callable[[_Wanted], int]:
    return lambda wanted: sum(wanted[0].get(name, 0) for name in names)


def _count_placed(wanted: Sequence[_Wanted], nodes: Sequence[NodeCapacity], *, one_each: bool, most: int) -> int:
    remaining = [(node, RemainingNode(node.amounts)) for node in nodes]
    for count in range(most):
        left = list(remaining)
        for bundle, selects in wanted:
            for candidate in left:
                node, resources = candidate
                if selects(node.ray_labels) and resources.allocate(bundle):
                    break
            else:
                return count
            if one_each:
                left.remove(candidate)
    return max(0, most)


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


def with_rounded_memory(
    capacity: ClusterCapacity, *, memory: int | str | None, num_workers: int | tuple[int, int]
) -> ClusterCapacity:
    """Round the host memory, so that nodes with room for the same number of workers have the same shape.

    If ``memory`` is ``None``, only Train drivers reserve host memory, 1 MiB each.
    """
    needed = None if memory is None else int(memory)
    if fewest_workers(num_workers) == 0:
        return capacity.in_steps_of_memory(needed or _UNLIMITED)
    if needed is None:
        # Each node can have a different host memory, but most nodes have enough for any number of drivers.
        return capacity.in_steps_of_memory(DRIVER_BYTES, _MOST_DRIVERS)
    if needed % DRIVER_BYTES:
        return capacity
    return capacity.in_steps_of_memory(DRIVER_BYTES)


def request_of(slot: TrialSlot) -> Request:
    """Return the resource request of a trial in ``slot``."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)


def slots_on_node(node: NodeCapacity, request: Request) -> dict[str, int]:
    """Return, for each resource of ``node``, the number of workers that fit. The minimum is the actual limit."""
    return _slots_by_resource(node.amounts, request.amounts)


def workers_on_node(node: NodeCapacity, request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers fit on ``node`` beside ``num_drivers`` Train drivers."""
    memory, others = node.shape
    # The number is cached, because most nodes of a large cluster differ only in their host memory.
    fewest = request.slots_beside_memory.get(others)
    if fewest is None:
        fewest = request.slots_beside_memory[others] = _slots_beside_memory(node.amounts, request.amounts)
    needed = request.worker.memory_bytes
    if needed is not None and memory is not None:
        return min(fewest, max(0, memory - num_drivers * DRIVER_BYTES) // needed)
    if fewest == _UNLIMITED:
        return 0
    return fewest


def _slots_beside_memory(has: Mapping[str, int], worker: Mapping[str, int]) -> int:
    """Return how many workers fit on an idle node if its host memory is ignored."""
    fewest = _UNLIMITED
    for name, needed in worker.items():
        if name != "memory":
            if name not in has:
                return 0
            fewest = min(fewest, _slots_of(name, has[name], needed))
    return fewest


def holds(node: NodeCapacity, amounts: Resources) -> bool:
    """Return whether ``amounts`` fit an idle node."""
    return min(_slots_by_resource(node.amounts, amounts.ticks).values(), default=1) > 0


def count_workers(groups: Iterable[NodeGroup], request: Request, *, num_drivers: int = 0) -> int:
    """Return how many workers fit on all nodes together."""
    return sum(count * workers_on_node(node, request, num_drivers=num_drivers) for node, count in groups)


def count_trials(groups: Collection[NodeGroup], request: Request) -> int:
    """Return how many trials can run at once, wherever Ray places their drivers."""
    if request.num_workers == 0:
        return count_workers(groups, request)
    beside = _workers_beside(groups, request)  # more drivers leave less host memory for workers
    most = beside(0) // request.num_workers
    if request.worker.memory_bytes is None:
        return min(most, count_drivers(groups, most))
    # Drivers and workers share the host memory, so the number of workers depends on the number of drivers.
    return largest(0, most, lambda trials: beside(trials) >= trials * request.num_workers)


def room_to_grow(groups: Collection[NodeGroup], request: Request, num_trials: int) -> tuple[int | None, int | None]:
    """Return the maximum numbers of workers of a trial: with ``num_trials - 1`` other trials, and without them.

    The other trials have their minimum number of workers. Both numbers leave room for the drivers of all trials, and
    are ``None`` if the number of workers is fixed.
    """
    if request.max_workers is None:
        return None, None
    workers = count_workers_beside(groups, request, num_trials)
    alone = min(request.max_workers, workers)
    return min(alone, workers - (num_trials - 1) * request.num_workers), alone


def count_workers_beside(groups: Collection[NodeGroup], request: Request, num_drivers: int) -> int:
    """Return how many workers fit beside Train drivers, wherever Ray places the drivers."""
    return _workers_beside(groups, request)(num_drivers)


def _workers_beside(groups: Collection[NodeGroup], request: Request) -> Callable[[int], int]:
    """Return a function that maps a number of Train drivers to the number of workers that fit beside them.

    If all drivers together need less memory than a worker, each node loses at most one worker, and the drivers displace
    the most workers on the nodes with the least spare memory. Otherwise, the function assumes that every node must fit
    all drivers.
    """
    workers, needed = 0, request.worker.memory_bytes
    known = []  # the spare memory, the memory, the number of workers, and the number of nodes of each group
    for node, count in groups:
        fit = workers_on_node(node, request)
        workers += fit * count
        memory = node.resources.memory_bytes
        if fit and needed is not None and memory is not None:
            known.append((memory - fit * needed, memory, fit, count))
    if needed is None:
        return lambda _: workers
    gaps = sorted((spare // DRIVER_BYTES, count) for spare, _, _, count in known)

    def beside(num_drivers: int) -> int:
        taken = num_drivers * DRIVER_BYTES
        if taken >= needed:
            # A bisection calls this function often for thousands of nodes, so the loop calls no further functions.
            lost = 0
            for spare, memory, fit, count in known:
                if spare < taken:
                    left_on_node = (memory - taken) // needed if memory > taken else 0
                    lost += count * (fit - left_on_node)
            return workers - lost
        left = workers
        for gap, count in gaps:
            lost = min(count, num_drivers // (gap + 1))
            left -= lost
            num_drivers -= lost * (gap + 1)
        return left

    return beside


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number for which ``holds`` is true, by bisection. ``holds`` must be true for ``low``."""
    return low + bisect(range(low + 1, high + 1), False, key=lambda number: not holds(number))


def drivers_on_node(node: NodeCapacity) -> int:
    """Return how many Train drivers fit an idle node, up to 10,000 if its memory is known."""
    memory = node.resources.memory_bytes
    if memory is None:
        return _UNLIMITED
    return min(_MOST_DRIVERS, memory // DRIVER_BYTES)


def count_drivers(groups: Iterable[NodeGroup], wanted: int) -> int:
    """Return how many Train drivers fit on idle nodes, or ``wanted`` if the memory of a node is unknown."""
    room = 0
    for node, count in groups:
        if node.resources.memory_bytes is None:
            return wanted
        room += count * drivers_on_node(node)
    return room


def limiting_resource(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> str:
    """Return Ray's name of the resource that limits the number of trials.

    On each node with room for a worker, the limit is the resource with room for the lowest number of workers. The
    result is the resource that limits the most workers, or ``memory`` if the Train drivers limit the number of trials
    to ``num_trials``. On a tie, the order of preference is GPU, CPU, memory, and then other resources by name.
    """
    needed = request.worker.memory_bytes
    alike: dict[tuple[Any, ...], list[NodeGroup]] = defaultdict(list)
    for group in groups:  # a large cluster has thousands of groups, but only a few differ for a worker
        memory, others = group.node.shape
        alike[others, memory and needed and memory // needed].append(group)
    stops: Counter[str] = Counter()
    for some in alike.values():
        slots = slots_on_node(some[0].node, request)
        fewest = min(slots.values(), default=0)
        if fewest:
            limits = (name for name in slots if slots[name] == fewest)
            stops[min(limits, key=_scarcity)] += fewest * sum(count for _, count in some)
    if request.num_workers and num_trials < stops.total() // request.num_workers:
        return "memory"  # the host memory is too small for the drivers of more trials
    if not stops:
        return next((name for name in request.worker.ticks if name in DEVICE_RESOURCES), "CPU")
    return min(stops, key=lambda resource: (-stops[resource], _scarcity(resource)))


def _scarcity(resource: str) -> tuple[int, str]:
    order = {"GPU": 0, "CPU": 1, "memory": 2}
    return order.get(resource, len(order)), resource
