"""Trials with devices of any family that Ray knows."""

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from tune_policies.cluster.accelerators import (
    check_accelerator_type,
    check_device_amount,
    check_device_resource,
    check_type_of_resource,
    families_of,
)
from tune_policies.cluster.capacity import ClusterCapacity, NodeGroup
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.placement.packing import Request, equal_device_share
from tune_policies.placement.remaining import device_slots
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.infeasible import infeasible
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.cpus_per_worker import about_nodes_without_cpus, cpus_that_strand_no_device, nodes_with_cpus
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.policies.whole_slices import SliceRequest, check_slice_request, plan_slices
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amount,
    Resources,
    WorkerCount,
    fewest_workers,
    format_amount,
    from_ticks,
    to_ticks,
)


class AcceleratorPolicy(ResourcePolicy):
    """The same devices of any family, or share of one, for every worker: TPUs, HPUs, NPUs, Neuron cores, GPUs.

    Attributes:
        resource: Ray's name of the devices, such as ``"TPU"``.
        amount: Devices of each worker: what the family allows. Where it can be split, a share below 1 is rounded up to
            the k-th part of a device.
        cpus: CPUs of each worker; ``None``: as many as strand no device; nodes without CPUs are left out beside
            others.
        accelerator_type: Only devices of this type, such as ``"TPU-V6E"``.
        topology: Whole TPU slices of this topology, such as ``"4x4"``, for each trial; needs ``accelerator_type``.
        num_workers: Train workers in a trial; 0: the trial itself trains. With a topology, as many as fill slices.

    Raises:
        InvalidResourcesError: A field is wrong, or Ray does not hand out such amounts.
    """

    resource: Annotated[str, AfterValidator(check_device_resource)]
    amount: Amount = 1
    cpus: Amount | None = None
    accelerator_type: Annotated[str, AfterValidator(check_accelerator_type)] | None = None
    topology: str | None = None
    num_workers: WorkerCount = 0

    @model_validator(mode="after")
    def _must_be_what_ray_hands_out(self) -> Self:
        check_device_amount(self.amount, self.resource)
        if self.accelerator_type is not None:
            check_type_of_resource(self.accelerator_type, self.resource)
        if self.topology is not None:
            if self.resource != "TPU" or self.accelerator_type is None:
                raise InvalidResourcesError(
                    f"topology={self.topology!r} is of TPU slices: it goes with resource='TPU' and an accelerator_type "
                    "such as 'TPU-V6E'"
                )
            if not isinstance(self.num_workers, int):
                raise InvalidResourcesError(
                    f"num_workers={self.num_workers} on TPU slices: a trial has whole slices, so ask for one number"
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
                accelerator_type=self.accelerator_type,
                num_workers=self.num_workers,
            ).plan(capacity)
        return self._plan_devices(capacity)

    def _slice_request(self, topology: str, accelerator_type: str) -> SliceRequest:
        shape = SliceShape(topology, accelerator_type)
        return SliceRequest(shape, int(self.amount), self.cpus, fewest_workers(self.num_workers))

    def _plan_devices(self, capacity: ClusterCapacity) -> TrialPlan:
        request = self._request(capacity.groups)
        share = request.worker.custom[self.resource]
        asked = f"{format_amount(self.amount)} {self.resource}"
        reasons = [f"{asked} per worker, as asked for"]
        if share != self.amount:
            reasons = [
                f"{asked} became {format_amount(share)}: only {int(1 / share)} such on a device, and unequal shares "
                "may wait for ever"
            ]
        if share < 1:
            reasons.append(f"nothing holds a worker to its share of the memory of its {self.resource}")
        if self.cpus is None:
            reasons.append(
                f"{format_amount(request.worker.cpus)} CPU per worker, so that no {self.resource} is left without CPUs"
            )
            groups = self._with_it(capacity.groups)
            reasons += about_nodes_without_cpus(groups, self.resource, request.worker.cpus)
        try:
            plan = build_plan(capacity, request, reasons)
        except InfeasibleRequestError as error:
            raise self._infeasible(capacity, request, error) from None
        return plan.model_copy(update={"limited_by": self._what_is_short(plan.limited_by)})

    def _request(self, groups: Iterable[NodeGroup]) -> Request:
        """Return what a trial needs, with the share and the CPUs that suit the nodes."""
        usable = [group for group in self._with_it(groups) if group.node.resources.cpus >= (self.cpus or 0)]
        share = to_ticks(self.amount)
        if share < TICKS:
            share = equal_device_share(TICKS // share, max(map(self._devices, usable), default=1))
        cpus = self.cpus
        if cpus is None:
            with_room = [group for group in usable if device_slots(group.node.amounts.get(self.resource, 0), share)]
            cpus = cpus_that_strand_no_device(with_room, self.resource, share) if with_room else 0
        return Request(
            worker=Resources(cpus=cpus, custom={self.resource: from_ticks(share)}),
            num_workers=self.num_workers,
            accelerator_type=self.accelerator_type,
        )

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
        suggestion = found.suggestion
        if found.short_of == name and (smaller := self._amount_that_fits(capacity)):
            suggestion = f"Ask for amount={smaller}, or add a larger node."
        return InfeasibleRequestError(str(request), found.offered, self._what_is_short(found.short_of), suggestion)

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
