"""Rules of cluster and workflow systems: the vertical pod autoscaler of Kubernetes, and TaskVine.

Sources: "Recommender" in github.com/kubernetes/autoscaler (pkg/recommender/logic and model), and
"Automatic resource management" in the manual of TaskVine, with the rule of Tovar et al. (IEEE TPDS 29(2), 2018).
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from tune_policies.plan.trial_observation import TrialObservation

from ..simulation import GIB, Machine, Request, SimTrial

BUCKET_GROWTH: Final = 1.05
FIRST_BUCKET_BYTES: Final = 1e7


def bucket_end(amount: float) -> float:
    """Return the end of the bucket of the exponential histogram that contains ``amount`` bytes."""
    width, end = FIRST_BUCKET_BYTES, FIRST_BUCKET_BYTES
    while end < amount:
        width *= BUCKET_GROWTH
        end += width
    return end


def vpa_target(peaks: Sequence[float]) -> float:
    """Return the recommended memory in bytes: the 95th percentile of the peaks' buckets, plus 15 %."""
    ordered = sorted(peaks)
    return 1.15 * bucket_end(ordered[math.ceil(0.95 * len(ordered)) - 1])


def vpa_after_oom(used: float) -> float:
    """Return the memory that is recorded after an out-of-memory error: 20 % or 100 MiB more than was used."""
    return max(used * 1.2, used + 100 * 2**20)


class _Observing:
    """Waits for ``fewest`` trials with the start request, and then requests ``amount_gib`` of memory for all."""

    name, fewest = "", 1
    progress = None

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        self.machine = machine
        self.gpu_peaks: dict[str, float] = {}
        self.host_peaks: dict[str, float] = {}
        self.cpus: dict[str, float] = {}

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        if not self.machine.gpus_gib:
            return [self._request_on_cpus(len(failed))]
        sizes_gib = sorted(set(self.machine.gpus_gib), reverse=True)
        if len(self.gpu_peaks) < self.fewest:
            return [Request(1.0, 0.0, 1.0, gib) for gib in sizes_gib]
        wanted = self._raised(self._amount(self.gpu_peaks), len(failed), sizes_gib[0])
        cpus = max(1.0, max(self.cpus.values()))
        return [Request(cpus, 0.0, 1 / math.floor(gib / wanted), gib) for gib in sizes_gib if gib >= wanted]

    def _request_on_cpus(self, num_failures: int) -> Request:
        if len(self.host_peaks) < self.fewest:
            return Request(1.0, 0.0)
        wanted = self._raised(self._amount(self.host_peaks), num_failures, self.machine.host_gib)
        return Request(max(0.1, max(self.cpus.values())), min(self.machine.host_gib, wanted))

    def _amount(self, peaks: dict[str, float]) -> float:
        raise NotImplementedError

    def _raised(self, amount: float, num_failures: int, most: float) -> float:
        raise NotImplementedError

    def observe(self, observation: TrialObservation) -> bool:
        if not (observation.ended or observation.ran_out):
            return False
        used, lost = observation.used, observation.too_little
        gpu = _recorded(used.gpu_memory_bytes, lost.gpu_memory_bytes)
        if gpu:
            self.gpu_peaks[observation.trial_id] = gpu / GIB
        host = _recorded(used.host_memory_bytes, lost.host_memory_bytes)
        if host:
            self.host_peaks[observation.trial_id] = host / GIB
        self.cpus[observation.trial_id] = used.cpus or 1.0
        return True


def _recorded(used: int | None, too_little: int | None) -> float:
    """Return the peak in bytes that is recorded for a trial, or 0 if nothing is known."""
    if not too_little:
        return used or 0
    return max(used or 0, vpa_after_oom(too_little))


class VerticalPodAutoscaler(_Observing):
    """The histogram of Kubernetes: the 95th percentile plus 15 %, and at least 20 % more after each error."""

    name = "VPA's histogram"

    def _amount(self, peaks: dict[str, float]) -> float:
        return vpa_target([gib * GIB for gib in peaks.values()]) / GIB

    def _raised(self, amount: float, num_failures: int, most: float) -> float:
        return min(most, amount * 1.2**num_failures)


def max_throughput(peaks: Sequence[float], most: float) -> float:
    """Return TaskVine's first allocation: failed tasks run again with ``most``, after a whole run (Tovar)."""
    costs = []
    for amount in sorted(set(peaks)):
        failing = sum(peak > amount for peak in peaks) / len(peaks)
        costs.append((amount + failing * most, amount))
    return min(costs)[1]


class TaskVine(_Observing):
    """The first tasks get a whole worker. Then all get the first allocation, and after a failure the largest peak."""

    name, fewest = "TaskVine's max throughput", 3

    def _amount(self, peaks: dict[str, float]) -> float:
        return max_throughput(list(peaks.values()), max(peaks.values())) * 1.0001

    def _raised(self, amount: float, num_failures: int, most: float) -> float:
        if not num_failures:
            return amount
        largest = max((self.gpu_peaks or self.host_peaks).values()) * 1.0001
        return largest if num_failures == 1 and largest > amount else most


RULES = [VerticalPodAutoscaler, TaskVine]
