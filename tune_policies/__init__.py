"""Resource policies for Ray Tune and Ray Train: probe the cluster, plan, apply the plan.

Importing this package imports nothing of it, nor Ray or a framework: each name is imported when it is first used. Each
process of a run imports this package, and needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tune_policies.autoscaling.capacity_request import CapacityRequest, release_capacity, request_capacity
    from tune_policies.autoscaling.readiness import plan_when_ready
    from tune_policies.cluster.capacity import ClusterCapacity, GpuDevice, NodeCapacity, NodeGroup, NodeTypeCapacity
    from tune_policies.kuberay.design.catalog import NodeCatalog, NodeType, Toleration
    from tune_policies.kuberay.design.cluster_spec import ClusterSpec, WorkerGroup
    from tune_policies.kuberay.design.design_cluster import ClusterDesign, design_cluster
    from tune_policies.kuberay.design.forecast import TrialForecast, forecast_trials
    from tune_policies.kuberay.lint.linting import lint_file
    from tune_policies.kuberay.lint.rule import Finding
    from tune_policies.kuberay.reading.load_cluster import load_capacity, load_catalog, load_cluster
    from tune_policies.kuberay.writing import write_cluster
    from tune_policies.kuberay.writing.options import WriteOptions
    from tune_policies.oom import OutOfMemory, classify_oom, classify_oom_text
    from tune_policies.plan.decision import Decision, SizeDecision, WorkloadDecision
    from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile, MemoryFit
    from tune_policies.plan.trial_plan import TrialPlan
    from tune_policies.plan.trial_slot import Bundle, TrialSlot
    from tune_policies.policies import (
        AcceleratorPolicy,
        AutoPolicy,
        AutoscalingPolicy,
        BenchmarkedPolicy,
        CappedPolicy,
        CpuPolicy,
        EvenSplitPolicy,
        FirstFeasiblePolicy,
        FreeCapacityPolicy,
        GpuMemoryPolicy,
        GpuPolicy,
        MixedPolicy,
        ReservingPolicy,
        SelectingPolicy,
    )
    from tune_policies.policies.policy import ResourcePolicy
    from tune_policies.policies.policy_file import load_decision, load_policy
    from tune_policies.probe.probe_cluster import ProbeWarning, plan_on_cluster, probe_cluster
    from tune_policies.trainers import PolicyScheduler, applied, as_trainable, run, tuner
    from tune_policies.tune.oom_retry_scheduler import OomRetryScheduler
    from tune_policies.tune.run_plan import PlanChange
    from tune_policies.tune.usage.gpu_memory_usage import GpuMemoryUsage
    from tune_policies.tune.usage.policy_callback import PolicyCallback
    from tune_policies.tune.usage.resource_usage import (
        IdleHours,
        OutOfMemoryCounts,
        PlanInUse,
        ResourceHours,
        ResourceUsage,
        SlotHours,
        TrialCounts,
        TrialSpan,
    )
    from tune_policies.values.errors import (
        InfeasibleRequestError,
        InvalidResourcesError,
        MeasurementError,
        MemoryLimitError,
        ProbeError,
        RayVersionError,
        ResourcePolicyError,
    )
    from tune_policies.values.resources import Resources
    from tune_policies.views.svg import Picture

__all__ = [
    "AcceleratorPolicy",
    "AutoPolicy",
    "AutoscalingPolicy",
    "BenchmarkedPolicy",
    "Bundle",
    "CapacityRequest",
    "CappedPolicy",
    "ClusterCapacity",
    "ClusterDesign",
    "ClusterSpec",
    "CpuPolicy",
    "Decision",
    "EvenSplitPolicy",
    "Finding",
    "FirstFeasiblePolicy",
    "FreeCapacityPolicy",
    "GpuDevice",
    "GpuMemoryMeasurement",
    "GpuMemoryPolicy",
    "GpuMemoryProfile",
    "GpuMemoryUsage",
    "GpuPolicy",
    "IdleHours",
    "InfeasibleRequestError",
    "InvalidResourcesError",
    "MeasurementError",
    "MemoryFit",
    "MemoryLimitError",
    "MixedPolicy",
    "NodeCapacity",
    "NodeCatalog",
    "NodeGroup",
    "NodeType",
    "NodeTypeCapacity",
    "OomRetryScheduler",
    "OutOfMemory",
    "OutOfMemoryCounts",
    "Picture",
    "PlanChange",
    "PlanInUse",
    "PolicyCallback",
    "PolicyScheduler",
    "ProbeError",
    "ProbeWarning",
    "RayVersionError",
    "ReservingPolicy",
    "ResourceHours",
    "ResourcePolicy",
    "ResourcePolicyError",
    "ResourceUsage",
    "Resources",
    "SelectingPolicy",
    "SizeDecision",
    "SlotHours",
    "Toleration",
    "TrialCounts",
    "TrialForecast",
    "TrialPlan",
    "TrialSlot",
    "TrialSpan",
    "WorkerGroup",
    "WorkloadDecision",
    "WriteOptions",
    "applied",
    "as_trainable",
    "classify_oom",
    "classify_oom_text",
    "design_cluster",
    "forecast_trials",
    "lint_file",
    "load_capacity",
    "load_catalog",
    "load_cluster",
    "load_decision",
    "load_policy",
    "plan_on_cluster",
    "plan_when_ready",
    "probe_cluster",
    "release_capacity",
    "request_capacity",
    "run",
    "tuner",
    "write_cluster",
]


_MODULES: Final = {
    "AcceleratorPolicy": "policies",
    "AutoPolicy": "policies",
    "AutoscalingPolicy": "policies",
    "BenchmarkedPolicy": "policies",
    "Bundle": "plan.trial_slot",
    "CapacityRequest": "autoscaling.capacity_request",
    "CappedPolicy": "policies",
    "ClusterCapacity": "cluster.capacity",
    "ClusterDesign": "kuberay.design.design_cluster",
    "ClusterSpec": "kuberay.design.cluster_spec",
    "CpuPolicy": "policies",
    "Decision": "plan.decision",
    "EvenSplitPolicy": "policies",
    "Finding": "kuberay.lint.rule",
    "FirstFeasiblePolicy": "policies",
    "FreeCapacityPolicy": "policies",
    "GpuDevice": "cluster.capacity",
    "GpuMemoryMeasurement": "plan.gpu_memory_profile",
    "GpuMemoryPolicy": "policies",
    "GpuMemoryProfile": "plan.gpu_memory_profile",
    "GpuMemoryUsage": "tune.usage.gpu_memory_usage",
    "GpuPolicy": "policies",
    "IdleHours": "tune.usage.resource_usage",
    "InfeasibleRequestError": "values.errors",
    "InvalidResourcesError": "values.errors",
    "MeasurementError": "values.errors",
    "MemoryFit": "plan.gpu_memory_profile",
    "MemoryLimitError": "values.errors",
    "MixedPolicy": "policies",
    "NodeCapacity": "cluster.capacity",
    "NodeCatalog": "kuberay.design.catalog",
    "NodeGroup": "cluster.capacity",
    "NodeType": "kuberay.design.catalog",
    "NodeTypeCapacity": "cluster.capacity",
    "OomRetryScheduler": "tune.oom_retry_scheduler",
    "OutOfMemory": "oom",
    "OutOfMemoryCounts": "tune.usage.resource_usage",
    "Picture": "views.svg",
    "PlanChange": "tune.run_plan",
    "PlanInUse": "tune.usage.resource_usage",
    "PolicyCallback": "tune.usage.policy_callback",
    "PolicyScheduler": "trainers",
    "ProbeError": "values.errors",
    "ProbeWarning": "probe.probe_cluster",
    "RayVersionError": "values.errors",
    "ReservingPolicy": "policies",
    "ResourceHours": "tune.usage.resource_usage",
    "ResourcePolicy": "policies.policy",
    "ResourcePolicyError": "values.errors",
    "ResourceUsage": "tune.usage.resource_usage",
    "Resources": "values.resources",
    "SelectingPolicy": "policies",
    "SizeDecision": "plan.decision",
    "SlotHours": "tune.usage.resource_usage",
    "Toleration": "kuberay.design.catalog",
    "TrialCounts": "tune.usage.resource_usage",
    "TrialForecast": "kuberay.design.forecast",
    "TrialPlan": "plan.trial_plan",
    "TrialSlot": "plan.trial_slot",
    "TrialSpan": "tune.usage.resource_usage",
    "WorkerGroup": "kuberay.design.cluster_spec",
    "WorkloadDecision": "plan.decision",
    "WriteOptions": "kuberay.writing.options",
    "applied": "trainers",
    "as_trainable": "trainers",
    "classify_oom": "oom",
    "classify_oom_text": "oom",
    "design_cluster": "kuberay.design.design_cluster",
    "forecast_trials": "kuberay.design.forecast",
    "lint_file": "kuberay.lint.linting",
    "load_capacity": "kuberay.reading.load_cluster",
    "load_catalog": "kuberay.reading.load_cluster",
    "load_cluster": "kuberay.reading.load_cluster",
    "load_decision": "policies.policy_file",
    "load_policy": "policies.policy_file",
    "plan_on_cluster": "probe.probe_cluster",
    "plan_when_ready": "autoscaling.readiness",
    "probe_cluster": "probe.probe_cluster",
    "release_capacity": "autoscaling.capacity_request",
    "request_capacity": "autoscaling.capacity_request",
    "run": "trainers",
    "tuner": "trainers",
    "write_cluster": "kuberay.writing",
}
"""The module of each name."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"tune_policies.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
