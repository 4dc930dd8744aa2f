"""A worker's share of GPU memory, in the terms of each framework.

A framework limits its own allocator only. The device context, loaded kernels, library handles and communication
buffers come on top: budget = share - overhead.
"""

import math
from collections.abc import Mapping
from typing import Final

from pydantic import Field

from tune_policies.values.errors import InvalidResourcesError, MemoryLimitError
from tune_policies.values.resources import Bytes, UsedBytes
from tune_policies.values.units import MIB, format_bytes, parse_bytes
from tune_policies.values.value import Value, suggest

from .environment import cupy_variables, jax_variables, torch_variables, why_jax_is_void
from .overhead import NOTHING_MEASURED

_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "cupy")


class GpuMemoryLimit(Value):
    """The GPU memory that one process may use on each of its devices, everything included.

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
            MemoryLimitError: The share leaves nothing for tensors.
        """
        if framework not in _FRAMEWORKS:
            raise InvalidResourcesError(
                f"no limit is known for {framework!r}{suggest(framework, _FRAMEWORKS)} ({', '.join(_FRAMEWORKS)})"
            )
        overhead = self.overhead_bytes.get(framework)
        if overhead is None:
            overhead, _ = NOTHING_MEASURED.bytes_for(None, framework, None, compute_capability)
        if overhead >= self.limit_bytes:
            raise MemoryLimitError(
                f"a share of {format_bytes(self.limit_bytes)} leaves nothing for tensors: {framework} uses up to "
                f"{format_bytes(overhead)} outside its allocator. Plan fewer trials a GPU"
            )
        return self.limit_bytes - overhead

    def torch_fraction(self, total_bytes: int) -> float:
        """Return what ``set_per_process_memory_fraction`` takes in ``torch.cuda``, ``torch.xpu`` and ``torch.npu``.

        It is a fraction of the device's total.

        Raises:
            InvalidResourcesError: ``total_bytes`` is not above 0.
            MemoryLimitError: The share leaves nothing for tensors.
        """
        return min(1.0, self.budget_bytes("torch") / parse_bytes(total_bytes, name="total_bytes"))

    def torch_mps_fraction(self, recommended_max_bytes: int) -> float:
        """Return what ``torch.mps.set_per_process_memory_fraction`` takes, above 0 and up to 2.

        It is a fraction of what Metal recommends, ``torch.mps.recommended_max_memory()``. Never 0, which Apple's
        back end takes for unlimited.

        Raises:
            InvalidResourcesError: ``recommended_max_bytes`` is not above 0.
            MemoryLimitError: The share leaves nothing for tensors.
        """
        return min(2.0, self.budget_bytes("torch") / parse_bytes(recommended_max_bytes, name="recommended_max_bytes"))

    def tensorflow_memory_limit_mb(self, compute_capability: tuple[int, int] | None = None) -> int:
        """Return what TensorFlow's ``LogicalDeviceConfiguration(memory_limit=…)`` takes, in units of 2^20 bytes.

        Args:
            compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.

        Raises:
            MemoryLimitError: The share leaves nothing for tensors.
        """
        return max(1, self.budget_bytes("tensorflow", compute_capability) // MIB)

    def jax_fraction(self, total_bytes: int) -> float:
        """Return what ``XLA_CLIENT_MEM_FRACTION`` takes: a fraction of the device's total, in millionths.

        Raises:
            InvalidResourcesError: ``total_bytes`` is not above 0.
            MemoryLimitError: The share leaves nothing for arrays.
        """
        total = parse_bytes(total_bytes, name="total_bytes")
        return min(1.0, max(1, math.floor(self.budget_bytes("jax") / total * 10**6)) / 10**6)

    def cupy_limit_bytes(self) -> int:
        """Return what CuPy's memory pool takes as its limit, in bytes.

        Raises:
            MemoryLimitError: The share leaves nothing for arrays.
        """
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
            InvalidResourcesError: There is no limit for one of the frameworks, or ``total_bytes`` is not above 0.
            MemoryLimitError: The share leaves nothing for tensors, or ``environ`` contradicts itself or has a setting
                that turns the limit into none.
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
