"""Reads the message of Ray's memory monitor, which kills workers when a node runs low on memory.

Since Ray 2.56, one message can list several killed workers, and each of their actors gets the same message. The monitor
measures each process alone. The memory of a trial's child processes is only in the list of the largest processes.
"""

import re
from typing import Final

from tune_policies.values.resources import Count, UsedBytes
from tune_policies.values.units import GIB
from tune_policies.values.value import Value

_USED: Final = re.compile(r"\bpid=(\d{1,10}),.{0,200}?memory used=(\d{1,9}(?:\.\d{0,9})?)GB")
_ACTOR: Final = re.compile(r"Actor\((\w{1,80})\)|actor ID: (\w{1,80})")
_NOT_SELECTED: Final = re.compile(r"\((?:Actor|Task)\b")
"""The beginning of the line of a worker that the monitor considered, but did not kill."""
_CONSIDERED: Final = "Considered workers: ["
_TOP_USERS: Final = re.compile(r"^(\d{1,10})\t(\d{1,9}\.\d{1,9})\t(.{0,200})", re.MULTILINE)
_IDLE_WORKER: Final = "ray::IDLE"


class KilledWorker(Value):
    """A worker that Ray's memory monitor killed.

    Attributes:
        actor_id: The hexadecimal ID of the worker's actor, or ``None`` for a task and for an actor that was starting.
        used_bytes: The memory of the process without its child processes, in bytes.
    """

    actor_id: str | None = None
    used_bytes: UsedBytes


class NodeProcess(Value):
    """One of the largest processes of a node, which is not one of Ray's workers.

    Attributes:
        pid: The process ID.
        used_bytes: The memory of the process, in bytes.
        command: The command line, which Ray shortens.
    """

    pid: Count
    used_bytes: UsedBytes
    command: str = ""


def killed_workers(text: str) -> tuple[KilledWorker, ...]:
    """Return the workers that Ray's memory monitor killed according to its message ``text``."""
    killed = []
    for line in text.splitlines():
        used = _USED.search(line)
        if used is None or _NOT_SELECTED.match(line):
            continue
        actor = _ACTOR.search(line)
        actor_id = (actor[1] or actor[2]) if actor else None
        killed.append(KilledWorker(actor_id=actor_id, used_bytes=_to_bytes(used[2])))
    return tuple(killed)


def other_processes(text: str) -> tuple[NodeProcess, ...]:
    """Return the largest processes of the node that are not Ray's workers, according to the message ``text``.

    The child processes of a trial are among them. Messages up to Ray 2.55 do not list the workers of the node, so the
    function returns no processes for them.
    """
    _, listed, rest = text.partition(_CONSIDERED)
    if not listed:
        return ()
    workers = {int(found[1]) for found in _USED.finditer(rest)}
    processes = []
    for found in _TOP_USERS.finditer(rest):
        pid, command = int(found[1]), found[3].strip()
        if pid not in workers and not command.startswith(_IDLE_WORKER):
            processes.append(NodeProcess(pid=pid, used_bytes=_to_bytes(found[2]), command=command))
    return tuple(processes)


def _to_bytes(amount: str) -> int:
    return int(float(amount) * GIB)  # Ray writes GB for 2^30 bytes
