"""Warns about tasks that wait for resources because a run's placement groups have reserved them.

The resources of a Tune trial and of a Train worker are in a placement group. Tasks of Ray Data, and tasks with their
own scheduling strategy, run outside of all groups. If the groups reserve every CPU, these tasks wait until a trial
ends, or indefinitely if the trials wait for their data. Ray itself warns about tasks inside a trial's own group.

In a run of Tune, ``RunWatch`` reads the tasks. For Train without Tune, one thread in the driver reads them every two
seconds.
"""

import atexit
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import ray

from tune_policies.ray_compat.connection import is_through_client
from tune_policies.ray_compat.gcs import READ_TIMEOUT_S, ActorRecord, living_actors, read_demand
from tune_policies.values.errors import RayVersionError
from tune_policies.values.resources import amount_of, format_amount, to_ticks

Amounts = Mapping[str, float]
"""The resource amounts of a node or of a task's request, keyed by Ray's resource names."""

_GROUP: Final = re.compile(r"(.+)_group_([0-9a-f]{36})")
"""Matches a resource for all bundles of a placement group. Resources of single bundles have an index before the ID."""

_MIN_WAIT_S: Final = 5.0
"""The minimum wait of tasks before a warning, in seconds. Tasks may take a moment to start after a trial ends."""

_REPEAT_S: Final = 60.0
"""The interval between repeated warnings in seconds, as in Ray. Another run may have started since the last warning."""


def starved_requests(nodes: Sequence[Amounts], waiting: Iterable[Amounts], job_id: str) -> list[Amounts]:
    """Return the requests that wait for resources reserved by this program's placement groups.

    A request that fits on a node in addition to all placement groups is omitted, because its tasks start soon. A
    request that would not fit on any node even without this program's placement groups is also omitted, because it
    waits for other programs or for a new node.

    Args:
        nodes: The resources of each alive node, including resources of placement groups, but excluding resources that
            long-lived actors outside of placement groups use.
        waiting: The resource request of each kind of waiting task and actor.
        job_id: The program's Ray job ID in hexadecimal. The IDs of the program's placement groups end with this ID.
    """
    without_any, without_own = [], []
    for node in nodes:
        # Ray lists the resources of a placement group under names with its ID, in addition to the resources of the
        # node.
        beside_all = {name: to_ticks(amount) for name, amount in node.items() if "_group_" not in name}
        own = dict.fromkeys(beside_all, 0)
        for name, amount in node.items():
            group = _GROUP.fullmatch(name)
            if group is not None and group[1] in beside_all:
                beside_all[group[1]] -= to_ticks(amount)
                if group[2].endswith(job_id):
                    own[group[1]] += to_ticks(amount)
        without_any.append(beside_all)
        without_own.append({name: ticks + own[name] for name, ticks in beside_all.items()})
    starved = []
    for request in waiting:
        if any("_group_" in name for name in request):
            continue  # Ray itself warns about tasks in a trial's own group
        starts_soon = any(_has_room(node, request) for node in without_any)
        waits_for_own = any(_has_room(node, request) for node in without_own)
        if waits_for_own and not starts_soon:
            starved.append(request)
    return starved


def _has_room(ticks: Mapping[str, int], request: Amounts) -> bool:
    return all(ticks.get(name, 0) >= to_ticks(amount) for name, amount in request.items())


class StarvedTasks:
    """Tracks how long tasks have waited for reserved resources, and when the user was warned."""

    def __init__(self) -> None:
        self._since_s: dict[frozenset[tuple[str, float]], float] = {}
        self._warned_s: dict[frozenset[tuple[str, float]], float] = {}

    def read(self, starved: Iterable[Amounts], now_s: float, held: Amounts = MappingProxyType({})) -> list[str]:
        """Add a reading and return the warnings that are due, at most one per minute for each kind of task.

        ``held`` contains the resources of long-lived actors outside of placement groups. A plan must also leave these
        resources free.
        """
        kinds = {frozenset(request.items()): request for request in starved}
        # A kind that is missing in a reading has started, so its time begins again.
        self._since_s = {kind: self._since_s.get(kind, now_s) for kind in kinds}
        due = [kind for kind, since_s in self._since_s.items() if now_s - since_s >= _MIN_WAIT_S]
        new = [kind for kind in due if now_s - self._warned_s.get(kind, -_REPEAT_S) >= _REPEAT_S]
        self._warned_s.update(dict.fromkeys(new, now_s))
        return [_message(kinds[kind], now_s - self._since_s[kind], held) for kind in new]


def _message(request: Amounts, waited_s: float, held: Amounts) -> str:
    needs = ", ".join(amount_of(amount, name) for name, amount in sorted(request.items()))
    holders = "this program's trials and Train workers"
    users = "these tasks"
    actors = {name: amount for name, amount in held.items() if name in request and amount}
    if actors:
        beside = ", ".join(amount_of(amount, name) for name, amount in sorted(actors.items()))
        holders = f"long-lived actors and {holders}"
        users += f" and for the actors, which use {beside}"
    room = "".join(
        f", {name.lower()}s={format_amount(request[name] + actors.get(name, 0))}"
        for name in ("CPU", "GPU")
        if name in request
    )
    return (
        f"tasks that need {needs} have waited for {waited_s:.0f} s because {holders} have reserved these resources on "
        "every node. Tasks of Ray Data run outside the reservations of trials, so they wait until a trial ends, or "
        f"indefinitely if the trials wait for them. To leave room for {users}, plan with ReservingPolicy(policy{room})"
    )


_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 2.0
_WATCH_ON_S: Final = 600.0
"""The time in seconds for which the watch continues after the program's last placement group was removed.

New trials may be waiting for resources that other programs use.
"""
_JOIN_TIMEOUT_S: Final = 2.0

_lock = threading.Lock()
_watch: "_TaskWatch | None" = None


def watch_tasks() -> None:
    """Start watching for starved tasks of a Train run outside of Tune, or extend the running watch.

    This function does not wait.
    """
    global _watch
    with _lock:
        if _watch is None or not _watch.extend():
            _watch = _TaskWatch()
            _watch.start()


def _end_watch() -> None:
    """End the watch before the interpreter exits, because a thread that still runs Ray's code would cause an error."""
    if _watch is not None:
        _watch.stop.set()
        _watch.join(_JOIN_TIMEOUT_S)


atexit.register(_end_watch)


class _TaskWatch(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="tune-policies-task-watch", daemon=True)
        self.stop = threading.Event()
        self._needed_until_s = time.monotonic() + _WATCH_ON_S

    def extend(self) -> bool:
        """Extend the watch, and return whether it is still running."""
        self._needed_until_s = time.monotonic() + _WATCH_ON_S
        return self.is_alive() and not self.stop.is_set()

    def run(self) -> None:
        while not self.stop.wait(_INTERVAL_S):
            with _lock:
                if time.monotonic() > self._needed_until_s:
                    self.stop.set()
                    return
            if not ray.is_initialized() or is_through_client():  # the GCS cannot be reached through Ray Client
                continue
            try:
                if warn_about_tasks():
                    self._needed_until_s = time.monotonic() + _WATCH_ON_S
            except RayVersionError as error:
                _logger.warning("tasks that wait for the resources of trials are not detected: %s", error)
                return
            except Exception as error:  # noqa: BLE001  # Ray may be busy or shutting down, and this must not affect the run
                _logger.debug("the waiting tasks could not be read: %s", error)


_starved = StarvedTasks()
"""The readings of this program. A run of Tune and the thread share them, so that each warning is logged once."""


def warn_about_tasks(actors: Sequence[ActorRecord] | None = None) -> bool:
    """Log warnings about starved tasks, and return whether the program still has placement groups.

    Args:
        actors: The living actors of the cluster. By default, they are read if tasks wait.

    Raises:
        ProbeError: The cluster cannot be read in time.
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
        RayVersionError: This Ray version describes the cluster differently.
    """
    global _starved
    job_id = ray.get_runtime_context().get_job_id()
    demand = read_demand(READ_TIMEOUT_S)
    totals = demand.node_totals
    if not any(name.endswith(job_id) and "_group_" in name for node in totals.values() for name in node):
        _starved = StarvedTasks()  # warn again in the next run
        return False
    waiting = demand.waiting
    if demand.is_growing:  # the autoscaler is launching nodes for these requests
        waiting = ()
    held: Amounts = {}
    if waiting:
        if actors is None:
            actors = living_actors()
        held = _remove_actors_from(totals, job_id, actors)
    for text in _starved.read(starved_requests([*totals.values()], waiting, job_id), time.monotonic(), held):
        _logger.warning("%s", text)
    return True


def _remove_actors_from(
    node_totals: Mapping[str, dict[str, float]], job_id: str, actors: Iterable[ActorRecord]
) -> dict[str, float]:
    """Subtract the resources of long-lived actors outside of placement groups from the totals. Return their sum."""
    held: defaultdict[str, float] = defaultdict(float)
    for actor in actors:
        node = node_totals.get(actor.node_id, {})
        if not actor.group_id and actor.is_lasting(job_id):
            for name, amount in actor.resources.items():
                held[name] += amount
                node[name] = node.get(name, 0) - amount
    return held
