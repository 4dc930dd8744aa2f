"""The GPU memory that a framework uses outside its allocator: a measurement, or a safe default.

A framework's limit does not include the device context, loaded kernels, library handles and communication buffers.
Each user of a machine has one file with measurements.
"""

import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import UsedBytes
from tune_policies.values.value import Value

_LOCK_TIMEOUT_S: Final = 10.0
"""The time to wait while another process writes the file, in seconds. Writing takes much less time."""


class MeasuredOverhead(Value):
    """The measured overhead of a framework.

    Attributes:
        gpu_model: NVML's name for the GPU.
        framework: ``"torch"``, ``"tensorflow"``, ``"jax"`` or ``"cupy"``.
        measured_on: The day of the measurement, as ``YYYY-MM-DD``.
        how: ``"process"`` if NVML reported the memory of the process, or ``"device"`` if the change of the device's
            total memory use was measured.
    """

    gpu_model: str
    framework: str
    version: str
    overhead_bytes: UsedBytes
    measured_on: str
    how: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What was measured: the GPU model, the framework and its version."""
        return self.gpu_model, self.framework, self.version

    def __str__(self) -> str:
        return f"measured on {self.measured_on} ({self.gpu_model}, {self.framework} {self.version}, by {self.how})"


class Assumption(StrEnum):
    """The source of an overhead that was not measured on this device."""

    SAFE_DEFAULT = "safe default"
    PROFILE = "the profile of the plan"


OverheadSource = MeasuredOverhead | Assumption


class Overheads(Value):
    """The measured overheads of frameworks."""

    measured: tuple[MeasuredOverhead, ...] = ()

    def merged(self, newer: "Overheads") -> "Overheads":
        """Return all measurements. A newer measurement of a GPU model, framework and version replaces an older one."""
        by_key = {measured.key: measured for measured in (*self.measured, *newer.measured)}
        return Overheads(measured=tuple(by_key[key] for key in sorted(by_key)))

    def bytes_for(
        self,
        gpu_model: str | None,
        framework: str,
        version: str | None,
        compute_capability: tuple[int, int] | None = None,
    ) -> tuple[int, OverheadSource]:
        """Return the overhead in bytes, and its source (a measurement or the safe default).

        ``compute_capability`` is the compute capability of the device, such as ``(8, 0)``.
        """
        for measured in self.measured:
            if measured.key == (gpu_model, framework, version):
                return measured.overhead_bytes, measured
        return safe_overhead_bytes(framework, compute_capability), Assumption.SAFE_DEFAULT


NOTHING_MEASURED: Final = Overheads()
"""``Overheads`` without measurements. With this value, memory limits use the safe defaults."""


def load_overheads() -> Overheads:
    """Return the overheads that this user has measured on this machine.

    If the file is invalid, or another user can write to it, the file is ignored with a warning.
    """
    # Import here, because each trial process imports this module, but only the driver reads the file.
    from tune_policies.files.reading import UnreadableFileError, read_value

    try:
        return read_value(overheads_file(), Overheads, "record of overheads", by_others=False)
    except InvalidResourcesError as error:
        if isinstance(error, UnreadableFileError) and error.is_missing:
            return NOTHING_MEASURED
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"the measured overheads are ignored, and safe defaults are used: {reason}. Measure again with "
            "calibrate_gpu_overhead()",
            stacklevel=2,
        )
        return NOTHING_MEASURED


def save_overheads(overheads: Overheads) -> Overheads:
    """Add measurements to the file, and return all measurements in the file.

    Raises:
        InvalidResourcesError: The file cannot be written.
    """
    from tune_policies.files.writing import BusyFileError, locked, replace_file

    path = overheads_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidResourcesError(
            f"the folder {path.parent} cannot be created: {error.strerror}. Set TUNE_POLICIES_CACHE to another folder"
        ) from error
    with ExitStack() as stack:
        with suppress(BusyFileError):  # if the file stays locked, write anyway, to keep the new measurements
            stack.enter_context(locked(path, timeout_s=_LOCK_TIMEOUT_S))
        merged = load_overheads().merged(overheads)
        replace_file(path, merged.to_json(), is_private=True)
    return merged


def overheads_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file with measurements, in ``TUNE_POLICIES_CACHE`` or the user's cache folder.

    Raises:
        InvalidResourcesError: The user has no home directory, as in some containers.
    """
    own = environ.get("TUNE_POLICIES_CACHE")
    # The second choice follows the XDG Base Directory specification.
    folder = Path(own) if own else Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "tune-policies"
    try:
        return folder.expanduser() / "gpu-overheads.json"
    except RuntimeError as error:
        raise InvalidResourcesError(
            f"the folder {folder} requires the variable HOME, which is not set. Set HOME or TUNE_POLICIES_CACHE"
        ) from error
