"""As many trials on a GPU as its memory holds."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity
from tune_policies.placement.packing import Request, equal_device_share
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile
from tune_policies.plan.infeasible import infeasible
from tune_policies.plan.slots_by_config import Headroom
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.by_profile import plan_by_profile
from tune_policies.policies.cpus_per_worker import nodes_with_cpus
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.gpu_selection import (
    AcceleratorTypes,
    Selection,
    describe_gpus,
    gpus_of_type,
    plan_gpu_share,
    select_gpus,
    selections_of,
    with_labels,
)
from tune_policies.policies.policy import ResourcePolicy, WantedCustom
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import TICKS, Amount, Bytes, PositiveCount, Resources, WorkerCount, from_ticks
from tune_policies.values.units import format_bytes, format_request


class GpuMemoryPolicy(ResourcePolicy):
    """As many workers on a GPU as its memory holds: 2 of 6 GiB on a 16 GiB card, 13 on an 80 GiB one.

    Ray gives every trial the same share of a GPU, so on mixed devices the policy compares: all GPUs with the
    share that fits the smallest, only those with more memory, or the GPUs of one type. It takes what runs the
    most trials at once, and says which devices it leaves out.

    With a profile instead of an amount, each trial gets what its own config needs: see ``TrialPlan.by_config``.

    Attributes:
        gpu_memory: GPU memory that one worker needs in all, its framework's own use included: bytes, or a text
            such as ``"6GiB"``. This or ``profile`` is needed.
        profile: What was measured, config by config.
        headroom: How much more than the profile says a worker gets: 0.1 is a tenth more.
        cpus: CPUs of each worker; ``None``: as many as strand no GPU; nodes without CPUs are left out beside others.
        accelerator_type: Only devices of this type, such as ``"A100"``; of several, ``("H100", "A100")``, the first
            of which a trial fits.
        num_workers: Train workers in a trial; 0: the trial itself trains; ``(2, 8)``: from 2 to 8, as there is room.
        max_trials_per_gpu: At most so many workers on a GPU, even where its memory holds more.
        custom: Other Ray resources of each worker by their names.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    gpu_memory: Bytes | None = None
    profile: GpuMemoryProfile | None = None
    headroom: Headroom = 0.1
    cpus: Amount | None = None
    accelerator_type: AcceleratorTypes | None = None
    num_workers: WorkerCount = 0
    max_trials_per_gpu: PositiveCount | None = None
    custom: WantedCustom = Field(default_factory=dict)

    @model_validator(mode="after")
    def _must_have_one_size(self) -> Self:
        if (self.gpu_memory is None) == (self.profile is None):
            raise InvalidResourcesError(
                "GpuMemoryPolicy needs one of gpu_memory, an amount such as '6GiB', and profile, what was measured"
            )
        return self

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
        usable = self._usable(capacity, self.accelerator_type)
        if self.profile is not None:
            return plan_by_profile(
                self.profile,
                self.headroom,
                capacity,
                sizes={node.smallest_gpu_memory_bytes or 0 for node, _ in usable.groups},
                gpu_models=_models(capacity.nodes_of(usable.groups)),
                best=lambda needed: self._best(capacity, usable, needed),
                plan_on=lambda choice, needed: self._plan_choice(capacity, usable, choice, needed),
            )
        plan, choice = self._best(capacity, usable, self.gpu_memory or 0)
        return with_labels(plan, capacity, choice)

    def _best(self, capacity: ClusterCapacity, usable: Selection, needed: int) -> tuple[TrialPlan, Selection]:
        """Return the plan for workers that need so many bytes each, and the devices that it uses.

        The plan has no labels yet: see :func:`with_labels`.
        """
        plans, shortages = [], []
        for choice in _choices(capacity, usable, needed):
            try:
                plans.append((self._plan_choice(capacity, usable, choice, needed), choice))
            except InfeasibleRequestError as error:
                shortages.append(error)  # too few CPUs or workers there; another choice may do
        if not plans:
            raise shortages[0] if shortages else self._infeasible(capacity, usable, needed)
        # Ties go to the larger share, then to the simplest: all devices, one type by name, a choice by label.
        return min(
            plans,
            key=lambda each: (
                *(-each[0].max_concurrent_trials, -each[0].worker.gpus, each[1].by_label),
                *(each[0].accelerator_type or "", each[1].memory_bytes),
            ),
        )

    def _usable(self, capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
        gpus = gpus_of_type(capacity, accelerator_type)
        if self.cpus is None:
            return gpus._replace(groups=nodes_with_cpus(gpus.groups, "GPU"))
        return gpus.where(lambda node: node.resources.cpus >= (self.cpus or 0))

    def _plan_choice(self, capacity: ClusterCapacity, usable: Selection, choice: Selection, needed: int) -> TrialPlan:
        smallest = choice.memory_bytes or 0
        fit = smallest // needed
        most_devices = max(node.resources.gpus for node, _ in choice.groups)
        share = equal_device_share(min(fit, self.max_trials_per_gpu or fit), most_devices)
        k = TICKS // share
        is_capped = self.max_trials_per_gpu is not None and self.max_trials_per_gpu < fit
        reasons = [
            f"{format_bytes(needed)} a worker: {k} {'worker' if k == 1 else 'workers'} on a GPU of "
            f"{format_bytes(smallest)}" + (", as max_trials_per_gpu says" if is_capped else "")
        ]
        reasons += self._left_out(capacity, usable, choice)
        request = self._request(from_ticks(share))
        plan = plan_gpu_share(capacity, choice, request, choose_cpus=self.cpus is None, reasons=reasons)
        if is_capped and plan.limited_by == "GPU":
            return plan.model_copy(update={"limited_by": "max_trials_per_gpu"})
        return plan

    def _left_out(self, capacity: ClusterCapacity, usable: Selection, choice: Selection) -> list[str]:
        used = {node.shape for node, _ in choice.groups}
        could = {node.shape for node, _ in usable.groups}
        left = [group for group in capacity.gpu_groups(usable.accelerator_type) if group.node.shape not in used]
        without_cpus = describe_gpus(group for group in left if group.node.shape not in could)
        others = describe_gpus(group for group in left if group.node.shape in could)
        why = (
            f"as only {choice.accelerator_type} is used"
            if choice.accelerator_type
            else "as their memory is too small or not known"
        )
        reasons = [f"left out {why}: {others}"] if others else []
        return [*reasons, f"left out for want of CPUs: {without_cpus}"] if without_cpus else reasons

    def _request(self, gpus: float) -> Request:
        worker = Resources(cpus=self.cpus or 0, gpus=gpus, custom=self.custom)
        return Request(worker=worker, num_workers=self.num_workers)

    def _infeasible(self, capacity: ClusterCapacity, usable: Selection, needed: int) -> InfeasibleRequestError:
        wish = {"accelerator_type": usable.accelerator_type, "gpu_memory_bytes": needed}
        request = self._request(1).model_copy(update=wish)
        # Where no GPU has the CPUs, its memory may still be what is short of most.
        there = usable if usable.groups else gpus_of_type(capacity, usable.accelerator_type)
        memories = [node.smallest_gpu_memory_bytes for node, _ in there.groups]
        is_too_small = all(memory is not None and memory < needed for memory in memories)
        if not there.groups or not (usable.groups or is_too_small):
            return infeasible(capacity.groups, request)
        if known := [memory for memory in memories if memory is not None]:
            unread = " that were read" if len(known) < len(memories) else ""
            return InfeasibleRequestError(
                str(request),
                f"the largest GPUs{unread} have {format_bytes(max(known))}",
                "GPU memory",
                f"Ask for at most {format_request(max(known))}, or add a larger GPU.",
            )
        count = sum(count for _, count in there.groups)
        return InfeasibleRequestError(
            str(request),
            f"the GPU memory of {count} of {count} GPU nodes was not read",
            "GPU memory",
            "Install nvidia-ml-py on the GPU nodes and probe again, give them an accelerator type, or take GpuPolicy "
            "with a share of a GPU.",
        )


def _models(nodes: Iterable[NodeCapacity]) -> set[str | None]:
    unknown = (None,)
    return {name for node in nodes for name in ([each.name for each in node.devices or ()] or unknown)}


def _choices(capacity: ClusterCapacity, usable: Selection, needed: int) -> Iterable[Selection]:
    """Yield selections of GPUs whose memory is known and enough."""
    yield from selections_of(capacity, usable, needed)
    sizes = {node.smallest_gpu_memory_bytes or 0 for node, _ in usable.groups}
    # Fewer devices of more memory each may hold more.
    for least in sorted(size for size in sizes if size > needed)[1:]:
        large = (group for group in usable.groups if (group.node.smallest_gpu_memory_bytes or 0) >= least)
        if (choice := select_gpus(capacity, large, usable.accelerator_type)).groups:
            yield choice
