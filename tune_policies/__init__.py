"""Resource policies for Ray Tune and Ray Train: probe the cluster, plan, apply the plan.

Importing this package imports nothing of it, nor Ray or a framework: each name is imported when it is first used. Each
process of a run imports this package, and needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tune_policies.autoscaling.readiness import plan_when_ready
    from tune_policies.autoscaling.scaling import CapacityRequest, release_capacity, request_capacity
    from tune_policies.capacity import ClusterCapacity, GpuDevice, NodeCapacity, NodeTypeCapacity
    from tune_policies.clusters.catalog import NodeCatalog, NodeType
    from tune_policies.clusters.cluster_plan import ClusterPlan
    from tune_policies.clusters.cluster_spec import ClusterSpec
    from tune_policies.clusters.outlook import ClusterOutlook, plan_for_cluster
    from tune_policies.clusters.planner import plan_cluster
    from tune_policies.decision import Decision
    from tune_policies.errors import (
        InfeasibleRequestError,
        InvalidResourcesError,
        MeasurementError,
        MemoryLimitError,
        ProbeError,
        ResourcePolicyError,
    )
    from tune_policies.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
    from tune_policies.lint.linting import lint_file
    from tune_policies.manifests.cluster_file import load_cluster
    from tune_policies.manifests.writing import write_cluster
    from tune_policies.manifests.writing.options import WriteOptions
    from tune_policies.oom import OutOfMemory, classify_oom, classify_oom_text
    from tune_policies.plan import TrialPlan
    from tune_policies.policies import (
        AcceleratorPolicy,
        AutoscalingPolicy,
        BenchmarkedPolicy,
        CappedPolicy,
        CpuPolicy,
        EvenSplitPolicy,
        FirstFeasiblePolicy,
        GpuMemoryPolicy,
        GpuPolicy,
        MixedPolicy,
        ReservingPolicy,
        SelectingPolicy,
    )
    from tune_policies.policy import ResourcePolicy
    from tune_policies.policy_file import load_catalog, load_decision, load_policy
    from tune_policies.probe import ProbeWarning, probe_cluster
    from tune_policies.reporting.policy_callback import PolicyCallback
    from tune_policies.resources import Resources
    from tune_policies.schedulers.escalating import EscalatingScheduler
    from tune_policies.schedulers.policy_scheduler import PolicyScheduler
    from tune_policies.schedulers.run_plan import PlanChange
    from tune_policies.slot import TrialSlot

__all__ = [
    "AcceleratorPolicy",
    "AutoscalingPolicy",
    "BenchmarkedPolicy",
    "CapacityRequest",
    "CappedPolicy",
    "ClusterCapacity",
    "ClusterOutlook",
    "ClusterPlan",
    "ClusterSpec",
    "CpuPolicy",
    "Decision",
    "EscalatingScheduler",
    "EvenSplitPolicy",
    "FirstFeasiblePolicy",
    "GpuDevice",
    "GpuMemoryMeasurement",
    "GpuMemoryPolicy",
    "GpuMemoryProfile",
    "GpuPolicy",
    "InfeasibleRequestError",
    "InvalidResourcesError",
    "MeasurementError",
    "MemoryLimitError",
    "MixedPolicy",
    "NodeCapacity",
    "NodeCatalog",
    "NodeType",
    "NodeTypeCapacity",
    "OutOfMemory",
    "PlanChange",
    "PolicyCallback",
    "PolicyScheduler",
    "ProbeError",
    "ProbeWarning",
    "ReservingPolicy",
    "ResourcePolicy",
    "ResourcePolicyError",
    "Resources",
    "SelectingPolicy",
    "TrialPlan",
    "TrialSlot",
    "WriteOptions",
    "classify_oom",
    "classify_oom_text",
    "lint_file",
    "load_catalog",
    "load_cluster",
    "load_decision",
    "load_policy",
    "plan_cluster",
    "plan_for_cluster",
    "plan_when_ready",
    "probe_cluster",
    "release_capacity",
    "request_capacity",
    "write_cluster",
]


_MODULES: Final = {
    "AcceleratorPolicy": "policies",
    "AutoscalingPolicy": "policies",
    "BenchmarkedPolicy": "policies",
    "CapacityRequest": "autoscaling.scaling",
    "CappedPolicy": "policies",
    "ClusterCapacity": "capacity",
    "ClusterOutlook": "clusters.outlook",
    "ClusterPlan": "clusters.cluster_plan",
    "ClusterSpec": "clusters.cluster_spec",
    "CpuPolicy": "policies",
    "Decision": "decision",
    "EscalatingScheduler": "schedulers.escalating",
    "EvenSplitPolicy": "policies",
    "FirstFeasiblePolicy": "policies",
    "GpuDevice": "capacity",
    "GpuMemoryMeasurement": "gpu_memory_profile",
    "GpuMemoryPolicy": "policies",
    "GpuMemoryProfile": "gpu_memory_profile",
    "GpuPolicy": "policies",
    "InfeasibleRequestError": "errors",
    "InvalidResourcesError": "errors",
    "MeasurementError": "errors",
    "MemoryLimitError": "errors",
    "MixedPolicy": "policies",
    "NodeCapacity": "capacity",
    "NodeCatalog": "clusters.catalog",
    "NodeType": "clusters.catalog",
    "NodeTypeCapacity": "capacity",
    "OutOfMemory": "oom",
    "PlanChange": "schedulers.run_plan",
    "PolicyCallback": "reporting.policy_callback",
    "PolicyScheduler": "schedulers.policy_scheduler",
    "ProbeError": "errors",
    "ProbeWarning": "probe",
    "ReservingPolicy": "policies",
    "ResourcePolicy": "policy",
    "ResourcePolicyError": "errors",
    "Resources": "resources",
    "SelectingPolicy": "policies",
    "TrialPlan": "plan",
    "TrialSlot": "slot",
    "WriteOptions": "manifests.writing.options",
    "classify_oom": "oom",
    "classify_oom_text": "oom",
    "lint_file": "lint.linting",
    "load_catalog": "policy_file",
    "load_cluster": "manifests.cluster_file",
    "load_decision": "policy_file",
    "load_policy": "policy_file",
    "plan_cluster": "clusters.planner",
    "plan_for_cluster": "clusters.outlook",
    "plan_when_ready": "autoscaling.readiness",
    "probe_cluster": "probe",
    "release_capacity": "autoscaling.scaling",
    "request_capacity": "autoscaling.scaling",
    "write_cluster": "manifests.writing",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"tune_policies.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
