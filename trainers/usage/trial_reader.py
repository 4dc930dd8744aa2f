"""Reads what the processes of a plain run's trials use, from outside, because these processes do not report it.

The processes are the actor of the trial and, if a trial reserves several bundles, all actors in its placement group.
Tasks of Ray are not counted. The processes on the driver's node are read in a thread of the driver. An actor without
resources reads those on each other node.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.probe import node_facts, nvml, process_facts
from tune_policies.ray_compat.background import BackgroundTask
from tune_policies.ray_compat.connection import sent_by_value
from tune_policies.ray_compat.gcs import living_actors

from .gpu_memory_records import GpuMemoryUsage
from .process_usage import ProcessUsage, mean_utilization

_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 10.0
"""The pause after the first failed reading, in seconds. It doubles with each further failure in a row."""
_LONGEST_PAUSE_S: Final = 300.0
_IS_STARTING_S: Final = 2.0
"""The CPU time of a process counts as its start if it is read within this time after its first trial began."""

_Process = tuple[str, int]
"""A node ID and a process ID."""


class _Read(NamedTuple):
    trial_id: str
    at_s: float
    facts: Mapping[str, Any]


class _ProcessReading(NamedTuple):
    usable_cpus: Mapping[str, float]
    load: float
    processes: Mapping[_Process, _Read]


class _Pause:
    """The pause after failed readings of a node, or of Ray's actors.

    Attributes:
        ends_s: The time at which the pause ends, in seconds.
    """

    def __init__(self) -> None:
        self.ends_s = 0.0
        self._pause_s = 0.0
        self._has_warned = False

    def fail(self, what: str, error: Exception) -> None:
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self.ends_s = time.monotonic() + self._pause_s
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("%s could not be read, and will be read again: %s", what, error)

    def succeed(self) -> None:
        self._pause_s = 0.0


class _Metered:
    """What the processes of one trial have used since their first readings."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self._first: dict[_Process, _Read] = {}
        self._last: dict[_Process, _Read] = {}
        self._peak_bytes = 0
        self._gpu_bytes = 0
        self._device_bytes: int | None = None
        self._utilization: list[float] = []

    def add(self, process: _Process, read: _Read) -> None:
        # A reused process has used CPU time for earlier trials, so only the difference counts.
        self._first.setdefault(process, read)
        self._last[process] = read

    def end_reading(self) -> None:
        """Update the peaks after all processes of the trial have been read."""
        # A process that has ended keeps its last reading, which is older than the others.
        latest = max(read.at_s for read in self._last.values())
        alive = [read.facts for read in self._last.values() if latest - read.at_s < _INTERVAL_S]
        self._peak_bytes = max(self._peak_bytes, sum(facts["host_bytes"] for facts in alive))
        self._gpu_bytes = max(self._gpu_bytes, sum(facts["gpu_bytes"] or 0 for facts in alive))
        devices = [facts["device_bytes"] for facts in alive if facts["device_bytes"]]
        self._device_bytes = min(devices, default=self._device_bytes)
        self._utilization += [facts["gpu_utilization"] for facts in alive if facts["gpu_utilization"] is not None]

    def usage(self, cpus: float) -> ProcessUsage:
        cpu_s = 0.0
        for process, last in self._last.items():
            cpu_s += last.facts["cpu_s"] - self._first[process].facts["cpu_s"]
        began_s = min(read.at_s for read in self._first.values())
        return ProcessUsage(
            elapsed_s=max(read.at_s for read in self._last.values()) - began_s,
            cpus=cpus,
            cpu_s=max(0.0, cpu_s),
            host_memory_bytes=self._peak_bytes,
            gpu_utilization=mean_utilization(self._utilization),
        )

    def gpu_memory(self, gpus: float) -> GpuMemoryUsage | None:
        if not self._gpu_bytes:
            return None
        return GpuMemoryUsage(gpus=gpus, device_bytes=self._device_bytes, process_bytes=self._gpu_bytes)


class TrialReader:
    """Reads the processes of running trials every second."""

    def __init__(self) -> None:
        self._reading: BackgroundTask[_ProcessReading] = BackgroundTask()
        self._next_s = 0.0
        self._readers: dict[str, Any] = {}
        self._pause = _Pause()
        self._pauses: defaultdict[str, _Pause] = defaultdict(_Pause)
        self._here = ray.get_runtime_context().get_node_id()
        self._metered: dict[str, _Metered] = {}
        self._started: set[_Process] = set()
        self._start_cpu_s: list[float] = []
        self._loads: list[float] = []
        self._usable_cpus: dict[str, float] = {}

    @property
    def usable_cpus(self) -> float | None:
        """The CPUs of the nodes with trials, or ``None`` if they are not known."""
        return sum(self._usable_cpus.values()) or None

    @property
    def load(self) -> float:
        """The mean number of processes on the nodes with trials that used or waited for a CPU."""
        if self._loads:
            return fmean(self._loads)
        return 0.0

    @property
    def start_cpu_s(self) -> float | None:
        """The CPU time that the start of a trial's process takes, in seconds, or ``None`` if it is not known."""
        if self._start_cpu_s:
            return median(self._start_cpu_s)
        return None

    def begin(self, trial_id: str) -> None:
        """Start metering a trial, in a new or a reused process."""
        self._metered[trial_id] = _Metered()

    def read(self, actors: Mapping[str, str]) -> set[str]:
        """Start a reading if one is due. Return the trials whose use was read since the last call.

        Args:
            actors: The ID of the actor of each running trial, by trial ID.
        """
        reading = self._reading.take()
        now_s = time.monotonic()
        if actors and now_s >= self._next_s and self._reading.start(partial(self._read, dict(actors))):
            self._next_s = now_s + _INTERVAL_S
        if reading is None:
            return set()
        if isinstance(reading, RayError | RuntimeError):  # Ray cannot be reached
            self._pause.fail("the actors of trials", reading)
            self._next_s = self._pause.ends_s
            return set()
        if isinstance(reading, Exception):
            # ``PolicyCallback`` logs the error, and then no longer reads the processes.
            raise reading
        self._pause.succeed()
        self._usable_cpus |= reading.usable_cpus
        self._loads.append(reading.load)
        seen = set()
        for process, read in reading.processes.items():
            metered = self._metered.get(read.trial_id)
            if metered is None or read.at_s < metered.began_s:
                continue  # the process still ran another trial
            # A reused process has started for an earlier trial, and a late first reading contains more than the start.
            if process not in self._started and now_s - metered.began_s < _IS_STARTING_S:
                self._start_cpu_s.append(read.facts["cpu_s"])
            self._started.add(process)
            metered.add(process, read)
            seen.add(read.trial_id)
        for trial_id in seen:
            self._metered[trial_id].end_reading()
        return seen

    def usage(self, trial_id: str, *, cpus: float, gpus: float) -> tuple[ProcessUsage, GpuMemoryUsage | None]:
        """Return the use of a trial that was read."""
        metered = self._metered[trial_id]
        return metered.usage(cpus), metered.gpu_memory(gpus)

    def _read(self, actors: Mapping[str, str]) -> _ProcessReading:
        records = living_actors()
        trial_of = {actor_id: trial_id for trial_id, actor_id in actors.items()}
        # Actors that a trial has started in its placement group count as a part of the trial.
        groups = {
            actor.group_id: trial_of[actor.actor_id]
            for actor in records
            if actor.actor_id in trial_of and actor.group_id
        }
        by_node: dict[str, dict[int, str]] = defaultdict(dict)
        for actor in records:
            trial_id = trial_of.get(actor.actor_id) or groups.get(actor.group_id)
            if trial_id is not None and actor.pid:
                by_node[actor.node_id][actor.pid] = trial_id
        asked_s = time.monotonic()
        # Ask the other nodes first, so that all nodes read at the same time.
        answers = {}
        for node, pids in by_node.items():
            if node != self._here and asked_s >= self._pauses[node].ends_s:
                answers[node] = self._ask(node, list(pids))
        read = {}
        if self._here in by_node:
            read[self._here] = process_facts.read_processes(list(by_node[self._here]))
        for node, answer in answers.items():
            left_s = max(0.0, asked_s + _TIMEOUT_S - time.monotonic())
            try:
                facts = ray.get(answer, timeout=left_s)
            except RayError as error:
                # A slow or lost node must not prevent that the other nodes are read.
                if isinstance(error, RayActorError):
                    # The actor has died, so the next reading starts a new one.
                    del self._readers[node]
                self._pauses[node].fail(f"the processes of trials on node {node[:8]}", error)
                continue
            self._pauses[node].succeed()
            read[node] = {**facts, "at_s": asked_s}  # the clocks of nodes differ
        processes = {
            (node, pid): _Read(by_node[node][pid], facts["at_s"], used)
            for node, facts in read.items()
            for pid, used in facts["processes"].items()
        }
        usable_cpus = {node: facts["usable_cpus"] for node, facts in read.items()}
        return _ProcessReading(usable_cpus, sum(facts["load"] for facts in read.values()), processes)

    def _ask(self, node: str, process_ids: list[int]) -> Any:
        if node not in self._readers:
            # On exactly this node, because a process can be read only on its own node.
            pinned = NodeAffinitySchedulingStrategy(node, soft=False)
            with sent_by_value(nvml, node_facts, process_facts):  # the node may not have this package
                reader = ray.remote(num_cpus=0)(process_facts.ProcessReader)
                self._readers[node] = reader.options(scheduling_strategy=pinned).remote()
        return self._readers[node].read.remote(process_ids)
