"""From what was measured to a decision: for trials of each size the better device, by time and by cost.

A trial takes what comes before its first step, and its steps. That is what is compared, round by round, not the step
alone: on a GPU a trial starts later, and a short one may not make up for it.

Several trials on one GPU each take longer; together they finish no more an hour than one after the other, unless a
record of ``tune-policies bench packing`` says so for the workload.
"""

import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pydantic import Field

from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InfeasibleRequestError, ResourcePolicy
from tune_policies.plan.decision import Answer, Decision, DeviceTimes, SizeDecision, WorkloadDecision
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.units import GIB
from tune_policies.values.value import Value, shorten, shorten_names, suggest

from ..compare.judge import Comparison, Outcome, compare_arms
from ..compare.verdicts import control_problem, disagreement, noise_problems, other_work
from ..measuring.colocation import parse_device
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Arm, Phase, RunSet
from .prices import Price, Prices

PHASE = Phase.TRANSFERS
"""A trial's data begin in host memory."""


def starts_s(run_set: RunSet, arm: Arm) -> dict[int, float]:
    """Return what comes before the first step, by round: the first epoch without what its steps take later."""
    starts = {}
    for run in run_set.of(arm):
        times = run.times_s(PHASE)
        if run.first_epoch_s is not None and times:
            starts[run.round] = max(0.0, run.first_epoch_s - run.steps_per_epoch * statistics.median(times))
    return starts


def trials_s(run_set: RunSet, arm: Arm, steps_per_trial: int, price: float = 1.0) -> dict[int, tuple[float, ...]]:
    """Return the seconds of a trial by round, by each block of steps that was timed, times what a second costs.

    Rounds of which the start is not known are left out.
    """
    times = run_set.times_s(arm, PHASE)
    starts = starts_s(run_set, arm)
    return {
        number: tuple(price * (start + steps_per_trial * each) for each in times[number])
        for number, start in starts.items()
    }


def both_arms(run_set: RunSet, workload: str, size: int, gpu: str) -> tuple[Arm, Arm] | None:
    """Return the arms on the CPU and on the GPU, which is called ``gpu``; ``None``: one of them has no times."""
    arms = Arm(workload=workload, size=size, device="cpu"), Arm(workload=workload, size=size, device=gpu)
    return arms if all(starts_s(run_set, arm) for arm in arms) else None


def compare_trials(
    run_set: RunSet,
    arms: tuple[Arm, Arm],
    steps_per_trial: int,
    *,
    same_within: float,
    prices: tuple[float, float] = (1.0, 1.0),
) -> Comparison:
    """Compare whole trials of two arms, by what they take at a price for their time."""
    doubts = [
        *noise_problems(run_set),
        *(control_problem(run_set, arm, PHASE, same_within) for arm in arms),
        disagreement(run_set, arms[0]),
        other_work(*map(run_set.of, arms)),
    ]
    first, second = (trials_s(run_set, arm, steps_per_trial, price) for arm, price in zip(arms, prices, strict=True))
    return compare_arms(first, second, same_within=same_within, doubts=[doubt for doubt in doubts if doubt])


class Change(NamedTuple):
    """Two neighbouring measured sizes with different answers."""

    below: int
    at: int


class Crossover(NamedTuple):
    """Where the GPU begins to be the answer, and stays it.

    Attributes:
        above: The largest size for which it is not, below ``at``; ``None``: it is for all that were measured.
        at: The smallest size from which on it is for all that were measured; ``None``: for none.
        changes: Where the answer changes; with more than one it changes back.
    """

    above: int | None
    at: int | None
    changes: tuple[Change, ...]


def crossover(answers: Mapping[int, Answer]) -> Crossover:
    """Return where the GPU begins to be the answer, and stays it."""
    sizes = sorted(answers)
    changes = tuple(Change(low, high) for low, high in pairwise(sizes) if answers[low] != answers[high])
    others = [size for size in sizes if answers[size] != "GPU"]
    from_there = [size for size in sizes if not others or size > others[-1]]
    return Crossover(others[-1] if others else None, from_there[0] if from_there else None, changes)


def describe(answers: Mapping[int, Answer], better: str = "faster") -> str:
    """Return the crossover in words, with the sizes for which it holds.

    Args:
        answers: By size; one at least.
        better: What the better device is.
    """
    sizes = sorted(answers)
    measured = f"measured from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"measured at {sizes[0]} only"
    found = crossover(answers)
    ranks = [_RANKS[answers[size]] for size in sizes]
    if "GPU" not in answers.values():
        text = "no crossover: for no size is the GPU surely " + better
    elif found.above is None:
        text = f"no crossover: for all sizes the GPU is {better}"
    elif ranks == sorted(ranks):
        text = f"from {found.at} on the GPU is {better}, and at {found.above} not surely"
    else:
        changes = ", ".join(f"{size}: {answers[size]}" for size in _told(answers))
        between = f"{found.changes[0].below} and {found.changes[-1].at}"
        text = f"no single crossover, as the answer changes back; it is ambiguous between {between} ({changes})"
    return f"{text}; {measured}"


_RANKS: Final[dict[Answer, int]] = {"CPU": 0, "same": 1, "ambiguous": 1, "GPU": 2}
"""In which order answers follow each other where there is one crossover."""


def _told(answers: Mapping[int, Answer]) -> Iterable[int]:
    """Return the first size, and those at which the answer is another than before."""
    sizes = sorted(answers)
    return [sizes[0], *(high for low, high in pairwise(sizes) if answers[low] != answers[high])]


FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "numba", "cupy", "numpy", "xgboost", "lightgbm")
"""Packages whose version decides how fast a workload is."""

_OUTSIDE_ALLOCATORS_BYTES: Final = int(1.8 * GIB)
"""What a framework uses of a GPU beside what it counts, at most: TensorFlow's figure, which is the largest."""

_WORDS: Final[dict[Outcome, Answer]] = {
    Outcome.FIRST: "CPU",
    Outcome.SECOND: "GPU",
    Outcome.SAME: "same",
    Outcome.AMBIGUOUS: "ambiguous",
}


class UndecidedError(ResourcePolicyError):
    """What was measured lacks what a decision is made from."""


class Terms(Value):
    """For what is decided.

    Attributes:
        steps_per_trial: How many steps a trial has.
        gpu: Which of the measured devices is the GPU: ``"gpu"``, or a share such as ``"gpu@0.25"``; ``None``: the one
            that was measured first.
        gpu_type: What the prices call the GPU; ``None``: as Ray does.
        same_within: By how much times, or costs, may differ and still count as the same, as a part.
    """

    steps_per_trial: PositiveCount
    gpu: str | None = None
    gpu_type: str | None = None
    same_within: float = Field(default=0.05, gt=0, lt=1)


class Decided(NamedTuple):
    """A decision, and what is to be said of it.

    Attributes:
        decision: The decision.
        notes: What could not be decided, and what is doubtful; a sentence each.
    """

    decision: Decision
    notes: tuple[str, ...]

    @property
    def is_decided(self) -> bool:
        """Whether there is an answer for any size."""
        return any(size.answer != "ambiguous" for each in self.decision.workloads for size in each.sizes)


def decide(
    run_set: RunSet,
    terms: Terms,
    capacity: ClusterCapacity,
    prices: Prices | None = None,
    packing: ThroughputRecord | None = None,
) -> Decided:
    """Return what follows from a run for trials on a cluster.

    Args:
        run_set: What was measured.
        terms: For what is decided.
        capacity: The cluster, for how many trials it runs at once.
        prices: What it costs; ``None``: only times are compared.
        packing: Throughput against trials per GPU; ``None``: sharing brings none.

    Raises:
        UndecidedError: The run has no times of a CPU and a GPU for one and the same size.
        InvalidResourcesError: There is no such GPU in the run, no price for what a trial takes, or the throughput is
            of another GPU.
    """
    case = _Case(run_set, terms, _gpu_of(run_set, terms.gpu), capacity, prices, packing)
    case.check_packing()
    workloads, notes = [], list(run_set.problems())
    doubts: dict[tuple[str, str], list[str]] = {}
    for workload in run_set.workloads:
        sizes = []
        for size in run_set.sizes(workload):
            if (arms := both_arms(run_set, workload, size, case.gpu)) is None:
                doubts.setdefault((workload, "no times of both, so nothing is decided"), []).append(str(size))
                continue
            decided, reasons = case.decide(arms)
            sizes.append(decided)
            for reason in reasons:
                doubts.setdefault((workload, reason), []).append(str(size))
        if sizes:
            workloads.append(_with_crossover(workload, sizes, terms.steps_per_trial))
    notes += [f"{workload} at {shorten_names(sizes)}: {reason}" for (workload, reason), sizes in doubts.items()]
    if not workloads:
        raise UndecidedError(
            f"no size has times of both cpu and {case.gpu}: {notes[0]}. Run it again, for longer or with smaller sizes"
        )
    return Decided(case.decision(workloads), tuple(notes))


def _gpu_of(run_set: RunSet, wanted: str | None) -> str:
    measured = list(dict.fromkeys(arm.device for arm in run_set.arms))
    gpus = [device for device in measured if device == "gpu" or device.startswith("gpu@")]
    if wanted is not None and wanted not in gpus:
        raise InvalidResourcesError(
            f"nothing was measured on {wanted!r}{suggest(wanted, gpus)} (GPUs measured: {', '.join(gpus) or 'none'})"
        )
    if not gpus or "cpu" not in measured:
        missing = [f"; {each.device} is not there: {each.why_missing}" for each in run_set.devices if each.why_missing]
        raise UndecidedError(
            f"a decision needs times of cpu and gpu, but the run measured {', '.join(measured) or 'nothing'}"
            f"{''.join(missing)}. Run it with --device cpu --device gpu, on a cluster that has both"
        )
    return wanted or gpus[0]


def _with_crossover(workload: str, sizes: list[SizeDecision], steps_per_trial: int) -> WorkloadDecision:
    found = crossover({each.size: each.answer for each in sizes})
    return WorkloadDecision(
        workload=workload,
        sizes=tuple(sizes),
        crossover_above=found.above,
        crossover_at=found.at,
        steps_per_trial=steps_per_trial,
    )


class _Rate(NamedTuple):
    """What a device does for trials.

    Attributes:
        at_once: How many trials it runs at once.
        in_turn: How many at a time take no longer than one alone.
        price: Of what one of these takes, for an hour; ``None``: there are no prices.
        gain: How many of these there are for each that is paid for.
    """

    at_once: int
    in_turn: float
    price: Price | None
    gain: float = 1.0

    @property
    def price_per_trial_hour(self) -> float | None:
        """What an hour of one trial costs."""
        return None if self.price is None else self.price.per_hour / self.gain


class _Case(NamedTuple):
    """All that a decision is made from."""

    run_set: RunSet
    terms: Terms
    gpu: str
    capacity: ClusterCapacity
    prices: Prices | None
    packing: ThroughputRecord | None

    def check_packing(self) -> None:
        """Check that throughput was measured on a GPU as the run had it, where both are known."""
        measured_on = self._accelerator_type
        if self.packing is not None and measured_on is not None and not self.packing.may_be_of(measured_on):
            raise InvalidResourcesError(
                f"the record of packing is of {shorten(self.packing.gpu)}, but the run was on {measured_on}: "
                f"run `tune-policies bench packing` on {measured_on}, or leave the record out"
            )

    def decision(self, workloads: list[WorkloadDecision]) -> Decision:
        """Return the decision for these workloads."""
        environment, prices = self.run_set.environment, self.prices
        return Decision(
            measured_at=self.run_set.created_at,
            cpu_model=environment.cpu_model,
            accelerator_type=self._accelerator_type,
            versions={name: each for name, each in environment.versions.items() if name in FRAMEWORKS},
            workloads=tuple(workloads),
            price_date=None if prices is None else prices.date,
            currency=None if prices is None else prices.currency,
            price_source=None if prices is None else prices.source,
        )

    def decide(self, arms: tuple[Arm, Arm]) -> tuple[SizeDecision, tuple[str, ...]]:
        """Return which device is the better one and what trials cost on each, and what is doubtful."""
        cpu, gpu = arms
        on_cpu, on_gpu = self._on_cpu(cpu), self._on_gpu(gpu)
        terms = self.terms
        by_time = compare_trials(self.run_set, arms, terms.steps_per_trial, same_within=terms.same_within)
        by_cost: dict[str, Any] = {}
        reasons = by_time.reasons
        if (cpu_price := on_cpu.price_per_trial_hour) is not None and (gpu_price := on_gpu.price_per_trial_hour):
            prices = (cpu_price, gpu_price)
            costs = compare_trials(
                self.run_set, arms, terms.steps_per_trial, same_within=terms.same_within, prices=prices
            )
            by_cost = {"cheapest": _WORDS[costs.outcome], "flips_at": by_time.ratio * on_gpu.gain}
            reasons += tuple(f"by cost, {each}" for each in costs.reasons if each not in reasons)
        size = SizeDecision(
            size=cpu.size,
            answer=_WORDS[by_time.outcome],
            speedup=by_time.ratio,
            low=by_time.low,
            high=by_time.high,
            cpu=self._times(cpu, on_cpu),
            gpu=self._times(gpu, on_gpu),
            **by_cost,
        )
        return size, reasons

    def _on_cpu(self, arm: Arm) -> _Rate:
        cpus = self._threads(arm)
        at_once = self._at_once(CpuPolicy(cpus=cpus))
        return _Rate(at_once, at_once, None if self.prices is None else self.prices.per_hour(cpus=cpus))

    def _on_gpu(self, arm: Arm) -> _Rate:
        cpus = self._threads(arm)
        whole = max(1.0, parse_device(arm.device).amount)
        in_turn = self._at_once(GpuPolicy(gpus=whole, cpus=cpus))
        at_once = max(in_turn, self._at_once(self._sharing(arm, cpus)))
        gain = self._gain(arm, at_once // in_turn if in_turn else 1)
        price = None
        if self.prices is not None:
            gpu_type = self.terms.gpu_type or self._accelerator_type
            price = self.prices.per_hour(cpus=cpus, gpus=whole, accelerator_type=gpu_type)
        return _Rate(at_once, in_turn * gain, price, gain)

    def _sharing(self, arm: Arm, cpus: int) -> ResourcePolicy:
        """Return the policy by which as many trials share a GPU as fit."""
        amount = parse_device(arm.device).amount
        peak = self._peak_gpu_bytes(arm)
        if amount != 1 or peak is None:
            return GpuPolicy(gpus=amount, cpus=cpus)
        return GpuMemoryPolicy(gpu_memory=peak + _OUTSIDE_ALLOCATORS_BYTES, cpus=cpus)

    def _at_once(self, policy: ResourcePolicy) -> int:
        try:
            return policy.plan(self.capacity).max_concurrent_trials
        except InfeasibleRequestError:
            return 0

    def _gain(self, arm: Arm, trials_per_gpu: int) -> float:
        """Return how many times the trials an hour a GPU finishes with so many at once, as far as was measured."""
        if self.packing is None:
            return 1.0
        # Where its size was asked for, the record has it in the name.
        sized = f"{arm.workload}[{arm.size}]"
        name = sized if sized in self.packing.workloads else arm.workload
        # Trials at a time that were asked for, without MPS, which a plan does not start.
        several = [each for each in self.packing.arms(name) if each[0] == "packed" and each[1] <= trials_per_gpu]
        return max([1.0, *(self.packing.speedup(name, each) or 1.0 for each in several)])

    def _times(self, arm: Arm, rate: _Rate) -> DeviceTimes:
        time = self.run_set.times_s(arm, PHASE)
        starts = starts_s(self.run_set, arm)
        trial_s = self._middle(trials_s(self.run_set, arm, self.terms.steps_per_trial))
        price = rate.price_per_trial_hour
        return DeviceTimes(
            device=arm.device,
            step_s=self._middle({number: time[number] for number in starts}),
            start_s=statistics.median(starts.values()),
            trial_s=trial_s,
            at_once=rate.at_once,
            trials_per_hour=rate.in_turn * 3600 / trial_s,
            cost_per_trial=None if price is None else price * trial_s / 3600,
            price_of=None if rate.price is None else rate.price.of,
            peak_gpu_bytes=self._peak_gpu_bytes(arm),
            num_threads=self._threads(arm),
        )

    @staticmethod
    def _middle(by_round: dict[int, tuple[float, ...]]) -> float:
        """Return the median over processes of the medians of their blocks."""
        return statistics.median(map(statistics.median, by_round.values()))

    def _threads(self, arm: Arm) -> int:
        return max(run.num_threads for run in self.run_set.of(arm))

    def _peak_gpu_bytes(self, arm: Arm) -> int | None:
        """Return the most GPU memory that any of its processes held; ``None``: not known, or none."""
        return max((run.peak_gpu_bytes for run in self.run_set.of(arm) if run.peak_gpu_bytes), default=None)

    @property
    def _accelerator_type(self) -> str | None:
        return next((each.accelerator_type for each in self.run_set.devices if each.device == self.gpu), None)
