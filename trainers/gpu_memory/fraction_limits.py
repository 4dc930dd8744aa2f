"""The GPU fraction of a process, and the memory limits of the process while it runs a trial."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from pydantic import Field

from tune_policies.probe.node_facts import are_gpus_simulated
from tune_policies.probe.nvml import NvmlError, read_gpus
from tune_policies.values.errors import MemoryLimitError, UnenforcedLimitError
from tune_policies.values.resources import TICKS, Bytes, UsedBytes, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

from .framework_overhead import NOTHING_MEASURED, Assumption, Overheads, OverheadSource
from .framework_settings import GpuMemoryLimit, OwnEnvironment

SharedDevice = Literal["GPU", "NPU"]
"""Ray resources that can be divided into fractions, and whose memory limits can be enforced."""


_CONTINUE: Final = (
    'Pass on_unenforced_limit="warn" to run, tuner, applied, PolicyScheduler or the builder of the trainer to continue '
    "without the limit (in tune-policies exec: --on-unenforced-limit=warn)"
)


class GpuShare(Value):
    """The fraction of a device that Ray assigned to this process.

    Attributes:
        fraction: The fraction as rounded by Ray. Values of 1 and above are whole devices, which have no limit.
        memory_bytes: The planned memory of the fraction in bytes. With ``None``, the memory is ``fraction`` of the
            device's memory.
        overhead_bytes: The planned memory outside the frameworks' allocators in bytes, or ``None`` if the process
            determines the overhead itself.
        measured_with: The versions of the frameworks with which the overhead was measured, keyed by framework name.
        device: Ray's name for the resource.
    """

    fraction: float
    memory_bytes: Bytes | None = None
    overhead_bytes: UsedBytes | None = None
    measured_with: dict[str, str] = Field(default_factory=dict)
    device: SharedDevice = "GPU"

    @property
    def is_whole(self) -> bool:
        """Whether the process has whole devices, which it does not share with other processes."""
        return self.fraction >= 1

    def bytes_of(self, total_bytes: int) -> int:
        """Return the memory of the fraction in bytes. The result is smaller than planned if the device is smaller."""
        num_parts = TICKS // to_ticks(self.fraction)  # Ray rounds the fraction down
        # No part may be larger than 1/n of the device, so that n parts fit together.
        return min(self.memory_bytes or int(total_bytes * self.fraction), total_bytes // num_parts)


class LimitOptions(Value):
    """The options for limiting a process to its fraction of GPU memory.

    Attributes:
        isolation: ``"mps"`` also limits the process with NVIDIA's MPS daemon, if the daemon is running.
        on_unenforced_limit: Whether a limit that cannot be enforced raises an error, or adds a warning to the result.
        overheads: The measured memory that frameworks use outside their allocators.
    """

    isolation: Literal["mps"] | None = None
    on_unenforced_limit: Literal["raise", "warn"] = "raise"
    overheads: Overheads = NOTHING_MEASURED


_NO_OPTIONS: Final = LimitOptions()


@dataclass
class FractionLimits:
    """The memory limits of this process while it runs a trial. The import of a framework can add a limit.

    Attributes:
        share: The fraction of a device, or whole devices.
        options: The options for limiting the process.
        environment: The environment variables of the process.
        share_bytes: The fraction in bytes, or ``None`` until the size of the device is known.
        limit_bytes: The limit of each framework's allocator, in bytes.
        overheads: The memory outside each framework's allocator in bytes, and the source of this amount.
        overhead_is_of_process: Whether each overhead applies to the whole process, so that overheads are not added up.
        not_enforceable: Frameworks in use that have no limit.
        by_driver: ``"mps"`` or ``"mig"`` if the driver limits the whole process.
        seeing: Imported frameworks that detect the device, and are limited.
        blind: Imported modules that detect no device.
        refusal: The error about a framework that could not be limited, or ``None``. It is stored because user code or
            a library may have caught the error.
    """

    share: GpuShare
    options: LimitOptions = _NO_OPTIONS
    environment: OwnEnvironment = field(default_factory=OwnEnvironment)
    share_bytes: int | None = None
    limit_bytes: dict[str, int] = field(default_factory=dict)
    overheads: dict[str, tuple[int, OverheadSource]] = field(default_factory=dict)
    overhead_is_of_process: bool = False
    not_enforceable: list[str] = field(default_factory=list)
    by_driver: Literal["mps", "mig"] | None = None
    seeing: set[str] = field(default_factory=set)
    blind: list[str] = field(default_factory=list)
    refusal: MemoryLimitError | None = None
    _warnings: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.share.is_whole:
            # Without planned memory, the bytes follow when a framework reports the size of its device (``limit``).
            self.share_bytes = self.share.memory_bytes

    def note_not_enforceable(self, framework: str) -> None:
        """Record a framework in use that has no limit."""
        if framework not in self.not_enforceable:
            self.not_enforceable.append(framework)

    @property
    def isolation(self) -> Literal["mps", "mig", "framework"] | None:
        """The mechanism that limits the memory of this process, or ``None`` if no limit is set yet."""
        if self.by_driver is not None:
            return self.by_driver
        if self.limit_bytes:
            return "framework"
        return None

    @property
    def warnings(self) -> list[str]:
        """The warnings so far, including the reasons why limits are not enforced."""
        texts = [*self._warnings]
        if self.blind and not self.seeing and not self.has_simulated_gpu:
            # If another framework detects the device, this one may be imported only as a dependency.
            texts += [f"{name} detects no {self.share.device}" for name in self.blind]
        if len(self.seeing) > 1:
            names = " and ".join(sorted(self.seeing))
            texts.append(f"{names} are limited separately, so together they may use more than the GPU fraction")
        return texts

    def warn(self, message: str) -> None:
        """Add a warning, unless it was already added."""
        self._warnings[message] = None

    def overhead_of(self, frameworks: Iterable[str]) -> int:
        """Return the total overhead of these frameworks, in bytes."""
        amounts = [self.overheads[name][0] for name in frameworks if name in self.overheads]
        if self.overhead_is_of_process:
            return max(amounts, default=0)
        return sum(amounts)

    def limit(
        self,
        framework: str,
        version: str | None,
        *,
        total_bytes: int,
        gpu_model: str | None,
        compute_capability: tuple[int, int] | None = None,
    ) -> GpuMemoryLimit:
        """Return the limit of a framework on a device, and store its overhead."""
        overhead, source = self.options.overheads.bytes_for(gpu_model, framework, version, compute_capability)
        share = self.share.bytes_of(total_bytes)
        if self.share.overhead_bytes is not None:
            self.overhead_is_of_process = True
            largest = max(self.share.overhead_bytes, overhead)
            # If the profile was measured with this framework, a larger overhead would make the budget smaller than
            # measured. If the overhead is at least the whole fraction, importing an unused framework would fail.
            if self._was_measured(framework, version) or largest >= share:
                overhead, source = self.share.overhead_bytes, Assumption.PROFILE
            else:
                overhead = largest
        self.share_bytes = share
        self.overheads[framework] = overhead, source
        return GpuMemoryLimit(share, overhead_bytes={framework: overhead})

    def _was_measured(self, framework: str, version: str | None) -> bool:
        """Return ``False`` and warn if the plan was measured without this framework. Warn if the version differs."""
        measured_with = self.share.measured_with
        if not measured_with:  # the profile contains no versions
            return True
        with_version = measured_with.get(framework)
        if with_version is None:
            self.warn(
                f"the memory was measured without {framework}, which may need additional memory. Measure it again in "
                f"trials that use {framework}"
            )
        elif with_version != version:
            self.warn(
                f"the memory was measured with {framework} {with_version}, but {framework} {version} is installed and "
                "may need a different amount. Measure it again with the installed version"
            )
        return with_version is not None

    def check_allocated(self, framework: str, device: int, held_bytes: int, budget: int) -> None:
        """Raise a ``MemoryLimitError`` if a framework already uses more memory of a device than its budget."""
        if held_bytes > budget:
            raise MemoryLimitError(
                f"{framework} already uses {format_bytes(held_bytes)} of GPU {device}, which exceeds its budget of "
                f"{format_bytes(budget)}. Do not use the GPU before the trial starts"
            )

    def report_unenforced(self, message: str, hint: str = "") -> None:
        """Raise an ``UnenforcedLimitError``, or warn with ``on_unenforced_limit="warn"``.

        ``hint`` is appended only to the error.
        """
        if self.options.on_unenforced_limit == "raise":
            raise UnenforcedLimitError(f"{message}{hint}. {_CONTINUE}")
        self.warn(message)

    @cached_property
    def has_simulated_gpu(self) -> bool:
        """Whether the GPU of this process does not exist, because it was only declared."""
        return self.share.device == "GPU" and are_gpus_simulated()

    def read_device(self) -> tuple[int, str | None]:
        """Return the visible device's total memory in bytes and its model, without creating a CUDA context.

        If NVML cannot read the device, the total is derived from the plan, and the model is ``None``.

        Raises:
            MemoryLimitError: The total is unknown.
        """
        try:
            # The smallest device, because one limit must hold on all of them.
            device = min(read_gpus(), key=lambda gpu: gpu["memory_bytes"])
        except (NvmlError, ValueError) as error:  # no NVML, or no device
            if self.share.memory_bytes is not None:
                # Rounded up, because ``bytes_of`` divides the total and must not return less than planned.
                return int(self.share.memory_bytes / self.share.fraction) + 1, None
            raise MemoryLimitError(
                "the plan does not contain a worker's GPU memory, and the device cannot be read on this node: "
                f"{error}. Install nvidia-ml-py on nodes with NVIDIA GPUs. For other GPUs, list each device with its "
                "memory_bytes in the capacity. Then plan again"
            ) from error
        return device["memory_bytes"], device["name"]
