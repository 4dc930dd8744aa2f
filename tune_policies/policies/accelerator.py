"""A policy for accelerators of any family that Ray supports, including Train runs on whole TPU slices."""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, model_validator

from tune_policies.cluster.accelerators import (
    check_accelerator_type,
    check_device_amount,
    check_device_resource,
    check_type_of_resource,
)
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeGroup
from tune_policies.cluster.tpu_slices import (
    TOPOLOGIES,
    TOPOLOGY,
    SliceShape,
    TpuSlice,
    ambiguous_topologies,
    check_topology,
    find_slices,
)
from tune_policies.placement.count_trials import count_workers, device_slots, holds
from tune_policies.placement.request import Limit, Request
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.default_cpus import (
    about_equal_cpus,
    about_nodes_without_cpus,
    max_cpus_without_idle_device,
    plan_without_cpus_if_needed,
)
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.policy import WorkersPolicy
from tune_policies.policies.slots_by_node_type import Selection, with_own_slots
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amount,
    Resources,
    amount_of,
    fewest_workers,
    format_amount,
    to_ticks,
)
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted


class AcceleratorPolicy(WorkersPolicy):
    """Reserves the same number of TPUs, HPUs, NPUs or other devices, or the same device fraction, for every worker.

    Attributes:
        resource: Ray's name of the devices, such as ``"TPU"``.
        amount: The number of devices of each worker. Some device families allow only certain numbers. If Ray can split
            devices of the family, a fraction below 1 is rounded up to 1/2, 1/3, 1/4 and so on.
        cpus: The number of CPUs of each worker. If ``None``, the CPUs of a node are divided equally among its device
            slots. If all trials must get the same amounts, the node with the fewest CPUs per slot determines the
            number, and nodes without CPUs are not used, unless no trial fits the nodes with CPUs. Otherwise, trials on
            nodes without CPUs reserve no CPU.
        accelerator_type: The device type to use, such as ``"TPU-V6E"``, or ``None`` for any type.
        topology: The topology of the whole TPU slices that each trial reserves, such as ``"4x4"``. It requires an
            ``accelerator_type``.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With a ``topology``, the
            workers must fill whole slices.
        same_for_all: Whether all trials get the same amounts on every node. Otherwise, the number of CPUs of a trial
            depends on its node.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory.

    Raises:
        InvalidResourcesError: A field is invalid, or Ray cannot assign this amount of the resource to a worker.
    """

    resource: Annotated[str, AfterValidator(check_device_resource)]
    amount: Amount = 1
    cpus: Amount | None = None
    accelerator_type: Annotated[str, AfterValidator(check_accelerator_type)] | None = None
    topology: str | None = None
    same_for_all: bool = False

    @model_validator(mode="after")
    def _must_be_assignable(self) -> Self:
        check_device_amount(self.amount, self.resource)
        if self.accelerator_type is not None:
            check_type_of_resource(self.accelerator_type, self.resource)
        if self.topology is not None:
            if self.resource != "TPU" or self.accelerator_type is None:
                raise InvalidResourcesError(
                    f"topology={self.topology!r} is valid only for TPU slices. Set resource='TPU', an "
                    "accelerator_type such as 'TPU-V6E', and num_workers to the number of chips of the slices"
                )
            if not isinstance(self.num_workers, int):
                raise InvalidResourcesError(
                    f"num_workers={self.num_workers} is not valid for TPU slices, because Ray Train cannot change the "
                    "number of workers on a slice. Set a single number"
                )
            self._check_slices()
        elif self.resource == "TPU" and self.num_workers not in (0, 1):
            raise InvalidResourcesError(
                f"num_workers={self.num_workers} is not valid for TPUs without a topology, because Ray Train runs "
                "several TPU workers only on whole slices. Set topology and accelerator_type, or set num_workers=1"
            )
        return self

    def _check_slices(self) -> None:
        """Check that the workers fill whole slices of a topology that Ray supports."""
        shape = self._slice_shape
        check_topology(*shape)
        if shape.chips % self.amount:
            raise InvalidResourcesError(
                f"amount={format_amount(self.amount)} of TPU does not evenly divide the "
                f"{counted(shape.chips, 'chip')} of a {shape.topology} slice. Set amount={shape.chips}"
            )
        if self.cpus == 0:
            raise InvalidResourcesError(
                "cpus=0 is not valid for TPU slices, because Ray Train would reserve a whole CPU for each worker. Set "
                "a number above 0"
            )
        full = self._workers_per_slice
        below = self._num_slices * full
        if self.num_workers == 0 or self.num_workers != below:
            nearest = " or ".join(str(number) for number in (below, below + full) if number)
            raise InvalidResourcesError(
                f"num_workers={self.num_workers} does not fill whole slices, because a {shape.topology} slice has "
                f"{counted(shape.chips, 'chip')}, enough for {counted(full, 'worker')} of "
                f"{amount_of(self.amount, 'TPU')}. Set num_workers={nearest}"
            )

    @property
    def requests_gpus(self) -> bool:
        """Whether the devices are GPUs."""
        return self.resource == "GPU"

    @property
    def _slice_shape(self) -> SliceShape:
        """The topology and the device type of a trial's slices. The policy must have a ``topology``."""
        return SliceShape(str(self.topology), str(self.accelerator_type))

    @property
    def _workers_per_slice(self) -> int:
        """The number of workers that fill one slice."""
        return self._slice_shape.chips // int(self.amount)

    @property
    def _num_slices(self) -> int:
        """The number of slices that a trial fills."""
        return fewest_workers(self.num_workers) // self._workers_per_slice

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        if self.topology is not None:
            return _plan_slices(self, capacity)
        if self.resource == "GPU":
            # GPUs have rules that other devices lack, such as memory limits, so one policy plans them.
            common = GpuPolicy.model_fields.keys() & type(self).model_fields.keys()
            return GpuPolicy(gpus=self.amount, **{name: getattr(self, name) for name in common}).plan(capacity)
        if self.cpus is not None:
            return self._plan_devices(capacity)
        without_cpus = self.model_copy(update={"cpus": 0})
        return plan_without_cpus_if_needed(
            self._with_devices(capacity.groups),
            lambda: self._plan_devices(capacity),
            lambda: without_cpus._plan_devices(capacity),
        )

    def _plan_devices(self, capacity: ClusterCapacity) -> TrialPlan:
        capacity = self._with_rounded_memory(capacity)
        request = self._sized(capacity.groups)
        share = request.worker.custom[self.resource]
        asked = amount_of(self.amount, self.resource)
        reasons = [f"each {request.unit} reserves {asked}, as requested"]
        if share != self.amount:
            reasons = [
                f"{asked} is rounded up to {format_amount(share)}, because a device has room for "
                f"{counted(int(1 / share), 'worker')} of this size, and a trial can stay pending indefinitely if "
                "fractions are unequal"
            ]
        if share < 1:  # memory limits exist only for GPUs, which ``GpuPolicy`` plans
            reasons.append(f"the {self.resource} memory of a worker is not limited to its fraction")
        groups, about_cpus = self._with_devices(capacity.groups), []
        if self.cpus is None:
            about_cpus = [
                about_equal_cpus((node for node, _ in groups), request, self.resource),
                *about_nodes_without_cpus(groups, self.resource, request.worker.cpus),
            ]
        try:
            plan = build_plan(capacity, request, [*reasons, *about_cpus])
        except InfeasibleRequestError as error:
            raise error.with_texts(short_of=self._name_of_shortage(error.short_of)) from None
        # The amount of devices is a field, so only the CPUs of a worker can differ between nodes.
        if self.cpus is None and not self.same_for_all:
            nodes = Selection(groups, self.accelerator_type, share_ticks=to_ticks(share))
            plan = with_own_slots(
                plan, capacity, request, [nodes], resource=self.resource, choose_cpus=True, reasons=reasons
            )
        return plan.model_copy(update={"limited_by": self._name_of_shortage(plan.limited_by)})

    def _sized(self, groups: Iterable[NodeGroup]) -> Request:
        """Return the request of a trial, with the device fraction rounded up.

        If ``cpus`` is not set, the CPUs are computed from the nodes.
        """
        worker = Resources(cpus=self.cpus or 0, memory_bytes=self.memory)
        usable = [group for group in self._with_devices(groups) if holds(group.node, worker)]
        share = to_ticks(self.amount)
        if share < TICKS:
            share = equal_device_fraction(TICKS // share, max(map(self._num_devices, usable), default=1))
        request = Request(
            worker=worker.with_ticks(self.resource, share),
            num_workers=self.num_workers,
            accelerator_type=self.accelerator_type,
        )
        with_room = [group for group in usable if device_slots(group.node.amounts.get(self.resource, 0), share)]
        if self.cpus is not None or not with_room:
            return request
        return request.with_cpus(max_cpus_without_idle_device(with_room, request, self.resource))

    def _num_devices(self, group: NodeGroup) -> float:
        return group.node.resources.custom.get(self.resource, 0)

    def _with_devices(self, groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
        """Return the nodes that have devices of the policy's resource and accelerator type."""
        return tuple(
            group
            for group in groups
            if self._num_devices(group) > 0 and self.accelerator_type in (None, group.node.accelerator_type)
        )

    def _name_of_shortage(self, resource: str) -> str:
        # If the policy chooses the CPUs, they never run out before the devices, so the devices are the limit.
        if resource == "CPU" and self.cpus is None:
            return self.resource
        return resource


class _Slices(NamedTuple):
    """The TPU slices of a cluster that a policy can use, and the reasons why other slices are not used.

    Attributes:
        usable: The intact slices whose hosts have room for the workers.
        left_out: The reasons why the other slices are not used, by slice name.
        request: The request of a trial, including the CPUs of each worker.
    """

    usable: list[TpuSlice]
    left_out: dict[str, str]
    request: Request


def _find_slices(policy: AcceleratorPolicy, capacity: ClusterCapacity) -> _Slices:
    found = find_slices(capacity.nodes, policy._slice_shape)
    request = _slice_request(policy, found.intact)
    usable, left_out = [], dict(found.broken)
    for tpu_slice in found.intact:
        workers = count_workers((NodeGroup(host, 1) for host in tpu_slice.hosts), request)
        # The slice has exactly as many chips as the topology, so all its workers fit only if every host is full.
        if workers == policy._workers_per_slice:
            usable.append(tpu_slice)
        else:
            left_out[tpu_slice.name] = f"its hosts have room for {workers} of {policy._workers_per_slice} workers"
    if usable:
        request = _slice_request(policy, usable)  # an unusable slice must not reduce the CPUs of the workers
    return _Slices(usable, left_out, request)


def _slice_request(policy: AcceleratorPolicy, slices: Iterable[TpuSlice]) -> Request:
    cpus = policy.cpus
    if cpus is None:
        per_worker = []
        for host in chain.from_iterable(tpu_slice.hosts for tpu_slice in slices):
            workers = host.resources.custom.get("TPU", 0) // policy.amount
            if workers and host.resources.cpus:
                per_worker.append(host.resources.cpus / workers)
        # All workers of a trial get the same CPUs, so the host with the fewest CPUs per worker decides.
        cpus = min(per_worker, default=0)
        if cpus == 0 or cpus >= 1:
            cpus = max(1, int(cpus))  # if a worker requests 0 CPUs on a slice, Train reserves a whole CPU for it
    return Request(
        worker=Resources(cpus=cpus, memory_bytes=policy.memory, custom={"TPU": policy.amount}),
        num_workers=policy.num_workers,
        accelerator_type=policy.accelerator_type,
    )


def _plan_slices(policy: AcceleratorPolicy, capacity: ClusterCapacity) -> TrialPlan:
    """Return a plan with as many trials as fit on the intact slices.

    Raises:
        InfeasibleRequestError: The cluster has too few intact slices for one trial.
    """
    found, shape = _find_slices(policy, capacity), policy._slice_shape
    slices = counted(policy._num_slices, f"whole {shape.topology} slice")
    if len(found.usable) < policy._num_slices:
        there = len(found.usable)
        why = "".join(f"; slice {name!r}: {reason}" for name, reason in sorted(found.left_out.items())[:3])
        noun = "slice" if there == 1 else "slices"
        raise InfeasibleRequestError(
            f"{found.request} on {slices}",
            f"the cluster has {there or 'no'} intact {noun} with enough resources{why}",
            Limit.TPU_SLICES,
            _hint(policy, capacity, there),
        )
    hosts = tuple(host for tpu_slice in found.usable for host in tpu_slice.hosts)
    workers = f"{counted(policy._workers_per_slice, 'worker')} of {amount_of(policy.amount, 'TPU')}"
    reasons = [f"each trial uses {slices}, with {workers} per slice"]
    if policy.cpus is None:
        reasons.append(about_equal_cpus(hosts, found.request, "TPU"))
    if policy.memory is not None:
        reasons.append(f"each worker reserves {format_bytes(int(policy.memory))} of host memory, as requested")
    reasons += (f"slice {name!r} is not used: {why}" for name, why in sorted(found.left_out.items()))
    others = ambiguous_topologies(capacity.nodes, shape)
    if others:
        reasons.append(
            f"Ray Train selects a slice by its {shape.selector_text}, so a trial may get a slice with topology "
            f"{' or '.join(others)} instead"
        )
    plan = build_plan(capacity.with_nodes(hosts), found.request, reasons)
    # Ray Train accepts no label selector for slices.
    changes = {"topology": shape.topology, "label_selector": {}}
    slots = tuple(slot.model_copy(update=changes) for slot in plan.slots)
    return plan.model_copy(update={"slots": slots, "limited_by": Limit.TPU_SLICES})


def _hint(policy: AcceleratorPolicy, capacity: ClusterCapacity, num_usable: int) -> str:
    """Return a suggestion: a request that fits the cluster, or the slices to add."""
    if num_usable:
        return f"Set num_workers={num_usable * policy._workers_per_slice}, or add slices."
    shape = policy._slice_shape
    named = {node.labels.get(TOPOLOGY, "") for node in capacity.nodes} & TOPOLOGIES[shape.accelerator_type]
    others = [shape._replace(topology=topology) for topology in sorted(named - {shape.topology})]
    there = [other.topology for other in others if find_slices(capacity.nodes, other).intact]
    if there:
        return f"Set topology={' or '.join(map(repr, there))}, or add a {shape.topology} slice."
    return (
        f"Request fewer resources per worker, or add a {shape.topology} slice. Its hosts must have Ray's labels for "
        "TPU slices, such as ray.io/tpu-topology."
    )
