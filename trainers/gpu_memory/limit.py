"""A worker's share of GPU memory, in the terms of each framework: fractions, bytes, and environment variables.

A framework limits its own allocator only. The device context, loaded kernels, library handles and communication
buffers come on top: budget = share - overhead.

Variables are merged with what the user has set in them: an environment goes in, the variables to set come out.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from tune_policies.values.errors import InvalidResourcesError, MemoryLimitError
from tune_policies.values.resources import Bytes, UsedBytes
from tune_policies.values.units import MIB, format_bytes, parse_bytes
from tune_policies.values.value import Value, suggest

from .overhead import NOTHING_MEASURED


@dataclass
class OwnEnvironment:
    """This process's environment, of which some variables were written here.

    A process may serve several trials: what was written for the last one must not be taken for the user's own wish.
    """

    _written: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """What was there before, and what was written over it, by variable."""

    def of_user(self) -> dict[str, str]:
        """Return the environment as the user wants it; a variable that was changed since it was written is theirs."""
        environ = dict(os.environ)
        for name, (before, written) in self._written.items():
            if environ.get(name) == written:
                del environ[name]
                environ |= {} if before is None else {name: before}
        return environ

    def write(self, variables: Mapping[str, str]) -> None:
        """Write variables into this process's environment."""
        before = self.of_user()
        for name, value in variables.items():
            self._written[name] = (before.get(name), value)
        os.environ.update(variables)

    def is_as_written(self, name: str) -> bool:
        """Return whether a variable still has what was written here."""
        return name in self._written and os.environ.get(name) == self._written[name][1]


PROCESS_ENVIRONMENT = OwnEnvironment()
"""The one environment that a process has."""


_TORCH_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where PyTorch reads the settings of its allocator; the first that is set wins (``c10/core/AllocatorConfig``)."""
_TORCH_KEY: Final = "per_process_memory_fraction"
_TORCH_KNOWS_KEY: Final = (2, 10)
"""Before, PyTorch refuses the key as unrecognized, at its first call of CUDA."""

_JAX_VARIABLE: Final = "XLA_CLIENT_MEM_FRACTION"
_JAX_OLD_VARIABLE: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_KNOWS_VARIABLE: Final = (0, 4, 34)
"""The oldest JAX that is supported here; it and every one since reads both names, and refuses to read both at once."""
JAX_PREALLOCATE_VARIABLE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"
JAX_COLLECTIVE_VARIABLE: Final = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
_JAX_ALLOCATOR_VARIABLE: Final = "XLA_PYTHON_CLIENT_ALLOCATOR"
_JAX_LIMITED_ALLOCATORS: Final = ("default", "bfc")
"""Allocators that take the fraction for a limit. The platform's takes no fraction at all, CUDA's asynchronous one takes
it for what its pool keeps (``xla/pjrt/gpu``)."""
_JAX_UNIFIED_MEMORY_VARIABLE: Final = "TF_FORCE_UNIFIED_MEMORY"
"""With it, XLA takes a fraction below 1 for 1, and goes on in the host's memory."""
_JAX_LIMITING_OPTIONS: Final = ("memory_fraction", "allocator", "gpu_system_memory_size")
"""Options of JAX's client that go before its environment."""

CUPY_VARIABLE: Final = "CUPY_GPU_MEMORY_LIMIT"


def parse_version(text: str) -> tuple[int, ...]:
    """Return the release numbers of a version: ``(2, 13, 0)`` for ``"2.13.0+cu128"`` and ``"2.13.0a0"``."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def torch_variables(fraction: float, version: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return PyTorch's variable with ``fraction`` of a device's total in it; nothing before PyTorch 2.10."""
    if parse_version(version) < _TORCH_KNOWS_KEY:
        return {}
    name = next((name for name in _TORCH_VARIABLES if name in environ), _TORCH_VARIABLES[-1])
    settings = _torch_settings(environ.get(name, ""))
    own = _as_fraction(settings.get(_TORCH_KEY))
    settings[_TORCH_KEY] = f"{_rounded_down(min(fraction, own)):.6f}"
    return {name: ",".join(f"{key}:{value}" for key, value in settings.items())}


def torch_setting(key: str, environ: Mapping[str, str]) -> str | None:
    """Return what the user set for a key of PyTorch's allocator; ``None``: nothing."""
    name = next((name for name in _TORCH_VARIABLES if name in environ), None)
    return _torch_settings(environ[name]).get(key) if name else None


def torch_own_fraction(version: str, environ: Mapping[str, str]) -> float:
    """Return the fraction that the user set for PyTorch's allocator; 1: none, or a PyTorch that knows none."""
    known = parse_version(version) >= _TORCH_KNOWS_KEY
    return _as_fraction(torch_setting(_TORCH_KEY, environ)) if known else 1.0


def _torch_settings(text: str) -> dict[str, str]:
    # A value may be a list with commas of its own: roundup_power2_divisions:[256:1,512:2].
    parts = [part.strip() for part in re.findall(r"(?:\[[^\[\]]*+\]|[^,])++", text)]
    return {key.strip(): value.strip() for key, _, value in (part.partition(":") for part in parts if part)}


def jax_variables(fraction: float, version: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return JAX's variables with ``fraction`` of a device's total in them.

    Memory is taken as it is needed, up to the fraction, unless the user wants it at once.

    Raises:
        MemoryLimitError: ``environ`` has the old name of the variable and the new one, which JAX refuses.
    """
    if environ.get(_JAX_VARIABLE) and environ.get(_JAX_OLD_VARIABLE):
        raise MemoryLimitError(
            f"JAX refuses to start with both {_JAX_VARIABLE} and {_JAX_OLD_VARIABLE}: unset the second, the old name"
        )
    is_old = bool(environ.get(_JAX_OLD_VARIABLE)) or parse_version(version) < _JAX_KNOWS_VARIABLE
    name = _JAX_OLD_VARIABLE if is_old else _JAX_VARIABLE
    own = _as_fraction(environ.get(name))
    return {
        name: f"{_rounded_down(min(fraction, own)):.6f}",
        JAX_PREALLOCATE_VARIABLE: environ.get(JAX_PREALLOCATE_VARIABLE) or "false",
    }


def jax_fraction_variable(environ: Mapping[str, str]) -> str:
    """Return the name under which ``environ`` has JAX's fraction, or should have."""
    return _JAX_OLD_VARIABLE if environ.get(_JAX_OLD_VARIABLE) else _JAX_VARIABLE


def why_jax_is_void(environ: Mapping[str, str], client_options: str | Mapping[str, object] | None) -> str | None:
    """Return which setting turns JAX's limit into none, and the way out; ``None``: there is no such setting.

    Args:
        environ: The environment of the process.
        client_options: JAX's ``jax_pjrt_client_create_options``, as ``"key:value;key:value"`` or a mapping.
    """
    allocator = environ.get(_JAX_ALLOCATOR_VARIABLE, "default").lower()
    if allocator not in _JAX_LIMITED_ALLOCATORS:
        return f"{_JAX_ALLOCATOR_VARIABLE}={allocator} switches JAX's memory limit off: unset it"
    unified = environ.get(_JAX_UNIFIED_MEMORY_VARIABLE, "")
    if unified.lower() in ("1", "true"):
        return f"{_JAX_UNIFIED_MEMORY_VARIABLE}={unified} switches JAX's memory limit off: unset it"
    options = client_options or {}
    if isinstance(options, str):
        options = {option.partition(":")[0]: None for option in options.split(";")}
    overriding = [name for name in _JAX_LIMITING_OPTIONS if name in options]
    if overriding:
        return f"{overriding[0]} in jax_pjrt_client_create_options overrides JAX's memory limit: take it out"
    return None


def cupy_variables(limit_bytes: int, total_bytes: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return CuPy's variable with ``limit_bytes`` in it, or with the user's own limit where that is smaller."""
    return {CUPY_VARIABLE: str(min(limit_bytes, cupy_own_limit(total_bytes, environ) or limit_bytes))}


def cupy_own_limit(total_bytes: int, environ: Mapping[str, str]) -> int | None:
    """Return the limit that the user set for CuPy, in bytes; ``None``: none, or one that CuPy cannot read."""
    text = environ.get(CUPY_VARIABLE, "").strip()
    try:
        own = float(text[:-1]) / 100 * total_bytes if text.endswith("%") else int(text)
    except ValueError:
        return None
    return int(own) or None if math.isfinite(own) and own >= 0 else None  # CuPy takes 0 for no limit


def _as_fraction(text: str | None) -> float:
    try:
        fraction = float(text) if text else 1.0
    except ValueError:  # the framework itself says what is wrong with it
        return 1.0
    return fraction if 0 < fraction <= 1 else 1.0


def _rounded_down(fraction: float) -> float:
    return max(1, math.floor(round(fraction * 10**6, 3))) / 10**6


FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "cupy")
"""Those that can be limited."""


class GpuMemoryLimit(Value):
    """The GPU memory that one process may use on each of its devices, everything included.

    Every method raises a ``MemoryLimitError`` where the share leaves nothing for tensors, and an
    ``InvalidResourcesError`` where an amount of bytes is not above 0.

    Attributes:
        limit_bytes: The process's share of a device.
        overhead_bytes: What each framework uses outside its allocator, by its name, where it was measured; of the
            others the safe default is taken off.
    """

    limit_bytes: Bytes
    overhead_bytes: dict[str, UsedBytes] = Field(default_factory=dict)

    def __init__(self, limit_bytes: int | str, overhead_bytes: Mapping[str, int] | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes, overhead_bytes=dict(overhead_bytes or {}))

    def budget_bytes(self, framework: str, compute_capability: tuple[int, int] | None = None) -> int:
        """Return what the framework's allocator may hold.

        Args:
            framework: ``"torch"``, ``"tensorflow"``, ``"jax"`` or ``"cupy"``.
            compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.

        Raises:
            InvalidResourcesError: There is no limit for that framework.
        """
        if framework not in FRAMEWORKS:
            raise InvalidResourcesError(
                f"no limit is known for {framework!r}{suggest(framework, FRAMEWORKS)} ({', '.join(FRAMEWORKS)})"
            )
        overhead = self.overhead_bytes.get(framework)
        if overhead is None:
            overhead, _ = NOTHING_MEASURED.bytes_for(None, framework, None, compute_capability)
        if overhead >= self.limit_bytes:
            raise MemoryLimitError(
                f"a share of {format_bytes(self.limit_bytes)} leaves nothing for tensors: {framework} uses up to "
                f"{format_bytes(overhead)} outside its allocator. Plan fewer trials per GPU"
            )
        return self.limit_bytes - overhead

    def torch_fraction(self, total_bytes: int) -> float:
        """Return what ``set_per_process_memory_fraction`` takes in ``torch.cuda``, ``torch.xpu`` and ``torch.npu``.

        It is a fraction of the device's total.
        """
        return min(1.0, self.budget_bytes("torch") / parse_bytes(total_bytes, name="total_bytes"))

    def torch_mps_fraction(self, recommended_max_bytes: int) -> float:
        """Return what ``torch.mps.set_per_process_memory_fraction`` takes, above 0 and up to 2.

        It is a fraction of what Metal recommends, ``torch.mps.recommended_max_memory()``. Never 0, which Apple's
        back end takes for unlimited.
        """
        return min(2.0, self.budget_bytes("torch") / parse_bytes(recommended_max_bytes, name="recommended_max_bytes"))

    def tensorflow_memory_limit_mb(self, compute_capability: tuple[int, int] | None = None) -> int:
        """Return what TensorFlow's ``LogicalDeviceConfiguration(memory_limit=…)`` takes, in units of 2^20 bytes."""
        return max(1, self.budget_bytes("tensorflow", compute_capability) // MIB)

    def jax_fraction(self, total_bytes: int) -> float:
        """Return what ``XLA_CLIENT_MEM_FRACTION`` takes: a fraction of the device's total, in millionths."""
        total = parse_bytes(total_bytes, name="total_bytes")
        return min(1.0, max(1, math.floor(self.budget_bytes("jax") / total * 10**6)) / 10**6)

    def cupy_limit_bytes(self) -> int:
        """Return what CuPy's memory pool takes as its limit, in bytes."""
        return self.budget_bytes("cupy")

    def environment(self, versions: Mapping[str, str], total_bytes: int, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that limit a process which has not started its frameworks yet.

        What the user set already is kept: other settings in the same variable, and a limit of their own where it is
        smaller. PyTorch has such a variable on CUDA and ROCm from 2.10 on, TensorFlow has none: without it, a framework
        is limited by a call only.

        Args:
            versions: The frameworks that the process may use, by name, with their versions.
            total_bytes: The device's memory.
            environ: The environment that the process would have without them.

        Raises:
            InvalidResourcesError: There is no limit for one of the frameworks.
            MemoryLimitError: ``environ`` contradicts itself, or has a setting that turns the limit into none.
        """
        variables: dict[str, str] = {}
        total_bytes = parse_bytes(total_bytes, name="total_bytes")
        for framework, version in versions.items():
            budget = self.budget_bytes(framework)
            if not isinstance(version, str):
                raise InvalidResourcesError(
                    f"the version of {framework} must be a text such as '2.13.0', got {version!r}"
                )
            match framework:
                case "torch":
                    variables |= torch_variables(self.torch_fraction(total_bytes), version, environ)
                case "jax":
                    void = why_jax_is_void(environ, environ.get("JAX_PJRT_CLIENT_CREATE_OPTIONS"))
                    if void is not None:
                        raise MemoryLimitError(void)
                    variables |= jax_variables(self.jax_fraction(total_bytes), version, environ)
                case "cupy":
                    variables |= cupy_variables(budget, total_bytes, environ)
        return variables
