"""Trials that train on CPUs."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.packing import Request, as_told_apart
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WantedCustom
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Amount, Memory, Resources, WorkerCount


def _above_zero(cpus: float) -> float:
    if cpus == 0:
        raise InvalidResourcesError("cpus must be above 0 for a worker without GPUs, got 0: ask for 1, or 0.5")
    return cpus


class CpuPolicy(ResourcePolicy):
    """The same CPUs for every worker, and no GPU.

    Attributes:
        cpus: CPUs of each worker, above 0.
        memory: Host memory of each worker: bytes, or a text such as ``"4GiB"``; ``None``: none reserved.
        num_workers: Train workers in a trial; 0: the trial itself trains; ``(2, 8)``: from 2 to 8, as there is room.
        custom: Other Ray resources of each worker by their names.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    cpus: Annotated[Amount, AfterValidator(_above_zero)] = 1
    memory: Memory | None = None
    num_workers: WorkerCount = 0
    custom: WantedCustom = Field(default_factory=dict)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        worker = Resources(cpus=self.cpus, memory_bytes=self.memory, custom=self.custom)
        request = Request(worker=worker, num_workers=self.num_workers)
        capacity = as_told_apart(capacity, memory=self.memory, num_workers=self.num_workers)
        return build_plan(capacity, request, [f"{worker} per worker, as asked for, and no GPU"])
