"""The advice for a run: which policy would run more of its trials at once, and about how many times as fast.

The end of a run, ``tune-policies usage`` and ``AuditCallback`` give the same advice. It is the plan that a
``LearningPolicy`` makes from what the trials used. The policy is ``LearningPolicy()``, or a policy with the learned
amounts if this is much faster, because pilots keep their slots. The speed-up comes from ``run_simulation``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final, NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import GpuDevice, NodeCapacity
from tune_policies.plan.trial_observation import SHORTEST_S, TrialNeed, TrialObservation
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.learning import LearningPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ResourcePolicyError
from tune_policies.values.resources import Resources
from tune_policies.values.units import two_digits
from tune_policies.values.wording import counted

from .gpu_memory_records import TrialGpuMemory, bytes_to_plan
from .run_facts import RunFacts, TrialFacts
from .run_simulation import RunSimulation

LEAST_GAIN: Final = 1.1
"""The minimum speed-up that is worth another policy."""

_MOST_SIMULATED: Final = 2_000


@dataclass(frozen=True)
class Advice:
    """A policy that would run more trials of a run at once.

    Attributes:
        policy: The policy.
        at_once: The number of trials that would run at once.
        instead_of: The number of trials that could run at once.
        speedup: How many times as fast the run would be, or ``None`` if this is not known.
        is_rough: Whether the speed-up is uncertain, because other programs used much of the CPUs.
    """

    policy: ResourcePolicy
    at_once: int
    instead_of: int
    speedup: float | None = None
    is_rough: bool = False

    def __str__(self) -> str:
        text = f"{self.policy!r} would run up to {self.at_once} trials at once instead of {self.instead_of}"
        if self.speedup is None:
            return text
        faster = f"about {two_digits(self.speedup)} times as fast"
        if self.is_rough:
            faster += ", a rough estimate because other programs used the CPUs"
        return f"{text} ({faster})"


class _Suggestion(NamedTuple):
    """A policy that learns, and what it would plan for the trials of a run.

    Attributes:
        policy: The policy, before it has learned.
        learned: The policy after it has learned from all trials.
        plan: The plan of the learned policy.
        num_pilots: The number of trials that run at once before the policy has learned.
        parts: The part of the cluster that each trial reserves after the policy has learned.
    """

    policy: LearningPolicy
    learned: LearningPolicy
    plan: TrialPlan
    num_pilots: int
    parts: Sequence[float]

    @property
    def would_fit(self) -> int:
        """The number of trials that would fit on the cluster at once."""
        return round(1 / fmean(self.parts))


def advise(trials: Sequence[TrialFacts], capacity: ClusterCapacity, facts: RunFacts) -> Advice | str:
    """Return a policy under which more of these trials run at once, or the reason why none is suggested."""
    capacity = _with_gpu_memory(capacity, trials)
    step = max(1, len(trials) // _MOST_SIMULATED)
    # Many trials are thinned out evenly, because the simulation takes time for each of them.
    trials = trials[::step]
    policy = _learning_policy(trials, capacity)
    # One pilot, so that the policy learns also from few trials.
    learned = policy.model_copy(update={"num_pilots": 1}).learn(_observations(trials))
    if learned.needs is None or not learned.needs.amounts.keys() & {"cpus", "gpu_memory_bytes"}:
        return f"what the trials used is not known, because none of them was measured for {SHORTEST_S:g} s"
    try:
        plan = learned.plan(capacity)
        parts = [_part_of_cluster(plan, trial.config) for trial in trials]
        num_pilots = policy.start.plan(capacity).max_concurrent_trials
    except ResourcePolicyError as error:
        return str(error)
    suggestion = _Suggestion(policy, learned, plan, num_pilots, parts)
    at_once = min(facts.most_open, suggestion.would_fit, facts.num_trials)
    if at_once <= facts.at_once:
        return _why_not_more(suggestion.would_fit, at_once, facts)
    advice = Advice(policy, at_once, facts.at_once)
    is_sample = step > 1  # the duration of the run follows only from all trials
    is_use_known = all(trial.need.gpu_utilization is not None for trial in trials if trial.gpus)
    if not facts.elapsed_s or is_sample or not is_use_known:
        return advice
    return _with_speedup(advice, suggestion, capacity, facts, RunSimulation(trials, capacity, facts))


def _with_gpu_memory(capacity: ClusterCapacity, trials: Sequence[TrialFacts]) -> ClusterCapacity:
    """Return the cluster with the GPU memory that trials reported, because Ray does not know it."""
    reported = [trial.gpu_memory.device_bytes for trial in trials if trial.gpu_memory is not None]
    device_bytes = min(filter(None, reported), default=None)
    if device_bytes is None:
        return capacity
    nodes = []
    for node in capacity.nodes:
        if node.devices is None:
            indices = range(int(node.resources.gpus))
            gpus = [GpuDevice(index=index, name="GPU", memory_bytes=device_bytes) for index in indices]
            node = node.model_copy(update={"devices": tuple(gpus)})
        nodes.append(node)
    return ClusterCapacity(nodes=tuple(nodes))


def _why_not_more(would_fit: int, at_once: int, facts: RunFacts) -> str:
    """Return why no policy would run more trials at once than could run already."""
    if would_fit <= facts.at_once:
        return "more trials at once would need more than the cluster has"
    if facts.num_trials <= facts.at_once:
        if facts.num_trials == 1:
            return "the run has one trial"
        return f"all {facts.num_trials} trials could run at once"
    unfinished = counted(at_once, "unfinished trial")
    return (
        f"{would_fit} trials would fit at once, but the run never had more than {unfinished}. "
        "Omit max_concurrent_trials, or raise the limit of the search algorithm"
    )


def _with_speedup(
    advice: Advice, suggestion: _Suggestion, capacity: ClusterCapacity, facts: RunFacts, simulation: RunSimulation
) -> Advice | str:
    """Return ``advice`` with its estimated speed-up, or a policy with fixed amounts if it would be much faster.

    If neither is worth a change, return the reason.
    """
    before_s = simulation.duration_s(facts.at_once)
    # The run also took time for other things, such as its end, which another policy does not change.
    rest_s = max(0.0, facts.elapsed_s - before_s) + simulation.probe_s
    learning_s = simulation.duration_s(suggestion.num_pilots, suggestion.parts, suggestion.policy.num_pilots)
    speedup = facts.elapsed_s / (learning_s + rest_s)
    advice = replace(advice, speedup=speedup, is_rough=simulation.is_rough)
    # Fixed amounts need no pilots, but a run with several slot types cannot have one amount.
    fixed = suggestion.learned.with_fixed_amounts()
    fits = 0
    if fixed is not None and len(suggestion.plan.slots) == 1:
        fits = _num_that_fit(fixed, capacity)
    if fixed is not None and fits > facts.at_once:
        fixed_speedup = facts.elapsed_s / (simulation.duration_s(fits) + rest_s)
        if fixed_speedup >= LEAST_GAIN * speedup:
            at_once = min(facts.most_open, fits, facts.num_trials)
            advice = replace(advice, policy=fixed, at_once=at_once, speedup=fixed_speedup)
            speedup = fixed_speedup
    if speedup < LEAST_GAIN:
        slower = "not end earlier"
        # A smaller speed-up would be shown as 1.
        if speedup > 1.005:
            slower = f"be only about {speedup:.3g} times as fast"
        return (
            f"{suggestion.would_fit} trials would fit at once instead of {facts.at_once}, but this run would {slower}, "
            "because trials share the CPUs, and their processes take time to start"
        )
    return advice


def _num_that_fit(policy: ResourcePolicy, capacity: ClusterCapacity) -> int:
    """Return how many trials run at once. A learned amount with its headroom may be more than a node has."""
    try:
        return policy.plan(capacity).max_concurrent_trials
    except InfeasibleRequestError:
        return 0


def trials_per_gpu(trials: Sequence[TrialGpuMemory], device_bytes: int) -> int:
    """Return how many trials ``LearningPolicy()`` would run on a GPU of this size after these trials."""
    observations = []
    for number, trial in enumerate(trials):
        used = too_little = TrialNeed()
        if trial.usage is not None:
            used = TrialNeed(gpu_memory_bytes=bytes_to_plan(trial.usage))
        for usage in trial.usages:
            if usage.num_ooms:
                too_little |= TrialNeed(gpu_memory_bytes=usage.share_bytes or device_bytes)
        observations.append(TrialObservation(trial_id=str(number), used=used, too_little=too_little, ended=True))
    gpu = GpuDevice(index=0, name="GPU", memory_bytes=device_bytes)
    # One CPU is enough, because trials on a GPU divide the CPUs of their node.
    node = NodeCapacity(node_id="gpu", resources=Resources(cpus=1, gpus=1), devices=(gpu,))
    learned = LearningPolicy(num_pilots=1).learn(observations)
    return learned.plan(ClusterCapacity(nodes=(node,))).max_concurrent_trials


def _learning_policy(trials: Sequence[TrialFacts], capacity: ClusterCapacity) -> LearningPolicy:
    """Return the policy to suggest. ``AutoPolicy`` would move trials without GPUs to GPUs."""
    has_gpus = any(node.resources.gpus for node, _ in capacity.groups)
    if has_gpus and not any(trial.gpus for trial in trials):
        return LearningPolicy(CpuPolicy())
    return LearningPolicy()


def _observations(trials: Sequence[TrialFacts]) -> list[TrialObservation]:
    found = []
    for trial in trials:
        if trial.process is None and trial.gpu_memory is None:
            continue
        try:
            seen = TrialObservation(
                trial_id=trial.trial_id,
                config=dict(trial.config),
                uses_gpu=trial.gpus > 0,
                used=trial.need,
                ended=True,
            )
        except InvalidResourcesError:
            continue  # a config that is not plain data
        found.append(seen)
    return found


def _part_of_cluster(plan: TrialPlan, config: Mapping[str, Any]) -> float:
    slot = None
    if plan.by_config is not None:
        slot = plan.by_config.slot_for(config)
    if slot is None:
        return 1 / plan.max_concurrent_trials
    return 1 / slot.max_concurrent_trials
