"""A process's share of a GPU, the report of its limits, and what the limiters of all frameworks have in common."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from tune_policies.probe.nvml import NvmlError, are_gpus_hidden, read_gpus
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.resources import TICKS, Bytes, UsedBytes, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

from .limit import FRAMEWORKS, GpuMemoryLimit
from .overhead import NOTHING_MEASURED, Overheads

_AMD_DEVICE: Final = Path("/dev/kfd")


def other_gpu_frameworks(imported: Container[str]) -> list[str]:
    """Return the installed frameworks outside ``imported`` that may see this process's GPU.

    PyTorch and TensorFlow may be builds for the CPU, which only their import shows.
    """
    absent = [name for name in FRAMEWORKS if name not in imported and find_spec(name) is not None]
    if not absent or not _is_gpu_visible():
        return []
    return [name for name in absent if name != "jax" or has_gpu_plugin()]


def has_gpu_plugin() -> bool:
    """Return whether a GPU back end of JAX is installed."""
    return any(plugin.name.startswith(("xla_cuda", "xla_rocm")) for plugin in entry_points(group="jax_plugins"))


def _is_gpu_visible() -> bool:
    if are_gpus_hidden():
        return False
    try:
        return bool(read_gpus())
    except NvmlError:
        return _AMD_DEVICE.exists()


SharedDevice = Literal["GPU", "NPU"]
"""Ray's resources that can be shared in fractions and have a framework that can be limited."""


class GpuShare(Value):
    """This process's share of the device that Ray assigned to it.

    Attributes:
        fraction: The share as rounded by Ray, above 0 and below 1.
        memory_bytes: The share in the plan. If it is ``None``, the share is ``fraction`` of the device.
        overhead_bytes: The part of the share that the plan counts for memory outside the frameworks' allocators, or
            ``None`` if the process determines it.
        measured_with: The versions of the frameworks with which the overhead was measured, by name.
        device: Ray's name of the resource.
    """

    fraction: float
    memory_bytes: Bytes | None = None
    overhead_bytes: UsedBytes | None = None
    measured_with: dict[str, str] = Field(default_factory=dict)
    device: SharedDevice = "GPU"

    @property
    def num_parts(self) -> int:
        """The number of such shares in a device. Ray rounds its fraction down."""
        return TICKS // to_ticks(self.fraction)

    def bytes_of(self, total_bytes: int) -> int:
        """Return the share of a device in bytes. The device may be smaller than planned, and the share with it."""
        return min(self.memory_bytes or int(total_bytes * self.fraction), total_bytes // self.num_parts)


@dataclass
class LimitReport:
    """The limits of this process. Each import of a framework adds to them.

    Attributes:
        share_bytes: The share, or ``None`` until the size of the device is known.
        limit_bytes: The limit of each framework's allocator.
        overhead_bytes: The part of the share for memory outside each framework's allocator.
        overhead_is_of_process: Whether each overhead is that of the whole process, so that they must not be added.
        overhead_sources: The source of each overhead.
        not_enforceable: Frameworks in use that have no limit.
        isolation: ``"mps"``, ``"mig"`` or ``"framework"``, or ``None`` if nothing limits the process yet.
        warnings: Why a limit is void, if the user has accepted that, and other warnings.
    """

    share_bytes: int | None = None
    limit_bytes: dict[str, int] = field(default_factory=dict)
    overhead_bytes: dict[str, int] = field(default_factory=dict)
    overhead_is_of_process: bool = False
    overhead_sources: dict[str, str] = field(default_factory=dict)
    not_enforceable: list[str] = field(default_factory=list)
    isolation: str | None = None
    warnings: list[str] = field(default_factory=list)

    def overhead_of(self, frameworks: Iterable[str]) -> int:
        """Return the overhead of these frameworks together, in bytes."""
        amounts = [self.overhead_bytes.get(name, 0) for name in frameworks]
        return max(amounts, default=0) if self.overhead_is_of_process else sum(amounts)

    def warn(self, message: str) -> None:
        """Add a warning once."""
        if message not in self.warnings:
            self.warnings.append(message)

    def release(self, framework: str) -> None:
        """Report that a framework is no longer limited."""
        del self.limit_bytes[framework]
        if not self.limit_bytes and self.isolation == "framework":
            self.isolation = None


def started_too_early(what: str) -> MemoryLimitError:
    """Return the error of a framework that has read its limit when it started."""
    return MemoryLimitError(
        f"{what} has started, so its memory can no longer be limited: touch no GPU before the trial starts, and do not "
        "reuse actors"
    )


@dataclass(frozen=True)
class LimiterContext:
    """The input of a framework's limiter, and the report of its result."""

    share: GpuShare
    overheads: Overheads = NOTHING_MEASURED
    on_void_limit: Literal["raise", "warn"] = "raise"
    report: LimitReport = field(default_factory=LimitReport)

    def limit(
        self,
        framework: str,
        version: str | None,
        *,
        total_bytes: int,
        gpu_model: str | None,
        compute_capability: tuple[int, int] | None = None,
    ) -> GpuMemoryLimit:
        """Return the limit of a framework on a device, and report its overhead."""
        overhead, source = self.overheads.bytes_for(gpu_model, framework, version, compute_capability)
        share = self.share.bytes_of(total_bytes)
        if self.share.overhead_bytes is not None:
            self.report.overhead_is_of_process = True
            largest = max(self.share.overhead_bytes, overhead)
            # A larger overhead would shrink the budget below what was measured to fit. An import of a framework that
            # is not in use must not fail.
            if self._was_measured(framework, version) or largest >= share:
                overhead, source = self.share.overhead_bytes, "as the plan has counted by its profile"
            else:
                overhead = largest
        self.report.share_bytes = share
        self.report.overhead_bytes[framework] = overhead
        self.report.overhead_sources[framework] = source
        return GpuMemoryLimit(share, overhead_bytes={framework: overhead})

    def _was_measured(self, framework: str, version: str | None) -> bool:
        """Return whether the share may have been measured with this framework, and warn about another version."""
        measured_with = self.share.measured_with
        if not measured_with:  # not in the profile
            return True
        with_version = measured_with.get(framework)
        if with_version is None:
            self.report.warn(f"the share was measured without {framework}, which may need more: measure again")
        elif with_version != version:
            self.report.warn(
                f"the share was measured with {framework} {with_version}, and this is {version}, which may need more "
                "or less: measure again"
            )
        return with_version is not None

    def check_held(self, framework: str, device: int, held_bytes: int, budget: int) -> None:
        """Raise a ``MemoryLimitError`` if a framework already holds more memory of a device than its budget."""
        if held_bytes > budget:
            raise MemoryLimitError(
                f"{framework} already holds {format_bytes(held_bytes)} of GPU {device}, more than its budget of "
                f"{format_bytes(budget)}: put nothing on the GPU before the trial starts"
            )

    def note_limit(self, framework: str, limit_bytes: int) -> None:
        """Report that a framework is now limited."""
        self.report.limit_bytes[framework] = limit_bytes
        self.report.isolation = self.report.isolation or "framework"  # MPS limits more

    def void(self, message: str, hint: str = "") -> None:
        """Raise a ``MemoryLimitError`` because a limit cannot hold, or warn if the user has accepted that.

        ``hint`` is only part of the error.
        """
        if self.on_void_limit == "raise":
            raise MemoryLimitError(f'{message}{hint}. Pass on_void_limit="warn" to run without a limit that holds')
        self.report.warn(message)

    def read_device(self) -> tuple[int, str | None]:
        """Return the visible device's total memory in bytes and its model, without a CUDA context.

        If NVML cannot read it, the plan gives the total, and the model is ``None``.

        Raises:
            MemoryLimitError: The total is not known.
        """
        try:
            device = min(read_gpus(), key=lambda gpu: gpu["memory_bytes"])
        except (NvmlError, ValueError) as error:  # no NVML, or no device
            if self.share.memory_bytes is not None:
                return int(self.share.memory_bytes / self.share.fraction) + 1, None
            raise MemoryLimitError(
                "the plan does not state a worker's GPU memory, and the device cannot be read here: "
                f"{error}. Install nvidia-ml-py on a node with NVIDIA GPUs; for other GPUs, list each device with its "
                "memory_bytes in the capacity. Then plan again"
            ) from error
        return device["memory_bytes"], device["name"]
