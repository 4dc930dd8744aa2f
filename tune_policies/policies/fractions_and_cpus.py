"""Computes equal device fractions, and the number of CPUs of each worker if the user does not set it.

A device is stranded if its node has no CPUs left for a trial. The CPUs of workers are chosen so that no device is
stranded. If nodes differ, a slot that fits all of them wastes most resources of the larger nodes, so each node type
gets its own slots. Nodes without CPUs get slots without CPUs, so they affect no other slot.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.count_trials import count_trials, device_slots, workers_on_node
from tune_policies.placement.request import Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.build_plan import has_simulated_gpus
from tune_policies.plan.plan_notes import about_gpu_memory, about_host_memory, about_the_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import MOST, TICKS, amount_of, from_ticks, to_ticks
from tune_policies.values.wording import counted

_DRAG: Final = 20
"""If nodes with few CPUs have at most 1/20 of all slots, they do not limit the CPUs of workers on other nodes."""


class Selection(NamedTuple):
    """Nodes on which every worker gets the same device fraction.

    Attributes:
        groups: The nodes, grouped by shape.
        accelerator_type: The device type in requests to Ray, or ``None`` for requests without a device type.
        label_selector: The label selector that restricts Ray to these nodes, or an empty mapping if none is needed.
        share_ticks: The number of devices, or the device fraction, of each worker in ticks of 1/10,000.
    """

    groups: tuple[NodeGroup, ...]
    accelerator_type: str | None = None
    label_selector: Mapping[str, str] = {}
    share_ticks: int = TICKS

    @property
    def memory_bytes(self) -> int:
        """The GPU memory of the smallest device in bytes, or 0 if the memory of any device is unknown."""
        return fraction_of_gpu_memory(self.groups, TICKS) or 0

    def where(self, holds: Callable[[NodeCapacity], bool]) -> "Selection":
        """Return the selection with only the nodes for which ``holds`` is true.

        The omitted nodes must have no room for a worker.
        """
        return self._replace(groups=tuple(group for group in self.groups if holds(group.node)))


def equal_device_fraction(most_per_device: int, most_devices: float) -> int:
    """Return the smallest valid fraction, in ticks, with at most ``most_per_device`` workers on a device.

    Ray's scheduler and autoscaler only add up the fractions on a node, but each fraction must fit on one device. If all
    workers have the fraction ``floor(10,000 / k)``, the number of workers that fit by sum equals the number that fit on
    the devices. With other fractions, Ray can admit a trial that fits on no device and stays pending indefinitely. On a
    node with many devices and a large k, the rounding losses could add up to one more fraction, so k is reduced.
    ``most_devices`` is the largest number of devices on a node.
    """
    devices = to_ticks(most_devices) // TICKS
    for k in range(min(most_per_device, TICKS), 0, -1):
        share = TICKS // k
        lost_on_node = max(1, devices) * (TICKS - k * share)
        if lost_on_node < share:  # checked even for one device: k = 141 gives 70 ticks, and 142 such fractions fit
            return share
    return TICKS


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


def fraction_of_gpu_memory(groups: Iterable[NodeGroup], share_ticks: int) -> int | None:
    """Return the GPU memory, in bytes, of a device fraction on the smallest device.

    If the memory of any device is unknown, return ``None``.
    """
    memories = [node.smallest_gpu_memory_bytes for node, _ in groups]
    known = [memory for memory in memories if memory is not None]
    # Divide by the number of workers per device, because Ray's rounded fraction, such as 0.3333, would waste memory.
    if known and len(known) == len(memories):
        return min(known) // max(1, TICKS // share_ticks)
    return None


def about_equal_cpus(nodes: Iterable[NodeCapacity], request: Request, resource: str) -> str:
    """Return a sentence that explains how the CPUs of a worker result from the CPUs and slots of a node."""
    share, cpus = request.worker.ticks[resource], request.worker.cpus
    found = {(node.resources.cpus, device_slots(node.amounts.get(resource, 0), share)) for node in nodes}
    per_slot = {(has, slots): to_ticks(has) // slots for has, slots in found if slots}
    divisions = [division for division, ticks in per_slot.items() if _whole_or_part(ticks) == cpus]
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


def with_own_slots(
    plan: TrialPlan,
    capacity: ClusterCapacity,
    request: Request,
    nodes: Sequence[Selection],
    *,
    resource: str,
    choose_cpus: bool,
    reasons: Iterable[str] = (),
) -> TrialPlan:
    """Return a plan with separate slots for each node type, or ``plan`` itself if separate slots are not better.

    Separate slots are better if more trials run at once, or if the same number of trials run and some trials get more
    resources. A plan with Train workers is returned unchanged, because the workers of a trial may run on nodes of
    several types.

    Args:
        plan: The plan with the same resources for all trials.
        capacity: The cluster.
        request: The request of a trial. Its device fraction is ignored. If ``choose_cpus`` is true, its CPUs are also
            ignored.
        nodes: The nodes to use, in order of preference and without duplicates.
        resource: Ray's name of the devices.
        choose_cpus: Whether to divide the CPUs of each node among its slots.
        reasons: Sentences that explain how the slots were computed.
    """
    if request.num_workers:
        return plan
    choose_cpus = choose_cpus and plan.worker.cpus > 0  # the plan has 0 CPUs if no node with room has CPUs
    found: list[tuple[bool, TrialSlot]] = []
    for alike in nodes:
        found += _slots_on(alike, request, resource, choose_cpus=choose_cpus)
    slots = [slot for _, slot in sorted(found, key=itemgetter(0))]  # slots on alive nodes come first
    common, count = plan.slots[0], sum(slot.max_concurrent_trials for slot in slots)
    has_more = any(
        slot.worker.cpus > common.worker.cpus or (slot.gpu_memory_bytes or 0) > (common.gpu_memory_bytes or 0)
        for slot in slots
    )
    is_better = count > plan.max_concurrent_trials or (count == plan.max_concurrent_trials and has_more)
    if len(slots) < 2 or count > MOST or not is_better:
        return plan
    groups = [group for alike in nodes for group in alike.groups]
    without_cpus = sum(count for node, count in groups if not node.resources.cpus)
    if choose_cpus and without_cpus:
        reasons = [*reasons, f"trials on {counted(without_cpus, 'node')} without CPUs reserve no CPU"]
    own = f"each node type has its own slots; without run, tuner or PolicyScheduler, every trial gets {common}"
    notes = (*about_gpu_memory(groups), *about_host_memory(groups, request), *about_the_nodes(capacity))
    found_plan = TrialPlan(
        slots=tuple(slots), common=common, limited_by=plan.limited_by, reasons=(*reasons, own, *notes)
    )
    return found_plan.on_nodes(capacity.usable_selector)


def _slots_on(
    alike: Selection, request: Request, resource: str, *, choose_cpus: bool
) -> Iterator[tuple[bool, TrialSlot]]:
    """Yield the slot types in descending order of CPUs, each with a flag that is true if its nodes have to be added.

    With this order, each slot type fills its own nodes first. On nodes with fewer CPUs, its trials would strand
    devices.
    """
    worker = request.worker.with_ticks(resource, alike.share_ticks)
    request = request.model_copy(update={"worker": worker, "accelerator_type": alike.accelerator_type})
    groups_with: dict[tuple[float, bool], list[NodeGroup]] = {}
    for group in alike.groups:
        cpus = worker.cpus
        if choose_cpus:  # the CPUs per worker on a full node
            workers = workers_on_node(group.node, request.with_cpus(0))
            per_worker = to_ticks(group.node.resources.cpus) // max(1, workers)
            cpus = _whole_or_part(per_worker)
        if workers_on_node(group.node, request.with_cpus(cpus)):
            groups_with.setdefault((cpus, group.node.is_expected), []).append(group)
    _join_addable_nodes(groups_with, alike.share_ticks)
    for (cpus, is_expected), groups in sorted(groups_with.items(), key=itemgetter(0), reverse=True):
        own = request.with_cpus(cpus)
        memory = fraction_of_gpu_memory(groups, alike.share_ticks) if resource == "GPU" else None
        count = count_trials(groups, own)
        if count:
            selector = dict(alike.label_selector)
            labels = {group.node.labels.get(ACCELERATOR_TYPE) for group in groups}
            if ACCELERATOR_TYPE in selector and len(labels) == 1:
                selector[ACCELERATOR_TYPE] = str(*labels)  # only the type that these slots use
            slot = TrialSlot(
                trial=own.worker,
                max_concurrent_trials=min(count, MOST),
                gpu_memory_bytes=memory,
                has_simulated_gpus=has_simulated_gpus(groups, own),
                accelerator_type=alike.accelerator_type,
                label_selector=selector,
            )
            yield is_expected, slot


def _join_addable_nodes(groups_with: dict[tuple[float, bool], list[NodeGroup]], share_ticks: int) -> None:
    """Merge the slot types of alive and expected nodes if their slots are equal.

    With separate slot types, fractions of the two types could not share a node once all nodes are alive. A merged slot
    type must not use nodes that are meant for slots with more or fewer CPUs.
    """
    alive_cpus = [cpus for cpus, is_expected in groups_with if not is_expected]
    fewest = min(filter(None, alive_cpus), default=max(alive_cpus, default=None))  # slots without CPUs come last
    most = max((cpus for cpus, is_expected in groups_with if is_expected), default=None)
    if fewest is None or fewest != most:
        return
    alive, to_come = groups_with[fewest, False], groups_with[fewest, True]
    if share_ticks < TICKS or fraction_of_gpu_memory(alive, TICKS) == fraction_of_gpu_memory(to_come, TICKS):
        groups_with[fewest, False] = [*alive, *groups_with.pop((fewest, True))]
