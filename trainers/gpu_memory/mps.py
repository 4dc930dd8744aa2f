"""Limits a whole process on a GPU with NVIDIA's MPS daemon, and detects MIG devices.

MPS limits all memory of a process, including its context and libraries. CUDA reads the limit from environment variables
when it starts. The limit has an effect only if an MPS daemon is running. A MIG device limits the process in hardware.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from tune_policies.files.child_python import program_path
from tune_policies.probe.nvml import NvmlError, read_gpus
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import GIB, MIB

from .fraction_limits import FractionLimits
from .framework_settings import OwnEnvironment

MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

_MPS_LIMIT: Final = re.compile(r"(?<![\w-])([\w-]++)\s*+=\s*+(\d{1,15}+)\s*+([GgMm])")
"""Matches the limit of one device, such as ``0=1G``. NVIDIA documents only the units G and M."""

_CONTROL: Final = "nvidia-cuda-mps-control"
_UNIFIED_MEMORY: Final = "/dev/nvidia-uvm"
"""CUDA opens this device when it starts in a process. NVML does not open it."""


def isolate_by_mps(limits: FractionLimits) -> None:
    """Limit this process with MPS, or add a warning with the reason why this is not possible."""
    reason = query_mps_daemon()
    if reason is None:
        try:
            total_bytes, _ = limits.read_device()
            reason = start_mps(limits.environment, limits.share.fraction, limits.share.bytes_of(total_bytes))
        except MemoryLimitError as error:
            reason = str(error)
    if reason is None:
        limits.by_driver = "mps"
    else:
        limits.warn(f"MPS does not limit this process, so only the limits of its frameworks apply: {reason}")


def start_mps(environment: OwnEnvironment, fraction: float, memory_bytes: int) -> str | None:
    """Set MPS's environment variables for this process. Return the reason why MPS cannot be used, or ``None``.

    The memory limit includes the overhead, because MPS counts all memory. A client gets twice its fraction of the
    threads, as NVIDIA recommends (100 % / 0.5 n for n clients), so that other clients can use the threads of idle
    clients. A thread percentage or a smaller memory limit that the user has set takes precedence.
    """
    own = environment.of_user()
    device = _visible_device()
    own_bytes = mps_own_limit(own.get(MEMORY_VARIABLE, ""), device)
    # Rounding down must not make the limit 0.
    limit_mib = max(1, min(memory_bytes, own_bytes or memory_bytes) // MIB)
    percentage = min(100, max(1, round(200 * fraction)))
    variables = {
        MEMORY_VARIABLE: f"{device}={limit_mib}M",
        THREADS_VARIABLE: own.get(THREADS_VARIABLE) or str(percentage),
    }
    if cuda_has_started():
        # If the previous trial in this process had the same fraction, the variables already have these values.
        if all(os.environ.get(name) == value for name, value in variables.items()):
            return None
        return "CUDA has already started in this process"
    environment.write(variables)
    return None


def mps_own_limit(text: str, device: str) -> int | None:
    """Return the user's own limit for the visible device in bytes, or ``None`` if it is missing or invalid.

    ``text`` is the value of the MPS variable, such as ``"0=1G,1=512M"``. The visible device has the number 0.
    """
    limits = []
    for name, amount, unit in _MPS_LIMIT.findall(text):
        if name in (device, "0"):
            unit_bytes = GIB if unit.upper() == "G" else MIB
            limits.append(int(amount) * unit_bytes)
    return min(limits, default=None)


def query_mps_daemon(*, timeout_s: float = 5.0) -> str | None:
    """Return the reason why no MPS daemon responds on this machine, or ``None`` if a daemon responds.

    Like CUDA, the command looks for the daemon in ``CUDA_MPS_PIPE_DIRECTORY``.
    """
    program = program_path(_CONTROL)
    if program is None:
        return f"{_CONTROL} is not installed"
    try:
        # The command's output is not read, because a child process that keeps the pipe open would block this call.
        done = subprocess.run(  # noqa: S603 - the command is a constant
            [program],
            input=b"get_server_list\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the MPS daemon did not respond within {timeout_s:g} s"
    except OSError as error:
        return f"{_CONTROL} cannot be run: {error}"
    if done.returncode != 0:
        return f"no MPS daemon responds. Start a daemon with {_CONTROL} -d"
    return None


def cuda_has_started(open_files: Path = Path("/proc/self/fd")) -> bool:
    """Return whether CUDA has started in this process. Without ``/proc``, return ``False``."""

    def is_device(link: Path) -> bool:
        try:
            return str(link.readlink()) == _UNIFIED_MEMORY
        except OSError:  # the file was closed after the folder was listed
            return False

    return open_files.is_dir() and any(is_device(link) for link in open_files.iterdir())


def is_mig() -> bool:
    """Return whether the visible device is known to be a MIG device."""
    return _visible_device().startswith("MIG-")


def _visible_device() -> str:
    """Return the UUID of the visible device, or its number ``"0"`` if the UUID is unknown."""
    try:
        uuids = [gpu["uuid"] for gpu in read_gpus()]
    except NvmlError:
        uuids = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if uuids and uuids[0].startswith(("GPU-", "MIG-")):
        return str(uuids[0])
    return "0"
