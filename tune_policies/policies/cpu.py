"""Trials that train on CPUs."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import WantedCustom, WorkersPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Amount


def _above_zero(cpus: float) -> float:
    if cpus == 0:
        raise InvalidResourcesError("cpus must be above 0 for a worker without GPUs, got 0: set 1, or 0.5")
    return cpus


class CpuPolicy(WorkersPolicy):
    """The same CPUs for every worker, and no GPU.

    Attributes:
        cpus: CPUs of each worker, above 0.
        custom: Other Ray resources of each worker by their names.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    cpus: Annotated[Amount, AfterValidator(_above_zero)] = 1
    custom: WantedCustom = Field(default_factory=dict)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        request = self._request(self.cpus, custom=self.custom)
        reasons = [f"{request.worker} per worker, as requested, and no GPU"]
        return build_plan(self._with_rounded_memory(capacity), request, reasons)
