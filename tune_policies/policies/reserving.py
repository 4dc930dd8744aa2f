"""A policy that reserves resources of the cluster, or memory of each GPU, for other programs."""

import math
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeTypeCapacity, Shape
from tune_policies.placement.count_trials import count_trials, with_rounded_memory
from tune_policies.placement.layout import place_slots
from tune_policies.placement.request import request_of
from tune_policies.placement.reservations import first_reservations, other_reservations, reserve
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.plan_notes import about_gpu_memory, about_the_nodes
from tune_policies.plan.trial_plan import NodeNote, TrialPlan
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.gpu_selection import TELL_APART, gpus_of_type, off_nodes, off_small_gpus, select_gpus
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy, with_inner
from tune_policies.policies.slots_by_node_type import Selection
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Amount, Amounts, Count, Memory, Resources
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten_names

Node = TypeVar("Node", NodeCapacity, NodeTypeCapacity)


class ReservingPolicy(WrappingPolicy):
    """Reserves a part of the cluster for other programs.

    The policy reserves resources where they displace the fewest trials, preferably on few nodes, and on nodes without
    GPUs unless you also reserve GPUs. On clusters with up to 16 nodes, it compares all choices of nodes. On larger
    clusters, it compares the most promising ones. The names of nodes never matter. ``run`` and ``tuner`` start no more
    trials than planned. With ``tune.run`` and ``Tuner``, set ``max_concurrent_trials``. Ray may spread
    trials with GPU fractions over all GPUs, so the reserved GPUs are not always whole devices.

    ``gpu_memory`` is reserved on every GPU for programs outside Ray, and trials share the remaining memory. A trial
    with a whole GPU has no memory limit, so it may also use the reserved part. GPUs that are too small for the
    reservation are not used. If the autoscaler can add such GPUs, the plan also adds no larger GPUs that Ray cannot
    distinguish from them by their device type or their label ``ray.io/accelerator-type``.

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
        # The inner policy decides which nodes are added, so consider every node that it may add.
        seen = capacity
        if any(isinstance(policy, AutoscalingPolicy) for policy in with_inner([self.inner])):
            types = capacity.node_types or ()
            seen = capacity.with_nodes_added({node_type.name: 1 for node_type in types if node_type.max_nodes_to_add})
        plans: list[tuple[TrialPlan, ClusterCapacity]] = []
        errors = []
        for usable in _usable_gpus(seen, int(self.gpu_memory)):
            try:
                plans.append((self._plan_on_gpus(usable, seen, capacity, int(self.gpu_memory)), seen))
            except InfeasibleRequestError as error:
                errors.append(error)
        if not plans:
            raise self._without_gpu_memory(errors[0], seen)
        return max(plans, key=_value)[0]  # the first of several equal plans

    def _plan_on_gpus(
        self, usable: Selection, seen: ClusterCapacity, capacity: ClusterCapacity, reserved_bytes: int
    ) -> TrialPlan:
        """Return the plan whose trials use only the GPUs in ``usable``.

        Args:
            usable: GPUs with memory left after the reservation.
            seen: ``capacity`` with all nodes that the plan may add.
            capacity: The cluster.
            reserved_bytes: The memory to reserve on each GPU, in bytes.
        """
        shapes = {node.shape for node, _ in usable.groups}
        plan = self._plan(_with_smaller_gpus(capacity, reserved_bytes, shapes))
        if not any(slot.worker.gpus for slot in plan.slots):
            return plan
        # The inner policy sees the other nodes without GPUs, but Ray would still place trials with GPUs on them.
        plan = plan.with_slots(lambda slot: _off_other_gpus(slot, seen, shapes))
        notes = [
            f"{format_bytes(reserved_bytes)} of memory is reserved on each GPU for other programs, and trials "
            "share the rest"
        ]
        if any(slot.worker.gpus >= 1 for slot in plan.slots):
            notes.append("a trial with a whole GPU has no memory limit, so it may also use the reserved GPU memory")
        if any(group.node.smallest_gpu_memory_bytes is None for group in capacity.gpu_groups()):
            notes.append(
                "the GPU memory of some nodes is unknown, so less memory than reserved may be free on these nodes"
            )
        num_alive = sum(not node.is_expected for node in _too_small_gpus(capacity, reserved_bytes))
        if num_alive:
            notes.append(f"the plan uses no GPU of {counted(num_alive, 'node')} with at most the reserved memory")
        omitted = _indistinct_gpus(usable, seen, reserved_bytes)
        if omitted:
            notes.append(
                f"the plan adds no nodes for {omitted}, because Ray cannot distinguish them from GPUs with at most the "
                f"reserved memory, which the autoscaler can also add. {TELL_APART}"
            )
        return plan.with_reasons(*notes, *about_gpu_memory(capacity.gpu_groups()))

    def _without_gpu_memory(self, error: InfeasibleRequestError, seen: ClusterCapacity) -> InfeasibleRequestError:
        """Return the error with the reserved GPU memory, if some GPUs cannot be used because of it."""
        reserved_bytes = int(self.gpu_memory or 0)
        too_small = _too_small_gpus(seen, reserved_bytes)
        if not too_small:
            return error
        memory = format_bytes(max(node.smallest_gpu_memory_bytes or 0 for node in too_small))
        offered = (
            f"{format_bytes(reserved_bytes)} is reserved on each GPU, and {counted(len(too_small), 'node')} with at "
            f"most {memory} per GPU cannot be used"
        )
        suggestion = f"Reserve less GPU memory. Or: {error.suggestion}"
        omitted = _indistinct_gpus(next(_usable_gpus(seen, reserved_bytes)), seen, reserved_bytes)
        if omitted:
            offered += f"; Ray cannot distinguish {omitted} from these GPUs"
            suggestion = f"{TELL_APART}. Or: {suggestion}"
        return error.with_texts(offered=f"{offered}; {error.offered}", suggestion=suggestion)

    def _plan(self, capacity: ClusterCapacity) -> TrialPlan:
        wish = Resources(cpus=self.cpus, gpus=self.gpus, memory_bytes=self.memory)
        if not wish.ticks:
            return self.inner.plan(capacity)
        choices = self.inner.choices
        for inner in choices:
            best = self._best(inner, capacity, wish)
            if best is not None:
                # The plan of the whole inner policy also explains why its earlier choices were skipped.
                if inner is choices[0]:
                    return best[0]
                return self._plan_on(self.inner, best[1], capacity, wish)
        return self._plan_on(
            self.inner, next(rests(capacity, wish)), capacity, wish
        )  # raises the errors of all choices

    def _best(
        self, inner: ResourcePolicy, capacity: ClusterCapacity, wish: Resources
    ) -> tuple[TrialPlan, ClusterCapacity] | None:
        """Return the best plan of ``inner`` and the cluster that remains for it, or ``None`` if no trial fits."""
        found: list[tuple[TrialPlan, ClusterCapacity]] = []

        def try_on(rest: ClusterCapacity) -> None:
            with suppress(InfeasibleRequestError):  # another reservation may leave enough for a trial
                found.append((self._plan_on(inner, rest, capacity, wish), rest))

        known = list(first_reservations(capacity, wish))
        for reservation in known:
            try_on(capacity.replacing(reservation))
        if found:
            best, _ = max(found, key=_value)
        else:
            known.clear()  # none of them leaves enough for a trial
            try:
                best = inner.plan(capacity)
            except InfeasibleRequestError:
                return None
        for reservation in other_reservations(capacity, wish, best.slots, known):
            try_on(capacity.replacing(reservation))
        return max(found, key=_value, default=None)  # the first of several equal plans

    def _plan_on(
        self, inner: ResourcePolicy, rest: ClusterCapacity, capacity: ClusterCapacity, wish: Resources
    ) -> TrialPlan:
        try:
            plan = inner.plan(rest)
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
        if len(plan.slots) == 1:
            return plan
        return _placed(plan, capacity)


def _value(plan_and_rest: tuple[TrialPlan, ClusterCapacity]) -> tuple[int, ...]:
    """Return a key that is larger for a better plan.

    A plan is better with more trials on devices, then more trials, more trials with CPUs, and then larger trials.
    """
    plan, _ = plan_and_rest
    on_devices = [slot for slot in plan.slots if slot.has_device]
    return (
        sum(slot.max_concurrent_trials for slot in on_devices),
        plan.max_concurrent_trials,
        sum(slot.max_concurrent_trials for slot in plan.slots if slot.worker.cpus),
        sum(_total(slot, name) for slot in on_devices for name in DEVICE_RESOURCES),
        sum(slot.max_concurrent_trials * (slot.gpu_memory_bytes or 0) for slot in plan.slots),
        sum(_total(slot, "CPU") for slot in plan.slots),
        -sum(plan.nodes_to_add.values()),
    )


def _total(slot: TrialSlot, name: str) -> int:
    """Return the amount of a resource that all concurrent trials in a slot type reserve, in ticks."""
    return slot.max_concurrent_trials * max(1, slot.num_workers) * slot.worker.ticks.get(name, 0)


def _limited_by(plan: TrialPlan, capacity: ClusterCapacity, wish: Resources) -> str:
    """Return the limit on the number of trials. It is a reserved resource if its reservation displaces trials."""
    slot, request = plan.slots[0], request_of(plan.slots[0])
    if len(plan.slots) > 1 or plan.limited_by in wish.ticks or plan.limited_by not in request.worker.ticks:
        return plan.limited_by
    cluster, is_selected = capacity.with_nodes_added(plan.nodes_to_add), matcher(slot.label_selector)
    for name in wish.ticks:
        # If more trials fit without the reservation of this resource, it is what limits them.
        rest = cluster.replacing(reserve(cluster, wish.with_ticks(name, 0)))
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
    slots, missing = [], []
    for slot, count in zip(plan.slots, counts, strict=True):
        if count:
            slots.append(slot.capped(count))
        if count < slot.max_concurrent_trials:
            how_many = f"only {count}" if count else "none"
            missing.append(f"{how_many} of {counted(slot.max_concurrent_trials, 'slot')} with {slot} fit")
    common = plan.common and plan.common.capped(sum(counts))
    return plan.model_copy(update={"slots": tuple(slots), "common": common}).with_reasons(*missing)


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

    def off_reserved_gpus(slot: TrialSlot) -> TrialSlot:
        # A plan can have many slots, so compare only a few node shapes for each slot instead of all nodes.
        seen = with_rounded_memory(capacity, memory=slot.worker.memory_bytes, num_workers=0)
        return off_small_gpus(slot, seen)

    # If nodes with smaller devices are reserved completely, the inner policy ignores them, but Ray does not.
    return plan.with_slots(off_reserved_gpus).model_copy(update=changes)


def added(resources: Resources, ticks: Amounts) -> Resources:
    """Return the resources with the amounts in ``ticks`` added."""
    for name, amount in ticks.items():
        resources = resources.with_ticks(name, resources.ticks.get(name, 0) + amount)
    return resources


def rests(capacity: ClusterCapacity, wish: Resources) -> Iterator[ClusterCapacity]:
    """Yield the cluster that remains if ``wish`` is reserved on as few nodes as possible.

    If these nodes have devices, also yield the cluster with the CPUs reserved on more nodes.

    Raises:
        InfeasibleRequestError: The cluster has fewer resources than ``wish``.
    """
    yield from map(capacity.replacing, first_reservations(capacity, wish))


def _usable_gpus(capacity: ClusterCapacity, reserved_bytes: int) -> Iterator[Selection]:
    """Yield selections of GPUs with memory left that Ray can distinguish from the GPUs without memory left.

    Alive nodes are distinguished by their IDs. If GPUs without memory left may be added, only a device type or the
    labels of device types can distinguish other nodes that may be added, and a request names only one type.
    """
    groups = tuple(capacity.gpu_groups())
    full = [group for group in groups if _is_full(group.node, reserved_bytes)]
    left = [group for group in groups if not _is_full(group.node, reserved_bytes)]
    if not any(node.is_expected for node, _ in full):
        yield Selection(tuple(left))
        return
    yield select_gpus(capacity, left)
    full_types = {node.accelerator_type for node, _ in full}
    for name in sorted({node.accelerator_type for node, _ in left if node.accelerator_type} - full_types):
        yield gpus_of_type(capacity, name)


def _is_full(node: NodeCapacity, reserved_bytes: int) -> bool:
    """Return whether the smallest GPU of a node has no memory left after the reservation."""
    memory = node.smallest_gpu_memory_bytes
    return memory is not None and memory <= reserved_bytes


def _with_smaller_gpus(capacity: ClusterCapacity, less_bytes: int, shapes: Container[Shape]) -> ClusterCapacity:
    """Return the cluster with ``less_bytes`` less memory on each GPU, including nodes that can be added.

    GPUs with unknown memory are not changed. GPUs of nodes with other ``shapes`` are omitted.
    """

    def smaller(changed: Node, node: NodeCapacity) -> Node:
        if not node.resources.gpus:
            return changed
        if node.shape not in shapes:
            return changed.model_copy(update={"resources": node.resources.replaced(gpus=0), "devices": None})
        memory = node.smallest_gpu_memory_bytes
        if memory is None:
            return changed
        # If the devices were not read, the memory of the type applies. Less than that can be stated only by listing
        # devices.
        of_type = GpuDevice(index=0, name=node.accelerator_type or "GPU", memory_bytes=memory)
        devices = node.devices or (of_type,) * math.ceil(node.resources.gpus)
        left = tuple(gpu.model_copy(update={"memory_bytes": gpu.memory_bytes - less_bytes}) for gpu in devices)
        return changed.model_copy(update={"devices": left})

    nodes = capacity.with_nodes(smaller(node, node) for node in capacity.nodes)
    if capacity.node_types is None:
        return nodes
    node_types = tuple(smaller(node_type, node_type.as_node()) for node_type in capacity.node_types)
    return nodes.model_copy(update={"node_types": node_types})


def _too_small_gpus(capacity: ClusterCapacity, reserved_bytes: int) -> list[NodeCapacity]:
    """Return the nodes whose GPUs have no memory left after the reservation."""
    return [node for node in capacity.gpu_nodes() if _is_full(node, reserved_bytes)]


def _indistinct_gpus(usable: Selection, capacity: ClusterCapacity, reserved_bytes: int) -> str:
    """Return the GPUs that are not used although they have memory left, as text, or an empty string."""
    shapes = {node.shape for node, _ in usable.groups}
    names = set()
    for node, _ in capacity.gpu_groups():
        if node.shape in shapes or _is_full(node, reserved_bytes):
            continue
        memory = node.smallest_gpu_memory_bytes
        size = "of unknown memory" if memory is None else f"with {format_bytes(memory)}"
        names.add(f"{node.accelerator_type or 'GPUs of unknown type'} {size}")
    return shorten_names(sorted(names))


def _off_other_gpus(slot: TrialSlot, capacity: ClusterCapacity, shapes: Container[Shape]) -> TrialSlot:
    """Return the slot restricted to GPU nodes with these shapes."""
    if not slot.worker.gpus:
        return slot
    others, usable = [], []
    for group in capacity.gpu_groups(slot.accelerator_type):
        if group.node.shape in shapes:
            usable.append(group)
        else:
            others.append(group)
    return off_nodes(slot, capacity, others, usable)
