"""Computes separate slots for each node type.

If nodes differ, a slot that fits all of them wastes most resources of the larger nodes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.count_trials import count_trials, workers_on_node
from tune_policies.placement.request import Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.build_plan import has_simulated_gpus
from tune_policies.plan.plan_notes import about_gpu_memory, about_host_memory, about_the_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.default_cpus import whole_or_part
from tune_policies.policies.equal_fractions import fraction_of_gpu_memory
from tune_policies.values.resources import MOST, TICKS, to_ticks
from tune_policies.values.wording import counted


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
            cpus = whole_or_part(per_worker)
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
    # Slots on alive nodes are filled first, and each kind in descending order of CPUs. So only the alive nodes with the
    # fewest CPUs and the expected nodes with the most CPUs are neighbors in this order.
    alive_cpus = [cpus for cpus, is_expected in groups_with if not is_expected]
    fewest = min(filter(None, alive_cpus), default=max(alive_cpus, default=None))  # slots without CPUs come last
    most = max((cpus for cpus, is_expected in groups_with if is_expected), default=None)
    if fewest is None or fewest != most:
        return
    alive, to_come = groups_with[fewest, False], groups_with[fewest, True]
    if share_ticks < TICKS or fraction_of_gpu_memory(alive, TICKS) == fraction_of_gpu_memory(to_come, TICKS):
        groups_with[fewest, False] = [*alive, *groups_with.pop((fewest, True))]
