"""What a worker gets: an equal share of a device, and the CPUs beside it where the user leaves them to the policy.

CPUs must not strand a device: a GPU for which its node has no CPU left serves no trial. Where nodes differ, what suits
all of them wastes most of the better ones, so each type of node has slots of its own.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.placement.packing import (
    Request,
    count_trials,
    device_slots,
    workers_on_node,
)
from tune_policies.plan.build_plan import about_gpu_memory, about_host_memory, about_the_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import MOST, TICKS, amount_of, from_ticks, to_ticks
from tune_policies.values.value import counted

_DRAG: Final = 20
"""Nodes with at most one of so many slots do not decide how many CPUs the workers on all the other nodes get."""


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


def cpus_that_strand_no_device(groups: Collection[NodeGroup], request: Request, resource: str) -> float:
    """Return CPUs per worker such that the devices run out first, on every node or on nearly all.

    The node with the fewest CPUs per slot decides. But nodes with at most a twentieth of the slots are left out where
    all others then get twice as many CPUs or more. The number is whole, as threads are, or below 1 if need be. A node
    without CPUs is often a head that is kept free. It counts only where all nodes are so: Ray places no worker with a
    CPU there.

    Args:
        groups: Nodes, at least one with room for such a worker. Those without do not count.
        request: What a trial needs; its CPUs take no part.
        resource: Ray's name of the devices.
    """
    share = request.worker.ticks[resource]
    slots_with: Counter[int] = Counter()
    for node, count in groups:
        if slots := device_slots(node.amounts.get(resource, 0), share):
            slots_with[to_ticks(node.resources.cpus) // slots] += count * slots
    del slots_with[0]
    fewest = min(slots_with, default=0)
    most_left_out, left_out, more = sum(slots_with.values()) // _DRAG, 0, fewest
    for more in sorted(slots_with):
        left_out += slots_with[more]
        if left_out > most_left_out:
            break
    cpus = _whole_or_part(more)
    if more >= 2 * fewest and count_trials(groups, request.with_cpus(cpus)):
        return cpus
    return _whole_or_part(fewest)


def _whole_or_part(ticks: int) -> float:
    return from_ticks(ticks if ticks < TICKS else ticks // TICKS * TICKS)


def nodes_with_cpus(groups: Iterable[NodeGroup], resource: str, share_ticks: int = 1) -> tuple[NodeGroup, ...]:
    """Return the nodes that have CPUs; all nodes, if none with CPUs has room for such a share of the devices."""
    groups = tuple(groups)
    kept = tuple(group for group in groups if group.node.resources.cpus > 0)
    has_room = any(device_slots(node.amounts.get(resource, 0), share_ticks) for node, _ in kept)
    return kept if has_room else groups


def share_of_gpu_memory(groups: Iterable[NodeGroup], share_ticks: int) -> int | None:
    """Return the GPU memory of such a share of the smallest device, in bytes; ``None``: some device is not known."""
    memories = [node.smallest_gpu_memory_bytes for node, _ in groups]
    known = [memory for memory in memories if memory is not None]
    # Not share_ticks / 10 000 of it: a third is 0.3333 to Ray, and the rest of the device would go to waste.
    return min(known) // max(1, TICKS // share_ticks) if known and len(known) == len(memories) else None


def about_equal_cpus(nodes: Iterable[NodeCapacity], request: Request, resource: str) -> str:
    """Return how the CPUs of a worker came about, where a policy chose them: those of a node, divided by its slots."""
    share, cpus = request.worker.ticks[resource], request.worker.cpus
    found = {(node.resources.cpus, device_slots(node.amounts.get(resource, 0), share)) for node in nodes}
    per_slot = {(has, slots): to_ticks(has) // slots for has, slots in found if slots}
    division = min((each for each, ticks in per_slot.items() if _whole_or_part(ticks) == cpus), default=None)
    text = f"{amount_of(cpus, 'CPU')} per worker"
    if division is not None:
        has, slots = division
        text += f": {amount_of(has, 'CPU')} ÷ {counted(slots, f'{resource} slot')}"
        text += ", rounded down" if cpus >= 1 and cpus * slots < has else ""
        text += ", on the node with the fewest for each" if len({*per_slot.values()} - {0}) > 1 else ""
    return f"{text}; set cpus= to change"


def about_nodes_without_cpus(groups: Iterable[NodeGroup], resource: str, cpus: float) -> Iterator[str]:
    """Yield how many nodes with devices have fewer CPUs than a worker gets, and what takes them in, if some have."""
    left_out = [
        group for group in groups if group.node.resources.ticks.get(resource) and group.node.resources.cpus < cpus
    ]
    with_few = sum(count for node, count in left_out if node.resources.cpus)
    with_none = sum(count for node, count in left_out if not node.resources.cpus)
    if with_few:
        yield (
            f"left out {counted(with_few, 'node')} with {resource} but too few CPUs: with fewer cpus= for every "
            "worker, trials run there too"
        )
    if with_none:
        yield (
            f"left out {counted(with_none, 'node')} with {resource} but no CPUs for trials: with cpus=0, trials run "
            "there too, but no worker gets a CPU"
        )


class AlikeNodes(NamedTuple):
    """Nodes on which every worker gets the same share of a device.

    Attributes:
        groups: The nodes, by shape.
        share_ticks: Devices of a worker, in ticks of 1/10 000.
        accelerator_type: The device type to tell Ray; ``None``: none.
        label_selector: Sets these nodes apart from those where a worker gets less; empty: nothing need do so.
    """

    groups: Sequence[NodeGroup]
    share_ticks: int
    accelerator_type: str | None = None
    label_selector: Mapping[str, str] = {}


def with_own_slots(
    plan: TrialPlan,
    capacity: ClusterCapacity,
    request: Request,
    nodes: Iterable[AlikeNodes],
    *,
    resource: str,
    choose_cpus: bool,
    reasons: Iterable[str] = (),
) -> TrialPlan:
    """Return the plan with slots that suit each type of node; ``plan`` itself where these are no better.

    They are better if more trials run at once, or as many and some get more. Train's workers stay with ``plan``: a
    trial may have some on nodes of each type.

    Args:
        plan: The plan that gives all trials the same.
        capacity: The cluster.
        request: What a trial needs; its share and, with ``choose_cpus``, its CPUs take no part.
        nodes: Those to use, the best first. Each is in one entry at most.
        resource: Ray's name of the devices.
        choose_cpus: Whether the CPUs are the policy's choice: those of each type of node then go to its own slots.
        reasons: How the slots came about.
    """
    if request.num_workers:
        return plan
    nodes = tuple(nodes)
    choose_cpus = choose_cpus and plan.worker.cpus > 0  # else no node with room has any
    found = [each for alike in nodes for each in _slots_on(alike, request, resource, choose_cpus=choose_cpus)]
    slots = [slot for _, slot in sorted(found, key=itemgetter(0))]
    common, count = plan.slots[0], sum(slot.max_concurrent_trials for slot in slots)
    is_more = count > plan.max_concurrent_trials
    gives_more = count == plan.max_concurrent_trials and any(_has_more(slot, common) for slot in slots)
    if len(slots) < 2 or count > MOST or not (is_more or gives_more):
        return plan
    groups = [group for alike in nodes for group in alike.groups]
    own = f"each type of node has slots that suit it; without run, tuner or PolicyScheduler, every trial gets {common}"
    return TrialPlan(
        slots=tuple(slots),
        common=common,
        limited_by=plan.limited_by,
        reasons=(
            *reasons,
            own,
            *about_gpu_memory(groups),
            *about_host_memory(groups, request),
            *about_the_nodes(capacity),
        ),
    )


def _has_more(slot: TrialSlot, common: TrialSlot) -> bool:
    return slot.worker.cpus > common.worker.cpus or (slot.gpu_memory_bytes or 0) > (common.gpu_memory_bytes or 0)


def _slots_on(
    alike: AlikeNodes, request: Request, resource: str, *, choose_cpus: bool
) -> Iterator[tuple[bool, TrialSlot]]:
    """Yield the slots of these nodes, those with the most CPUs first, and whether their nodes are still to be added.

    In this order each type fills its own nodes: on nodes with fewer CPUs it would strand devices, so it goes there
    last, and nodes with more are full.
    """
    worker = request.worker.with_ticks(resource, alike.share_ticks)
    request = request.model_copy(update={"worker": worker, "accelerator_type": alike.accelerator_type})
    groups_with: dict[tuple[float, bool], list[NodeGroup]] = {}
    for group in alike.groups:
        cpus = _own_cpus(group, request) if choose_cpus else worker.cpus
        if (cpus or not choose_cpus) and workers_on_node(group.node, request.with_cpus(cpus)):
            groups_with.setdefault((cpus, group.node.is_expected), []).append(group)
    _join_those_to_come(groups_with, alike.share_ticks)
    for (cpus, is_expected), groups in sorted(groups_with.items(), key=itemgetter(0), reverse=True):
        own = request.with_cpus(cpus)
        memory = share_of_gpu_memory(groups, alike.share_ticks)
        if count := count_trials(groups, own):
            slot = TrialSlot(
                trial=own.worker,
                max_concurrent_trials=min(count, MOST),
                gpu_memory_bytes=memory if resource == "GPU" else None,
                accelerator_type=alike.accelerator_type,
                label_selector=dict(alike.label_selector),
            )
            yield is_expected, slot


def _join_those_to_come(groups_with: dict[tuple[float, bool], list[NodeGroup]], share_ticks: int) -> None:
    """Give nodes that are still to be added slots of one type with the alive ones where these are the same.

    Once all are alive, shares of two types could not have a node in common. In one type, they must still not take nodes
    that are meant for more, or for fewer CPUs.
    """
    fewest = min((cpus for cpus, is_expected in groups_with if not is_expected), default=None)
    most = max((cpus for cpus, is_expected in groups_with if is_expected), default=None)
    if fewest is None or fewest != most:
        return
    alive, to_come = groups_with[fewest, False], groups_with[fewest, True]
    if share_ticks < TICKS or share_of_gpu_memory(alive, TICKS) == share_of_gpu_memory(to_come, TICKS):
        groups_with[fewest, False] = [*alive, *groups_with.pop((fewest, True))]


def _own_cpus(group: NodeGroup, request: Request) -> float:
    """Return the CPUs of each worker on such a node, if all the room for them is used; 0: it has none."""
    workers = workers_on_node(group.node, request.with_cpus(0))
    return _whole_or_part(to_ticks(group.node.resources.cpus) // workers) if workers else 0
