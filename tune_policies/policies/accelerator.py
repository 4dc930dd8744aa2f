"""Trials with devices of any family that Ray knows, and Train runs on whole TPU slices.

On slices run as many trials as are intact, and no worker beside them.
"""

from collections.abc import Iterable
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, model_validator

from tune_policies.cluster.accelerators import (
    check_accelerator_type,
    check_device_amount,
    check_device_resource,
    check_type_of_resource,
    families_of,
)
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.tpu_slices import (
    TOPOLOGIES,
    TOPOLOGY,
    SliceShape,
    TpuSlice,
    check_topology,
    find_slices,
    topologies_not_told_apart,
)
from tune_policies.placement.packing import Request, as_told_apart, count_workers, device_slots, holds, largest
from tune_policies.plan.build_plan import build_plan, infeasible
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.equal_shares import (
    AlikeNodes,
    about_equal_cpus,
    about_nodes_without_cpus,
    cpus_that_strand_no_device,
    equal_device_share,
    nodes_with_cpus,
    with_own_slots,
)
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amount,
    Memory,
    Resources,
    WorkerCount,
    amount_of,
    fewest_workers,
    format_amount,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import MIB, format_bytes, format_request
from tune_policies.values.value import counted


class AcceleratorPolicy(ResourcePolicy):
    """The same devices of any family, or share of one, for every worker: TPUs, HPUs, NPUs, Neuron cores, GPUs.

    Attributes:
        resource: Ray's name of the devices, such as ``"TPU"``.
        amount: Devices of each worker, in amounts that the family allows. A share below 1, where the family can be
            split, is rounded up to an equal part of a device: a half, a third, a quarter.
        cpus: CPUs of each worker; ``None``: the CPUs of a node, divided equally among its device slots. If every
            trial must get the same, the node with the fewest per slot decides. Nodes without CPUs are left out,
            unless no node has any.
        memory: Host memory of each worker: bytes, or a text such as ``"4GiB"``; ``None``: none reserved.
        accelerator_type: Only devices of this type, such as ``"TPU-V6E"``.
        topology: Whole TPU slices of this topology, such as ``"4x4"``, for each trial; needs ``accelerator_type``.
        num_workers: Train workers in a trial; 0: the trial itself trains. With a topology, as many as fill slices.
        same_for_all: Whether each trial gets the same on every node. If not, its CPUs depend on its node.

    Raises:
        InvalidResourcesError: A field is wrong, or Ray does not hand out such amounts.
    """

    resource: Annotated[str, AfterValidator(check_device_resource)]
    amount: Amount = 1
    cpus: Amount | None = None
    memory: Memory | None = None
    accelerator_type: Annotated[str, AfterValidator(check_accelerator_type)] | None = None
    topology: str | None = None
    num_workers: WorkerCount = 0
    same_for_all: bool = False

    @model_validator(mode="after")
    def _must_be_what_ray_hands_out(self) -> Self:
        check_device_amount(self.amount, self.resource)
        if self.accelerator_type is not None:
            check_type_of_resource(self.accelerator_type, self.resource)
        if self.topology is not None:
            if self.resource != "TPU" or self.accelerator_type is None:
                raise InvalidResourcesError(
                    f"topology={self.topology!r} is for TPU slices: it needs resource='TPU' and an accelerator_type "
                    "such as 'TPU-V6E'"
                )
            if not isinstance(self.num_workers, int):
                raise InvalidResourcesError(
                    f"num_workers={self.num_workers} on TPU slices: a trial has whole slices and cannot grow, so give "
                    "one number"
                )
            check_slice_request(self._slice_request(self.topology, self.accelerator_type))
        elif self.resource == "TPU" and self.num_workers not in (0, 1):
            raise InvalidResourcesError(
                f"num_workers={self.num_workers} with TPU: Ray Train runs several TPU workers on whole slices only, so "
                "give topology and accelerator_type, or ask for num_workers=1"
            )
        return self

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        if self.topology is not None and self.accelerator_type is not None:
            return plan_slices(capacity, self._slice_request(self.topology, self.accelerator_type))
        if self.resource == "GPU":
            return GpuPolicy(
                gpus=self.amount,
                cpus=self.cpus,
                memory=self.memory,
                accelerator_type=self.accelerator_type,
                num_workers=self.num_workers,
                same_for_all=self.same_for_all,
            ).plan(capacity)
        return self._plan_devices(capacity)

    def _slice_request(self, topology: str, accelerator_type: str) -> "SliceRequest":
        shape = SliceShape(topology, accelerator_type)
        memory_bytes = None if self.memory is None else int(self.memory)
        return SliceRequest(shape, int(self.amount), self.cpus, fewest_workers(self.num_workers), memory_bytes)

    def _plan_devices(self, capacity: ClusterCapacity) -> TrialPlan:
        capacity = as_told_apart(capacity, memory=self.memory, num_workers=self.num_workers)
        request = self._request(capacity.groups)
        share = request.worker.custom[self.resource]
        asked = amount_of(self.amount, self.resource)
        reasons = [f"{asked} per worker, as asked for"]
        if share != self.amount:
            reasons = [
                f"{asked} became {format_amount(share)}: a device holds {counted(int(1 / share), 'such worker')}, and "
                "with unequal shares a trial may wait for ever"
            ]
        if share < 1:
            reasons.append(f"no limit holds a worker to its share of {self.resource} memory")
        groups, about_cpus = self._with_it(capacity.groups), []
        if self.cpus is None:
            about_cpus = [
                about_equal_cpus((node for node, _ in groups), request, self.resource),
                *about_nodes_without_cpus(groups, self.resource, request.worker.cpus),
            ]
        try:
            plan = build_plan(capacity, request, [*reasons, *about_cpus])
        except InfeasibleRequestError as error:
            raise self._infeasible(capacity, request, error) from None
        plan = plan.model_copy(update={"divides_cpus": self.cpus is None})
        if self.cpus is None and not self.same_for_all:
            nodes = AlikeNodes(groups, to_ticks(share), accelerator_type=self.accelerator_type)
            plan = with_own_slots(
                plan, capacity, request, [nodes], resource=self.resource, choose_cpus=True, reasons=reasons
            )
        return plan.model_copy(update={"limited_by": self._what_is_short(plan.limited_by)})

    def _request(self, groups: Iterable[NodeGroup]) -> Request:
        """Return what a trial needs, with the share and the CPUs that suit the nodes."""
        beside = Resources(cpus=self.cpus or 0, memory_bytes=self.memory)
        usable = [group for group in self._with_it(groups) if holds(group.node, beside)]
        share = to_ticks(self.amount)
        if share < TICKS:
            share = equal_device_share(TICKS // share, max(map(self._devices, usable), default=1))
        request = Request(
            worker=Resources(cpus=self.cpus or 0, memory_bytes=self.memory, custom={self.resource: from_ticks(share)}),
            num_workers=self.num_workers,
            accelerator_type=self.accelerator_type,
        )
        with_room = [group for group in usable if device_slots(group.node.amounts.get(self.resource, 0), share)]
        if self.cpus is not None or not with_room:
            return request
        return request.with_cpus(cpus_that_strand_no_device(with_room, request, self.resource))

    def _devices(self, group: NodeGroup) -> float:
        return group.node.resources.custom.get(self.resource, 0)

    def _with_it(self, groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
        return tuple(
            group
            for group in groups
            if self._devices(group) > 0 and self.accelerator_type in (None, group.node.accelerator_type)
        )

    def _infeasible(
        self, capacity: ClusterCapacity, request: Request, error: InfeasibleRequestError
    ) -> InfeasibleRequestError:
        name = self.resource
        there = [group for group in capacity.groups if self._devices(group) > 0]
        if not capacity.nodes:
            return error
        if not there:
            makers = " or ".join(str(family) for family in families_of(name))
            return InfeasibleRequestError(
                str(request),
                f"no node has {name} ({makers})",
                name,
                f"Add a node with {name}, or ask for what is there.",
            )
        of_type = self._with_it(there)
        if not of_type:
            types = ", ".join(sorted({node.accelerator_type or "of unknown type" for node, _ in there}))
            return InfeasibleRequestError(
                str(request),
                f"the cluster's {name} are {types}",
                str(self.accelerator_type),
                "Leave accelerator_type out, or name one that is there, or add such a node.",
            )
        if self.cpus is None:
            of_type = nodes_with_cpus(of_type, name)
        found = infeasible(of_type, request.model_copy(update={"accelerator_type": None}))
        suggestion, fallback = found.suggestion, found.fallback
        if found.short_of == name and (smaller := self._amount_that_fits(capacity)):
            suggestion, fallback = f"Ask for amount={smaller}, or add a larger node.", ""
        short_of = self._what_is_short(found.short_of)
        return InfeasibleRequestError(str(request), found.offered, short_of, suggestion, fallback=fallback)

    def _what_is_short(self, resource: str) -> str:
        # The policy's own CPUs never run out before the devices; where both run out at once, the devices are short.
        return self.resource if resource == "CPU" and self.cpus is None else resource

    def _amount_that_fits(self, capacity: ClusterCapacity) -> int | None:
        """Return the largest smaller amount of which a trial fits; ``None``: none does."""
        most = max(int(self._devices(group)) for group in self._with_it(capacity.groups))
        allowed = families_of(self.resource)[0].amounts or (most,)
        for smaller in sorted(allowed, reverse=True):
            if 0 < smaller < self.amount:
                request = self.model_copy(update={"amount": smaller})._request(capacity.groups)
                try:
                    build_plan(capacity, request)
                except InfeasibleRequestError:
                    continue
                return smaller
        return None


class SliceRequest(NamedTuple):
    """What one trial on whole slices needs.

    Attributes:
        shape: The slices.
        tpus: Chips of each worker.
        cpus: CPUs of each worker; ``None``: as many as strand no chip.
        num_workers: Train workers of the trial.
        memory_bytes: Host memory of each worker; ``None``: none reserved.
    """

    shape: SliceShape
    tpus: int
    cpus: float | None
    num_workers: int
    memory_bytes: int | None = None

    @property
    def workers_per_slice(self) -> int:
        """Workers that fill one slice."""
        return self.shape.chips // self.tpus

    @property
    def num_slices(self) -> int:
        """Slices of the trial."""
        return self.num_workers // self.workers_per_slice

    def on(self, hosts: Iterable[NodeCapacity]) -> Request:
        """Return the request for the packing, with the CPUs that suit ``hosts``."""
        cpus = self.cpus
        if cpus is None:
            per_worker = [
                host.resources.cpus / workers
                for host in hosts
                if host.resources.cpus and (workers := host.resources.custom.get("TPU", 0) // self.tpus)
            ]
            fewest = min(per_worker, default=0)
            # Not 0, for which Train reserves a whole CPU on a slice.
            cpus = fewest if 0 < fewest < 1 else max(1, int(fewest))
        return Request(
            worker=Resources(cpus=cpus, memory_bytes=self.memory_bytes, custom={"TPU": self.tpus}),
            num_workers=self.num_workers,
            accelerator_type=self.shape.accelerator_type,
        )


def check_slice_request(request: SliceRequest) -> None:
    """Check that the workers fill slices that there can be.

    Raises:
        InvalidResourcesError: Ray has no such slices, or they cannot be filled so.
    """
    shape, tpus = request.shape, request.tpus
    check_topology(*shape)
    if shape.chips % tpus:
        raise InvalidResourcesError(
            f"amount={tpus} of TPU does not divide the {counted(shape.chips, 'chip')} of a {shape.topology} slice: "
            f"ask for {shape.chips}"
        )
    if request.cpus == 0:
        raise InvalidResourcesError(
            "cpus=0 on TPU slices: Ray Train reserves a whole CPU for a worker that names none. Ask for more than 0"
        )
    full = request.workers_per_slice
    below = request.num_workers // full * full
    if request.num_workers == 0 or request.num_workers != below:
        nearest = " or ".join(str(number) for number in (below, below + full) if number)
        raise InvalidResourcesError(
            f"num_workers={request.num_workers} does not fill whole slices: {shape.topology} has "
            f"{counted(shape.chips, 'chip')}, so {counted(full, 'worker')} of {tpus} TPU fill one. "
            f"Ask for num_workers={nearest}"
        )


def plan_slices(capacity: ClusterCapacity, wanted: SliceRequest) -> TrialPlan:
    """Return the plan with as many trials as there are intact slices for.

    Raises:
        InfeasibleRequestError: There are too few for one trial.
    """
    shape = wanted.shape
    found = find_slices(capacity.nodes, shape)
    request = wanted.on(host for each in found.intact for host in each.hosts)
    usable, left_out = [], dict(found.broken)
    for each in found.intact:
        workers = count_workers((NodeGroup(host, 1) for host in each.hosts), request)
        # It has as many chips as the topology, so all its workers find room only if every host is full.
        if workers == wanted.workers_per_slice:
            usable.append(each)
        else:
            left_out[each.name] = f"its hosts hold {workers} of {wanted.workers_per_slice} such workers"
    request = wanted.on(host for each in usable for host in each.hosts) if usable else request
    if len(usable) < wanted.num_slices:
        raise _too_few_slices(capacity, wanted, request, usable, left_out)
    hosts = tuple(host for each in usable for host in each.hosts)
    reasons = [
        *_reasons(wanted, request, hosts),
        *(f"left out slice {name!r}: {left_out[name]}" for name in sorted(left_out)),
    ]
    if others := topologies_not_told_apart(capacity.nodes, shape):
        reasons.append(
            f"Ray Train finds a slice by its {shape.told_by}, so a trial may get {', '.join(others)} instead"
        )
    plan = build_plan(capacity.with_nodes(hosts), request, reasons)
    slots = tuple(slot.model_copy(update={"topology": shape.topology}) for slot in plan.slots)
    return plan.model_copy(update={"slots": slots, "limited_by": "TPU slices"})


def _reasons(wanted: SliceRequest, request: Request, hosts: Iterable[NodeCapacity]) -> Iterable[str]:
    slices, workers = wanted.num_slices, wanted.workers_per_slice
    yield (
        f"{counted(slices, f'whole {wanted.shape.topology} slice')} per trial, each with "
        f"{counted(workers, 'worker')} of {amount_of(wanted.tpus, 'TPU')}"
    )
    if wanted.cpus is None:
        yield about_equal_cpus(hosts, request, "TPU")
    if wanted.memory_bytes is not None:
        yield f"{format_bytes(wanted.memory_bytes)} of host memory per worker, as asked for"


def _too_few_slices(
    capacity: ClusterCapacity,
    wanted: SliceRequest,
    request: Request,
    usable: list[TpuSlice],
    left_out: dict[str, str],
) -> InfeasibleRequestError:
    shape = wanted.shape
    slices, there = wanted.num_slices, len(usable)
    why = "".join(f"; slice {name!r}: {reason}" for name, reason in sorted(left_out.items())[:3])
    return InfeasibleRequestError(
        f"{request} on {counted(slices, f'whole {shape.topology} slice')}",
        f"the cluster has {there or 'no'} intact {'slice' if there == 1 else 'slices'} that can hold them{why}",
        "TPU slices",
        _hint(capacity, wanted, there),
    )


def _hint(capacity: ClusterCapacity, wanted: SliceRequest, usable: int) -> str:
    shape = wanted.shape
    if usable:
        return f"Ask for num_workers={usable * wanted.workers_per_slice}, or add slices."
    if wanted.cpus is not None:
        try:
            plan = plan_slices(capacity, wanted._replace(cpus=None))
        except InfeasibleRequestError:
            pass
        else:
            return f"Ask for at most {amount_of(plan.worker.cpus, 'CPU')} per worker, or add slices."
    if most := _host_memory_that_fits(capacity, wanted):
        return f"Ask for at most {format_request(most)} of host memory per worker, or add slices with larger hosts."
    if smaller := _tpus_that_fit(capacity, wanted):
        num_workers = wanted.num_slices * shape.chips // smaller
        return f"Ask for amount={smaller} and num_workers={num_workers}, or add slices with larger hosts."
    if fitting := _topologies_there(capacity, shape):
        return f"Ask for topology={' or '.join(map(repr, fitting))}, which is there, or add such a slice."
    return "Add such a slice: Ray labels its hosts with ray.io/tpu-… when it finds them."


def _host_memory_that_fits(capacity: ClusterCapacity, wanted: SliceRequest) -> int | None:
    """Return the most host memory per worker, less than wanted, that every host of enough slices can give."""

    def fits(memory_bytes: int) -> bool:
        try:
            plan_slices(capacity, wanted._replace(memory_bytes=memory_bytes))
        except InfeasibleRequestError:
            return False
        return True

    # An error for one mebibyte comes here again, and must not ask once more.
    if wanted.memory_bytes is None or wanted.memory_bytes <= MIB or not fits(MIB):
        return None
    return largest(MIB, wanted.memory_bytes - 1, fits)


def _tpus_that_fit(capacity: ClusterCapacity, wanted: SliceRequest) -> int | None:
    """Return the most chips per worker, fewer than wanted, that every host of some slice can give."""
    for tpus in sorted((amount for amount in families_of("TPU")[0].amounts if amount < wanted.tpus), reverse=True):
        workers = wanted.num_slices * wanted.shape.chips // tpus
        try:
            plan_slices(capacity, wanted._replace(tpus=tpus, num_workers=workers))
        except InfeasibleRequestError:
            continue
        return tpus
    return None


def _topologies_there(capacity: ClusterCapacity, shape: SliceShape) -> list[str]:
    """Return the other topologies of which the cluster has an intact slice of that type."""
    named = {node.labels.get(TOPOLOGY, "") for node in capacity.nodes} & TOPOLOGIES[shape.accelerator_type]
    others = [shape._replace(topology=topology) for topology in named - {shape.topology}]
    return sorted(other.topology for other in others if find_slices(capacity.nodes, other).intact)
