"""Detects whether the kernel killed a process because the host ran out of memory.

A killed process leaves no error, and Ray lists such a kill only as a possible cause. However, the kernel counts the
processes that it kills, so each process of a trial stores the kernel's count when it starts. If the count is higher
after the process has died, this module assumes that the kernel killed the process.

The stored counts ("notes") are in the GCS, because Ray has no public store that outlives a process. A note's key
contains the IDs of the node, actor and process, and the start time of the process.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.values.errors import RayVersionError

from .version import Gone

try:
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put
except ImportError as error:
    _internal_kv_del = _internal_kv_get = Gone(error, "detecting whether the kernel killed a process")
    _internal_kv_list = _internal_kv_put = Gone(error, "detecting whether the kernel killed a process")

_logger = logging.getLogger(__name__)

_KEY: Final = "tune-policies:kernel-kills:"
_TIMEOUT_S: Final = 10.0
_KEPT_DEAD: Final = 64
"""The number of notes of dead processes to keep per node. A note is only read after its process has died."""


def read_kernel_kills() -> int | None:
    """Return the kernel's count of processes that it killed for lack of memory, or ``None`` if no count exists."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def note_kernel_kills() -> None:
    """Store the kernel's count for this actor, if the caller runs in an actor and the kernel has a count."""
    if not ray.is_initialized():
        return
    count = read_kernel_kills()
    if count is None:
        return
    context = ray.get_runtime_context()
    actor_id = context.get_actor_id()
    if actor_id:
        notes_of_node = f"{_KEY}{context.get_node_id()}:"
        with suppress(RayError, RayVersionError):  # an error while storing the count must not fail a trial
            _internal_kv_put(f"{notes_of_node}{actor_id}:{os.getpid()}:{_started_at(os.getpid())}", str(count))
            _remove_old_notes(notes_of_node)


def _started_at(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or ``None`` if no process has this ID."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])  # field 22; the name in parentheses may contain spaces


@functools.cache  # run once in each process
def _remove_old_notes(notes_of_node: str) -> None:
    for key in old_notes(_internal_kv_list(notes_of_node), _started_at, _KEPT_DEAD):
        _internal_kv_del(key)


def old_notes(keys: Iterable[bytes], started_at: Callable[[int], int | None], kept: int) -> list[bytes]:
    """Return the keys of the notes of dead processes, except the notes of the ``kept`` processes that started last.

    ``started_at`` returns the start time of the process with an ID, or ``None`` if no process has this ID.
    """
    dead = []
    for key in keys:
        pid, start = map(int, key.split(b":")[-2:])
        if started_at(pid) != start:  # another process may have the ID now
            dead.append((start, key))
    # ``max`` prevents a negative index, which would count from the end.
    return [key for _, key in sorted(dead)[: max(0, len(dead) - kept)]]


def was_killed_by_kernel(error: object) -> bool:
    """Return whether ``error`` reports the death of an actor, or a worker of Ray Train, that the kernel killed.

    The function reads the count on the actor's node, which may take seconds. If no count is stored for the actor, it
    returns ``False``.
    """
    from .gcs import dead_actors  # imported here, because processes of trials import this module but do not need `gcs`

    try:
        return any(map(_is_killed, dead_actors(error)))
    except RayVersionError as problem:
        _logger.warning(
            "could not determine whether the kernel killed a process, so Tune handles the failure: %s", problem
        )
        return False


def _is_killed(actor_id: str) -> bool:
    from .gcs import node_of_actor

    node_id = node_of_actor(actor_id)
    keys = [] if node_id is None else _internal_kv_list(f"{_KEY}{node_id}:{actor_id}:")
    noted = _internal_kv_get(keys[0]) if keys else None
    if not noted:
        return False
    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # No CPU is reserved, so that the task also starts on a busy node.
    task = ray.remote(num_cpus=0)(read_kernel_kills).options(scheduling_strategy=on_node, max_retries=0)
    try:
        count = ray.get(task.remote(), timeout=_TIMEOUT_S)
    except RayError as problem:  # for instance because the node is lost
        _logger.warning("the number of processes that the kernel killed could not be read: %s", problem)
        return False
    return count is not None and count > int(noted)
