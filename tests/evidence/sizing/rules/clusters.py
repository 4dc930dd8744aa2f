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
        known = len(self.gpu_peaks if self.machine.gpus_gib else self.host_peaks) >= self.fewest
        if not self.machine.gpus_gib:
            wanted = self._raised(self._amount(self.host_peaks), len(failed), self.machine.host_gib) if known else 0.0
            return [Request(max(0.1, max(self.cpus.values())) if known else 1.0, min(self.machine.host_gib, wanted))]
        largest = max(self.machine.gpus_gib)
        if not known:
            return [Request(1.0, 0.0, 1.0, gib) for gib in sorted(set(self.machine.gpus_gib), reverse=True)]
        wanted = self._raised(self._amount(self.gpu_peaks), len(failed), largest)
        cpus = max(1.0, max(self.cpus.values()))
        fitting = [gib for gib in sorted(set(self.machine.gpus_gib), reverse=True) if gib >= wanted]
        return [Request(cpus, 0.0, 1 / math.floor(gib / wanted), gib) for gib in fitting]

    def _amount(self, peaks: dict[str, float]) -> float:
        raise NotImplementedError

    def _raised(self, amount: float, num_failures: int, most: float) -> float:
        raise NotImplementedError

    def observe(self, observation: TrialObservation) -> bool:
        if not (observation.ended or observation.ran_out):
            return False
        seen, used, lost = observation.trial_id, observation.used, observation.too_little
        gpu = max(used.gpu_memory_bytes or 0, vpa_after_oom(lost.gpu_memory_bytes) if lost.gpu_memory_bytes else 0)
        host = max(used.host_memory_bytes or 0, vpa_after_oom(lost.host_memory_bytes) if lost.host_memory_bytes else 0)
        if gpu:
            self.gpu_peaks[seen] = gpu / GIB
        if host:
            self.host_peaks[seen] = host / GIB
        self.cpus[seen] = used.cpus or 1.0
        return True


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
