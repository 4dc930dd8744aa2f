"""Reads how quiet the machine is: counters before and after, and what other processes used in between.

Each process reads its own host, so that the right hosts of a cluster are read.
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
    """The counters that one process reads of its host.

    Attributes:
        at_s: The time by the host's clock, in seconds.
        busy_s: CPU time of all processes since the host started, with what its hypervisor took, in seconds.
        own_s: CPU time of this process and its children, by process number, in seconds.
        throttled_s: For how long its cgroup was throttled, in seconds; ``None`` if unknown.
        cpu_mhz: The mean clock of the CPUs; ``None`` if unknown.
        gpu_throttled: The reasons why a GPU's clock is held down.
    """

    host: str
    at_s: float
    busy_s: float
    own_s: dict[int, float]
    throttled_s: float | None = None
    cpu_mhz: float | None = None
    gpu_throttled: tuple[str, ...] = ()


def read_noise() -> NoiseCounters:
    """Read the counters of this host, and of this process with its children."""
    # Of all CPUs, even if this process may use only some: load on the others slows it down, too, because they share
    # caches, memory and often cores.
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    own = psutil.Process()
    own_s = {}
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # it ended, or belongs to another user
            used = process.cpu_times()
            own_s[process.pid] = used.user + used.system
    frequency = None
    with suppress(NotImplementedError, OSError, RuntimeError):  # how psutil reports a machine without clocks
        frequency = psutil.cpu_freq()
    gpus = GpuCounters.visible()
    return NoiseCounters(
        host=platform.node(),
        at_s=time.time(),
        busy_s=sum(getattr(times, name, 0.0) for name in names),
        own_s=own_s,
        throttled_s=_throttled_s(),
        cpu_mhz=frequency.current if frequency is not None and frequency.current else None,
        gpu_throttled=() if gpus is None else gpus.throttled(),
    )


def noise_between(number: int, before: Sequence[NoiseCounters], after: Sequence[NoiseCounters]) -> NoiseReading:
    """Return how quiet the hosts were between the first and the last readings. The noisiest host counts."""
    hosts = {each.host for each in before} & {each.host for each in after}
    pairs = [([b for b in before if b.host == host], [a for a in after if a.host == host]) for host in sorted(hosts)]
    throttled = [
        later[0].throttled_s - earlier[0].throttled_s
        for earlier, later in pairs
        if earlier[0].throttled_s is not None and later[0].throttled_s is not None
    ]
    clocks = [each.cpu_mhz for each in after if each.cpu_mhz is not None]
    return NoiseReading(
        round=number,
        load=max((_load(*pair) for pair in pairs), default=0.0),
        throttled_s=max(throttled) if throttled else None,
        gpu_throttled=tuple(sorted({reason for each in (*before, *after) for reason in each.gpu_throttled})),
        cpu_mhz=sum(clocks) / len(clocks) if clocks else None,
    )


def _load(before: Sequence[NoiseCounters], after: Sequence[NoiseCounters]) -> float:
    """Return how many CPUs of a host other processes used."""
    first, last = min(before, key=lambda each: each.at_s), max(after, key=lambda each: each.at_s)
    earlier = {pid: seconds for each in before for pid, seconds in each.own_s.items()}
    later = {pid: seconds for each in after for pid, seconds in each.own_s.items()}
    own_s = sum(seconds - earlier.get(pid, 0.0) for pid, seconds in later.items())
    passed_s = last.at_s - first.at_s
    return max(0.0, last.busy_s - first.busy_s - own_s) / passed_s if passed_s > 0 else 0.0


def worse(first: NoiseReading, second: NoiseReading) -> NoiseReading:
    """Combine two readings of one round; the noisier counts."""
    throttled = [each for each in (first.throttled_s, second.throttled_s) if each is not None]
    clocks = [each for each in (first.cpu_mhz, second.cpu_mhz) if each is not None]
    return NoiseReading(
        round=first.round,
        load=max(first.load, second.load),
        throttled_s=sum(throttled) if throttled else None,
        gpu_throttled=tuple(sorted({*first.gpu_throttled, *second.gpu_throttled})),
        cpu_mhz=min(clocks) if clocks else None,
    )


def _throttled_s() -> float | None:
    """Return for how long the cgroup of this process was throttled, or ``None`` if no cgroup counts it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    root = Path("/sys/fs/cgroup")
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        inner = Path(path.strip("/"))
        # In a container, the path may be the host's while the container's own cgroup is mounted at the root.
        for folder in (inner, *inner.parents):
            found += [_throttled_in(mount / folder) for mount in (root, root / "cpu")]
    known = [each for each in found if each is not None]
    return max(known) if known else None


def _throttled_in(folder: Path) -> float | None:
    try:
        counts = dict(line.split(maxsplit=1) for line in (folder / "cpu.stat").read_text().splitlines())
        if "throttled_usec" in counts:  # version 2
            return int(counts["throttled_usec"]) / 1e6
        return int(counts["throttled_time"]) / 1e9 if "throttled_time" in counts else None
    except (OSError, ValueError):
        return None
