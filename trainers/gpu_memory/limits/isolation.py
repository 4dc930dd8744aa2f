"""Isolation that the device offers beside the frameworks' limits: NVIDIA's MPS, and MIG devices.

MPS limits all that a process takes of a device, its context and libraries included. It is set by variables that CUDA
reads when it starts, and only counts where a daemon of MPS runs.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tune_policies.probe.nvml import NvmlError, read_gpus
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import GIB, MIB

from .environment import PROCESS_ENVIRONMENT
from .share import LimiterContext

MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

_MPS_LIMIT: Final = re.compile(r"(?<![\w-])([\w-]++)\s*+=\s*+(\d{1,15}+)\s*+([GgMm])")
"""One device's limit; NVIDIA documents the units G and M only."""

_CONTROL: Final = "nvidia-cuda-mps-control"
_UNIFIED_MEMORY: Final = "/dev/nvidia-uvm"
"""CUDA opens this device when it starts in a process; NVML does not."""


def isolate_by_mps(context: LimiterContext) -> None:
    """Let MPS limit this process too, if a daemon answers; else report why it does not."""
    reason = ask_mps_daemon() or _start_on_device(context)
    if reason is None:
        context.report.isolation = "mps"
    else:
        context.report.warn(f"MPS does not hold this process, its frameworks' own limits do: {reason}")


def _start_on_device(context: LimiterContext) -> str | None:
    try:
        total_bytes, _ = context.read_device()
    except MemoryLimitError as error:
        return str(error)
    return start_mps(context.share.fraction, context.share.bytes_of(total_bytes))


def start_mps(fraction: float, memory_bytes: int) -> str | None:
    """Set MPS's variables for this process; return why they could not be set.

    A percentage of the threads that the user has chosen is kept, and a smaller limit of memory.

    Args:
        fraction: The process's share of the device.
        memory_bytes: The same in bytes.
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
    """Return MPS's variables for a client.

    The memory is the whole share: unlike a framework, MPS counts everything. Of the threads a client gets twice its
    share, as NVIDIA recommends (100 % / 0.5 n for n clients): with equal parts, those of an idle client stay unused.

    Args:
        fraction: The process's share of the device.
        memory_bytes: The same in bytes.
        device: The device as CUDA names it: its number or UUID.
    """
    percentage = min(100, max(1, round(200 * fraction)))
    return {MEMORY_VARIABLE: f"{device}={max(1, memory_bytes // MIB)}M", THREADS_VARIABLE: str(percentage)}


def mps_own_limit(text: str, device: str) -> int | None:
    """Return the limit in bytes that the user set for a device in MPS's variable; ``None``: none that can be read.

    Args:
        text: The variable, such as ``"0=1G,1=512M"``.
        device: The device as ``mps_variables`` takes it. It is the one visible device, so its number is 0.
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

    Args:
        timeout_s: How long the daemon may take to answer.
    """
    if shutil.which(_CONTROL) is None:
        return f"{_CONTROL} is not installed"
    try:
        # Its answer, the servers that run, may be empty: the daemon starts one for its first client. No pipe is read,
        # so nothing that it has started can hold this process up.
        done = subprocess.run(  # noqa: S603 - the command is a constant
            [_CONTROL],
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
    """Return whether CUDA has started in this process; ``False`` where the system does not tell.

    Args:
        open_files: The folder that has a link for every open file of the process.
    """

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
