"""Exports the state of a run as Ray metrics, for Prometheus, Ray's dashboard and Grafana.

Ray adds the prefix ``ray_`` to each name, and the suffix ``_total`` to the name of a counter. Trial names are not used
as tags, because Prometheus stores a series for each value of a tag, and a run may have thousands of trials.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ray.util.metrics import Counter, Gauge, Metric

from .gpu_memory_records import needed_bytes
from .gpu_memory_report import share_or_device_bytes
from .resource_usage import TRIAL_STATES
from .run_monitor import RunStatus


class MetricName(NamedTuple):
    """The name and the description of a metric, and its tags in addition to ``run``."""

    name: str
    about: str
    tags: tuple[str, ...] = ()


SLOTS: Final = MetricName("tune_policies_slots", "Slots in the plan", ("slot",))
SLOTS_IN_USE: Final = MetricName("tune_policies_slots_in_use", "Slots with a trial", ("slot",))
RESOURCES: Final = MetricName("tune_policies_resources", "CPUs and devices of the cluster", ("resource",))
IDLE: Final = MetricName("tune_policies_resources_idle", "Idle CPUs and devices", ("resource", "reason"))
TRIALS: Final = MetricName("tune_policies_trials", "Trials by state", ("state",))
MEMORY: Final = MetricName(
    "tune_policies_gpu_memory_bytes", "The peak GPU memory of the trial in a slot", ("slot", "place")
)
MEMORY_SHARE: Final = MetricName(
    "tune_policies_gpu_memory_share_bytes", "The GPU memory that the trial in a slot may use", ("slot", "place")
)
OUT_OF_MEMORY: Final = MetricName("tune_policies_out_of_memory", "Events in which memory ran out", ("kind",))
RETRIES: Final = MetricName("tune_policies_retries", "Trial failures that led to a retry")

GAUGES: Final = (SLOTS, SLOTS_IN_USE, RESOURCES, IDLE, TRIALS, MEMORY, MEMORY_SHARE)
COUNTERS: Final = (OUT_OF_MEMORY, RETRIES)

MOST_PLACES: Final = 64
"""The maximum number of slots of each type whose GPU memory is exported."""

_OOM_KINDS: Final = {
    "num_gpu_errors": "GPU memory",
    "num_host_errors": "host memory",
    "num_refused_allocations": "allocation refused",
}

_Series = tuple[MetricName, tuple[str, ...]]
"""A metric with the values of its tags."""


def gauges_of(status: RunStatus) -> dict[_Series, float]:
    """Return the value of each gauge."""
    values: dict[_Series, float] = {}
    for slot, (number, num_busy) in status.slots.items():
        values[SLOTS, (slot,)] = number
        values[SLOTS_IN_USE, (slot,)] = num_busy
    for (slot, place), usage in status.gpu_memory.items():
        if place < MOST_PLACES:
            values[MEMORY, (slot, str(place))] = needed_bytes(usage) or 0
            values[MEMORY_SHARE, (slot, str(place))] = share_or_device_bytes(usage)
    values |= {(RESOURCES, (name,)): amount for name, amount in status.available.items()}
    values |= {(IDLE, part): amount for part, amount in status.idle.items()}
    return values | {(TRIALS, (state,)): getattr(status.trials, field) for field, state in TRIAL_STATES.items()}


def counts_of(status: RunStatus) -> dict[_Series, float]:
    """Return the value of each counter."""
    ooms: dict[_Series, float] = {
        (OUT_OF_MEMORY, (kind,)): getattr(status.out_of_memory, field) for field, kind in _OOM_KINDS.items()
    }
    return {**ooms, (RETRIES, ()): status.trials.num_retries}


class RunMetrics:
    """Exports the metrics of one run to Ray."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._metrics: dict[str, Metric] = {}
        for kind, metrics in ((Gauge, GAUGES), (Counter, COUNTERS)):
            for metric in metrics:
                exported = kind(metric.name, description=metric.about, tag_keys=("run", *metric.tags))
                self._metrics[metric.name] = exported
        self._reported: dict[_Series, float] = {}

    def report(self, status: RunStatus) -> None:
        """Set all gauges and increase the counters."""
        self._set(gauges_of(status))
        for series, count in counts_of(status).items():
            more = count - self._reported.get(series, 0)
            # ``Counter.inc`` refuses 0.
            if more > 0:
                self._metrics[series[0].name].inc(more, tags=self._tags(series))
                self._reported[series] = count

    def end(self) -> None:
        """Set all gauges to 0, because Ray reports their last values as long as the process runs."""
        self._set({})

    def _set(self, gauges: Mapping[_Series, float]) -> None:
        # Series that no longer have a value, such as the memory of a trial that ended, become 0.
        gone = {series: 0.0 for series in self._reported if series[0] in GAUGES and series not in gauges}
        for series, value in (gone | dict(gauges)).items():
            self._metrics[series[0].name].set(value, tags=self._tags(series))
            self._reported[series] = value

    def _tags(self, series: _Series) -> dict[str, str]:
        metric, values = series
        return {"run": self._run, **dict(zip(metric.tags, values, strict=True))}
