"""A process's share of a GPU, the report of what limits it, and what the limiters of all frameworks do alike."""

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

    Only their import tells whether PyTorch and TensorFlow are builds for the CPU.
    """
    absent = [name for name in FRAMEWORKS if name not in imported and find_spec(name) is not None]
    if not absent or not _is_gpu_visible():
        return []
    return [name for name in absent if name != "jax" or has_gpu_plugin()]


def has_gpu_plugin() -> bool:
    """Return whether a back end of JAX for a GPU is installed."""
    return any(plugin.name.startswith(("xla_cuda", "xla_rocm")) for plugin in entry_points(group="jax_plugins"))


def _is_gpu_visible() -> bool:
    if are_gpus_hidden():
        return False
    try:
        return bool(read_gpus())
    except NvmlError:
        return _AMD_DEVICE.exists()


SharedDevice = Literal["GPU", "NPU"]
"""Ray's resources that are shared in fractions and have a framework that can be limited."""


class GpuShare(Value):
    """This process's share of the one device that Ray gave it.

    Attributes:
        fraction: The share as Ray has rounded it, above 0 and below 1.
        memory_bytes: The share as the plan states it; ``None``: ``fraction`` of the device decides.
        overhead_bytes: What of it the plan has counted for what is outside the frameworks' allocators; ``None``: the
            process finds out.
        measured_with: The frameworks' versions with which that was measured, by their names.
        device: Ray's name of the resource.
    """

    fraction: float
    memory_bytes: Bytes | None = None
    overhead_bytes: UsedBytes | None = None
    measured_with: dict[str, str] = Field(default_factory=dict)
    device: SharedDevice = "GPU"

    @property
    def num_parts(self) -> int:
        """Into how many parts like this one a device is divided. Ray's fraction is rounded down, so it is not exact."""
        return TICKS // to_ticks(self.fraction)

    def bytes_of(self, total_bytes: int) -> int:
        """Return the share of a device with that memory.

        The plan's bytes are an upper bound: this device may be smaller than the one that was planned for.
        """
        return min(self.memory_bytes or int(total_bytes * self.fraction), total_bytes // self.num_parts)


@dataclass
class LimitReport:
    """What limits this process to its share; each import of a framework adds to it.

    Attributes:
        share_bytes: The share; ``None`` until a device's size is known.
        limit_bytes: What each framework's allocator was limited to.
        overhead_bytes: What each framework's limit leaves for its use outside its allocator.
        overhead_is_of_process: Whether each of those is the whole process's, from a profile: they do not add up.
        overhead_sources: Where each overhead is from: measured, with on what and when, or the safe default.
        not_enforceable: Frameworks in use that know no limit.
        isolation: ``"mps"``, ``"mig"`` or ``"framework"``; ``None``: nothing holds the process yet.
        warnings: What voids a limit, where the user insisted, and what else a reader should know.
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
        """Return what the limits leave in all for these frameworks' use outside their allocators."""
        amounts = [self.overhead_bytes.get(name, 0) for name in frameworks]
        return max(amounts, default=0) if self.overhead_is_of_process else sum(amounts)

    def warn(self, message: str) -> None:
        """Add what a reader should know, once."""
        if message not in self.warnings:
            self.warnings.append(message)

    def release(self, framework: str) -> None:
        """Report that a framework is limited no more."""
        del self.limit_bytes[framework]
        if not self.limit_bytes and self.isolation == "framework":
            self.isolation = None


def started_too_early(what: str) -> MemoryLimitError:
    """Return the error of a framework whose limit is read once, as it starts."""
    return MemoryLimitError(
        f"{what} has started, so its memory can no longer be limited: touch no GPU before the trial starts, and do not "
        "reuse actors"
    )


@dataclass(frozen=True)
class LimiterContext:
    """What a framework's limiter works with: the share, the overheads, and the report of what it did."""

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
            beside = max(self.share.overhead_bytes, overhead)
            # A larger overhead than the profile's would shrink the budget below what was measured to fit. And the
            # import of a framework that a library only brings along must not fail.
            if self._was_measured(framework, version) or beside >= share:
                overhead, source = self.share.overhead_bytes, "as the plan has counted by its profile"
            else:
                overhead = beside
        self.report.share_bytes = share
        self.report.overhead_bytes[framework] = overhead
        self.report.overhead_sources[framework] = source
        return GpuMemoryLimit(share, overhead_bytes={framework: overhead})

    def _was_measured(self, framework: str, version: str | None) -> bool:
        """Return whether the share was measured with this framework, or may have been; warn of a difference."""
        measured_with = self.share.measured_with
        if not measured_with:  # the profile does not tell
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
        """Raise a ``MemoryLimitError`` if a framework already holds more of a device than it may."""
        if held_bytes > budget:
            raise MemoryLimitError(
                f"{framework} already holds {format_bytes(held_bytes)} of GPU {device}, more than its budget of "
                f"{format_bytes(budget)}: put nothing on the GPU before the trial starts"
            )

    def note_limit(self, framework: str, limit_bytes: int) -> None:
        """Report that a framework is limited to ``limit_bytes`` now."""
        self.report.limit_bytes[framework] = limit_bytes
        self.report.isolation = self.report.isolation or "framework"  # MPS, where it holds the process, holds more

    def void(self, message: str, way_out: str = "") -> None:
        """Refuse to go on where a limit cannot hold; if the user insists on it, only warn, and without the way out.

        Raises:
            MemoryLimitError: The user does not insist.
        """
        if self.on_void_limit == "raise":
            raise MemoryLimitError(f'{message}{way_out}. Pass on_void_limit="warn" to run without a limit that holds')
        self.report.warn(message)

    def read_device(self) -> tuple[int, str | None]:
        """Return the visible device's total memory in bytes and its model, by NVML and without a CUDA context.

        Without NVML the plan's own figures give the total, and the model is not known.

        Raises:
            MemoryLimitError: Neither says.
        """
        try:
            device = min(read_gpus(), key=lambda gpu: gpu["memory_bytes"])
        except (NvmlError, ValueError) as error:  # it cannot be read, or lists none
            if self.share.memory_bytes is not None:
                return int(self.share.memory_bytes / self.share.fraction) + 1, None
            raise MemoryLimitError(
                "the plan does not state a worker's GPU memory, and the device cannot be read here: "
                f"{error}. Install nvidia-ml-py on a node with NVIDIA GPUs; for other GPUs, list each device with its "
                "memory_bytes in the capacity. Then plan again"
            ) from error
        return device["memory_bytes"], device["name"]
