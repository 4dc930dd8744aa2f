"""Computes the CPU use of other processes from counters that are read before and after each group of measurements.

Each measured process reads the counters of its own host.
"""

import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tune_policies.probe.nvml import GpuCounters

from ..record.run_set import NoiseReading


class NoiseCounters(NamedTuple):
    """The counters that one process reads on its host.

    Attributes:
        at_s: The time by the host's clock, in seconds.
        busy_s: CPU time of all processes and of the hypervisor since the host started, in seconds.
        own_s: CPU time of this process and its children in seconds, by process ID.
        throttled_s: The total time that the container's cgroup was throttled, in seconds, or ``None`` if unknown.
        gpu_throttled: The reasons that NVML reports for a throttled GPU clock.
    """

    host: str
    at_s: float
    busy_s: float
    own_s: dict[int, float]
    throttled_s: float | None = None
    gpu_throttled: tuple[str, ...] = ()


def read_noise() -> NoiseCounters:
    """Read the counters of this host, of this process, and of its children."""
    # Count all CPUs, even if this process may use only some of them. Load on the other CPUs slows the process down too,
    # because CPUs share caches, memory and often cores.
    # The time is read together with them, because reading the processes below can take seconds on a busy machine.
    at_s, times = time.time(), psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    own = psutil.Process()
    own_s = {}
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # the process ended, or belongs to another user
            used = process.cpu_times()
            own_s[process.pid] = used.user + used.system
    gpus = GpuCounters.visible()
    gpu_throttled = () if gpus is None else gpus.throttled()
    return NoiseCounters(
        host=platform.node(),
        at_s=at_s,
        busy_s=sum(getattr(times, name, 0.0) for name in names),
        own_s=own_s,
        throttled_s=_throttled_s(),
        gpu_throttled=gpu_throttled,
    )


def noise_between(number: int, before: Sequence[NoiseCounters], after: Sequence[NoiseCounters]) -> NoiseReading:
    """Return the largest load and throttling of a host between two readings, ``before`` and ``after``."""
    hosts = {snapshot.host for snapshot in before} & {snapshot.host for snapshot in after}
    loads, throttled = [], []
    for host in hosts:
        earlier = [snapshot for snapshot in before if snapshot.host == host]
        later = [snapshot for snapshot in after if snapshot.host == host]
        loads.append(_load(earlier, later))
        first_s, last_s = earlier[0].throttled_s, later[0].throttled_s
        if first_s is not None and last_s is not None:
            throttled.append(last_s - first_s)
    causes: set[str] = set()
    for snapshot in (*before, *after):
        causes.update(snapshot.gpu_throttled)
    return NoiseReading(
        round=number,
        load=max(loads, default=0.0),
        throttled_s=max(throttled, default=None),
        gpu_throttled=tuple(sorted(causes)),
    )


def _load(before: Sequence[NoiseCounters], after: Sequence[NoiseCounters]) -> float:
    """Return the mean number of CPUs of a host that other processes used."""
    first = min(before, key=lambda snapshot: snapshot.at_s)
    last = max(after, key=lambda snapshot: snapshot.at_s)
    earlier: dict[int, float] = {}
    for snapshot in before:
        earlier |= snapshot.own_s
    later: dict[int, float] = {}
    for snapshot in after:
        later |= snapshot.own_s
    # A process that started in between has no earlier time, so all its CPU time counts.
    own_s = sum(seconds - earlier.get(pid, 0.0) for pid, seconds in later.items())
    passed_s = last.at_s - first.at_s
    if passed_s > 0:
        return max(0.0, last.busy_s - first.busy_s - own_s) / passed_s
    return 0.0


def _throttled_s() -> float | None:
    """Return the time that this container's cgroup was throttled, in seconds, or ``None`` if unknown."""
    # In a container, both files belong to the container's cgroup. Cgroups of version 1 have a folder per controller.
    for file in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        with suppress(OSError, ValueError):
            counts = dict(line.split(maxsplit=1) for line in Path(file).read_text().splitlines())
            for name, per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
                if name in counts:
                    return int(counts[name]) / per_second
    return None
