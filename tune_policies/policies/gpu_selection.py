"""Selects the GPUs for a policy: all GPUs, those of one type, or those with enough memory.

Ray assigns any GPU unless a request specifies a device type or a label selector. Therefore, a selection that excludes
some GPUs also contains the simplest condition that restricts Ray to the selected nodes.
"""

from abc import abstractmethod
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from tune_policies.cluster.accelerators import check_accelerator_type, check_type_of_resource
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import (
    ACCELERATOR_TYPE,
    NODE_ID,
    format_selector,
    is_label_value,
    is_none_of,
    is_one_of,
)
from tune_policies.cluster.node import NodeCapacity, NodeGroup, Shape
from tune_policies.placement.count_trials import workers_on_node
from tune_policies.placement.request import Request, request_of
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.plan_notes import describe_gpus
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.default_cpus import (
    about_equal_cpus,
    about_nodes_without_cpus,
    max_cpus_without_idle_device,
    nodes_with_cpus,
    plan_without_cpus_if_needed,
)
from tune_policies.policies.equal_fractions import fraction_of_gpu_memory
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.policy import ResourcePolicy, WantedCustom, WorkersPolicy
from tune_policies.policies.slots_by_node_type import Selection
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, Amount, PositiveCount, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import shorten


def _as_selections(value: object) -> object:
    if isinstance(value, str | None):
        return value
    # Other iterables are invalid: an iterator can be read only once, and a set has no order.
    listed = value if isinstance(value, list | tuple) else ()
    if not listed or len({name for name in listed if isinstance(name, str)}) < len(listed):
        raise InvalidResourcesError(
            "accelerator_type must be the name of a device type, or a list of distinct names in order of preference, "
            f"got {shorten(value)}"
        )
    return tuple(listed)


def _known(wish: str | tuple[str, ...]) -> str | tuple[str, ...]:
    names = (wish,) if isinstance(wish, str) else wish
    for name in names:
        check_type_of_resource(check_accelerator_type(name), "GPU")
    return wish


AcceleratorTypes = Annotated[str | tuple[str, ...], BeforeValidator(_as_selections), AfterValidator(_known)]
"""One of Ray's device types, such as ``"A100"``, or several in order of preference."""


TELL_APART: Final = f"Give node types with different GPU memory different labels {ACCELERATOR_TYPE}"
"""How Ray can distinguish large GPUs from small ones before their nodes are added."""

_ALIKE: Final = 0.95
"""Two devices count as equal if one has at least this fraction of the other's GPU memory."""


class GpuTypesPolicy(WorkersPolicy):
    """A policy for GPUs. If several device types are set, it uses the first type with room for ``min_trials`` trials.

    Attributes:
        cpus: The number of CPUs of each worker. If ``None``, the CPUs of a node are divided equally among its GPU
            slots. If all trials must get the same resources, the node with the fewest CPUs per slot determines the
            number, and nodes without CPUs are not used, unless no trial fits the nodes with CPUs. Otherwise, trials on
            nodes without CPUs reserve no CPU.
        accelerator_type: The device type to use, such as ``"A100"``, or ``None`` for any type. If several are set,
            such as ``("H100", "A100")``, the policy uses the first type with room for ``min_trials`` trials.
        min_trials: The minimum number of concurrent trials. If fewer trials fit, the policy tries the next type.
        custom: The custom Ray resources of each worker, by name.
        same_for_all: Whether all trials get the same resources on every node. Otherwise, the CPUs and the GPU memory
            of a trial depend on its node.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.
    """

    cpus: Amount | None = None
    accelerator_type: AcceleratorTypes | None = None
    min_trials: PositiveCount = 1
    custom: WantedCustom = Field(default_factory=dict)
    same_for_all: bool = False

    @property
    def requests_gpus(self) -> bool:
        """Whether this policy, or a policy inside it, requests GPUs."""
        return True

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """One policy for each device type."""
        if self.accelerator_type is None or isinstance(self.accelerator_type, str):
            return (self,)
        return tuple(self.model_copy(update={"accelerator_type": name}) for name in self.accelerator_type)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        capacity = self._with_rounded_memory(capacity)
        types = self.accelerator_type
        # With one type and no minimum, there is nothing to fall back to.
        if self.min_trials == 1 and not isinstance(types, tuple):
            if self.cpus is not None:
                return self._plan_on_type(capacity, types)
            without_cpus = self.model_copy(update={"cpus": 0})
            return plan_without_cpus_if_needed(
                gpus_of_type(capacity, types).groups,
                lambda: self._plan_on_type(capacity, types),
                lambda: without_cpus._plan_on_type(capacity, types),
            )
        choices = self.model_copy(update={"min_trials": 1}).choices
        return plan_first_feasible(choices, capacity, min_trials=self.min_trials)

    @abstractmethod
    def _plan_on_type(self, capacity: ClusterCapacity, accelerator_type: str | None) -> TrialPlan:
        """Return the plan on devices of one type, or of any type if ``accelerator_type`` is ``None``."""

    def _with_gpus(self, gpus: float) -> Request:
        return self._request(self.cpus or 0, gpus, self.custom)


def plan_gpus(
    capacity: ClusterCapacity, selection: Selection, request: Request, *, choose_cpus: bool, reasons: Iterable[str]
) -> TrialPlan:
    """Return the plan on the selected nodes for workers with whole GPUs or a GPU fraction.

    Args:
        capacity: The cluster.
        selection: The nodes to use.
        request: The request of a trial, without the device type of the selection.
        choose_cpus: Whether to choose the CPUs of a worker so that every GPU of a node can be used.
        reasons: Sentences that explain the request.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    share_ticks = to_ticks(request.worker.gpus)
    request, with_room = sized_for(selection, request, choose_cpus=choose_cpus)
    usable = with_room.where(lambda node: node.resources.cpus >= request.worker.cpus)
    notes = list(reasons)
    if choose_cpus and usable.groups:
        notes.append(about_equal_cpus((node for node, _ in with_room.groups), request, "GPU"))
        notes += about_nodes_without_cpus(with_room.groups, "GPU", request.worker.cpus)
    memory = fraction_of_gpu_memory(usable.groups, share_ticks)
    if share_ticks < TICKS and usable.groups:
        if memory is None:
            about_memory = "GPU memory was not read on every node, so the memory of a fraction is unknown"
        else:
            per_worker = f"{format_bytes(memory)} of GPU memory per {request.unit}"
            about_memory = f"{per_worker}, based on the smallest GPU that the plan uses"
        notes.append(about_memory)
    # Without a label selector, Ray may place trials on nodes outside the selection, so these count, too.
    groups = selection.groups if selection.label_selector else capacity.groups
    if choose_cpus and not usable.groups:  # no node has room, and the error should describe nodes with CPUs
        groups = nodes_with_cpus(groups, "GPU")
    plan = build_plan(capacity, request.model_copy(update={"gpu_memory_bytes": memory}), notes, groups=groups)
    if selection.label_selector:
        return plan.on_nodes(dict(selection.label_selector))
    return plan


def sized_for(selection: Selection, request: Request, *, choose_cpus: bool) -> tuple[Request, Selection]:
    """Return the request with the selection's device type and chosen CPUs, and the nodes with room for a worker.

    If ``choose_cpus`` is true, the room on a node does not depend on its CPUs.
    """
    with_room = selection.where(lambda node: workers_on_node(node, request) > 0)
    request = request.model_copy(update={"accelerator_type": selection.accelerator_type})
    if choose_cpus and with_room.groups:
        request = request.with_cpus(max_cpus_without_idle_device(with_room.groups, request, "GPU"))
    return request, with_room


def gpus_of_type(capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
    """Return the nodes with GPUs of ``accelerator_type``, or with any GPUs if it is ``None``."""
    return Selection(tuple(capacity.gpu_groups(accelerator_type)), accelerator_type)


def selections_of(capacity: ClusterCapacity, usable: Selection, least_bytes: int) -> Iterator[Selection]:
    """Yield selections in which every device has at least ``least_bytes`` of memory, with the simplest condition first.

    The candidates are all usable GPUs, the GPUs of each type, and the GPUs of all nodes with enough GPU memory.
    """
    choices = [usable]
    if usable.accelerator_type is None:
        names = sorted({node.accelerator_type for node, _ in usable.groups if node.accelerator_type})
        shapes = {node.shape for node, _ in usable.groups}
        choices += [gpus_of_type(capacity, name).where(lambda node: node.shape in shapes) for name in names]
    choices.append(gpus_with_memory(capacity, usable, least_bytes))
    yield from (choice for choice in without_duplicates(choices) if choice.memory_bytes >= least_bytes)


def gpus_with_memory(capacity: ClusterCapacity, usable: Selection, least_bytes: int) -> Selection:
    """Return a selection of the usable nodes whose devices have at least ``least_bytes`` of memory."""
    large = (group for group in usable.groups if gpu_memory_of(group.node) >= least_bytes)
    return select_gpus(capacity, large, usable.accelerator_type)


def gpu_memory_of(node: NodeCapacity) -> int:
    """Return the GPU memory of a node's smallest device in bytes, or 0 if it is unknown."""
    return node.smallest_gpu_memory_bytes or 0


def without_duplicates(selections: Iterable[Selection]) -> Iterator[Selection]:
    """Yield the selections without duplicates. Selections with nodes of the same shapes are duplicates."""
    seen: set[frozenset[Hashable]] = set()
    for selection in selections:
        shapes = frozenset(node.shape for node, _ in selection.groups)
        if shapes not in seen:
            seen.add(shapes)
            yield selection


def select_gpus(
    capacity: ClusterCapacity, groups: Iterable[NodeGroup], accelerator_type: str | None = None
) -> Selection:
    """Return a selection of these GPU nodes, with the simplest condition that excludes all other GPU nodes.

    If there are no other GPU nodes, the condition is the device type that the user requested, if any. If these nodes
    have one type that no other GPU node has, the condition is this type. Otherwise, it is a label selector: either the
    labels of device types, which also match nodes that start later, or a list of node IDs. Nodes that still have to be
    added have no ID, so such a list omits them.
    """
    groups = tuple(groups)
    chosen = {node.node_id for node, _ in groups}
    others = {node.accelerator_type for node, _ in capacity.gpu_groups(accelerator_type) if node.node_id not in chosen}
    types = {node.accelerator_type for node, _ in groups}
    if not others:
        return Selection(groups, accelerator_type)
    if len(types) == 1 and None not in types and not types & others:
        return Selection(groups, types.pop())
    labels = _labels_of_types(capacity, groups, accelerator_type)
    if labels is not None:
        return Selection(groups, accelerator_type, {ACCELERATOR_TYPE: is_one_of(labels)})
    if any(node.is_expected for node, _ in groups):
        alive = (group for group in groups if not group.node.is_expected)
        return select_gpus(capacity, alive, accelerator_type)
    nodes = {NODE_ID: is_one_of(node.node_id for node in capacity.nodes_of(groups))}
    return Selection(groups, accelerator_type, nodes)


def _labels_of_types(
    capacity: ClusterCapacity, groups: Iterable[NodeGroup], accelerator_type: str | None
) -> set[str] | None:
    """Return the device type labels of these nodes, or ``None`` if any is missing, invalid or used by other nodes.

    If requests name a device type, only other nodes of this type matter. Without nodes, the result is
    also ``None``, because Ray rejects a condition without values.
    """
    groups = tuple(groups)
    if not groups:
        return None
    inside = capacity.labels_of(groups, ACCELERATOR_TYPE)
    names = {name for name in inside if name and is_label_value(name)}
    if names != inside:
        return None
    chosen = {node.node_id for node, _ in groups}
    others = (
        group
        for group in capacity.groups
        if group.node.node_id not in chosen and accelerator_type in (None, group.node.accelerator_type)
    )
    if names.isdisjoint(capacity.labels_of(others, ACCELERATOR_TYPE)):
        return names
    return None


def alike_in_memory(selection: Selection) -> Iterator[list[NodeGroup]]:
    """Yield groups of nodes with similar GPU memory, largest memory first. Nodes with unknown memory come last.

    For the same device model, different drivers report sizes that differ by some MiB.
    """
    alike: list[NodeGroup] = []
    for group in sorted(selection.groups, key=lambda group: gpu_memory_of(group.node), reverse=True):
        if alike and gpu_memory_of(group.node) < _ALIKE * gpu_memory_of(alike[0].node):
            yield alike
            alike = []
        alike.append(group)
    if alike:
        yield alike


def why_not_distinct(groups: Iterable[NodeGroup], least_bytes: int) -> tuple[str, str] | None:
    """Return why no selection contains the GPUs with ``least_bytes`` of memory, and what to do, as text.

    The result is ``None`` if there are no such GPUs.
    """
    groups = tuple(groups)
    large = [group for group in groups if gpu_memory_of(group.node) >= least_bytes]
    if not large:
        return None
    others = [group for group in groups if gpu_memory_of(group.node) < least_bytes]
    offered = f"Ray cannot distinguish {describe_gpus(large)} from {describe_gpus(others)} before the nodes are added"
    return offered, f"{TELL_APART}, or request less GPU memory."


def about_listed_nodes(selections: Iterable[Selection]) -> Iterator[str]:
    """For each selection that lists its nodes by ID, yield a description of its GPUs."""
    for selection in selections:
        if NODE_ID in selection.label_selector:
            yield f"nodes with {format_selector(selection.label_selector)}: {describe_gpus(selection.groups)}"


def off_small_gpus(slot: TrialSlot, capacity: ClusterCapacity, others: Container[Shape] | None = None) -> TrialSlot:
    """Return the slot restricted to nodes whose GPUs are large enough for its workers.

    Ray may place a trial on any GPU, including GPUs that the policy ignored when it computed the slot.

    Args:
        slot: The slot type.
        capacity: The cluster, with all nodes on which Ray may place the trial.
        others: The shapes of the nodes that the policy ignored. If ``None``, they are all nodes with small GPUs.
    """
    if slot.gpu_memory_bytes is None:
        return slot
    request = request_of(slot)
    per_device = max(1, TICKS // to_ticks(slot.worker.gpus))
    too_small, large = [], []
    for group in capacity.gpu_groups(slot.accelerator_type):
        is_large = gpu_memory_of(group.node) // per_device >= slot.gpu_memory_bytes
        if others is not None and is_large == (group.node.shape in others):
            continue
        if not workers_on_node(group.node, request):
            continue
        if is_large:
            large.append(group)
        else:
            too_small.append(group)
    return off_nodes(slot, capacity, too_small, large)


def off_nodes(
    slot: TrialSlot, capacity: ClusterCapacity, too_small: Sequence[NodeGroup], large: Sequence[NodeGroup]
) -> TrialSlot:
    """Return the slot without the nodes ``too_small``, whose devices are too small for its workers.

    Nodes that still have to be added have no ID, so they are excluded by their device type, or by the IDs of the nodes
    ``large``, whose devices are large enough. This is possible if these nodes have other device types or are alive.
    """
    if not too_small:
        return slot
    if large and any(node.is_expected for node, _ in too_small):
        shapes = {node.shape for node, _ in (*too_small, *large)}
        relevant = capacity.where(lambda node: node.shape in shapes)  # workers fit no other nodes
        chosen = select_gpus(relevant, large, slot.accelerator_type)
        if len(chosen.groups) == len(large):
            of_type = slot.model_copy(update={"accelerator_type": chosen.accelerator_type})
            return of_type.on_nodes(dict(chosen.label_selector))
    alive = [node.node_id for node in capacity.nodes_of(too_small) if not node.is_expected]
    if not alive:
        return slot
    return slot.on_nodes({NODE_ID: is_none_of(alive)})
