"""What a process does before the user's code runs in it: see its own devices only, use its own CPUs, keep its share."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Final

import ray
import wrapt
from threadpoolctl import threadpool_limits

from tune_policies.accelerators import GPU_VISIBILITY_VARIABLES
from tune_policies.resources import Resources
from tune_policies.values import Value

from .gpu_memory.enforcement import GpuShare, enforce

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",  # Ray sets this one: to 1 in a trial that names GPUs and no CPUs
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",  # TensorFlow reads these two when its runtime starts
    "TF_NUM_INTEROP_THREADS",
)


class ProcessSetup(Value):
    """How a process that runs under a plan is set up.

    Attributes:
        resources: What Ray reserved for it.
        gpu_memory_bytes: The GPU memory that it may use; ``None``: its share of the device decides.
    """

    resources: Resources
    gpu_memory_bytes: int | None = None

    @property
    def num_threads(self) -> int:
        """Threads for its CPUs: one where it has less than a CPU."""
        return max(1, int(self.resources.cpus))

    def apply(self) -> None:
        """Set up this process.

        Raises:
            MemoryLimitError: Its GPU memory cannot be limited.
        """
        if self.resources.gpus == 0:
            hide_gpus()
        set_num_threads(self.num_threads)
        if 0 < self.resources.gpus < 1:
            # Ray's own number, not the plan's: it is what the neighbours on the device were counted against.
            fraction = ray.get_runtime_context().get_assigned_resources().get("GPU", self.resources.gpus)
            enforce(GpuShare(fraction=fraction, memory_bytes=self.gpu_memory_bytes))

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a new function that sets up its process and then calls ``function``, which stays as it is."""

        def set_up_first(*args: Any, **kwargs: Any) -> Any:
            self.apply()
            return function(*args, **kwargs)

        def set_up_first_and_yield(*args: Any, **kwargs: Any) -> Any:
            self.apply()
            return (yield from function(*args, **kwargs))

        # Tune takes a generator's items as its results, and knows one by its code.
        chosen = set_up_first_and_yield if inspect.isgeneratorfunction(function) else set_up_first
        wrapper = functools.wraps(function)(chosen)
        # Ray counts the parameters to know whether to pass a config; callable objects and partials have them too.
        wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        wrapper.__name__ = _name(function)  # Tune names trials after it
        return wrapper


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return getattr(function, "__name__", type(function).__name__)


def hide_gpus() -> None:
    """Hide every GPU from this process. By default a newer Ray shows them all to a trial that asked for none."""
    for variable in GPU_VISIBILITY_VARIABLES:
        os.environ[variable] = ""


def set_num_threads(num_threads: int) -> None:
    """Set the threads of this process's numerical libraries: those loaded now, and those loaded later."""
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(num_threads)
    threadpool_limits(num_threads)
    # PyTorch takes no more from the variable than the machine has cores.
    wrapt.register_post_import_hook(lambda torch: torch.set_num_threads(num_threads), "torch")
