"""GPU memory that outlives its trial: what this process still holds, and the processes that the trial has started."""

import contextlib
import os
import uuid
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tune_policies.probe.nvml import DeviceUse, NvmlError, bytes_of_process, read_device_use
from tune_policies.values.units import MIB, format_bytes

_MARK: Final = "TUNE_POLICIES_TRIAL"
"""The variable that marks the processes of a trial: they inherit it, and keep it when their parents have ended."""

_END_TIMEOUT_S: Final = 5.0
"""How long a process may take to end by itself once it is asked to."""

_HOST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Its inode on every Linux (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""

_SMALLEST_LEAK_BYTES: Final = 64 * MIB
"""Below it, what is left are workspaces that libraries keep, such as cuBLAS's."""


def is_too_much_to_keep(left_over_bytes: int, share_bytes: int | None) -> bool:
    """Return whether an earlier trial left so much that the process should end: more than a 20th of the share."""
    return left_over_bytes > max(_SMALLEST_LEAK_BYTES, (share_bytes or 0) // 20)


def mark_processes() -> None:
    """Let each process that the trial starts from now on be known as its own, whoever its parent is."""
    os.environ[_MARK] = uuid.uuid4().hex


def end_gpu_processes() -> list[str]:
    """End the processes that the trial has started and that hold GPU memory.

    Those are this process's children, and those of this user that carry its mark.

    Returns:
        What was ended, a sentence each; each is a warning, too.
    """
    mark = os.environ.get(_MARK)
    if mark is None:
        return []  # no trial in this process had a device: what it started sees none either
    children = {child.pid: child for child in _psutil().Process().children(recursive=True)}
    try:
        devices = read_device_use()
    except NvmlError:
        return []  # nobody can tell which of them hold memory
    listed = {pid for device in devices for pid in device.bytes_by_process}
    if not _names_processes_as_here(listed):
        return []  # a number in the list may be that of a process here which holds nothing
    others = sorted(listed - {os.getpid()})
    holding = [children[pid] if pid in children else _marked(pid, mark) for pid in others]
    outliving = [process for process in holding if process is not None]
    messages = [_message(process.pid, devices) for process in outliving]
    for message in messages:
        warnings.warn(message, stacklevel=2)
    _end(outliving)
    return messages


def _names_processes_as_here(listed: set[int]) -> bool:
    """Return whether the driver's numbers are those of this namespace: in a container they may be the host's."""
    if os.getpid() in listed:
        return True
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def _marked(pid: int, mark: str) -> Any:
    """Return the process if it is this user's and carries the mark, else ``None``."""
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        is_own = process.username() == psutil.Process().username()
        return process if is_own and process.environ().get(_MARK) == mark else None
    except psutil.Error:  # it has ended, or is of no concern to this user
        return None


def _message(pid: int, devices: list[DeviceUse]) -> str:
    amount = bytes_of_process(devices, pid)
    text = format_bytes(amount) if amount is not None else "an unknown amount"
    return f"process {pid}, started by the trial, outlived it with {text} of GPU memory, and is ended"


def _end(processes: list[Any]) -> None:
    for ask in ("terminate", "kill"):
        for process in processes:
            with contextlib.suppress(_psutil().NoSuchProcess):  # it has ended
                getattr(process, ask)()
        _, processes = _psutil().wait_procs(processes, timeout=_END_TIMEOUT_S)


def _psutil() -> Any:
    import_module("ray")  # puts the psutil that it ships on the path
    return import_module("psutil")
