"""Which GPUs a policy uses: all, those of one type, or those with enough memory, and how Ray is kept to them.

Ray hands out any GPU unless it is told a device type or a label. So a selection that leaves GPUs out also says what to
tell Ray, the simplest that sets its nodes apart.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from tune_policies.cluster.accelerators import check_accelerator_type, check_type_of_resource
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.labels import ACCELERATOR_TYPE, NODE_ID, format_selector, is_label_value, is_one_of
from tune_policies.placement.packing import Request, as_told_apart, workers_on_node
from tune_policies.plan.build_plan import build_plan, describe_gpus
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.equal_shares import (
    AlikeNodes,
    about_equal_cpus,
    about_nodes_without_cpus,
    cpus_that_strand_no_device,
    nodes_with_cpus,
    share_of_gpu_memory,
)
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import TICKS, Amount, Memory, PositiveCount, WorkerCount, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import counted, shorten


def _wishes(value: object) -> object:
    if isinstance(value, str | None):
        return value
    # An iterator would be read once, and the order of a set is nobody's wish.
    listed = value if isinstance(value, list | tuple) else ()
    if not listed or len({name for name in listed if isinstance(name, str)}) < len(listed):
        raise InvalidResourcesError(
            f"accelerator_type must be the name of a device type, or a list of such names, each once, the best first: "
            f"got {shorten(value)}"
        )
    return tuple(listed)


def _known(wish: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for name in (wish,) if isinstance(wish, str) else wish:
        check_type_of_resource(check_accelerator_type(name), "GPU")
    return wish


AcceleratorTypes = Annotated[str | tuple[str, ...], BeforeValidator(_wishes), AfterValidator(_known)]
"""A device type that Ray knows, such as ``"A100"``; or several, the best first."""


_ALIKE: Final = 0.95
"""From so large a part of the GPU memory of another on, a device is as good as that one."""


class GpuTypesPolicy(ResourcePolicy):
    """A policy for GPUs that may name several device types, of which it takes the first that fits."""

    if TYPE_CHECKING:  # each policy has the fields, after its own amounts, as people write and read them
        cpus: Amount | None = None
        accelerator_type: AcceleratorTypes | None = None
        num_workers: WorkerCount = 0
        memory: Memory | None = None
        min_trials: PositiveCount = 1
        same_for_all: bool = False

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """One policy for each type that is wished for."""
        if self.accelerator_type is None or isinstance(self.accelerator_type, str):
            return (self,)
        return tuple(self.model_copy(update={"accelerator_type": name}) for name in self.accelerator_type)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        capacity = as_told_apart(capacity, memory=self.memory, num_workers=self.num_workers)
        types = self.accelerator_type
        if self.min_trials == 1 and not isinstance(types, tuple):
            try:
                return self._plan_on_type(capacity, types)
            except InfeasibleRequestError as error:
                raise self._or_without_cpus(error, capacity, types) from None
        choices = self.model_copy(update={"min_trials": 1}).choices
        plan = plan_first_feasible(choices, capacity, min_trials=self.min_trials)
        taken = types.index(str(plan.accelerator_type)) if isinstance(types, tuple) else len(choices)
        return plan.with_reasons(*_about_more_elsewhere(plan, choices[taken + 1 :], capacity))

    def _or_without_cpus(
        self, error: InfeasibleRequestError, capacity: ClusterCapacity, accelerator_type: str | None
    ) -> InfeasibleRequestError:
        """Return the error, which also says so where GPU nodes without CPUs, which are left out, would do."""
        if self.cpus is not None:
            return error
        try:
            self.model_copy(update={"cpus": 0})._plan_on_type(capacity, accelerator_type)
        except InfeasibleRequestError:
            return error
        return error.told(suggestion=f"{error.suggestion} Or use the GPU nodes without CPUs too, with cpus=0.")

    @abstractmethod
    def _plan_on_type(self, capacity: ClusterCapacity, accelerator_type: str | None) -> TrialPlan:
        """Return the plan on devices of one type; ``None``: of any."""


def _about_more_elsewhere(
    plan: TrialPlan, further: Iterable[ResourcePolicy], capacity: ClusterCapacity
) -> Iterator[str]:
    """Yield which of the further types would run the most trials at once, if it would run more than the plan."""
    most = plan
    for choice in further:
        with suppress(InfeasibleRequestError):
            most = max(most, choice.plan(capacity), key=lambda each: each.min_concurrent_trials)
    if most is not plan:
        yield (
            f"{plan.accelerator_type} runs {counted(plan.min_concurrent_trials, 'trial')} at once, and "
            f"{most.accelerator_type} would run {most.min_concurrent_trials}: set min_trials= to pass over a type that "
            "runs too few"
        )


class Selection(NamedTuple):
    """GPU nodes to plan on.

    Attributes:
        groups: The nodes, by shape.
        accelerator_type: The device type to tell Ray; ``None``: tell it none.
        by_label: Whether to tell Ray the nodes by label, as no device type sets them apart from the other nodes.
    """

    groups: tuple[NodeGroup, ...]
    accelerator_type: str | None = None
    by_label: bool = False

    @property
    def memory_bytes(self) -> int:
        """GPU memory of the smallest device; 0: not known of all."""
        return share_of_gpu_memory(self.groups, TICKS) or 0

    def where(self, holds: Callable[[NodeCapacity], bool]) -> "Selection":
        """Keep the nodes for which ``holds`` is true. The others must have no room for the work anyway."""
        return self._replace(groups=tuple(group for group in self.groups if holds(group.node)))


def plan_gpu_share(
    capacity: ClusterCapacity, selection: Selection, request: Request, *, choose_cpus: bool, reasons: Iterable[str] = ()
) -> TrialPlan:
    """Return the plan for workers with a share of a GPU each, or whole ones, on the selected nodes.

    The plan has no labels yet: see :func:`with_labels`.

    Args:
        capacity: The cluster.
        selection: The nodes to use.
        request: What a trial needs, without what the selection adds.
        choose_cpus: Give each worker as many CPUs as strand no GPU.
        reasons: What led here.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    share_ticks = to_ticks(request.worker.gpus)
    request, with_room = sized_for(selection, request, choose_cpus=choose_cpus)
    usable = with_room.where(lambda node: node.resources.cpus >= request.worker.cpus)
    notes = list(reasons)
    if choose_cpus and usable.groups:
        cpus = request.worker.cpus
        notes.append(about_equal_cpus((node for node, _ in with_room.groups), request, "GPU"))
        notes += about_nodes_without_cpus(with_room.groups, "GPU", cpus)
    memory = share_of_gpu_memory(usable.groups, share_ticks)
    if share_ticks < TICKS and usable.groups:
        notes.append(
            "GPU memory was not read on every node, so how much a share holds is not known"
            if memory is None
            else f"{format_bytes(memory)} of GPU memory per worker: its share of the smallest device in use"
        )
    groups = selection.groups if selection.by_label else None
    if choose_cpus and not usable.groups:  # no node has room for the share: look for what would work on nodes with CPUs
        groups = nodes_with_cpus(capacity.groups if groups is None else groups, "GPU")
    plan = build_plan(capacity, request.model_copy(update={"gpu_memory_bytes": memory}), notes, groups=groups)
    return plan.model_copy(update={"divides_cpus": choose_cpus})


def sized_for(selection: Selection, request: Request, *, choose_cpus: bool) -> tuple[Request, Selection]:
    """Return what each worker asks for on the selected nodes, and those that have room for it, be it without CPUs."""
    with_room = selection.where(lambda node: workers_on_node(node, request) > 0)
    request = request.model_copy(update={"accelerator_type": selection.accelerator_type})
    if choose_cpus and with_room.groups:
        request = request.with_cpus(cpus_that_strand_no_device(with_room.groups, request, "GPU"))
    return request, with_room


def gpus_of_type(capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
    """Return the nodes with GPUs; of one device type only, if it is given."""
    return Selection(tuple(capacity.gpu_groups(accelerator_type)), accelerator_type)


def selections_of(capacity: ClusterCapacity, usable: Selection, least_bytes: int) -> Iterator[Selection]:
    """Yield selections of devices with so much memory, each once, those first that are the simplest to tell Ray.

    They are: all usable GPUs, those of each type, and those that labels set apart.
    """
    choices = [usable]
    if usable.accelerator_type is None:
        names = sorted({node.accelerator_type for node, _ in usable.groups if node.accelerator_type})
        of_types = (Selection(tuple(capacity.gpu_groups(name)), name) for name in names)
        usable_shapes = {node.shape for node, _ in usable.groups}
        choices += [choice.where(lambda node: node.shape in usable_shapes) for choice in of_types]
    choices.append(gpus_with_memory(capacity, usable, least_bytes))
    yield from (choice for choice in each_once(choices) if choice.memory_bytes >= least_bytes)


def gpus_with_memory(capacity: ClusterCapacity, usable: Selection, least_bytes: int) -> Selection:
    """Return the usable devices that have so much memory."""
    large = (group for group in usable.groups if gpu_memory_of(group.node) >= least_bytes)
    return select_gpus(capacity, large, usable.accelerator_type)


def gpu_memory_of(node: NodeCapacity) -> int:
    """Return the GPU memory of the smallest device, in bytes; 0: it is not known."""
    return node.smallest_gpu_memory_bytes or 0


def each_once(selections: Iterable[Selection]) -> Iterator[Selection]:
    """Yield the first of the selections of the same nodes."""
    seen: set[frozenset[Hashable]] = set()
    for selection in selections:
        shapes = frozenset(node.shape for node, _ in selection.groups)
        if shapes not in seen:
            seen.add(shapes)
            yield selection


def select_gpus(
    capacity: ClusterCapacity, groups: Iterable[NodeGroup], accelerator_type: str | None = None
) -> Selection:
    """Return a selection of these GPU nodes, with the simplest thing that keeps Ray off all other GPU nodes.

    If there are no others, that is nothing but the type that the user wishes for. Else it is the one device type of the
    nodes, or else labels. A list of node identifiers cannot name nodes that are still to be added, so these are
    left out unless the label of their device type sets them apart.
    """
    groups = tuple(groups)
    chosen = {node.node_id for node, _ in groups}
    others = {node.accelerator_type for node, _ in capacity.gpu_groups(accelerator_type) if node.node_id not in chosen}
    types = {node.accelerator_type for node, _ in groups}
    if not others:
        return Selection(groups, accelerator_type)
    if len(types) == 1 and None not in types and not types & others:
        return Selection(groups, types.pop())
    if any(node.is_expected for node, _ in groups) and _types_that_tell(capacity, groups) is None:
        alive = (group for group in groups if not group.node.is_expected)
        return select_gpus(capacity, alive, accelerator_type)
    return Selection(groups, accelerator_type, by_label=True)


def _types_that_tell(capacity: ClusterCapacity, groups: Iterable[NodeGroup]) -> set[str] | None:
    """Return the device types that Ray's label gives to these nodes and to no others; ``None``: there are none such."""
    groups = tuple(groups)
    chosen = {node.node_id for node, _ in groups}
    others = (group for group in capacity.groups if group.node.node_id not in chosen)
    inside = {node.labels.get(ACCELERATOR_TYPE) for node in capacity.nodes_of(groups)}
    outside = {node.labels.get(ACCELERATOR_TYPE) for node in capacity.nodes_of(others)}
    names = {name for name in inside if name and is_label_value(name)}
    return names if names == inside and not names & outside else None


def alike_in_memory(selection: Selection) -> Iterator[list[NodeGroup]]:
    """Yield the nodes by the GPU memory of their devices, the most first; last those of which it is not known.

    Devices of one model differ by some MiB from driver to driver, so nodes with nearly the same are taken together.
    """
    alike: list[NodeGroup] = []
    for group in sorted(selection.groups, key=lambda group: gpu_memory_of(group.node), reverse=True):
        if alike and gpu_memory_of(group.node) < _ALIKE * gpu_memory_of(alike[0].node):
            yield alike
            alike = []
        alike.append(group)
    if alike:
        yield alike


def alike_nodes(capacity: ClusterCapacity, selection: Selection, share_ticks: int) -> AlikeNodes:
    """Return the nodes of a selection, on which each worker gets such a share."""
    return AlikeNodes(selection.groups, share_ticks, selection.accelerator_type, labels_of(capacity, selection))


def with_labels(plan: TrialPlan, capacity: ClusterCapacity, selection: Selection) -> TrialPlan:
    """Return the plan with the labels that keep Ray to the selected nodes, if it needs any."""
    return plan.on_nodes(labels) if (labels := labels_of(capacity, selection)) else plan


def labels_of(capacity: ClusterCapacity, selection: Selection) -> dict[str, str]:
    """Return the conditions on labels that keep Ray to the selected nodes; empty: it needs none.

    The label of device types comes first, as nodes that start later have it too. Where it does not set the nodes apart,
    the selector lists the nodes.
    """
    if not selection.by_label:
        return {}
    if (types := _types_that_tell(capacity, selection.groups)) is not None:
        return {ACCELERATOR_TYPE: is_one_of(types)}
    return {NODE_ID: is_one_of(node.node_id for node in capacity.nodes_of(selection.groups))}


def about_listed_nodes(nodes: Iterable[AlikeNodes]) -> Iterator[str]:
    """Yield which GPUs nodes have that a selector lists by their identifiers: these say nothing to a reader."""
    for alike in nodes:
        if NODE_ID in alike.label_selector:
            yield f"nodes with {format_selector(alike.label_selector)}: {describe_gpus(alike.groups)}"
