"""A worker's share of GPU memory, in the terms of each framework.

A framework limits its own allocator only. The device context, loaded kernels, library handles and communication
buffers come on top, so what it is told is the share less those: budget = share - overhead.
"""

from tune_policies.errors import MemoryLimitError
from tune_policies.resources import Bytes
from tune_policies.units import MIB, format_bytes
from tune_policies.values import Value

from .overhead import TORCH_OVERHEAD_BYTES, tensorflow_overhead_bytes


class GpuMemoryLimit(Value):
    """The GPU memory that one process may use on each of its devices, everything included.

    Attributes:
        limit_bytes: The process's share of a device.
    """

    limit_bytes: Bytes

    def __init__(self, limit_bytes: int | str) -> None:
        super().__init__(limit_bytes=limit_bytes)

    def torch_fraction(self, total_bytes: int) -> float:
        """Return what ``torch.cuda.set_per_process_memory_fraction`` takes: a fraction of the device's total.

        Raises:
            MemoryLimitError: The share leaves nothing for tensors.
        """
        return min(1.0, self._budget("torch", TORCH_OVERHEAD_BYTES) / total_bytes)

    def tensorflow_memory_limit_mb(self, compute_capability: tuple[int, int] | None = None) -> int:
        """Return what TensorFlow's ``LogicalDeviceConfiguration(memory_limit=…)`` takes, in units of 2^20 bytes.

        Args:
            compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.

        Raises:
            MemoryLimitError: The share leaves nothing for tensors.
        """
        overhead = tensorflow_overhead_bytes(compute_capability)
        return max(1, self._budget("tensorflow", overhead) // MIB)

    def _budget(self, framework: str, overhead: int) -> int:
        budget = self.limit_bytes - overhead
        if budget <= 0:
            raise MemoryLimitError(
                f"a share of {format_bytes(self.limit_bytes)} leaves nothing for tensors: {framework} uses up to "
                f"{format_bytes(overhead)} outside its allocator. Plan fewer trials a GPU"
            )
        return budget
