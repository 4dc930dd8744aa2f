"""Applies a plan where the training runs: in Tune's trials and in Train's workers.

Importing this package imports no framework; a trainer's framework is imported when its builder is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .gpu_memory_limit import GpuMemoryLimit
from .gpu_memory_usage import peak_gpu_memory_bytes
from .tune_trainable import with_plan

if TYPE_CHECKING:
    from .tensorflow_trainer import build_tensorflow_trainer
    from .torch_trainer import build_torch_trainer

__all__ = [
    "GpuMemoryLimit",
    "build_tensorflow_trainer",
    "build_torch_trainer",
    "peak_gpu_memory_bytes",
    "with_plan",
]

_LAZY = {"build_tensorflow_trainer": ".tensorflow_trainer", "build_torch_trainer": ".torch_trainer"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
