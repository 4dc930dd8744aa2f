"""A default policy that uses GPUs if the cluster has GPUs, and otherwise CPUs."""

from typing import Any, Self

from pydantic import model_validator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.policy import ResourcePolicy, WorkersPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Memory


class AutoPolicy(WorkersPolicy):
    """Reserves a GPU for every worker if the cluster has GPUs, and otherwise one CPU.

    If you specify the GPU memory that a worker needs, each worker gets a GPU fraction with that much memory instead of
    a whole GPU.

    Attributes:
        gpu_memory: The total GPU memory that one worker needs: bytes, a string such as ``"6GiB"``, or ``None`` if
            unknown.
        profile: The measured GPU memory of each config, or ``None``.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve the host memory that the profile contains, if any.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.

    Raises:
        InvalidResourcesError: A field is invalid, or both ``gpu_memory`` and ``profile`` are set.
    """

    gpu_memory: Memory | None = None
    profile: GpuMemoryProfile | None = None

    @model_validator(mode="after")
    def _must_have_at_most_one_size(self) -> Self:
        if self.gpu_memory is not None and self.profile is not None:
            raise InvalidResourcesError("AutoPolicy accepts gpu_memory or profile, but not both. Set only one of them")
        return self

    @property
    def depends_on_config(self) -> bool:
        """Whether a profile determines the resources of each config."""
        return self.profile is not None

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """A policy for GPUs and then a policy for CPUs, which are tried in this order."""
        workers: dict[str, Any] = {"memory": self.memory, "num_workers": self.num_workers}
        if self.gpu_memory is None and self.profile is None:
            return (GpuPolicy(**workers), CpuPolicy(**workers))
        gpus = GpuMemoryPolicy(gpu_memory=self.gpu_memory, profile=self.profile, **workers)
        return (gpus, CpuPolicy(**workers))

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        return plan_first_feasible(self.choices, capacity)
