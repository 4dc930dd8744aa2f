"""Decides which resource limits the number of trials, as in "4 trials at once, limited by GPU"."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.node import NodeGroup
from tune_policies.placement.count_trials import slots_on_node
from tune_policies.placement.request import Request


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
            # The limit of a node counts once for each worker that fits on it, so large nodes decide more.
            stops[min(limits, key=_scarcity)] += fewest * sum(count for _, count in some)
    if request.num_workers and num_trials < stops.total() // request.num_workers:
        return "memory"  # the host memory is too small for the drivers of more trials
    if not stops:
        return next((name for name in request.worker.ticks if name in DEVICE_RESOURCES), "CPU")
    return min(stops, key=lambda resource: (-stops[resource], _scarcity(resource)))


def _scarcity(resource: str) -> tuple[int, str]:
    order = {"GPU": 0, "CPU": 1, "memory": 2}
    return order.get(resource, len(order)), resource
