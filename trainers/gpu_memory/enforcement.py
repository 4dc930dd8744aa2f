"""Limits the frameworks of this process to its share of a GPU, and lets NVIDIA's MPS hold it too.

Nobody names the framework: one that is imported already is limited at once, another at the end of its import.

MPS limits all that a process takes of a device, its context and libraries included. It is set by variables that CUDA
reads when it starts, and only counts where a daemon of MPS runs.
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
"""One device's limit; NVIDIA documents the units G and M only."""

_CONTROL: Final = "nvidia-cuda-mps-control"
_UNIFIED_MEMORY: Final = "/dev/nvidia-uvm"
"""CUDA opens this device when it starts in a process; NVML does not."""


def isolate_by_mps(context: LimiterContext) -> None:
    """Let MPS limit this process too, if a daemon answers; else report why it does not."""
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
    """Set MPS's variables for this process, which has ``fraction`` of a device; return why they could not be set.

    A percentage of the threads that the user has chosen is kept, and a smaller limit of memory.
    """
    own = PROCESS_ENVIRONMENT.of_user()
    device = _visible_device()
    own_bytes = mps_own_limit(own.get(MEMORY_VARIABLE, ""), device)
    variables = mps_variables(fraction, min(memory_bytes, own_bytes or memory_bytes), device)
    variables[THREADS_VARIABLE] = own.get(THREADS_VARIABLE) or variables[THREADS_VARIABLE]
    if cuda_has_started():
        # Equal where the trial before this one, in the same process, had the same share.
        is_set = all(os.environ.get(name) == value for name, value in variables.items())
        return None if is_set else "CUDA has started in this process already"
    PROCESS_ENVIRONMENT.write(variables)
    return None


def mps_variables(fraction: float, memory_bytes: int, device: str) -> dict[str, str]:
    """Return MPS's variables for a client; ``device`` is its number or UUID, as CUDA names it.

    The memory is the whole share: unlike a framework, MPS counts everything. Of the threads a client gets twice its
    share, as NVIDIA recommends (100 % / 0.5 n for n clients): with equal parts, those of an idle client stay unused.
    """
    percentage = min(100, max(1, round(200 * fraction)))
    return {MEMORY_VARIABLE: f"{device}={max(1, memory_bytes // MIB)}M", THREADS_VARIABLE: str(percentage)}


def mps_own_limit(text: str, device: str) -> int | None:
    """Return the limit in bytes that the user set for a device in MPS's variable, such as ``"0=1G,1=512M"``.

    ``None``: none that can be read. The device is the one that is visible, so its number is 0.
    """
    limits = [
        int(amount) * (GIB if unit.upper() == "G" else MIB)
        for name, amount, unit in _MPS_LIMIT.findall(text)
        if name in (device, "0")
    ]
    return min(limits, default=None)


def ask_mps_daemon(*, timeout_s: float = 5.0) -> str | None:
    """Return why no MPS daemon answers here; ``None``: one does.

    ``CUDA_MPS_PIPE_DIRECTORY`` says where it listens, as it does for CUDA itself.
    """
    program = program_path(_CONTROL)
    if program is None:
        return f"{_CONTROL} is not installed"
    try:
        # Its answer, the servers that run, may be empty: the daemon starts one for its first client. No pipe is read,
        # so nothing that it has started can hold this process up.
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
    """Return whether CUDA has started in this process; ``False`` where the system does not tell by its open files."""

    def leads_there(link: Path) -> bool:
        try:
            return str(link.readlink()) == _UNIFIED_MEMORY
        except OSError:  # closed since the folder was listed
            return False

    return open_files.is_dir() and any(leads_there(link) for link in open_files.iterdir())


def is_mig() -> bool:
    """Return whether the device that this process sees is a MIG device; ``False`` where nothing tells."""
    return _visible_device().startswith("MIG-")


def _visible_device() -> str:
    """Return the UUID of the one visible device, or its number after ``CUDA_VISIBLE_DEVICES``."""
    try:
        uuids = [gpu["uuid"] for gpu in read_gpus()]
    except NvmlError:
        uuids = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return uuids[0] if uuids and uuids[0].startswith(("GPU-", "MIG-")) else "0"


_LIMITERS: Final[dict[str, Callable[[Any, LimiterContext], bool]]] = {
    "torch": limit_torch,
    "torch_npu": lambda _, context: limit_torch(sys.modules["torch"], context),  # it gives PyTorch its NPUs
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
"""Whether the limit in bytes that was set is still in force, by framework."""

_MUST_SEE: Final[dict[SharedDevice, tuple[str, ...]]] = {"GPU": ("torch", "tensorflow"), "NPU": ("torch_npu",)}
"""Frameworks that must see the device. Others come along with them where they are installed (``import tensorflow``
imports JAX): that those see none says nothing about the framework in use."""

_NOT_ENFORCEABLE: Final = {
    "numba.cuda": "numba",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "habana_frameworks": "habana",
}
"""Modules whose users may take GPU memory without any limit, by the name under which they are reported."""


@dataclass
class _ActiveLimits:
    """The limits of this process, and the frameworks that have met them.

    Attributes:
        context: What the limiters work with.
        with_gpu: Imported frameworks that see the device; they are limited.
        without_gpu: Imported frameworks that see none.
        refusal: Why a framework could not be limited. The user's code, or a library, may have caught the error.
    """

    context: LimiterContext
    with_gpu: set[str] = field(default_factory=set)
    without_gpu: set[str] = field(default_factory=set)
    refusal: str | None = None

    def limit(self, name: str) -> None:
        """Limit an imported framework to the share, if it sees the device; or raise a ``MemoryLimitError``."""
        report = self.context.report
        try:
            sees_device = _LIMITERS[name](sys.modules[name], self.context)
        except MemoryLimitError as error:
            self.refusal = str(error)
            report.warn(self.refusal)
            raise
        if not sees_device:
            self.without_gpu.add(name)
            if not self.with_gpu:
                report.warn(f"{name} sees no {self.context.share.device}")
            return
        self.with_gpu.add(name.removesuffix("_npu"))
        # The framework in use sees the device: what it has brought along need not.
        report.warnings = [text for text in report.warnings if " sees no " not in text]
        if len(self.with_gpu) > 1:
            report.warn(
                f"{' and '.join(sorted(self.with_gpu))} are each held to the share, but together they may take more"
            )

    def require_visible_gpu(self, names: Iterable[str], *, may_come: bool) -> None:
        """Hold the limit void if none of ``names``, or of the other imported frameworks, sees the device.

        Args:
            names: The imported frameworks that are asked about.
            may_come: Whether a framework that is still to be imported may see it.
        """
        device = self.context.share.device
        missing = [name for name in names if name in self.without_gpu and name in _MUST_SEE[device]]
        if self.with_gpu or not missing or (may_come and device == "GPU" and other_gpu_frameworks(self.without_gpu)):
            return
        self.context.void(
            f"Ray gave this process a share of a {device}, but {missing[0]} sees no {device}, so nothing can hold it "
            "to its share",
            f": install a {missing[0]} that is built for the {device} and its driver, or plan with CpuPolicy",
        )

    def note(self, framework: str) -> None:
        """Report a framework in use that knows no limit."""
        if framework not in self.context.report.not_enforceable:
            self.context.report.not_enforceable.append(framework)


_active: _ActiveLimits | None = None
_report: LimitReport | None = None


def current_limit_report() -> LimitReport | None:
    """Return what limits this process, as it was set; ``None``: no plan was applied."""
    return _report


def rechecked_limit_report() -> LimitReport | None:
    """Return what still limits this process; ``None``: no plan was applied.

    A limit that was lifted or replaced since it was set leaves the report, with a warning there. Never raises.
    """
    report = _report
    if _active is None or report is None:
        return report
    for name, limit_bytes in list(report.limit_bytes.items()):
        try:
            still_holds = _STILL_HOLDS[name](sys.modules[name], limit_bytes)
        except Exception:  # noqa: BLE001, S112 - after some errors a device answers nothing but errors
            continue
        if not still_holds:
            report.release(name)
            report.warn(f"the limit of {name} was lifted or replaced after it was set, so it no longer holds")
    return report


def require_limit() -> None:
    """Refuse to go on if this process is not limited to its share; call it at each result.

    Raises:
        MemoryLimitError: A limit was refused, whoever caught the error, or none of the imported frameworks sees the
            GPU.
    """
    if _active is None:
        return
    if _active.refusal is not None:
        raise MemoryLimitError(_active.refusal)
    _active.require_visible_gpu(sorted(_active.without_gpu), may_come=False)


def note_whole_devices() -> LimitReport:
    """Report that this process has whole devices now, and no neighbour there.

    No framework is limited from now on; the limit of an earlier trial in the process stays. A MIG device is a whole
    one, to whose size its GPU holds the process.
    """
    global _active, _report
    _active = None
    _report = LimitReport(isolation="mig" if is_mig() else None)
    return _report


def enforce(
    share: GpuShare,
    *,
    overheads: Overheads = NOTHING_MEASURED,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
) -> LimitReport:
    """Limit every framework of this process to ``share``, now or when it is imported.

    Each framework is limited to the share by itself. A framework that sees no GPU uses no GPU memory: that is fine if
    another one sees it, or may see it once it is imported. If none can, the GPU that Ray gave is of no use, which makes
    the limit void. A later call, for the next trial in the same process, replaces this one.

    Args:
        share: What the process may use.
        overheads: What the frameworks use outside their allocators.
        isolation: ``"mps"``: also let NVIDIA's MPS daemon hold the process, where one answers.
        on_void_limit: What to do where a limit cannot hold: an error, or a warning in the result.

    Returns:
        What limits the process; imports of frameworks add to it.

    Raises:
        MemoryLimitError: The limit could not be applied. The import of a framework may raise it later.
    """
    global _active, _report
    report = _report = LimitReport(share_bytes=share.memory_bytes)
    active = _active = _ActiveLimits(LimiterContext(share, overheads, on_void_limit, report))
    if isolation == "mps":  # first of all: it must be there before CUDA starts
        isolate_by_mps(active.context)
    present = [name for name in _LIMITERS if name in sys.modules]
    for name in present:
        active.limit(name)
    active.require_visible_gpu(present, may_come=True)
    for module in _NOT_ENFORCEABLE.keys() & sys.modules.keys():
        active.note(_NOT_ENFORCEABLE[module])
    _watch_imports()
    return report


@functools.cache  # a hook stays for the life of the process
def _watch_imports() -> None:
    for name in _LIMITERS.keys() - sys.modules.keys():
        wrapt.register_post_import_hook(_limit_late, name)
    for name in _NOT_ENFORCEABLE.keys() - sys.modules.keys():
        wrapt.register_post_import_hook(_note_late, name)


def _limit_late(module: ModuleType) -> None:
    if _active is not None:
        _active.limit(module.__name__)
        _active.require_visible_gpu([module.__name__], may_come=True)


def _note_late(module: ModuleType) -> None:
    if _active is not None:
        _active.note(_NOT_ENFORCEABLE[module.__name__])
