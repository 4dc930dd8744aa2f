"""Applies a plan where the training runs: in Tune's trials and in Train's workers.

Importing this package imports neither Ray nor a framework: each is imported when what needs it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .gpu_memory.limit import GpuMemoryLimit
from .gpu_memory.usage import peak_gpu_memory_bytes

if TYPE_CHECKING:
    from .escalating_fit import fit_escalating
    from .tensorflow_trainer import build_tensorflow_trainer
    from .torch_trainer import build_torch_trainer
    from .tune_trainable import with_plan

__all__ = [
    "GpuMemoryLimit",
    "build_tensorflow_trainer",
    "build_torch_trainer",
    "fit_escalating",
    "peak_gpu_memory_bytes",
    "with_plan",
]

_MODULES = {
    "build_tensorflow_trainer": ".tensorflow_trainer",
    "build_torch_trainer": ".torch_trainer",
    "fit_escalating": ".escalating_fit",
    "with_plan": ".tune_trainable",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
