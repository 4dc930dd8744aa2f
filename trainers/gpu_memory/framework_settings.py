"""Converts the memory limit of a process into settings of each framework: fractions, bytes, or environment variables.

A framework limits only its own allocator. The device context, loaded kernels, library handles and communication buffers
are its overhead, so budget = limit - overhead.
"""

import math
import os
import re
from collections.abc import Mapping
from typing import Final

from pydantic import Field

from tune_policies.values.errors import InvalidResourcesError, MemoryLimitError
from tune_policies.values.resources import Bytes, UsedBytes
from tune_policies.values.units import MIB, format_bytes, parse_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import suggest

from .framework_overhead import NOTHING_MEASURED


class OwnEnvironment:
    """The environment of this process, without the variables that this project has set.

    A process may run several trials, so the variables of an earlier trial must not count as settings of the user.
    """

    def __init__(self) -> None:
        self._written: dict[str, tuple[str | None, str]] = {}
        """The previous and the written value of each variable."""

    def of_user(self) -> dict[str, str]:
        """Return the environment without the changes by ``write``. Later changes count as changes by the user."""
        environ = dict(os.environ)
        for name, (before, written) in self._written.items():
            # A variable with another value was changed by the user since, and stays.
            if environ.get(name) == written:
                del environ[name]
                if before is not None:
                    environ[name] = before
        return environ

    def write(self, variables: Mapping[str, str]) -> None:
        """Write variables into the environment of this process."""
        # Not ``os.environ``, which may contain the value of an earlier trial.
        before = self.of_user()
        for name, value in variables.items():
            self._written[name] = (before.get(name), value)
        os.environ.update(variables)

    def is_as_written(self, name: str) -> bool:
        """Return whether a variable still has the value that ``write`` set."""
        return name in self._written and os.environ.get(name) == self._written[name][1]


_TORCH_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The variables of PyTorch's allocator. PyTorch uses the first variable that is set (``c10/core/AllocatorConfig``)."""
_TORCH_FRACTION: Final = re.compile(r"(?:^|,)\s*+per_process_memory_fraction\s*+:\s*+([^,\s]++)")
"""PyTorch 2.10 and later support this setting. Earlier versions reject it at the first CUDA call."""

_JAX_VARIABLE: Final = "XLA_CLIENT_MEM_FRACTION"
_JAX_OLD_VARIABLE: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_PREALLOCATE_VARIABLE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"
JAX_COLLECTIVE_VARIABLE: Final = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
_JAX_ALLOCATOR_VARIABLE: Final = "XLA_PYTHON_CLIENT_ALLOCATOR"
_JAX_LIMITED_ALLOCATORS: Final = ("default", "bfc")
"""JAX allocators that enforce a limit. ``platform`` ignores the fraction, and ``cuda_async`` limits only the memory
that its pool keeps (``xla/pjrt/gpu``)."""
_JAX_UNIFIED_MEMORY_VARIABLE: Final = "TF_FORCE_UNIFIED_MEMORY"
"""With this variable, XLA replaces a fraction below 1 with 1, and uses host memory when the GPU is full."""
_JAX_LIMITING_OPTIONS: Final = ("memory_fraction", "allocator", "gpu_system_memory_size")
"""Options of JAX's client that override its environment variables."""

CUPY_VARIABLE: Final = "CUPY_GPU_MEMORY_LIMIT"


def torch_own_fraction(environ: Mapping[str, str]) -> float:
    """Return the user's own fraction for PyTorch's allocator, or 1 if the user has not set a fraction."""
    settings = next((environ[name] for name in _TORCH_VARIABLES if name in environ), "")
    found = _TORCH_FRACTION.findall(settings)
    if not found:
        return 1.0
    return _as_fraction(found[-1])  # the last setting applies


def jax_variables(fraction: float, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that limit JAX to ``fraction`` of a device's total memory.

    A smaller fraction that the user has set takes precedence. JAX allocates memory as needed, unless the user enables
    preallocation.

    Raises:
        MemoryLimitError: ``environ`` sets the fraction under both its current and its old name, and JAX rejects this.
    """
    if environ.get(_JAX_VARIABLE) and environ.get(_JAX_OLD_VARIABLE):
        raise MemoryLimitError(
            f"JAX does not start if both {_JAX_VARIABLE} and {_JAX_OLD_VARIABLE} are set. Unset {_JAX_OLD_VARIABLE}"
        )
    name = jax_fraction_variable(environ)
    return {
        name: f"{_rounded_down(min(fraction, _as_fraction(environ.get(name)))):.6f}",
        JAX_PREALLOCATE_VARIABLE: environ.get(JAX_PREALLOCATE_VARIABLE) or "false",
    }


def jax_fraction_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable that sets JAX's fraction in ``environ``."""
    if environ.get(_JAX_OLD_VARIABLE):
        return _JAX_OLD_VARIABLE
    return _JAX_VARIABLE


def why_jax_is_unlimited(environ: Mapping[str, str], client_options: str | Mapping[str, object] | None) -> str | None:
    """Return a message about the setting that disables JAX's memory limit, with a fix, or ``None`` if no setting does.

    ``client_options`` are JAX's ``jax_pjrt_client_create_options``, as ``"key:value;key:value"`` or a mapping.
    """
    allocator = environ.get(_JAX_ALLOCATOR_VARIABLE, "default").lower()
    if allocator not in _JAX_LIMITED_ALLOCATORS:
        return f"{_JAX_ALLOCATOR_VARIABLE}={allocator} disables JAX's memory limit. Unset {_JAX_ALLOCATOR_VARIABLE}"
    unified = environ.get(_JAX_UNIFIED_MEMORY_VARIABLE, "")
    if unified.lower() in ("1", "true"):
        name = _JAX_UNIFIED_MEMORY_VARIABLE
        return f"{name}={unified} disables JAX's memory limit. Unset {name}"
    options = client_options or {}
    if isinstance(options, str):
        options = {option.partition(":")[0]: None for option in options.split(";")}
    overriding = [name for name in _JAX_LIMITING_OPTIONS if name in options]
    if overriding:
        return f"{overriding[0]} in jax_pjrt_client_create_options overrides JAX's memory limit. Remove this option"
    return None


def cupy_own_limit(total_bytes: int, environ: Mapping[str, str]) -> int | None:
    """Return the user's own limit for CuPy in bytes, or ``None`` if it is missing or CuPy cannot parse it."""
    text = environ.get(CUPY_VARIABLE, "").strip()
    try:
        own = float(text[:-1]) / 100 * total_bytes if text.endswith("%") else int(text)
    except ValueError:
        return None
    # 0 means no limit in CuPy.
    if math.isfinite(own) and own >= 0:
        return int(own) or None
    return None


def _as_fraction(text: str | None) -> float:
    try:
        fraction = float(text) if text else 1.0
    except ValueError:  # the framework itself reports the mistake
        return 1.0
    if 0 < fraction <= 1:
        return fraction
    return 1.0


def _rounded_down(fraction: float) -> float:
    """Return a fraction rounded down to millionths. It is never 0, because 0 may mean no limit."""
    # Rounded first, because the product may be slightly below a whole number, and ``floor`` would subtract a millionth.
    return max(1, math.floor(round(fraction * 10**6, 3))) / 10**6


FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "cupy")
"""The frameworks whose GPU memory can be limited."""


class GpuMemoryLimit(Value):
    """The GPU memory that a process may use on each of its devices, including its overhead.

    Every method raises a ``MemoryLimitError`` if the overhead leaves no memory for tensors, and an
    ``InvalidResourcesError`` for an unknown framework or an amount that is not above 0.

    Attributes:
        limit_bytes: The limit including the overhead, in bytes.
        overhead_bytes: The measured memory outside the allocator in bytes, keyed by framework. For other frameworks, a
            safe default is used.
    """

    limit_bytes: Bytes
    overhead_bytes: dict[str, UsedBytes] = Field(default_factory=dict)

    def __init__(self, limit_bytes: int | str, overhead_bytes: Mapping[str, int] | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes, overhead_bytes=dict(overhead_bytes or {}))

    def budget_bytes(self, framework: str, compute_capability: tuple[int, int] | None = None) -> int:
        """Return the maximum memory that the framework's allocator may reserve, in bytes.

        ``framework`` is ``"torch"``, ``"tensorflow"``, ``"jax"`` or ``"cupy"``. ``compute_capability`` is the
        compute capability of the device, such as ``(8, 0)``.
        """
        if framework not in FRAMEWORKS:
            raise InvalidResourcesError(
                f"unknown framework {framework!r}{suggest(framework, FRAMEWORKS)} (supported: {', '.join(FRAMEWORKS)})"
            )
        overhead = self.overhead_bytes.get(framework)
        if overhead is None:
            overhead, _ = NOTHING_MEASURED.bytes_for(None, framework, None, compute_capability)
        if overhead >= self.limit_bytes:
            raise MemoryLimitError(
                f"a limit of {format_bytes(self.limit_bytes)} leaves no memory for tensors, because {framework} uses "
                f"up to {format_bytes(overhead)} outside its allocator. Plan fewer trials per GPU"
            )
        return self.limit_bytes - overhead

    def torch_fraction(self, total_bytes: int) -> float:
        """Return the fraction of a device for ``set_per_process_memory_fraction`` of CUDA, XPU and NPU."""
        # Always a float, because torch raises a TypeError for an int, even for 1.
        return min(1.0, self.budget_bytes("torch") / parse_bytes(total_bytes, name="total_bytes"))

    def torch_mps_fraction(self, recommended_max_bytes: int) -> float:
        """Return the fraction for ``torch.mps.set_per_process_memory_fraction``, above 0 and up to 2.

        It is a fraction of ``torch.mps.recommended_max_memory()``. It is never 0, because 0 means no limit.
        """
        return min(2.0, self.budget_bytes("torch") / parse_bytes(recommended_max_bytes, name="recommended_max_bytes"))

    def tensorflow_memory_limit_mb(self, compute_capability: tuple[int, int] | None = None) -> int:
        """Return the limit for TensorFlow's ``LogicalDeviceConfiguration(memory_limit=…)``, in units of 2^20 bytes."""
        return max(1, self.budget_bytes("tensorflow", compute_capability) // MIB)

    def jax_fraction(self, total_bytes: int) -> float:
        """Return the fraction of a device for ``XLA_CLIENT_MEM_FRACTION``, rounded down to millionths."""
        return min(1.0, _rounded_down(self.budget_bytes("jax") / parse_bytes(total_bytes, name="total_bytes")))

    def cupy_limit_bytes(self) -> int:
        """Return the limit for CuPy's memory pool, in bytes."""
        return self.budget_bytes("cupy")
