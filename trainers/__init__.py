"""Applies a plan where the training runs: in Tune's trials and in Train's workers.

Importing this package imports nothing of it, nor Ray or a framework: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deadlock_watch.watch import with_deadlock_check
    from .gpu_memory.limits.calibration import calibrate_gpu_overhead
    from .gpu_memory.limits.limit import GpuMemoryLimit
    from .gpu_memory.limits.overhead import Overheads, load_overheads
    from .gpu_memory.sizing.estimate import GpuMemoryEstimate, estimate_gpu_memory
    from .gpu_memory.sizing.measure import measure_gpu_memory, plan_by_measuring
    from .gpu_memory.usage.trial_usage import gpu_memory_usage, peak_gpu_memory_bytes
    from .train.jax_trainer import build_jax_trainer
    from .train.lightgbm_trainer import build_lightgbm_trainer
    from .train.oom_retry_fit import fit_with_oom_retry
    from .train.tensorflow_trainer import build_tensorflow_trainer
    from .train.torch_trainer import build_torch_trainer
    from .train.xgboost_trainer import build_xgboost_trainer
    from .train_in_tune.as_trainable import as_trainable
    from .tune_run import run, tuner
    from .tune_trainable import with_plan

__all__ = [
    "GpuMemoryEstimate",
    "GpuMemoryLimit",
    "Overheads",
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
    "tuner",
    "with_deadlock_check",
    "with_plan",
]

_MODULES = {
    "GpuMemoryEstimate": ".gpu_memory.sizing.estimate",
    "GpuMemoryLimit": ".gpu_memory.limits.limit",
    "Overheads": ".gpu_memory.limits.overhead",
    "as_trainable": ".train_in_tune.as_trainable",
    "build_jax_trainer": ".train.jax_trainer",
    "build_lightgbm_trainer": ".train.lightgbm_trainer",
    "build_tensorflow_trainer": ".train.tensorflow_trainer",
    "build_torch_trainer": ".train.torch_trainer",
    "build_xgboost_trainer": ".train.xgboost_trainer",
    "calibrate_gpu_overhead": ".gpu_memory.limits.calibration",
    "estimate_gpu_memory": ".gpu_memory.sizing.estimate",
    "fit_with_oom_retry": ".train.oom_retry_fit",
    "gpu_memory_usage": ".gpu_memory.usage.trial_usage",
    "load_overheads": ".gpu_memory.limits.overhead",
    "measure_gpu_memory": ".gpu_memory.sizing.measure",
    "peak_gpu_memory_bytes": ".gpu_memory.usage.trial_usage",
    "plan_by_measuring": ".gpu_memory.sizing.measure",
    "run": ".tune_run",
    "tuner": ".tune_run",
    "with_plan": ".tune_trainable",
    "with_deadlock_check": ".deadlock_watch.watch",
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
