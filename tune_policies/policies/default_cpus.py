"""Computes the number of CPUs of each worker on a device if the user does not set it.

A device is stranded if its node has no CPUs left for a trial. The CPUs of workers are chosen so that no device is
stranded. Nodes without CPUs get slots without CPUs, so they affect no other slot.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.count_trials import count_trials, device_slots
from tune_policies.placement.request import Request
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, amount_of, from_ticks, to_ticks
from tune_policies.values.wording import counted

_DRAG: Final = 20
"""If nodes with few CPUs have at most 1/20 of all slots, they do not limit the CPUs of workers on other nodes."""


def max_cpus_without_idle_device(groups: Collection[NodeGroup], request: Request, resource: str) -> float:
    """Return the maximum number of CPUs per worker for which devices run out before CPUs on nearly all nodes.

    The node with the fewest CPUs per slot determines the number. Nodes with at most 1/20 of the slots are ignored if
    all other workers then get at least twice as many CPUs. The result is either below 1 or a whole number, because a
    worker has a whole number of threads. Nodes without CPUs are ignored, unless no node has CPUs.

    Args:
        groups: The nodes. At least one of them must have room for a worker.
        request: The request of a trial. Its CPUs are ignored.
        resource: Ray's name of the devices.
    """
    share = request.worker.ticks[resource]
    slots_with: Counter[int] = Counter()
    for node, count in groups:
        slots = device_slots(node.amounts.get(resource, 0), share)
        if slots:
            slots_with[to_ticks(node.resources.cpus) // slots] += count * slots
    # Nodes without CPUs decide nothing. A ``Counter`` accepts the deletion of a missing key.
    del slots_with[0]
    fewest = min(slots_with, default=0)
    most_left_out, left_out, more = sum(slots_with.values()) // _DRAG, 0, fewest
    # Ignore the nodes with the fewest CPUs per slot as long as they have few of the slots. ``more`` is the number of
    # CPUs of the next nodes.
    for more in sorted(slots_with):
        left_out += slots_with[more]
        if left_out > most_left_out:
            break
    cpus = whole_or_part(more)
    # A trial with Train workers may need the ignored nodes, so check that it still fits.
    if more >= 2 * fewest and count_trials(groups, request.with_cpus(cpus)):
        return cpus
    return whole_or_part(fewest)


def whole_or_part(ticks: int) -> float:
    """Return the CPUs of a worker: a whole number from 1 on, and otherwise a fraction."""
    if ticks >= TICKS:
        ticks -= ticks % TICKS
    return from_ticks(ticks)


def nodes_with_cpus(groups: Iterable[NodeGroup], resource: str, share_ticks: int = 1) -> tuple[NodeGroup, ...]:
    """Return the nodes with CPUs, or all nodes if no node with CPUs has room for this device fraction."""
    groups = tuple(groups)
    kept = tuple(group for group in groups if group.node.resources.cpus > 0)
    has_room = any(device_slots(node.amounts.get(resource, 0), share_ticks) for node, _ in kept)
    if has_room:
        return kept
    return groups


def plan_without_cpus_if_needed(
    groups: Iterable[NodeGroup], plan: Callable[[], TrialPlan], plan_without_cpus: Callable[[], TrialPlan]
) -> TrialPlan:
    """Return the plan, or if no trial fits the device nodes with CPUs, a plan whose workers reserve no CPUs.

    A node with CPUs that joins a cluster would otherwise turn a plan on nodes without CPUs into an error.
    """
    try:
        return plan()
    except InfeasibleRequestError as error:
        if all(node.resources.cpus for node, _ in groups):
            raise
        try:
            found = plan_without_cpus()
        except InfeasibleRequestError:
            raise error from None
    return found.with_reasons("no worker reserves a CPU, because no trial fits the nodes that have CPUs")


def about_equal_cpus(nodes: Iterable[NodeCapacity], request: Request, resource: str) -> str:
    """Return a sentence that explains how the CPUs of a worker result from the CPUs and slots of a node."""
    share, cpus = request.worker.ticks[resource], request.worker.cpus
    found = {(node.resources.cpus, device_slots(node.amounts.get(resource, 0), share)) for node in nodes}
    per_slot = {(has, slots): to_ticks(has) // slots for has, slots in found if slots}
    divisions = [division for division, ticks in per_slot.items() if whole_or_part(ticks) == cpus]
    text = f"{amount_of(cpus, 'CPU')} per {request.unit}"
    if divisions:
        has, slots = min(divisions)
        text += f": {amount_of(has, 'CPU')} ÷ {counted(slots, f'{resource} slot')}"
        if cpus >= 1 and cpus * slots < has:
            text += ", rounded down"
        if len({*per_slot.values()} - {0}) > 1:
            text += ", on the node with the fewest CPUs per slot"
    return f"{text}; set cpus= to change this number"


def about_nodes_without_cpus(groups: Iterable[NodeGroup], resource: str, cpus: float) -> Iterator[str]:
    """Yield sentences about device nodes with too few CPUs for a worker, and about how to use these nodes."""
    with_devices = [group for group in groups if group.node.resources.ticks.get(resource)]
    left_out = [group for group in with_devices if group.node.resources.cpus < cpus]
    with_few = sum(count for node, count in left_out if node.resources.cpus)
    with_none = sum(count for node, count in left_out if not node.resources.cpus)
    if with_few:
        yield f"{_unused(with_few, resource)} too few CPUs; set a smaller cpus= to use all nodes"
    if with_none:
        yield (
            f"{_unused(with_none, resource)} no CPUs; set cpus=0 to use all nodes, but then no worker reserves a CPU"
        )


def _unused(count: int, resource: str) -> str:
    verb = "is not used, because it has" if count == 1 else "are not used, because they have"
    return f"{counted(count, 'node')} with {resource} {verb}"
