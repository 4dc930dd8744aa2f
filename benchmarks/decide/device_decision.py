"""Decides which device is better for trials of each size, by time and by cost.

Whole trials are compared instead of steps, because a trial takes longer to start on a GPU, and in a short trial,
faster steps may not compensate for this. GPU sharing increases the computed trials per hour only if a record of
``tune-policies bench packing`` shows a gain. The GPU is charged with the CPUs of all trials that share it, so the
number of trials per GPU with the lowest cost per trial can differ from the fastest number.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field

from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InfeasibleRequestError, ResourcePolicy
from tune_policies.plan.benchmark_decision import (
    Answer,
    Decision,
    DeviceTimes,
    GpuOrNodes,
    Objective,
    SizeDecision,
    WorkloadDecision,
)
from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten, shorten_names, suggest

from ..compare.compare_devices import doubts_of
from ..compare.time_ratio import Comparison, Outcome, compare_times
from ..measuring.device_plans import parse_device
from ..record.machine import FRAMEWORKS
from ..record.missing_measurements import interruption, problems_of
from ..record.packing_record import PackingMode, ThroughputRecord
from ..record.run_set import Configuration, Phase, RunSet
from ..record.summary import how_to_measure_a_gpu, sentence
from .cpu_nodes import Nodes, NodesQuestion
from .crossover import crossover
from .price_file import Price, Prices

PHASE = Phase.TRANSFERS
"""The phase whose times are compared: steps with transfers, because the data of a trial are in host memory."""


def starts_s(run_set: RunSet, configuration: Configuration) -> dict[int, float]:
    """Return the startup time of the process in seconds, by round.

    This is the time until the end of the first epoch, minus the number of its steps times the median time of a step.
    """
    starts = {}
    for run in run_set.of(configuration):
        times = run.times_s(PHASE)
        if run.first_epoch_s is not None and times:
            # Noise can make the steps of the first epoch seem longer than the epoch itself.
            starts[run.round] = max(0.0, run.first_epoch_s - run.steps_per_epoch * statistics.median(times))
    return starts


def trials_s(
    run_set: RunSet, configuration: Configuration, steps_per_trial: int, price: float = 1.0
) -> dict[int, tuple[float, ...]]:
    """Return the duration of a trial in seconds, multiplied by ``price``, for each round and block of timed steps.

    Rounds whose startup time is unknown are omitted.
    """
    times = run_set.times_s(configuration, PHASE)
    trials = {}
    for number, start_s in starts_s(run_set, configuration).items():
        trials[number] = tuple(price * (start_s + steps_per_trial * step_s) for step_s in times[number])
    return trials


def compare_trials(
    run_set: RunSet,
    configurations: tuple[Configuration, Configuration],
    steps_per_trial: int,
    *,
    same_within: float,
    prices: tuple[float, float] = (1.0, 1.0),
) -> Comparison:
    """Compare whole trials of two configurations by time, or by cost if ``prices`` are their prices per second."""
    first = trials_s(run_set, configurations[0], steps_per_trial, prices[0])
    second = trials_s(run_set, configurations[1], steps_per_trial, prices[1])
    doubts = doubts_of(run_set, *configurations, PHASE, same_within)
    return compare_times(first, second, same_within=same_within, doubts=doubts)


_OUTSIDE_ALLOCATORS_BYTES: Final = safe_overhead_bytes("tensorflow")
"""GPU memory that a framework uses outside its allocator, in bytes: the value for TensorFlow, which uses the most."""

_WORDS: Final[dict[Outcome, Answer]] = {
    Outcome.FIRST: "CPU",
    Outcome.SECOND: "GPU",
    Outcome.SAME: "same",
    Outcome.AMBIGUOUS: "ambiguous",
}


class UndecidedError(ResourcePolicyError):
    """The measurements that a decision needs are missing."""


class Terms(Value):
    """The parameters of a decision.

    Attributes:
        steps_per_trial: The number of steps of a trial.
        gpu: The measured GPU to compare with the CPU: ``"gpu"``, or a fraction such as ``"gpu@0.25"``. The default is
            the first measured GPU.
        gpu_type: The name of the GPU type in the prices. The default is the name that Ray uses.
        same_within: The maximum relative difference of times or costs that count as the same.
        nodes: The trials and nodes for a comparison of one GPU with CPU nodes, or ``None`` for no comparison.
    """

    steps_per_trial: PositiveCount
    gpu: str | None = None
    gpu_type: str | None = None
    same_within: float = Field(default=0.05, gt=0, lt=1)
    nodes: NodesQuestion | None = None


class Decided(NamedTuple):
    """A decision, and notes on undecided or doubtful sizes, as sentences."""

    decision: Decision
    notes: tuple[str, ...]

    @property
    def is_decided(self) -> bool:
        """Whether the time or the cost of at least one size has an unambiguous answer."""
        return self.is_decided_by("time") or self.is_decided_by("cost")

    def is_decided_by(self, objective: Objective) -> bool:
        """Return whether at least one size has an unambiguous answer for the objective."""
        undecided = (None, "ambiguous")
        return any(
            size.answer_for(objective) not in undecided
            for workload in self.decision.workloads
            for size in workload.sizes
        )


def decide(
    run_set: RunSet,
    terms: Terms,
    capacity: ClusterCapacity,
    prices: Prices | None = None,
    packing: ThroughputRecord | None = None,
    file: Path | None = None,
) -> Decided:
    """Decide from the measurements of a run which device is better for trials on a cluster.

    Without ``prices``, only times are compared. Without ``packing``, the decision assumes that sharing a GPU does not
    increase the throughput. ``file`` contains the run set, for the command that continues an interrupted run.

    Raises:
        UndecidedError: No size was measured on both the CPU and the GPU.
        InvalidResourcesError: ``terms.gpu`` was not measured, a trial's resources have no price, ``packing`` was
            measured on another GPU, or the nodes of ``terms.nodes`` are unknown or too small.
    """
    # Check all inputs first. Then decide size by size, and collect the sizes that have the same doubt in one note.
    case = _Case(run_set, terms, measured_gpu(run_set, terms.gpu, file), capacity, prices, packing)
    case.check_packing()
    workloads, notes = [], list(problems_of(run_set, file))
    if case.other_gpu_types:
        notes.append(
            f"the run measured {case.accelerator_type}, so the cluster's GPUs of other types "
            f"({shorten_names(case.other_gpu_types)}) are not counted"
        )
    doubts: dict[tuple[str, str], list[str]] = {}
    for workload in run_set.workloads:
        sizes = []
        for size in run_set.sizes(workload):
            on_cpu = Configuration(workload=workload, size=size, device="cpu")
            on_gpu = Configuration(workload=workload, size=size, device=case.gpu)
            # Devices are compared within rounds, because the load of the machine can differ between rounds.
            rounds_of_both = starts_s(run_set, on_cpu).keys() & starts_s(run_set, on_gpu).keys()
            if not rounds_of_both:
                reason = "no round has times of both devices, so nothing is decided"
                doubts.setdefault((workload, reason), []).append(str(size))
                continue
            decided, reasons = case.decide((on_cpu, on_gpu))
            sizes.append(decided)
            for reason in reasons:
                doubts.setdefault((workload, reason), []).append(str(size))
        if sizes:
            # The crossover of a decision is by time. ``tables.py`` also describes the crossover by cost.
            found = crossover({decided.size: decided.answer for decided in sizes})
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
            f"no size has times of both cpu and {case.gpu}: {notes[0]}. Measure again, with smaller sizes or a longer "
            "timeout"
        )
    return Decided(case.decision(workloads), tuple(notes))


def measured_gpu(run_set: RunSet, wanted: str | None, file: Path | None = None) -> str:
    """Return the GPU whose times are compared with those of the CPU.

    ``file`` contains the run set, for the commands that continue an interrupted run or measure on a GPU.

    Raises:
        UndecidedError: The run measured no GPU, or not the CPU.
        InvalidResourcesError: ``wanted`` was not measured.
    """
    measured = run_set.measured_devices
    gpus = [device for device in measured if device == "gpu" or device.startswith("gpu@")]
    if wanted is not None and wanted not in gpus:
        raise InvalidResourcesError(
            f"nothing was measured on {wanted!r}{suggest(wanted, gpus)} (measured GPUs: {', '.join(gpus) or 'none'})"
        )
    if not gpus or "cpu" not in measured:
        text = f"a decision needs times of cpu and gpu, but the run measured {', '.join(measured) or 'nothing'}"
        for device in run_set.devices:
            if device.why_missing:
                text += f"; {device.device} was not measured: {device.why_missing}"
        sentences = [f"{text}.", *map(sentence, interruption(run_set, file))]
        raise UndecidedError(f"{' '.join(sentences)}\n{how_to_measure_a_gpu(run_set, file=file)}")
    return wanted or gpus[0]


class _Sharing(NamedTuple):
    """A number of trials that share a GPU, and the throughput gain over one trial at a time, as a factor."""

    trials_per_gpu: int = 1
    gain: float = 1.0


class _Case(NamedTuple):
    """The inputs of a decision."""

    run_set: RunSet
    terms: Terms
    gpu: str
    capacity: ClusterCapacity
    prices: Prices | None
    packing: ThroughputRecord | None

    def check_packing(self) -> None:
        """Check that the throughput was measured on the same type of GPU as the run, if both types are known."""
        measured_on = self.accelerator_type
        if self.packing is None or measured_on is None:
            return
        if not self.packing.may_be_of(measured_on):
            raise InvalidResourcesError(
                f"the packing record was measured on {shorten(self.packing.gpu)}, but the run on {measured_on}. "
                f"Run `tune-policies bench packing --output packing.json` on {measured_on}, or omit the record"
            )

    def decision(self, workloads: list[WorkloadDecision]) -> Decision:
        """Return the decision for these workloads."""
        environment, prices = self.run_set.environment, self.prices
        of_prices = {}
        if prices is not None:
            of_prices = {"price_date": prices.date, "currency": prices.currency, "price_source": prices.source}
        return Decision(
            measured_at=self.run_set.created_at,
            cpu_model=environment.cpu_model,
            accelerator_type=self.accelerator_type,
            versions={name: version for name, version in environment.versions.items() if name in FRAMEWORKS},
            workloads=tuple(workloads),
            **of_prices,
        )

    def decide(self, configurations: tuple[Configuration, Configuration]) -> tuple[SizeDecision, tuple[str, ...]]:
        """Compare the devices for one size. Return the decision and the doubts about it, as sentences."""
        steps, same_within = self.terms.steps_per_trial, self.terms.same_within
        on_cpu, on_gpu = configurations
        cpu, _ = self._times(on_cpu)
        gpu, gain = self._times(on_gpu)
        by_time = compare_trials(self.run_set, configurations, steps, same_within=same_within)
        by_cost: dict[str, Any] = {}
        reasons = by_time.reasons
        if cpu.cost_per_trial is not None and gpu.cost_per_trial is not None:
            # These prices contain the CPUs of all trials that share the GPU, and the gain from sharing it.
            prices = cpu.cost_per_trial / cpu.trial_s, gpu.cost_per_trial / gpu.trial_s
            costs = compare_trials(self.run_set, configurations, steps, same_within=same_within, prices=prices)
            by_cost = {"cheapest": _WORDS[costs.outcome], "flips_at": by_time.ratio * gain}
            reasons += tuple(f"by cost, {reason}" for reason in costs.reasons if reason not in reasons)
        if self.packing is not None and self._packing_name(on_gpu) is None:
            reasons += ("the packing record contains no measurement of this size, so one trial per GPU is assumed",)
        size = SizeDecision(
            size=on_cpu.size,
            answer=_WORDS[by_time.outcome],
            speedup=by_time.ratio,
            low=by_time.low,
            high=by_time.high,
            cpu=cpu,
            gpu=gpu,
            **by_cost,
        )
        if self.terms.nodes is not None:
            of_nodes = self._against_nodes(self.terms.nodes, size, gain, self._cpus_of(on_cpu))
            size = size.model_copy(update={"gpu_or_nodes": of_nodes})
        return size, reasons

    def _against_nodes(self, question: NodesQuestion, size: SizeDecision, gain: float, trial_cpus: float) -> GpuOrNodes:
        node_cpus = question.node_cpus
        if node_cpus is None:
            # Without a given size, compare with nodes like the largest one that the cluster already has.
            without_gpus = [node.resources for node in self.capacity.nodes if not node.resources.gpus]
            node_cpus = max((int(resources.cpus) for resources in without_gpus), default=0)
        if not node_cpus:
            raise InvalidResourcesError(
                "the cluster has no node without GPUs, so the number of CPUs of a CPU node is unknown. Pass --node-cpus"
            )
        price = gpu_price = None
        if self.prices is not None:
            price = self.prices.per_hour(cpus=node_cpus).per_hour
        if size.gpu.cost_per_trial is not None:
            # Multiplied by the gain, because the cost of a trial was divided by it.
            gpu_price = size.gpu.cost_per_trial * gain / size.gpu.trial_s * 3600
        return Nodes(question.num_trials, node_cpus, trial_cpus, price).against_gpu(
            cpu_trial_s=size.cpu.trial_s,
            gpu_trial_s=size.gpu.trial_s / gain,
            speedups=(size.low * gain, size.high * gain),
            gpu_price=gpu_price,
        )

    def _times(self, configuration: Configuration) -> tuple[DeviceTimes, float]:
        """Return the times and costs of trials on a device, and the throughput gain from sharing it, as a factor.

        The gain is that of the sharing with the lowest cost per trial, or without prices, of the fastest sharing.
        """
        runs = self.run_set.of(configuration)
        cpus = self._cpus_of(configuration)
        peak = max((run.peak_gpu_bytes for run in runs if run.peak_gpu_bytes), default=None)
        device = parse_device(configuration.device)
        # ``in_turn`` is the number of concurrent trials that do not slow each other down.
        if device.resource == "GPU":
            # A GPU is rented as a whole, so a fraction has the price of a GPU. The gain from sharing reduces the cost
            # below.
            gpus = max(1.0, device.amount)
            in_turn = self._at_once(GpuPolicy(gpus=gpus, cpus=cpus))
            sharing = device.policy(cpus)
            if device.amount == 1 and peak is not None:
                # On a whole GPU, the measured peak determines how many trials can share the GPU.
                sharing = GpuMemoryPolicy(gpu_memory=peak + _OUTSIDE_ALLOCATORS_BYTES, cpus=cpus)
            at_once = max(in_turn, self._at_once(sharing))
            # Without GPUs in the cluster, ``in_turn`` is 0.
            trials_per_gpu = 1
            if in_turn:
                trials_per_gpu = at_once // in_turn
            sharings = self._sharings(configuration, trials_per_gpu)
        else:
            gpus, sharings = 0.0, [_Sharing()]
            in_turn = at_once = self._at_once(CpuPolicy(cpus=cpus))
        starts = starts_s(self.run_set, configuration)
        steps = self.run_set.times_s(configuration, PHASE)
        trial_s = _median_of_medians(trials_s(self.run_set, configuration, self.terms.steps_per_trial).values())
        # The throughput is that of the fastest sharing. The cost is that of the cheapest one, which may be another.
        fastest_gain = max(sharing.gain for sharing in sharings)
        gain = fastest_gain
        price_of = cost_per_trial = None
        if self.prices is not None:
            cheapest, price = self._cheapest(self.prices, sharings, cpus, gpus)
            gain = cheapest.gain
            price_of = price.of
            if cheapest.trials_per_gpu > 1:
                price_of += f" (shared by {cheapest.trials_per_gpu} trials)"
            cost_per_trial = price.per_hour / gain * trial_s / 3600
        times = DeviceTimes(
            device=configuration.device,
            step_s=_median_of_medians(steps[number] for number in starts),
            start_s=statistics.median(starts.values()),
            trial_s=trial_s,
            at_once=at_once,
            trials_per_hour=in_turn * fastest_gain * 3600 / trial_s,
            cost_per_trial=cost_per_trial,
            price_of=price_of,
            peak_gpu_bytes=peak,
            num_threads=max(run.num_threads for run in runs),
        )
        return times, gain

    def _cpus_of(self, configuration: Configuration) -> float:
        """Return the CPUs that a trial of a configuration reserves, which are the CPUs to pay for."""
        if self.run_set.settings is not None:
            return self.run_set.settings.cpus
        # A record without settings contains only the threads. A process has one thread for each whole CPU, and at
        # least one.
        return max(run.num_threads for run in self.run_set.of(configuration))

    def _at_once(self, policy: ResourcePolicy) -> int:
        # On GPUs of other types, the times would be different.
        if isinstance(policy, GpuPolicy | GpuMemoryPolicy) and self.other_gpu_types:
            policy = policy.model_copy(update={"accelerator_type": self.accelerator_type})
        try:
            return policy.plan(self.capacity).max_concurrent_trials
        except InfeasibleRequestError:
            return 0

    def _cheapest(self, prices: Prices, sharings: list[_Sharing], cpus: float, gpus: float) -> tuple[_Sharing, Price]:
        """Return the sharing with the lowest cost per trial, and the price of the resources of all its trials.

        Raises:
            InvalidResourcesError: The resources of one trial have no price.
        """
        gpu_type = self.terms.gpu_type or self.accelerator_type
        # A single trial must have a price. Sharings without a price are skipped.
        alone, *shared = sharings
        cheapest, lowest = alone, prices.per_hour(cpus=cpus, gpus=gpus, accelerator_type=gpu_type)
        for sharing in shared:
            try:
                price = prices.per_hour(cpus=sharing.trials_per_gpu * cpus, gpus=gpus, accelerator_type=gpu_type)
            except InvalidResourcesError:
                continue  # no machine with a price has enough CPUs for these trials
            if price.per_hour / sharing.gain < lowest.per_hour / cheapest.gain:
                cheapest, lowest = sharing, price
        return cheapest, lowest

    def _sharings(self, configuration: Configuration, trials_per_gpu: int) -> list[_Sharing]:
        """Return one trial at a time, and then the measured numbers of up to ``trials_per_gpu`` trials per GPU."""
        sharings = [_Sharing()]
        name = self._packing_name(configuration)
        if self.packing is None or name is None:
            return sharings
        for mode, number in self.packing.rates(name):
            # Ignore measurements with MPS, because a plan does not start MPS.
            if mode is PackingMode.PACKED and number <= trials_per_gpu:
                gain = self.packing.speedup(name, mode, number) or 1.0
                sharings.append(_Sharing(number, gain))
        return sharings

    def _packing_name(self, configuration: Configuration) -> str | None:
        """Return the name of the workload and size in the packing record, or ``None`` if they were not measured."""
        if self.packing is None:
            return None
        return self.packing.name_of(configuration.workload, configuration.size)

    @property
    def other_gpu_types(self) -> list[str]:
        """The types of the cluster's GPUs that were not measured. It is empty if the measured type is unknown."""
        if self.accelerator_type is None:
            return []
        # Nodes that the autoscaler can add count too, because policies plan on them.
        to_add = [node_type.as_node() for node_type in self.capacity.node_types or () if node_type.max_nodes_to_add]
        nodes = [node for node in (*self.capacity.nodes, *to_add) if node.resources.gpus]
        types = {node.accelerator_type for node in nodes if node.accelerator_type is not None}
        return sorted(types - {self.accelerator_type})

    @property
    def accelerator_type(self) -> str | None:
        """The type of the measured GPU, or ``None`` if it is unknown."""
        return next((device.accelerator_type for device in self.run_set.devices if device.device == self.gpu), None)


def _median_of_medians(processes: Iterable[tuple[float, ...]]) -> float:
    return statistics.median(map(statistics.median, processes))
