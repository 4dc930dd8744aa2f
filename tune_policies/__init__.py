"""Resource policies for Ray Tune and Ray Train: probe the cluster, plan, and apply the plan.

Importing this package imports neither its modules nor Ray nor a framework. Each name is imported when it is first
used, because each process of a run imports this package and needs few of its names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tune_policies.autoscaling.capacity_request import release_capacity, request_capacity
    from tune_policies.autoscaling.readiness import plan_when_ready
    from tune_policies.cluster.capacity import ClusterCapacity
    from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeTypeCapacity
    from tune_policies.placement.trial_slot import TrialSlot
    from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile
    from tune_policies.plan.trial_plan import TrialPlan
    from tune_policies.policies import (
        AcceleratorPolicy,
        AutoPolicy,
        AutoscalingPolicy,
        BenchmarkedPolicy,
        ByConfigPolicy,
        CappedPolicy,
        CpuPolicy,
        EvenSplitPolicy,
        FirstFeasiblePolicy,
        FreeCapacityPolicy,
        GpuMemoryPolicy,
        GpuPolicy,
        GrowingPolicy,
        LearningPolicy,
        MixedPolicy,
        ReservingPolicy,
        SelectingPolicy,
    )
    from tune_policies.policies.policy import ResourcePolicy
    from tune_policies.policies.policy_file import load_decision, load_policy
    from tune_policies.probe.probe_cluster import ProbeWarning, plan_on_cluster, probe_cluster
    from tune_policies.trainers import PolicyScheduler, applied, as_trainable, run, tuner
    from tune_policies.trainers.retries.oom_retry_scheduler import OomRetryScheduler
    from tune_policies.trainers.usage.audit_callback import AuditCallback
    from tune_policies.trainers.usage.load_usage import load_usage
    from tune_policies.trainers.usage.policy_callback import PolicyCallback
    from tune_policies.values.errors import (
        InfeasibleRequestError,
        InvalidResourcesError,
        MeasurementError,
        MemoryLimitError,
        ProbeError,
        RayVersionError,
        ResourcePolicyError,
        UnenforcedLimitError,
    )
    from tune_policies.values.resources import Resources

    __version__: str

__all__ = [
    "AcceleratorPolicy",
    "AuditCallback",
    "AutoPolicy",
    "AutoscalingPolicy",
    "BenchmarkedPolicy",
    "ByConfigPolicy",
    "CappedPolicy",
    "ClusterCapacity",
    "CpuPolicy",
    "EvenSplitPolicy",
    "FirstFeasiblePolicy",
    "FreeCapacityPolicy",
    "GpuDevice",
    "GpuMemoryPolicy",
    "GpuMemoryProfile",
    "GpuPolicy",
    "GrowingPolicy",
    "InfeasibleRequestError",
    "InvalidResourcesError",
    "LearningPolicy",
    "MeasurementError",
    "MemoryLimitError",
    "MixedPolicy",
    "NodeCapacity",
    "NodeTypeCapacity",
    "OomRetryScheduler",
    "PolicyCallback",
    "PolicyScheduler",
    "ProbeError",
    "ProbeWarning",
    "RayVersionError",
    "ReservingPolicy",
    "ResourcePolicy",
    "ResourcePolicyError",
    "Resources",
    "SelectingPolicy",
    "TrialPlan",
    "TrialSlot",
    "UnenforcedLimitError",
    "applied",
    "as_trainable",
    "load_decision",
    "load_policy",
    "load_usage",
    "plan_on_cluster",
    "plan_when_ready",
    "probe_cluster",
    "release_capacity",
    "request_capacity",
    "run",
    "tuner",
]


_MODULES: Final = {
    name: module
    for module, names in {
        "autoscaling.capacity_request": ("release_capacity", "request_capacity"),
        "autoscaling.readiness": ("plan_when_ready",),
        "cluster.capacity": ("ClusterCapacity",),
        "cluster.node": ("GpuDevice", "NodeCapacity", "NodeTypeCapacity"),
        "placement.trial_slot": ("TrialSlot",),
        "plan.gpu_memory_profile": ("GpuMemoryProfile",),
        "plan.trial_plan": ("TrialPlan",),
        "policies": [name for name in __all__ if name.endswith("Policy") and name != "ResourcePolicy"],
        "policies.policy": ("ResourcePolicy",),
        "policies.policy_file": ("load_decision", "load_policy"),
        "probe.probe_cluster": ("ProbeWarning", "plan_on_cluster", "probe_cluster"),
        "trainers": ("PolicyScheduler", "applied", "as_trainable", "run", "tuner"),
        "trainers.retries.oom_retry_scheduler": ("OomRetryScheduler",),
        "trainers.usage.audit_callback": ("AuditCallback",),
        "trainers.usage.load_usage": ("load_usage",),
        "trainers.usage.policy_callback": ("PolicyCallback",),
        "values.errors": [name for name in __all__ if name.endswith("Error")],
        "values.resources": ("Resources",),
    }.items()
    for name in names
}
"""The module that defines each public name."""


_PARTS: Final = ("kuberay", "testing", "trainers")
"""The public packages inside this package."""


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"tune_policies.{_MODULES[name]}"), name)
    if name in _PARTS:
        return import_module(f"tune_policies.{name}")
    if name == "__version__":
        return import_module("importlib.metadata").version("tune-policies")
    hint = ""
    if not name.startswith("_"):  # inspection asks for special names, which must not import anything
        new = import_module("tune_policies.renamed_names").new_name("tune_policies", name)
        if new is not None:
            return __getattr__(new)
        owners = [part for part in _PARTS if name in import_module(f"tune_policies.{part}").__all__]
        hint = "".join(f". Write: from tune_policies.{owner} import {name}" for owner in owners[:1])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
