"""Limits the frameworks of this process to its share of a GPU, and optionally the whole process by NVIDIA's MPS.

Imported frameworks are limited at once, and others at the end of their import.

MPS limits all memory of a process on a device, including its context and libraries. CUDA reads the limit from variables
when it starts, and the limit only counts if an MPS daemon runs.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

import wrapt

from tune_policies.files.child_python import program_path
from tune_policies.probe.nvml import NvmlError, read_gpus
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import GIB, MIB

from .limit import PROCESS_ENVIRONMENT
from .limiters import (
    cupy_still_holds,
    jax_still_holds,
    limit_cupy,
    limit_jax,
    limit_tensorflow,
    limit_torch,
    tensorflow_still_holds,
    torch_still_holds,
)
from .overhead import NOTHING_MEASURED, Overheads
from .share import GpuShare, LimiterContext, LimitReport, SharedDevice, other_gpu_frameworks

MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

_MPS_LIMIT: Final = re.compile(r"(?<![\w-])([\w-]++)\s*+=\s*+(\d{1,15}+)\s*+([GgMm])")
"""The limit of one device. NVIDIA documents only the units G and M."""

_CONTROL: Final = "nvidia-cuda-mps-control"
_UNIFIED_MEMORY: Final = "/dev/nvidia-uvm"
"""CUDA opens this device when it starts in a process, but NVML does not."""


def isolate_by_mps(context: LimiterContext) -> None:
    """Let MPS limit this process too, or report why it does not."""
    reason = ask_mps_daemon()
    if reason is None:
        try:
            total_bytes, _ = context.read_device()
            reason = start_mps(context.share.fraction, context.share.bytes_of(total_bytes))
        except MemoryLimitError as error:
            reason = str(error)
    if reason is None:
        context.report.isolation = "mps"
    else:
        context.report.warn(f"MPS does not limit this process, only its frameworks' own limits do: {reason}")


def start_mps(fraction: float, memory_bytes: int) -> str | None:
    """Set the variables of MPS for this process, or return why this is not possible.

    A thread percentage that the user has set stays, and so does a smaller memory limit.
    """
    own = PROCESS_ENVIRONMENT.of_user()
    device = _visible_device()
    own_bytes = mps_own_limit(own.get(MEMORY_VARIABLE, ""), device)
    variables = mps_variables(fraction, min(memory_bytes, own_bytes or memory_bytes), device)
    variables[THREADS_VARIABLE] = own.get(THREADS_VARIABLE) or variables[THREADS_VARIABLE]
    if cuda_has_started():
        # They are equal if the previous trial in this process had the same share.
        is_set = all(os.environ.get(name) == value for name, value in variables.items())
        return None if is_set else "CUDA has started in this process already"
    PROCESS_ENVIRONMENT.write(variables)
    return None


def mps_variables(fraction: float, memory_bytes: int, device: str) -> dict[str, str]:
    """Return the variables of MPS for a client; ``device`` is a number or UUID of CUDA.

    The memory is the whole share, because MPS counts all memory. A client gets twice its share of threads, as NVIDIA
    recommends (100 % / 0.5 n for n clients), because the threads of idle clients would otherwise stay unused.
    """
    percentage = min(100, max(1, round(200 * fraction)))
    return {MEMORY_VARIABLE: f"{device}={max(1, memory_bytes // MIB)}M", THREADS_VARIABLE: str(percentage)}


def mps_own_limit(text: str, device: str) -> int | None:
    """Return the limit in bytes that the user has set for the visible device, or ``None`` if it cannot be read.

    ``text`` is the variable of MPS, such as ``"0=1G,1=512M"``. The number of the visible device is 0.
    """
    limits = [
        int(amount) * (GIB if unit.upper() == "G" else MIB)
        for name, amount, unit in _MPS_LIMIT.findall(text)
        if name in (device, "0")
    ]
    return min(limits, default=None)


def ask_mps_daemon(*, timeout_s: float = 5.0) -> str | None:
    """Return why no MPS daemon answers on this machine, or ``None`` if one does.

    ``CUDA_MPS_PIPE_DIRECTORY`` says where it listens, as for CUDA.
    """
    program = program_path(_CONTROL)
    if program is None:
        return f"{_CONTROL} is not installed"
    try:
        # The answer lists the servers and may be empty. It is not read, so a child that keeps a pipe open cannot block.
        done = subprocess.run(  # noqa: S603 - the command is a constant
            [program],
            input=b"get_server_list\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the MPS daemon did not answer within {timeout_s:g} s"
    except OSError as error:
        return f"{_CONTROL} cannot be run: {error}"
    return None if done.returncode == 0 else "no MPS daemon answers: start one with nvidia-cuda-mps-control -d"


def cuda_has_started(open_files: Path = Path("/proc/self/fd")) -> bool:
    """Return whether CUDA has started in this process. Without ``/proc``, return ``False``."""

    def leads_there(link: Path) -> bool:
        try:
            return str(link.readlink()) == _UNIFIED_MEMORY
        except OSError:  # closed since the folder was listed
            return False

    return open_files.is_dir() and any(leads_there(link) for link in open_files.iterdir())


def is_mig() -> bool:
    """Return whether the visible device is known to be a MIG device."""
    return _visible_device().startswith("MIG-")


def _visible_device() -> str:
    """Return the UUID of the visible device, or its number under ``CUDA_VISIBLE_DEVICES``."""
    try:
        uuids = [gpu["uuid"] for gpu in read_gpus()]
    except NvmlError:
        uuids = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return uuids[0] if uuids and uuids[0].startswith(("GPU-", "MIG-")) else "0"


_LIMITERS: Final[dict[str, Callable[[Any, LimiterContext], bool]]] = {
    "torch": limit_torch,
    "torch_npu": lambda _, context: limit_torch(sys.modules["torch"], context),  # adds NPUs to PyTorch
    "tensorflow": limit_tensorflow,
    "jax": limit_jax,
    "cupy": limit_cupy,
}

_STILL_HOLDS: Final[dict[str, Callable[[Any, int], bool]]] = {
    "torch": torch_still_holds,
    "tensorflow": tensorflow_still_holds,
    "jax": jax_still_holds,
    "cupy": cupy_still_holds,
}
"""Whether the limit in bytes is still in force, by framework."""

_MUST_SEE: Final[dict[SharedDevice, tuple[str, ...]]] = {"GPU": ("torch", "tensorflow"), "NPU": ("torch_npu",)}
"""Frameworks that must see the device. Others may only be imported by them, as JAX is by TensorFlow."""

_NOT_ENFORCEABLE: Final = {
    "numba.cuda": "numba",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "habana_frameworks": "habana",
}
"""Modules that may use GPU memory without any limit, and the names under which they are reported."""


@dataclass
class _ProcessLimits:
    """The limits of this process for one trial, and the frameworks to which they apply.

    Attributes:
        report: What limits the process.
        context: What the limiters need, or ``None`` if the process has whole devices.
        with_gpu: Imported frameworks that see the device, and are limited.
        without_gpu: The warnings about imported frameworks that see no device, by framework.
        refusal: Why a framework could not be limited. User code or a library may have caught the error.
    """

    report: LimitReport
    context: LimiterContext | None = None
    with_gpu: set[str] = field(default_factory=set)
    without_gpu: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None

    def apply_to(self, modules: Iterable[str]) -> None:
        """Limit imported frameworks to the share, and report those that have no limit.

        Raises:
            MemoryLimitError: A framework cannot be limited, or none can see the device.
        """
        if self.context is None:
            return
        names = [name for name in modules if name in sys.modules]
        frameworks = [name for name in names if name in _LIMITERS]
        for name in frameworks:
            self._limit(name, self.context)
        self._require_visible_device(frameworks, self.context, may_come=True)
        for name in dict.fromkeys(_NOT_ENFORCEABLE[name] for name in names if name in _NOT_ENFORCEABLE):
            if name not in self.report.not_enforceable:
                self.report.not_enforceable.append(name)

    def require(self) -> None:
        """Raise a ``MemoryLimitError`` if a limit was refused, or no imported framework sees the device."""
        if self.refusal is not None:
            raise MemoryLimitError(self.refusal)
        if self.context is not None:
            self._require_visible_device(sorted(self.without_gpu), self.context, may_come=False)

    def recheck(self) -> None:
        """Remove limits that were lifted or replaced from the report, and warn about them."""
        for name, limit_bytes in list(self.report.limit_bytes.items()):
            try:
                still_holds = _STILL_HOLDS[name](sys.modules[name], limit_bytes)
            except Exception:  # noqa: BLE001, S112 - after some errors, all calls of a device raise
                continue
            if not still_holds:
                self.report.release(name)
                self.report.warn(f"the limit of {name} was lifted or replaced after it was set, so it no longer holds")

    def _limit(self, name: str, context: LimiterContext) -> None:
        try:
            sees_device = _LIMITERS[name](sys.modules[name], context)
        except MemoryLimitError as error:
            self.refusal = str(error)
            self.report.warn(self.refusal)
            raise
        if not sees_device:
            self.without_gpu[name] = f"{name} sees no {context.share.device}"
            if not self.with_gpu:
                self.report.warn(self.without_gpu[name])
            return
        self.with_gpu.add(name.removesuffix("_npu"))
        # The framework in use sees the device, so frameworks that it has imported need not see it.
        blind = self.without_gpu.values()
        self.report.warnings = [text for text in self.report.warnings if text not in blind]
        if len(self.with_gpu) > 1:
            self.report.warn(
                f"{' and '.join(sorted(self.with_gpu))} are each held to the share, but together they may take more"
            )

    def _require_visible_device(self, names: Iterable[str], context: LimiterContext, *, may_come: bool) -> None:
        """Declare the limit void if no imported framework sees the device, and one of ``names`` must see it.

        ``may_come`` says whether a framework that is still to be imported may see it.
        """
        device = context.share.device
        missing = [name for name in names if name in self.without_gpu and name in _MUST_SEE[device]]
        if self.with_gpu or not missing or (may_come and device == "GPU" and other_gpu_frameworks(self.without_gpu)):
            return
        context.void(
            f"Ray gave this process a share of a {device}, but {missing[0]} sees no {device}, so nothing can hold it "
            "to its share",
            f": install a {missing[0]} that is built for the {device} and its driver, or plan with CpuPolicy",
        )


_limits: _ProcessLimits | None = None
"""The limits of the current trial, or ``None`` if no plan was applied to this process."""


def current_limit_report() -> LimitReport | None:
    """Return the limits of this process as they were set, or ``None`` if no plan was applied to it."""
    return None if _limits is None else _limits.report


def rechecked_limit_report() -> LimitReport | None:
    """Return the limits of this process that still hold, or ``None`` if no plan was applied to it."""
    if _limits is not None:
        _limits.recheck()
    return current_limit_report()


def require_limit() -> None:
    """Require at each result that this process is limited to its share.

    Raises:
        MemoryLimitError: A limit was refused, or no imported framework sees the GPU.
    """
    if _limits is not None:
        _limits.require()


def note_whole_devices() -> LimitReport:
    """Report that this process now has whole devices. Limits of an earlier trial in the process stay.

    A MIG device is a whole device, and its GPU limits the process to it.
    """
    global _limits
    _limits = _ProcessLimits(LimitReport(isolation="mig" if is_mig() else None))
    return _limits.report


def enforce(
    share: GpuShare,
    *,
    overheads: Overheads = NOTHING_MEASURED,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
) -> LimitReport:
    """Limit each framework of this process to ``share``, now or when it is imported.

    A framework that sees no GPU is acceptable if another framework sees it, or may see it once it is imported.
    Otherwise the limit is void. A later call, for the next trial in the process, replaces the limits.

    ``isolation="mps"`` also limits the process by NVIDIA's MPS daemon, if one answers. ``on_void_limit`` says whether a
    limit that cannot hold raises, or adds a warning to the report. Imports of frameworks add to the report.

    Raises:
        MemoryLimitError: The limit cannot be applied. The import of a framework may raise it later.
    """
    global _limits
    report = LimitReport(share_bytes=share.memory_bytes)
    context = LimiterContext(share, overheads, on_void_limit, report)
    _limits = _ProcessLimits(report, context)
    if isolation == "mps":  # before CUDA starts
        isolate_by_mps(context)
    _limits.apply_to([*_LIMITERS, *_NOT_ENFORCEABLE])
    _watch_imports()
    return report


@functools.cache  # a hook stays for the life of the process
def _watch_imports() -> None:
    for name in (_LIMITERS.keys() | _NOT_ENFORCEABLE.keys()) - sys.modules.keys():
        wrapt.register_post_import_hook(_limit_imported, name)


def _limit_imported(module: ModuleType) -> None:
    if _limits is not None:
        _limits.apply_to([module.__name__])
