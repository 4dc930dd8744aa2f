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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.request import DRIVER_BYTES, Request
from tune_policies.values.resources import (
    TICKS,
    Resources,
    fewest_workers,
    from_ticks,
    to_ticks,
)

_MOST_DRIVERS: Final = 10_000
"""The maximum number of Train drivers, each a process, that a plan places on a node with known host memory."""


_UNLIMITED: Final = 2**63


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


def with_rounded_memory(
    capacity: ClusterCapacity, *, memory: int | str | None, num_workers: int | tuple[int, int]
) -> ClusterCapacity:
    """Round the host memory, so that nodes with room for the same number of workers have the same shape.

    If ``memory`` is ``None``, only Train drivers reserve host memory, 1 MiB each.
    """
    needed = None if memory is None else int(memory)
    if fewest_workers(num_workers) == 0:
        # Only whole multiples of the requested memory matter. If none is requested, all nodes count as equal.
        return capacity.in_steps_of_memory(needed or _UNLIMITED)
    if needed is None:
        # Each node can have a different host memory, but most nodes have enough for any number of drivers.
        return capacity.in_steps_of_memory(DRIVER_BYTES, _MOST_DRIVERS)
    # Only if a worker's memory is a multiple of the step, rounding to steps does not change how many workers fit.
    if needed % DRIVER_BYTES:
        return capacity
    return capacity.in_steps_of_memory(DRIVER_BYTES)


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
    # The worker reserves only host memory, and the amount of the node is unknown.
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
    # Only one trial is assumed to grow, while all others keep their minimum number of workers.
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
            # A node takes ``gap`` drivers in its spare memory, and the next driver displaces a worker.
            lost = min(count, num_drivers // (gap + 1))
            left -= lost
            num_drivers -= lost * (gap + 1)
        return left

    return beside


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number for which ``holds`` is true, by bisection. ``holds`` must be true for ``low``."""
    # ``bisect`` returns the number of candidates for which ``holds`` is true.
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
