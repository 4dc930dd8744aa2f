"""Decides which device is better for trials of each size, by time and by cost.

Whole trials are compared, round by round, not steps alone: on a GPU a trial starts later, and a short one may not make
up for it. Several trials on one GPU finish no more an hour than one after the other, unless a record of
``tune-policies bench packing`` shows that they do.
"""

import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pydantic import Field

from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InfeasibleRequestError, ResourcePolicy
from tune_policies.plan.decision import Answer, Decision, DeviceTimes, GpuOrNodes, SizeDecision, WorkloadDecision
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.units import GIB
from tune_policies.values.value import Value, shorten, shorten_names, suggest

from ..compare.judge import Comparison, Outcome, compare_arms
from ..compare.verdicts import control_problem, disagreement, noise_problems, other_work
from ..measuring.colocation import parse_device
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Arm, Phase, RunSet
from .cpu_nodes import Nodes, NodesQuestion
from .prices import Price, Prices

PHASE = Phase.TRANSFERS
"""A trial's data begin in host memory."""


def starts_s(run_set: RunSet, arm: Arm) -> dict[int, float]:
    """Return the seconds before the first step, by round: the first epoch without the later time of its steps."""
    starts = {}
    for run in run_set.of(arm):
        times = run.times_s(PHASE)
        if run.first_epoch_s is not None and times:
            starts[run.round] = max(0.0, run.first_epoch_s - run.steps_per_epoch * statistics.median(times))
    return starts


def trials_s(run_set: RunSet, arm: Arm, steps_per_trial: int, price: float = 1.0) -> dict[int, tuple[float, ...]]:
    """Return the seconds of a trial, times the price of a second, by round and by block of timed steps.

    Rounds without a known start are left out.
    """
    times = run_set.times_s(arm, PHASE)
    return {
        number: tuple(price * (start + steps_per_trial * each) for each in times[number])
        for number, start in starts_s(run_set, arm).items()
    }


def both_arms(run_set: RunSet, workload: str, size: int, gpu: str) -> tuple[Arm, Arm] | None:
    """Return the arms on the CPU and on the device ``gpu``, or ``None`` if one of them has no times."""
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
    """Compare whole trials of two arms by their time, or by their cost at these prices of a second."""
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
    """The size from which on the GPU is the answer.

    Attributes:
        above: The largest size with another answer; ``None`` if the GPU is the answer for all measured sizes.
        at: The smallest size from which on the GPU is the answer for all measured sizes; ``None`` if there is none.
        changes: Where the answer changes; with more than one change, it changes back.
    """

    above: int | None
    at: int | None
    changes: tuple[Change, ...]


def crossover(answers: Mapping[int, Answer]) -> Crossover:
    """Return the size from which on the GPU is the answer, given the answers by size."""
    sizes = sorted(answers)
    changes = tuple(Change(low, high) for low, high in pairwise(sizes) if answers[low] != answers[high])
    others = [size for size in sizes if answers[size] != "GPU"]
    from_there = [size for size in sizes if not others or size > others[-1]]
    return Crossover(others[-1] if others else None, from_there[0] if from_there else None, changes)


def describe(answers: Mapping[int, Answer], better: str = "faster") -> str:
    """Return the crossover in words, with the measured sizes; ``answers`` are by size, and not empty."""
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
        told = [sizes[0], *(change.at for change in found.changes)]
        changes = ", ".join(f"{size}: {answers[size]}" for size in told)
        between = f"{found.changes[0].below} and {found.changes[-1].at}"
        text = f"no single crossover, as the answer changes back; it is ambiguous between {between} ({changes})"
    return f"{text}; {measured}"


_RANKS: Final[dict[Answer, int]] = {"CPU": 0, "same": 1, "ambiguous": 1, "GPU": 2}
"""The order of answers by size if there is one crossover."""

FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "numba", "cupy", "numpy", "xgboost", "lightgbm")
"""Packages whose version decides how fast a workload is."""

_OUTSIDE_ALLOCATORS_BYTES: Final = int(1.8 * GIB)
"""The most GPU memory that a framework uses beside what it counts: TensorFlow's figure, which is the largest."""

_WORDS: Final[dict[Outcome, Answer]] = {
    Outcome.FIRST: "CPU",
    Outcome.SECOND: "GPU",
    Outcome.SAME: "same",
    Outcome.AMBIGUOUS: "ambiguous",
}


class UndecidedError(ResourcePolicyError):
    """The measurements that a decision needs are missing."""


class Terms(Value):
    """The terms of a decision.

    Attributes:
        gpu: The measured device that is the GPU: ``"gpu"``, or a share such as ``"gpu@0.25"``. By default the first.
        gpu_type: The GPU's name in the prices. By default Ray's name.
        same_within: Relative difference of times, or costs, up to which they count as the same.
        nodes: Whether one GPU or more nodes without GPUs should run some trials; ``None``: is not asked.
    """

    steps_per_trial: PositiveCount
    gpu: str | None = None
    gpu_type: str | None = None
    same_within: float = Field(default=0.05, gt=0, lt=1)
    nodes: NodesQuestion | None = None


class Decided(NamedTuple):
    """A decision, and notes on what is undecided or doubtful, a sentence each."""

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
    """Decide from a run for trials on a cluster.

    Without ``prices``, only times are compared. Without ``packing``, sharing a GPU does not raise the throughput.

    Raises:
        UndecidedError: No size has times of both a CPU and a GPU.
        InvalidResourcesError: The run lacks the GPU, a trial's resources have no price, ``packing`` was measured on
            another GPU, or the nodes of ``terms.nodes`` are unknown or too small.
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
            found = crossover({each.size: each.answer for each in sizes})
            decided_workload = WorkloadDecision(
                workload=workload,
                sizes=tuple(sizes),
                crossover_above=found.above,
                crossover_at=found.at,
                steps_per_trial=terms.steps_per_trial,
            )
            workloads.append(decided_workload)
    notes += [f"{workload} at {shorten_names(sizes)}: {reason}" for (workload, reason), sizes in doubts.items()]
    if not workloads:
        raise UndecidedError(
            f"no size has times of both cpu and {case.gpu}: {notes[0]}. Run it again, for longer or with smaller sizes"
        )
    return Decided(case.decision(workloads), tuple(notes))


def _gpu_of(run_set: RunSet, wanted: str | None) -> str:
    measured = run_set.measured_devices
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


class _Rate(NamedTuple):
    """How many trials the cluster runs at once on a device, and at what price.

    Attributes:
        in_turn: How many trials at a time are as fast as a trial alone.
        gain: How many trials that share a GPU finish in the time of one alone.
    """

    at_once: int
    in_turn: float
    price: Price | None
    gain: float = 1.0

    @property
    def price_per_trial_hour(self) -> float | None:
        """The price of an hour of one trial."""
        return None if self.price is None else self.price.per_hour / self.gain


class _Case(NamedTuple):
    """Everything that a decision depends on."""

    run_set: RunSet
    terms: Terms
    gpu: str
    capacity: ClusterCapacity
    prices: Prices | None
    packing: ThroughputRecord | None

    def check_packing(self) -> None:
        """Check that the throughput was measured on the run's type of GPU, if both are known."""
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
        """Return which device is better and what trials cost on each, and what is doubtful."""
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
        if terms.nodes is not None:
            size = size.model_copy(update={"gpu_or_nodes": self._against_nodes(terms.nodes, size, on_gpu)})
        return size, reasons

    def _against_nodes(self, question: NodesQuestion, size: SizeDecision, on_gpu: _Rate) -> GpuOrNodes:
        node_cpus = question.node_cpus or max(
            (int(node.resources.cpus) for node in self.capacity.nodes if not node.resources.gpus), default=0
        )
        if not node_cpus:
            raise InvalidResourcesError(
                "the cluster has no node without GPUs, so the size of more such nodes is unknown: give --node-cpus"
            )
        price = None if self.prices is None else self.prices.per_hour(cpus=node_cpus).per_hour
        nodes = Nodes(question.num_trials, node_cpus, size.cpu.num_threads or 1, price)
        gain = on_gpu.gain
        return nodes.against_gpu(
            cpu_trial_s=size.cpu.trial_s,
            gpu_trial_s=size.gpu.trial_s / gain,
            speedups=(size.low * gain, size.high * gain),
            gpu_price=None if on_gpu.price is None else on_gpu.price.per_hour,
        )

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
        """Return the policy under which as many trials share a GPU as fit."""
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
        """Return the measured gain in throughput with up to ``trials_per_gpu`` trials at once."""
        if self.packing is None:
            return 1.0
        # If the user gave the size, the record has it in the name.
        sized = f"{arm.workload}[{arm.size}]"
        name = sized if sized in self.packing.workloads else arm.workload
        # Without MPS, because a plan does not start it.
        several = [each for each in self.packing.arms(name) if each[0] == "packed" and each[1] <= trials_per_gpu]
        return max([1.0, *(self.packing.speedup(name, each) or 1.0 for each in several)])

    def _times(self, arm: Arm, rate: _Rate) -> DeviceTimes:
        time = self.run_set.times_s(arm, PHASE)
        starts = starts_s(self.run_set, arm)
        trial_s = _median_of_medians(trials_s(self.run_set, arm, self.terms.steps_per_trial).values())
        price = rate.price_per_trial_hour
        return DeviceTimes(
            device=arm.device,
            step_s=_median_of_medians(time[number] for number in starts),
            start_s=statistics.median(starts.values()),
            trial_s=trial_s,
            at_once=rate.at_once,
            trials_per_hour=rate.in_turn * 3600 / trial_s,
            cost_per_trial=None if price is None else price * trial_s / 3600,
            price_of=None if rate.price is None else rate.price.of,
            peak_gpu_bytes=self._peak_gpu_bytes(arm),
            num_threads=self._threads(arm),
        )

    def _threads(self, arm: Arm) -> int:
        return max(run.num_threads for run in self.run_set.of(arm))

    def _peak_gpu_bytes(self, arm: Arm) -> int | None:
        """Return the most GPU memory that any of its processes used; ``None`` if unknown, or if it used none."""
        return max((run.peak_gpu_bytes for run in self.run_set.of(arm) if run.peak_gpu_bytes), default=None)

    @property
    def _accelerator_type(self) -> str | None:
        return next((each.accelerator_type for each in self.run_set.devices if each.device == self.gpu), None)


def _median_of_medians(processes: Iterable[tuple[float, ...]]) -> float:
    return statistics.median(map(statistics.median, processes))
