"""All resource policies. Each policy has its own module."""

from tune_policies.policies.accelerator import AcceleratorPolicy
from tune_policies.policies.auto import AutoPolicy
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.by_config import ByConfigPolicy
from tune_policies.policies.capped import CappedPolicy
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.even_split import EvenSplitPolicy
from tune_policies.policies.first_feasible import FirstFeasiblePolicy
from tune_policies.policies.free_capacity import FreeCapacityPolicy
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.growing import GrowingPolicy
from tune_policies.policies.learning import LearningPolicy
from tune_policies.policies.mixed import MixedPolicy
from tune_policies.policies.node_selection import SelectingPolicy
from tune_policies.policies.reserving import ReservingPolicy

__all__ = [
    "AcceleratorPolicy",
    "AutoPolicy",
    "AutoscalingPolicy",
    "BenchmarkedPolicy",
    "ByConfigPolicy",
    "CappedPolicy",
    "CpuPolicy",
    "EvenSplitPolicy",
    "FirstFeasiblePolicy",
    "FreeCapacityPolicy",
    "GpuMemoryPolicy",
    "GpuPolicy",
    "GrowingPolicy",
    "LearningPolicy",
    "MixedPolicy",
    "ReservingPolicy",
    "SelectingPolicy",
]
