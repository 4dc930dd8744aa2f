"""Rules without learning: Tune's default, one fixed amount with or without doubling, and the oracle."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tune_policies.plan.trial_observation import TrialObservation

from ..simulation import Machine, Request, SimTrial


class Fixed:
    """Every trial starts with the same request. After an out-of-memory error, its memory is doubled."""

    progress = None

    def __init__(self, name: str, gpu: float = 1.0, cpus: float = 1.0, host_gib: float = 0.0) -> None:
        self.name, self.request = name, Request(cpus, host_gib, gpu)

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        self.machine = machine

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        if not self.machine.gpus_gib:
            host = self.request.host_gib or (1.0 if failed else 0.0)
            return [Request(self.request.cpus, min(self.machine.host_gib, host * 2 ** len(failed)))]
        gpu = min(1.0, self.request.gpu * 2 ** len(failed))
        devices = [
            gib for gib in self.machine.gpus_gib if gpu < 1 or len(failed) < 6 or gib == max(self.machine.gpus_gib)
        ]
        return [Request(min(self.request.cpus, self.machine.cpus), 0.0, gpu, min(devices))]

    def observe(self, observation: TrialObservation) -> bool:
        return False


class Oracle(Fixed):
    """Each trial gets what it needs, known beforehand, with equal parts of a device.

    ``crowding`` is how far the utilizations of the trials on a device may exceed the device.
    """

    def __init__(self, name: str, crowding: float = 1.0) -> None:
        super().__init__(name)
        self.crowding = crowding

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        self.machine, self.trials = machine, trials

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        trial = self.trials[index]
        if not self.machine.gpus_gib:
            # The parts of CPUs also limit how many trials use the disk.
            return [Request(max(trial.cpus, trial.disk * self.machine.cpus), trial.host_gib)]
        found = []
        for gib in sorted(set(self.machine.gpus_gib), reverse=True):
            by_utilization = max(1, round(self.crowding / trial.utilization)) if trial.utilization else 10_000
            fit = min(math.floor(gib / trial.gpu_gib), by_utilization)
            if fit:
                found.append(Request(trial.cpus, trial.host_gib, 1 / fit, gib))
        return found


class LateOracle(Oracle):
    """The oracle, but it knows the needs only when all started trials have reported twice, as no online rule can know
    earlier. The first trials get a whole GPU or one CPU, and trials with checkpoints restart with their needs.
    """

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        super().begin(machine, trials)
        self.num_pilots = len(machine.gpus_gib) or int(machine.cpus)
        self.seen: set[str] = set()

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        if len(self.seen) >= self.num_pilots:
            return super().requests(index, config, failed)
        if not self.machine.gpus_gib:
            return [Request(1.0, self.trials[index].host_gib if failed else 0.0)]
        return [Request(1.0, 0.0, 1.0, gib) for gib in sorted(set(self.machine.gpus_gib), reverse=True)]

    def observe(self, observation: TrialObservation) -> bool:
        if len(self.seen) >= self.num_pilots:
            return False
        self.seen.add(observation.trial_id)
        return len(self.seen) >= self.num_pilots


RULES = [
    partial(Fixed, "Tune's default, a whole GPU or 1 CPU"),
    partial(Fixed, "1/4 of a GPU, doubled after OOM", 0.25),
    partial(Fixed, "1/16 of a GPU, doubled after OOM", 1 / 16),
    partial(Oracle, "oracle"),
]
