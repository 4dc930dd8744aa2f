"""Resource policies for Ray Tune and Ray Train: probe the cluster, plan, apply the plan.

Importing this package imports neither Ray nor a framework; ``probe_cluster`` does so when it is first used.
"""

from typing import TYPE_CHECKING, Any

from tune_policies.capacity import ClusterCapacity, GpuDevice, NodeCapacity, NodeTypeCapacity
from tune_policies.errors import (
    InfeasibleRequestError,
    InvalidResourcesError,
    MemoryLimitError,
    ProbeError,
    ResourcePolicyError,
)
from tune_policies.plan import TrialPlan, TrialSlot
from tune_policies.policies import (
    AutoscalingPolicy,
    CappedPolicy,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    ReservingPolicy,
)
from tune_policies.policy import ResourcePolicy
from tune_policies.policy_file import load_policy
from tune_policies.resources import Resources

if TYPE_CHECKING:
    from tune_policies.probe import ProbeWarning, probe_cluster

__all__ = [
    "AutoscalingPolicy",
    "CappedPolicy",
    "ClusterCapacity",
    "CpuPolicy",
    "EvenSplitPolicy",
    "FirstFeasiblePolicy",
    "GpuDevice",
    "GpuMemoryPolicy",
    "GpuPolicy",
    "InfeasibleRequestError",
    "InvalidResourcesError",
    "MemoryLimitError",
    "NodeCapacity",
    "NodeTypeCapacity",
    "ProbeError",
    "ProbeWarning",
    "ReservingPolicy",
    "ResourcePolicy",
    "ResourcePolicyError",
    "Resources",
    "TrialPlan",
    "TrialSlot",
    "load_policy",
    "probe_cluster",
]


def __getattr__(name: str) -> Any:
    if name in ("ProbeWarning", "probe_cluster"):
        from tune_policies import probe

        return getattr(probe, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
