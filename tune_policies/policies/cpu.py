"""A policy for trials that train on CPUs."""

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
        raise InvalidResourcesError("cpus=0 is not valid for CpuPolicy. Set a number above 0, such as 1 or 0.5")
    return cpus


class CpuPolicy(WorkersPolicy):
    """Reserves the same number of CPUs, and no GPU, for every worker.

    Attributes:
        cpus: The number of CPUs of each worker, above 0.
        custom: The custom Ray resources of each worker, by name.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    cpus: Annotated[Amount, AfterValidator(_above_zero)] = 1
    custom: WantedCustom = Field(default_factory=dict)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        request = self._request(self.cpus, custom=self.custom)
        reasons = [f"each {request.unit} reserves {request.worker}, as requested, and no GPU"]
        return build_plan(self._with_rounded_memory(capacity), request, reasons)
