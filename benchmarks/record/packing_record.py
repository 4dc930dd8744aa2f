"""The record of a throughput benchmark: the trials per hour for each number of trials per GPU."""

import re
import statistics
from enum import StrEnum
from math import log2
from pathlib import Path
from typing import Final

from pydantic import AliasChoices, Field

from tune_policies.cluster.accelerators import public_text
from tune_policies.files.reading import read_value
from tune_policies.values.field_types import Many
from tune_policies.values.resources import PositiveCount
from tune_policies.values.sanitize import LEFT_OUT, WithoutSecrets, without_secrets
from tune_policies.values.value import Value

from .run_set import Seconds
from .summary import Spread, spread

PAYS: Final = 1.1
"""Doubling the trials on a GPU pays off if it multiplies the throughput by at least this factor."""

UNREAD_GPU: Final = "GPU that was not read"
"""The recorded name of a GPU whose model could not be read."""

DEFAULT_SIZES: Final = {"mlp": 64, "cnn": 64, "resnet18": 64, "transformer": 32}
"""The sizes of default trainings, by workload. Only the names of these trainings in a record contain no size."""


class PackingMode(StrEnum):
    """The number of trials that share the GPU: one, a requested number, or the number in a plan from a profile."""

    ALONE = "alone"
    PACKED = "packed"
    PLAN = "plan"
    PACKED_WITH_MPS = "packed with mps"
    PLAN_WITH_MPS = "plan with mps"

    @property
    def uses_mps(self) -> bool:
        """Whether MPS enforces the GPU fractions."""
        return self in (PackingMode.PACKED_WITH_MPS, PackingMode.PLAN_WITH_MPS)

    @property
    def is_plan(self) -> bool:
        """Whether the plan determines how many trials share the GPU."""
        return self in (PackingMode.PLAN, PackingMode.PLAN_WITH_MPS)


class ThroughputSample(Value):
    """The result of one run.

    Attributes:
        seconds: The duration of the Tune run in seconds, including the start of processes.
        trial_seconds: The duration of each trial in seconds, without the start of its process, ordered by seed.
        losses: The last loss of each trial, ordered by seed.
    """

    workload: str
    # In files of earlier versions, the key is ``arm``.
    mode: PackingMode = Field(validation_alias=AliasChoices("mode", "arm"))
    trials_per_gpu: PositiveCount
    num_trials: PositiveCount
    seconds: Seconds
    trial_seconds: Many[float]
    losses: Many[float]

    @property
    def trials_per_hour(self) -> float:
        """The number of trials per hour at the rate of this run."""
        return self.num_trials * 3600 / self.seconds


class ThroughputRecord(Value):
    """All runs of a throughput benchmark.

    Attributes:
        gpu: The model of the GPU, or ``UNREAD_GPU``.
        machine: The CPU, its number of cores, and the versions of packages, as text.
        plans: The explanation of the plan that is computed from the measured profile, by workload.
        failures: The reasons why runs were omitted.
    """

    gpu: str
    machine: str
    command: WithoutSecrets
    plans: dict[str, str]
    samples: Many[ThroughputSample] = ()
    failures: tuple[WithoutSecrets, ...] = ()

    def with_sample(self, sample: ThroughputSample) -> "ThroughputRecord":
        """Return the record with one more run."""
        return self.model_copy(update={"samples": (*self.samples, sample)})

    def with_failure(self, failure: str) -> "ThroughputRecord":
        """Return the record with the reason why another run was omitted."""
        return self.model_copy(update={"failures": (*self.failures, without_secrets(failure))})

    def redacted(self) -> "ThroughputRecord":
        """Return a copy for publication, without the command, the resource names of the cluster and error messages."""
        plans = {workload: public_text(plan) for workload, plan in self.plans.items()}
        failures = (LEFT_OUT,) * len(self.failures)
        return self.model_copy(update={"command": LEFT_OUT, "plans": plans, "failures": failures})

    def may_be_of(self, accelerator_type: str) -> bool:
        """Return whether the GPU may have this accelerator type.

        The parts of Ray's name for a GPU type are usually parts of the vendor's name, except for the memory.
        """
        if self.gpu == UNREAD_GPU:
            return True
        parts = [part for part in accelerator_type.split("-") if not re.fullmatch(r"\d+G", part)]
        # A part may end within a word, because older versions of Ray name a GeForce GPU "G".
        return all(re.search(rf"\b{re.escape(part)}(?!\d)", self.gpu, re.IGNORECASE) for part in parts)

    @property
    def workloads(self) -> list[str]:
        """The names of the workloads, sorted."""
        return sorted({sample.workload for sample in self.samples})

    def name_of(self, workload: str, size: int) -> str | None:
        """Return the name in this record of a workload with a size, or ``None`` if this size was not measured."""
        # If the user chose the size, it is part of the name.
        sized = f"{workload}[{size}]"
        if sized in self.workloads:
            return sized
        if workload in self.workloads and DEFAULT_SIZES.get(workload) == size:
            return workload
        return None

    def rates(self, workload: str) -> dict[tuple[PackingMode, int], Spread]:
        """Return the trials per hour by mode and trials per GPU, sorted by trials per GPU."""
        samples: dict[tuple[PackingMode, int], list[float]] = {}
        for sample in self.samples:
            if sample.workload == workload:
                samples.setdefault((sample.mode, sample.trials_per_gpu), []).append(sample.trials_per_hour)
        by_number = sorted(samples, key=lambda mode_and_number: (mode_and_number[1], mode_and_number[0]))
        return {key: spread(samples[key]) for key in by_number}

    def speedup(self, workload: str, mode: PackingMode, trials_per_gpu: int) -> float | None:
        """Return the median rate divided by the rate of one trial at a time, or ``None`` if no trial ran alone."""
        rates = self.rates(workload)
        alone = rates.get((PackingMode.ALONE, 1))
        if alone:
            return rates[mode, trials_per_gpu].median / alone.median
        return None

    def stops_paying_at(self, workload: str) -> int | None:
        """Return the number of trials per GPU above which more trials do not pay off without MPS."""
        return stops_paying_at(
            {number: rate.median for (mode, number), rate in self.rates(workload).items() if not mode.uses_mps}
        )

    def largest_difference_of_losses(self, workload: str) -> float:
        """Return the largest difference between the losses of trials with the same seed, relative to their median."""
        by_seed: dict[int, list[float]] = {}
        for sample in self.samples:
            if sample.workload == workload:
                for seed, loss in enumerate(sample.losses):
                    by_seed.setdefault(seed, []).append(loss)
        # The trials of one seed do the same work in every run. A median of 0 has no relative difference.
        middles = {seed: abs(statistics.median(losses)) for seed, losses in by_seed.items()}
        apart = ((max(losses) - min(losses)) / middles[seed] for seed, losses in by_seed.items() if middles[seed])
        return max(apart, default=0.0)


def read_throughput(path: Path) -> ThroughputRecord:
    """Read the file that ``tune-policies bench packing --output`` wrote; see ``read_value`` for the errors."""
    hint = "create a record with `tune-policies bench packing --output FILE`"
    return read_value(path, ThroughputRecord, "record of throughput", hint=hint)


def stops_paying_at(rates: dict[int, float]) -> int | None:
    """Return the number of trials per GPU above which more trials do not pay off.

    More trials pay off if each doubling increases the throughput by at least a tenth. Return ``None`` if they pay off
    up to the largest number. ``rates`` contains the trials per hour by the number of trials per GPU.
    """
    numbers = sorted(rates)
    for index, number in enumerate(numbers[:-1]):
        # The number of doublings is log2(more / number).
        if not any(rates[more] >= rates[number] * (more / number) ** log2(PAYS) for more in numbers[index + 1 :]):
            return number
    return None
