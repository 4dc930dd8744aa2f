"""Applies a plan to the trials of Ray Tune and the workers of Ray Train.

Importing this package does not import its modules, Ray or a framework. Each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gpu_memory.framework_memory import peak_gpu_memory_bytes
    from .gpu_memory.framework_overhead import Overheads, load_overheads
    from .gpu_memory.framework_settings import GpuMemoryLimit
    from .process.current_process import gpu_memory_usage
    from .process.remote_process import with_limits
    from .process.trial_process import trial_plan
    from .profiling.estimate import GpuMemoryEstimate, estimate_gpu_memory
    from .profiling.measure import measure_gpu_memory, plan_by_measuring
    from .profiling.measure_overhead import calibrate_gpu_overhead
    from .scheduling.policy_scheduler import PolicyScheduler
    from .start.applied import applied
    from .start.tune_run import run, tuner
    from .train.as_trainable import as_trainable
    from .train.build_trainer import fit_with_oom_retry
    from .train.framework_trainers import (
        build_jax_trainer,
        build_lightgbm_trainer,
        build_tensorflow_trainer,
        build_torch_trainer,
        build_xgboost_trainer,
    )
    from .train.rllib import size_algorithm
    from .watches.deadlock_watch import with_deadlock_check

__all__ = [
    "GpuMemoryEstimate",
    "GpuMemoryLimit",
    "Overheads",
    "PolicyScheduler",
    "applied",
    "as_trainable",
    "build_jax_trainer",
    "build_lightgbm_trainer",
    "build_tensorflow_trainer",
    "build_torch_trainer",
    "build_xgboost_trainer",
    "calibrate_gpu_overhead",
    "estimate_gpu_memory",
    "fit_with_oom_retry",
    "gpu_memory_usage",
    "load_overheads",
    "measure_gpu_memory",
    "peak_gpu_memory_bytes",
    "plan_by_measuring",
    "run",
    "size_algorithm",
    "trial_plan",
    "tuner",
    "with_deadlock_check",
    "with_limits",
]

_MODULES = {
    "process.current_process": ("gpu_memory_usage",),
    "watches.deadlock_watch": ("with_deadlock_check",),
    "profiling.measure_overhead": ("calibrate_gpu_overhead",),
    "gpu_memory.framework_memory": ("peak_gpu_memory_bytes",),
    "profiling.estimate": ("GpuMemoryEstimate", "estimate_gpu_memory"),
    "gpu_memory.framework_settings": ("GpuMemoryLimit",),
    "profiling.measure": ("measure_gpu_memory", "plan_by_measuring"),
    "gpu_memory.framework_overhead": ("Overheads", "load_overheads"),
    "scheduling.policy_scheduler": ("PolicyScheduler",),
    "process.remote_process": ("with_limits",),
    "train.rllib": ("size_algorithm",),
    "train.as_trainable": ("as_trainable",),
    "train.build_trainer": ("fit_with_oom_retry",),
    "process.trial_process": ("trial_plan",),
    "start.applied": ("applied",),
    "start.tune_run": ("run", "tuner"),
}
"""The public names of each module. Names that are not listed here belong to ``train.framework_trainers``."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = next((module for module, names in _MODULES.items() if name in names), "train.framework_trainers")
        return getattr(import_module(f".{module}", __name__), name)
    if not name.startswith("_"):
        new = import_module("tune_policies.renamed_names").new_name("tune_policies.trainers", name)
        if new is not None:
            return __getattr__(new)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "trainers":  # only in a checkout; the installed package is ``tune_policies.trainers``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
