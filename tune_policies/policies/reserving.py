"""A policy that reserves resources of the cluster, or memory of each GPU, for other programs."""

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeVar

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, GpuDevice, NodeCapacity, NodeTypeCapacity
from tune_policies.cluster.labels import NODE_ID, is_none_of, matcher
from tune_policies.placement.layout import place_slots
from tune_policies.placement.packing import (
    Limit,
    count_trials,
    largest,
    request_of,
    subtract,
    with_rounded_memory,
    workers_on_node,
)
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.build_plan import about_gpu_memory, about_the_nodes
from tune_policies.plan.trial_plan import NodeNote, TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Amount, Amounts, Count, Memory, Resources, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value, counted

_node_id: Final = attrgetter("node_id")

Node = TypeVar("Node", NodeCapacity, NodeTypeCapacity)


class ReservingPolicy(WrappingPolicy):
    """Reserves a part of the cluster for other programs.

    The policy reserves resources on as few nodes as possible, and prefers nodes without GPUs unless you also reserve
    GPUs. If this requires CPUs of nodes with devices, the policy makes a second plan that reserves CPUs on more nodes.
    It returns the second plan if that plan uses more devices and runs at least as many trials. ``run`` and ``tuner``
    start no more trials than planned. With ``tune.run`` and ``Tuner``, set ``max_concurrent_trials``. Ray may spread
    trials with GPU fractions over all GPUs, so the reserved GPUs are not always whole devices.

    ``gpu_memory`` is reserved on every GPU for programs outside Ray, and trials share the remaining memory. A trial
    with a whole GPU has no memory limit, so it may also use the reserved part.

    Attributes:
        inner: The policy that plans on the remaining resources.
        cpus: The number of CPUs to reserve.
        gpus: The number of whole GPUs to reserve. To also reserve CPUs for them, set ``cpus``.
        memory: The host memory to reserve: bytes, or a string such as ``"4GiB"``.
        gpu_memory: The GPU memory to reserve on each GPU: bytes, or a string such as ``"4GiB"``.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    cpus: Amount = 0
    gpus: Count = 0
    memory: Memory | None = None
    gpu_memory: Memory | None = None

    def __init__(
        self,
        inner: ResourcePolicy,
        cpus: float = 0,
        gpus: int = 0,
        memory: int | str | None = None,
        gpu_memory: int | str | None = None,
    ) -> None:
        Value.__init__(self, inner=inner, cpus=cpus, gpus=gpus, memory=memory, gpu_memory=gpu_memory)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        if self.gpu_memory is None:
            return self._plan(capacity)
        plan = self._plan(_with_smaller_gpus(capacity, int(self.gpu_memory)))
        if not any(slot.worker.gpus for slot in plan.slots):
            return plan
        notes = [
            f"{format_bytes(int(self.gpu_memory))} of memory is reserved on each GPU for other programs, and trials "
            "share the rest"
        ]
        if any(slot.worker.gpus >= 1 for slot in plan.slots):
            notes.append("a trial with a whole GPU has no memory limit, so it may also use the reserved GPU memory")
        if any(group.node.smallest_gpu_memory_bytes is None for group in capacity.gpu_groups()):
            notes.append(
                "the GPU memory of some nodes is unknown, so less memory than reserved may be free on these nodes"
            )
        return plan.with_reasons(*notes, *about_gpu_memory(capacity.gpu_groups()))

    def _plan(self, capacity: ClusterCapacity) -> TrialPlan:
        wish = Resources(cpus=self.cpus, gpus=self.gpus, memory_bytes=self.memory)
        if not wish.ticks:
            return self.inner.plan(capacity)
        plans: list[TrialPlan] = []
        errors: list[InfeasibleRequestError] = []
        for rest in rests(capacity, wish):
            try:
                plans.append(self._plan_on(rest, capacity, wish))
            except InfeasibleRequestError as error:
                errors.append(error)
        if not plans:
            raise errors[0]
        few, last = plans[0], plans[-1]
        # More trials alone are not better, because they could come from a fallback without devices.
        uses_more = _devices_used(last) > _devices_used(few)
        return last if uses_more and last.max_concurrent_trials >= few.max_concurrent_trials else few

    def _plan_on(self, rest: ClusterCapacity, capacity: ClusterCapacity, wish: Resources) -> TrialPlan:
        try:
            plan = self.inner.plan(rest)
        except InfeasibleRequestError as error:
            raise error.with_texts(
                offered=f"with {wish} reserved for other programs, {error.offered}",
                suggestion=f"{error.suggestion} Or reserve less.",
            ) from error
        notes = [f"the policy reserves {wish} for other programs"]
        if self.gpus and plan.common_slot.has_gpu_fraction:
            notes.append(
                "Ray may spread GPU fractions over all GPUs, so the reserved amount stays free, but possibly not as "
                "whole GPUs"
            )
        if self.memory and any(node.resources.memory_bytes is None for node, _ in capacity.groups):
            notes.append(
                "the host memory of some nodes is unknown, so less memory than reserved may be free on these nodes"
            )
        plan = leaving_free(plan, capacity, wish, notes)
        plan = plan.model_copy(update={"limited_by": _limited_by(plan, capacity, wish)})
        # The slots of several slot types are later assigned to nodes of the whole cluster, so check that they fit.
        return plan if len(plan.slots) == 1 else _placed(plan, capacity)


def _limited_by(plan: TrialPlan, capacity: ClusterCapacity, wish: Resources) -> str:
    """Return the limit on the number of trials. It is a reserved resource if its reservation displaces trials."""
    slot, request = plan.slots[0], request_of(plan.slots[0])
    if len(plan.slots) > 1 or plan.limited_by in wish.ticks or plan.limited_by not in request.worker.ticks:
        return plan.limited_by
    cluster, is_selected = capacity.with_nodes_added(plan.nodes_to_add), matcher(slot.label_selector)
    for name in wish.ticks:
        rest = cluster.replacing(_reduced(cluster, wish.with_ticks(name, 0)))
        groups = rest.where(lambda node: is_selected(node.ray_labels)).groups
        if count_trials(groups, request) > slot.max_concurrent_trials:
            return name
    return plan.limited_by


def _placed(plan: TrialPlan, capacity: ClusterCapacity) -> TrialPlan:
    """Return the plan with the slots that fit the cluster, and a reason for each slot type with omitted slots.

    Raises:
        InfeasibleRequestError: No slot fits.
    """
    layout = place_slots(plan.slots, capacity.with_nodes_added(plan.nodes_to_add))  # no further nodes can be added
    counts = [layout.count(slot_type) for slot_type in range(len(plan.slots))]
    if not any(counts):
        raise InfeasibleRequestError(
            " or ".join(str(slot) for slot in plan.slots),
            "none of these slots fits the cluster",
            plan.limited_by,
            "Reserve less, or add nodes.",
        )
    missing = [
        f"{f'only {count}' if count else 'none'} of {counted(slot.max_concurrent_trials, 'slot')} with {slot} fit"
        for slot, count in zip(plan.slots, counts, strict=True)
        if count < slot.max_concurrent_trials
    ]
    slots = tuple(slot.capped(count) for slot, count in zip(plan.slots, counts, strict=True) if count)
    return plan.model_copy(update={"slots": slots}).with_reasons(*missing)


def leaving_free(plan: TrialPlan, capacity: ClusterCapacity, resources: Resources, notes: Iterable[str]) -> TrialPlan:
    """Convert a plan for a part of the cluster to a plan for ``capacity`` that leaves ``resources`` free.

    The notes about nodes are computed again for ``capacity``, because nodes have more resources in the whole cluster.
    """
    of_plan = (reason for reason in plan.reasons if not isinstance(reason, NodeNote))
    changes = {
        "reasons": (*notes, *of_plan, *about_the_nodes(capacity)),
        "fewer_than_fit": True,
        "left_free": added(plan.left_free, resources.ticks),
    }
    return plan.with_slots(lambda slot: _off_small_devices(slot, capacity)).model_copy(update=changes)


def added(resources: Resources, ticks: Amounts) -> Resources:
    """Return the resources with the amounts in ``ticks`` added."""
    for name, amount in ticks.items():
        resources = resources.with_ticks(name, resources.ticks.get(name, 0) + amount)
    return resources


def _off_small_devices(slot: TrialSlot, capacity: ClusterCapacity) -> TrialSlot:
    """Return the slot restricted to nodes whose devices are large enough for its workers.

    If nodes with smaller devices are reserved completely, the inner policy ignores them, but Ray does not.
    """
    if slot.gpu_memory_bytes is None:
        return slot
    request = request_of(slot)
    per_device = max(1, TICKS // to_ticks(slot.worker.gpus))
    # A plan can have many slots, so compare only a few node shapes for each slot instead of all nodes.
    seen = with_rounded_memory(capacity, memory=slot.worker.memory_bytes, num_workers=0)
    too_small = [
        group
        for group in seen.gpu_groups(slot.accelerator_type)
        if (group.node.smallest_gpu_memory_bytes or 0) // per_device < slot.gpu_memory_bytes
        and workers_on_node(group.node, request) > 0
    ]
    if not too_small:
        return slot
    return slot.on_nodes({NODE_ID: is_none_of(node.node_id for node in seen.nodes_of(too_small))})


def rests(capacity: ClusterCapacity, wish: Resources) -> Iterator[ClusterCapacity]:
    """Yield the cluster that remains if ``wish`` is reserved on as few nodes as possible.

    If these nodes have devices, also yield the cluster with the CPUs reserved on more nodes.

    Raises:
        InfeasibleRequestError: The cluster has fewer resources than ``wish``.
    """
    changed = _reduced(capacity, wish)
    yield capacity.replacing(changed)
    if wish.cpus and any(map(_num_devices, changed.values())):
        without_cpus = wish.replaced(cpus=0)
        rest = capacity.replacing(_reduced(capacity, without_cpus))
        cpus = Resources(cpus=wish.cpus)
        yield rest.replacing(_reduced(rest, cpus, kept_per_device=_max_reserved_per_device(rest, cpus.ticks["CPU"])))


def _max_reserved_per_device(capacity: ClusterCapacity, cpus: int) -> int:
    """Return the maximum number of CPUs, in ticks, that each device can keep if ``cpus`` ticks are reserved.

    A number above one CPU is rounded down to whole CPUs.
    """
    nodes = [(group.num_nodes, group.node.resources.ticks.get("CPU", 0), group.node) for group in capacity.groups]
    has = [(count, ticks, _num_devices(node)) for count, ticks, node in nodes]

    def is_enough(kept: int) -> bool:
        return sum(count * max(0, ticks - kept * num_devices) for count, ticks, num_devices in has) >= cpus

    kept = largest(0, max(ticks for _, ticks, _ in has), is_enough)
    return kept if kept < TICKS else kept // TICKS * TICKS


def _num_devices(node: NodeCapacity) -> int:
    return -(-sum(node.resources.ticks.get(name, 0) for name in DEVICE_RESOURCES) // TICKS)


def _devices_used(plan: TrialPlan) -> int:
    """Return the number of devices that all concurrent trials reserve, in ticks."""
    return sum(
        slot.max_concurrent_trials * max(1, slot.num_workers) * slot.worker.ticks.get(name, 0)
        for slot in plan.slots
        for name in DEVICE_RESOURCES
    )


def _reduced(capacity: ClusterCapacity, wish: Resources, *, kept_per_device: int = 0) -> dict[str, NodeCapacity]:
    """Return the remaining resources of the nodes on which ``wish`` is reserved, by node ID.

    A node keeps ``kept_per_device`` ticks of CPUs for each of its devices.

    Raises:
        InfeasibleRequestError: The cluster has fewer resources than ``wish``.
    """
    left = dict(wish.ticks)

    def preference(node: NodeCapacity) -> tuple[object, ...]:
        has = _takeable(node, kept_per_device)
        alone = all(has.get(name, 0) >= amount for name, amount in wish.ticks.items())
        # Prefer nodes that have all of ``wish``, then nodes with fewer GPUs, and then nodes with more CPUs.
        return (not alone, has.get("GPU", 0), -has.get("CPU", 0))

    kept: dict[str, NodeCapacity] = {}
    seen = with_rounded_memory(capacity, memory=wish.memory_bytes, num_workers=0)
    # In ``seen``, nodes can have a larger, rounded host memory, so subtract from the original nodes.
    exact = {} if seen is capacity else {node.node_id: node for node in capacity.nodes}
    by_shape = ((preference(nodes[0]), min(map(_node_id, nodes)), nodes) for nodes in seen.nodes_by_shape.values())
    for _, _, nodes in sorted(by_shape):  # node IDs differ, so the nodes themselves are never compared
        if not any(left.values()):
            break
        for node in (exact.get(each.node_id, each) for each in sorted(nodes, key=_node_id)):
            has = _takeable(node, kept_per_device)
            taken = {name: min(amount, has.get(name, 0)) for name, amount in left.items()}
            if not any(taken.values()):
                break
            left = {name: amount - taken[name] for name, amount in left.items()}
            kept[node.node_id] = subtract(node, taken)
    if any(node.resources.memory_bytes is None for node, _ in seen.groups):
        left.pop("memory", None)
    if short_of := sorted(name for name, amount in left.items() if amount > 0):
        asked, hint = f"resources in addition to the {wish} reserved for other programs", "Reserve less, or add nodes."
        raise InfeasibleRequestError(asked, "the cluster has less than the reserved amount", short_of[0], hint)
    return kept


def _with_smaller_gpus(capacity: ClusterCapacity, less_bytes: int) -> ClusterCapacity:
    """Return the cluster with ``less_bytes`` less memory on each GPU, including nodes that can be added.

    GPUs with unknown memory are not changed.

    Raises:
        InfeasibleRequestError: A GPU has no more than ``less_bytes`` of memory.
    """

    def smaller(each: Node, node: NodeCapacity) -> Node:
        if (memory := node.smallest_gpu_memory_bytes) is None:
            return each
        of_type = GpuDevice(index=0, name=node.accelerator_type or "GPU", memory_bytes=memory)
        devices = node.devices or (of_type,) * math.ceil(node.resources.gpus)
        left = tuple(gpu.model_copy(update={"memory_bytes": gpu.memory_bytes - less_bytes}) for gpu in devices)
        return each.model_copy(update={"devices": left})

    there = (*capacity.nodes, *(each.as_node() for each in capacity.node_types or ()))
    known = [(memory, node.node_id) for node in there if (memory := node.smallest_gpu_memory_bytes) is not None]
    memory, node_id = min(known, default=(less_bytes + 1, ""))
    if memory <= less_bytes:
        raise InfeasibleRequestError(
            f"GPU memory in addition to the {format_bytes(less_bytes)} reserved on each GPU",
            f"the GPUs of node {node_id} have {format_bytes(memory)}",
            Limit.GPU_MEMORY,
            "Reserve less, or exclude such nodes with SelectingPolicy(policy, exclude_nodes=…).",
        )
    nodes = capacity.with_nodes(smaller(node, node) for node in capacity.nodes)
    if capacity.node_types is None:
        return nodes
    return nodes.model_copy(update={"node_types": tuple(smaller(each, each.as_node()) for each in capacity.node_types)})


def _takeable(node: NodeCapacity, kept_per_device: int) -> dict[str, int]:
    # Only whole GPUs can be reserved, because all fractions on a device must be equal.
    ticks = node.resources.ticks
    cpus = ticks.get("CPU", 0) - kept_per_device * _num_devices(node)
    return ticks | {"CPU": max(0, cpus), "GPU": ticks.get("GPU", 0) // TICKS * TICKS}
