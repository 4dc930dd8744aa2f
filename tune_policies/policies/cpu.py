"""A policy for trials that train on CPUs."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import ACCELERATOR_TYPE, is_label_value, is_none_of
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.node_selection import SelectingPolicy
from tune_policies.policies.policy import WantedCustom, WorkersPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Amount, Resources


def _above_zero(cpus: float) -> float:
    if cpus == 0:
        raise InvalidResourcesError(
            "cpus=0 is not valid for CpuPolicy. Set a number above 0, such as 1 or 0.5. For trials that only submit "
            "tasks, use CappedPolicy(CpuPolicy(cpus=0.01), 4), and start the tasks with scheduling_strategy='DEFAULT'"
        )
    return cpus


class CpuPolicy(WorkersPolicy):
    """Reserves the same number of CPUs, and no GPU, for every worker.

    Attributes:
        cpus: The number of CPUs of each worker, above 0.
        custom: The custom Ray resources of each worker, by name.
        exclude_gpu_nodes: Whether to keep trials off all nodes with GPUs or other devices, so that their CPUs stay free
            for work with devices.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    cpus: Annotated[Amount, AfterValidator(_above_zero)] = 1
    custom: WantedCustom = Field(default_factory=dict)
    exclude_gpu_nodes: bool = False

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        if self.exclude_gpu_nodes:
            anywhere = self.model_copy(update={"exclude_gpu_nodes": False})
            return _off_device_nodes(anywhere, capacity)
        request = self._request(self.cpus, custom=self.custom)
        reasons = [f"each {request.unit} reserves {request.worker} and no GPU"]
        return build_plan(self._with_rounded_memory(capacity), request, reasons)


def _off_device_nodes(policy: CpuPolicy, capacity: ClusterCapacity) -> TrialPlan:
    """Return the plan of a policy for the nodes without devices.

    A condition on the label of the device type also excludes nodes that join later. Alive nodes without this label, or
    with a type that a condition cannot contain, are excluded by their IDs.
    """
    addable = capacity.node_types or ()
    types = [node_type for node_type in addable if not _has_devices(node_type.resources)]
    # A policy around this one may have removed reserved devices, but not the type of the node's devices.
    with_devices = [node for node in capacity.nodes if _has_devices(node.resources) or node.accelerator_type]
    labels = {node.labels.get(ACCELERATOR_TYPE) for node in with_devices}
    labels |= {node_type.labels.get(ACCELERATOR_TYPE) for node_type in addable if node_type not in types}
    known = {name for name in labels if name and is_label_value(name)}
    others = [node.node_id for node in with_devices if node.labels.get(ACCELERATOR_TYPE) not in known]
    selector = {ACCELERATOR_TYPE: is_none_of(known)} if known else {}
    selecting = SelectingPolicy(policy, label_selector=selector, exclude_nodes=others)
    if len(types) < len(addable):
        capacity = capacity.model_copy(update={"node_types": tuple(types)})
    return selecting.plan(capacity)


def _has_devices(resources: Resources) -> bool:
    return bool(DEVICE_RESOURCES & resources.ticks.keys())
