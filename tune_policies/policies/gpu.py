"""Trials with whole GPUs, or an equal share of one."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from tune_policies.cluster.accelerators import check_accelerator_type, check_type_of_resource
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.labels import ACCELERATOR_TYPE, NODE_ID, is_label_value, is_one_of
from tune_policies.placement.packing import Request, equal_device_share
from tune_policies.placement.remaining import device_slots
from tune_policies.plan.build_plan import about_nodes_without_cpus, build_plan, cpus_that_strand_no_device, with_cpus
from tune_policies.plan.infeasible import infeasible
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WantedCustom
from tune_policies.policies.wrappers import plan_first_feasible
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amount,
    Bytes,
    GpuAmount,
    Resources,
    WorkerCount,
    format_amount,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import format_bytes
from tune_policies.values.value import shorten


def _above_zero(gpus: float) -> float:
    if gpus == 0:
        raise InvalidResourcesError("gpus must be above 0, got 0: for trials without GPUs take CpuPolicy")
    return gpus


def _wishes(value: object) -> object:
    if isinstance(value, str | None):
        return value
    # An iterator would be read once, and the order of a set is nobody's wish.
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(name, str) for name in value)
        or len(set(value)) < len(value)
    ):
        raise InvalidResourcesError(
            f"accelerator_type must be the name of a device type, or a list of such names, each once, the best first: "
            f"got {shorten(value)}"
        )
    return tuple(value)


def _known(wish: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for name in (wish,) if isinstance(wish, str) else wish:
        check_type_of_resource(check_accelerator_type(name), "GPU")
    return wish


AcceleratorTypes = Annotated[str | tuple[str, ...], BeforeValidator(_wishes), AfterValidator(_known)]
"""A device type that Ray knows, such as ``"A100"``; or several, the best first."""


class Selection(NamedTuple):
    """GPU nodes to plan on.

    Attributes:
        groups: The nodes, by shape.
        accelerator_type: The one type that they have, where Ray is to be told the type.
        by_label: Whether Ray is to be told the nodes by label: there are others, and no one type sets these apart.
    """

    groups: tuple[NodeGroup, ...]
    accelerator_type: str | None = None
    by_label: bool = False

    @property
    def memory_bytes(self) -> int | None:
        """GPU memory of the smallest device; ``None``: not known of all."""
        memories = [node.smallest_gpu_memory_bytes for node, _ in self.groups]
        known = [memory for memory in memories if memory is not None]
        return min(known) if known and len(known) == len(memories) else None

    def where(self, holds: Callable[[NodeCapacity], bool]) -> "Selection":
        """Return the part of it on which Ray may place work: the rest has no room for it anyway."""
        return self._replace(groups=tuple(group for group in self.groups if holds(group.node)))


class GpuPolicy(ResourcePolicy):
    """The same GPUs, or share of one, for every worker.

    Attributes:
        gpus: GPUs of each worker: whole, or below 1 a share, which is rounded up to the k-th part of a GPU.
        cpus: CPUs of each worker; ``None``: as many as strand no GPU; nodes without CPUs are left out beside others.
        accelerator_type: Only devices of this type, such as ``"A100"``; of several, ``("H100", "A100")``, the first
            of which a trial fits.
        num_workers: Train workers in a trial; 0: the trial itself trains; ``(2, 8)``: from 2 to 8, as there is room.
        min_gpu_memory: Only devices with at least so much memory each: bytes, or a text such as ``"24GiB"``.
        custom: Other Ray resources of each worker by their names.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    gpus: Annotated[GpuAmount, AfterValidator(_above_zero)] = 1
    cpus: Amount | None = None
    accelerator_type: AcceleratorTypes | None = None
    num_workers: WorkerCount = 0
    min_gpu_memory: Bytes | None = None
    custom: WantedCustom = Field(default_factory=dict)

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """One policy for each type that is wished for."""
        if self.accelerator_type is None or isinstance(self.accelerator_type, str):
            return (self,)
        return tuple(self.model_copy(update={"accelerator_type": name}) for name in self.accelerator_type)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        if self.accelerator_type is not None and not isinstance(self.accelerator_type, str):
            return plan_first_feasible(self.choices, capacity)
        selections = list(self._selections(capacity))
        plans, shortages = [], []
        for selection in selections:
            try:
                plans.append((self._plan_selection(capacity, selection), selection))
            except InfeasibleRequestError as error:
                shortages.append(error)
        if not plans:
            raise shortages[0] if shortages else self._none_is_large_enough(capacity)
        plan, selection = max(plans, key=lambda each: each[0].max_concurrent_trials)  # the first of the best
        return with_labels(plan, capacity, selection)

    def _selections(self, capacity: ClusterCapacity) -> Iterator[Selection]:
        usable = gpus_of_type(capacity, self._one_type)
        if self.min_gpu_memory is None:
            return iter((usable,))
        if self.cpus is None:
            usable = usable._replace(groups=with_cpus(usable.groups, "GPU", to_ticks(self.gpus)))
        return selections_of(capacity, usable, self.min_gpu_memory)

    @property
    def _one_type(self) -> str | None:
        return self.accelerator_type if isinstance(self.accelerator_type, str) else None

    def _plan_selection(self, capacity: ClusterCapacity, selection: Selection) -> TrialPlan:
        wish = to_ticks(self.gpus)
        reasons = []
        if self.min_gpu_memory is not None:
            kinds = describe_gpus(selection.groups)
            reasons.append(f"GPUs with at least {format_bytes(self.min_gpu_memory)}: {kinds}")
            if self.cpus is None and all(node.resources.cpus for node, _ in selection.groups):
                groups = gpus_of_type(capacity, self._one_type).groups
                reasons += about_nodes_without_cpus(groups, "GPU", from_ticks(1))
        most_devices = max((node.resources.gpus for node, _ in selection.groups), default=1)
        share = equal_device_share(TICKS // wish, most_devices) if wish < TICKS else wish
        if share != wish:
            reasons.append(
                f"{format_amount(self.gpus)} GPU became {format_amount(from_ticks(share))}: "
                f"only {TICKS // share} such on a GPU, and unequal shares may wait for ever"
            )
        request = self._request(from_ticks(share))
        return plan_gpu_share(capacity, selection, request, choose_cpus=self.cpus is None, reasons=reasons)

    def _request(self, gpus: float) -> Request:
        worker = Resources(cpus=self.cpus or 0, gpus=gpus, custom=self.custom)
        return Request(worker=worker, num_workers=self.num_workers)

    def _none_is_large_enough(self, capacity: ClusterCapacity) -> InfeasibleRequestError:
        wish = {"accelerator_type": self._one_type, "gpu_memory_bytes": self.min_gpu_memory}
        request = self._request(self.gpus).model_copy(update=wish)
        if not (kinds := describe_gpus(gpus_of_type(capacity, self._one_type).groups)):
            return infeasible(capacity.groups, request)
        hint = "Ask for less, add larger GPUs, or install nvidia-ml-py on nodes whose memory was not read."
        return InfeasibleRequestError(str(request), f"the GPUs there are {kinds}", "GPU memory", hint)


def plan_gpu_share(
    capacity: ClusterCapacity, selection: Selection, request: Request, *, choose_cpus: bool, reasons: Iterable[str] = ()
) -> TrialPlan:
    """Return the plan for workers with a share of a GPU each, or whole ones, on the selected nodes.

    Where Ray is to be told the nodes by label, :func:`with_labels` is still to do so.

    Args:
        capacity: The cluster.
        selection: The nodes to use.
        request: What a trial needs, without what the selection adds.
        choose_cpus: Give each worker as many CPUs as strand no GPU.
        reasons: What led here.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    share_ticks, cpus = to_ticks(request.worker.gpus), request.worker.cpus
    usable = selection.where(
        lambda node: node.resources.cpus >= cpus and device_slots(node.amounts.get("GPU", 0), share_ticks) > 0
    )
    notes = list(reasons)
    worker = request.worker
    if choose_cpus and usable.groups:
        worker = worker.replaced(cpus=cpus_that_strand_no_device(usable.groups, "GPU", share_ticks))
        notes.append(f"{format_amount(worker.cpus)} CPU per worker, so that no GPU is left without CPUs")
        notes += about_nodes_without_cpus(usable.groups, "GPU", worker.cpus)
        usable = usable.where(lambda node: node.resources.cpus >= worker.cpus)
    memory = share_of_gpu_memory(usable, share_ticks)
    if share_ticks < TICKS and usable.groups:
        notes.append(
            "GPU memory was not read on every node, so each worker is held to its share of the device it gets"
            if memory is None
            else f"{format_bytes(memory)} of GPU memory per worker: its share of the smallest device in use"
        )
    if memory is not None and (unread := [group for group in usable.groups if group.node.devices is None]):
        notes.append(f"GPU memory was not read, so it is that of the table of known types: {describe_gpus(unread)}")
    changes = {"worker": worker, "accelerator_type": selection.accelerator_type, "gpu_memory_bytes": memory}
    groups = selection.groups if selection.by_label else None
    if choose_cpus and not usable.groups:  # no node has room for the share: what would work is sought where CPUs are
        groups = with_cpus(capacity.groups if groups is None else groups, "GPU")
    return build_plan(capacity, request.model_copy(update=changes), notes, groups=groups)


def gpus_of_type(capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
    """Return the nodes with GPUs; of one device type only, if it is given."""
    return Selection(tuple(capacity.gpu_groups(accelerator_type)), accelerator_type)


def selections_of(capacity: ClusterCapacity, usable: Selection, least_bytes: int) -> Iterator[Selection]:
    """Yield the ways to use only devices with so much memory, the simplest to tell Ray first, each once.

    They are all that are usable, those of each single type, and those that labels set apart.
    """
    choices = [usable]
    if usable.accelerator_type is None:
        names = sorted({node.accelerator_type for node, _ in usable.groups if node.accelerator_type})
        of_types = (Selection(tuple(capacity.gpu_groups(name)), name) for name in names)
        usable_shapes = {node.shape for node, _ in usable.groups}
        choices += [choice.where(lambda node: node.shape in usable_shapes) for choice in of_types]
    large = [group for group in usable.groups if (group.node.smallest_gpu_memory_bytes or 0) >= least_bytes]
    choices.append(select_gpus(capacity, large, usable.accelerator_type))
    seen: set[frozenset[Hashable]] = set()
    for choice in choices:
        shapes = frozenset(node.shape for node, _ in choice.groups)
        if shapes not in seen and (choice.memory_bytes or 0) >= least_bytes:
            seen.add(shapes)
            yield choice


def select_gpus(
    capacity: ClusterCapacity, groups: Iterable[NodeGroup], accelerator_type: str | None = None
) -> Selection:
    """Return some of the GPU nodes, with the simplest thing that keeps Ray from placing work on the others.

    That is the type, where it is wished for, and besides nothing where there are no others; then the one device type
    that they have; then labels. Of nodes that only labels would
    set apart, those that are not there yet are left out unless the label of their type does: the others are listed.
    """
    groups = tuple(groups)
    chosen = {node.shape for node, _ in groups}
    others = {node.accelerator_type for node, _ in capacity.gpu_groups(accelerator_type) if node.shape not in chosen}
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
    """Return what Ray's label of device types says of these nodes and of no others; ``None``: it does not."""
    groups = tuple(groups)
    chosen = {node.shape for node, _ in groups}
    others = (group for group in capacity.groups if group.node.shape not in chosen)
    inside = {node.labels.get(ACCELERATOR_TYPE) for node in capacity.nodes_of(groups)}
    outside = {node.labels.get(ACCELERATOR_TYPE) for node in capacity.nodes_of(others)}
    names = {name for name in inside if name and is_label_value(name)}
    return names if names == inside and not names & outside else None


def with_labels(plan: TrialPlan, capacity: ClusterCapacity, selection: Selection) -> TrialPlan:
    """Return the plan with the labels by which Ray places its work on the selected nodes only, where need be."""
    return plan.on_nodes(labels) if (labels := labels_of(capacity, selection)) else plan


def labels_of(capacity: ClusterCapacity, selection: Selection) -> dict[str, str]:
    """Return the conditions on labels by which Ray places work on the selected nodes only; empty: it needs none.

    They are those of the types, which nodes that start later have too; where these do not set the nodes apart, the
    selector lists the nodes.
    """
    if not selection.by_label:
        return {}
    if (types := _types_that_tell(capacity, selection.groups)) is not None:
        return {ACCELERATOR_TYPE: is_one_of(types)}
    return {NODE_ID: is_one_of(node.node_id for node in capacity.nodes_of(selection.groups))}


def share_of_gpu_memory(selection: Selection, share_ticks: int) -> int | None:
    """Return what ``share_ticks`` of the smallest device hold, in bytes; ``None``: not known of all."""
    smallest = selection.memory_bytes
    # Not share_ticks / 10 000 of it: a third is 0.3333 to Ray, and the rest of the device would go to waste.
    return None if smallest is None else smallest // max(1, TICKS // share_ticks)


def describe_gpus(groups: Iterable[NodeGroup]) -> str:
    """Return the GPUs of the nodes by type and memory: ``"4 A100 (80.0 GiB), 2 T4 (memory not read)"``."""
    kinds: dict[tuple[str, int | None], int] = {}
    for node, count in groups:
        kind = (node.accelerator_type or "unknown type", node.smallest_gpu_memory_bytes)
        kinds[kind] = kinds.get(kind, 0) + count * (int(node.resources.gpus) or 1)
    return ", ".join(
        f"{count} {name} ({format_bytes(memory) if memory else 'memory not read'})"
        for (name, memory), count in sorted(kinds.items(), key=str)
    )
