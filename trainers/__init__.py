"""Applies a plan where the training runs: in Tune's trials and in Train's workers.

Importing this package imports nothing of it, nor Ray or a framework: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deadlock_watch import with_deadlock_check
    from .gpu_memory.calibration import calibrate_gpu_overhead
    from .gpu_memory.estimate import GpuMemoryEstimate, estimate_gpu_memory
    from .gpu_memory.limit import GpuMemoryLimit
    from .gpu_memory.measure import measure_gpu_memory, plan_by_measuring
    from .gpu_memory.overhead import Overheads, load_overheads
    from .gpu_memory.trial_usage import gpu_memory_usage, peak_gpu_memory_bytes
    from .jax_trainer import build_jax_trainer
    from .lightgbm_trainer import build_lightgbm_trainer
    from .policy_scheduler import PolicyScheduler
    from .remote_process import with_limits
    from .rllib import size_algorithm
    from .tensorflow_trainer import build_tensorflow_trainer
    from .torch_trainer import build_torch_trainer
    from .train_in_tune import as_trainable
    from .train_loop import fit_with_oom_retry
    from .trial_process import trial_plan
    from .tune_run import applied, run, tuner
    from .xgboost_trainer import build_xgboost_trainer

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
    "GpuMemoryEstimate": ".gpu_memory.estimate",
    "GpuMemoryLimit": ".gpu_memory.limit",
    "Overheads": ".gpu_memory.overhead",
    "PolicyScheduler": ".policy_scheduler",
    "applied": ".tune_run",
    "as_trainable": ".train_in_tune",
    "build_jax_trainer": ".jax_trainer",
    "build_lightgbm_trainer": ".lightgbm_trainer",
    "build_tensorflow_trainer": ".tensorflow_trainer",
    "build_torch_trainer": ".torch_trainer",
    "build_xgboost_trainer": ".xgboost_trainer",
    "calibrate_gpu_overhead": ".gpu_memory.calibration",
    "estimate_gpu_memory": ".gpu_memory.estimate",
    "fit_with_oom_retry": ".train_loop",
    "gpu_memory_usage": ".gpu_memory.trial_usage",
    "load_overheads": ".gpu_memory.overhead",
    "measure_gpu_memory": ".gpu_memory.measure",
    "peak_gpu_memory_bytes": ".gpu_memory.trial_usage",
    "plan_by_measuring": ".gpu_memory.measure",
    "run": ".tune_run",
    "size_algorithm": ".rllib",
    "trial_plan": ".trial_process",
    "tuner": ".tune_run",
    "with_deadlock_check": ".deadlock_watch",
    "with_limits": ".remote_process",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "trainers":  # in a checkout; everywhere else it is ``tune_policies.trainers``
    from tune_policies.package_alias import use_long_name

    use_long_name(__name__)
