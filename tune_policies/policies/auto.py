"""A default policy: a GPU if the cluster has one, else a CPU."""

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
    """A GPU for every trial if the cluster has GPUs, else one CPU.

    A trial gets a whole GPU, or if you specify the GPU memory that it needs, a fraction with that much memory.

    Attributes:
        gpu_memory: GPU memory that one worker needs in total: bytes, or a text such as ``"6GiB"``; ``None``: unknown.
        profile: The measured GPU memory of each config; ``None``: not measured.
        memory: Host memory of each worker: bytes, or a text such as ``"4GiB"``; ``None``: the measured host memory of
            the profile, or none.

    Raises:
        InvalidResourcesError: A field is wrong, or both ``gpu_memory`` and ``profile`` are given.
    """

    gpu_memory: Memory | None = None
    profile: GpuMemoryProfile | None = None

    @model_validator(mode="after")
    def _must_have_at_most_one_size(self) -> Self:
        if self.gpu_memory is not None and self.profile is not None:
            raise InvalidResourcesError("AutoPolicy accepts gpu_memory or profile, not both: omit one of them")
        return self

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """The policies that are tried in turn: GPUs, then CPUs."""
        workers: dict[str, Any] = {"memory": self.memory, "num_workers": self.num_workers}
        if self.gpu_memory is None and self.profile is None:
            return (GpuPolicy(**workers), CpuPolicy(**workers))
        gpus = GpuMemoryPolicy(gpu_memory=self.gpu_memory, profile=self.profile, **workers)
        return (gpus, CpuPolicy(**workers))

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        return plan_first_feasible(self.choices, capacity)
