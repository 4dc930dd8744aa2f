"""What trials need of each resource, learned from the observed trials of a run.

Each resource is learned alone (``learned_amount.py``). This module decides how much a failure costs, how memory grows
until the end of a trial, what a retry gets, and how requests are rounded.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any, Final

from tune_policies.plan.gpu_memory_profile import flat
from tune_policies.plan.headroom import HEADROOM
from tune_policies.plan.learned_amount import ALIKE, LOST, LearnedAmount, learn_amount, values_by_feature
from tune_policies.plan.trial_observation import MEMORY, TrialNeed, TrialObservation, features_of
from tune_policies.values.field_types import FrozenDict
from tune_policies.values.resources import TICKS, Count
from tune_policies.values.units import MIB, MOST_BYTES
from tune_policies.values.value import Value

_LOST_WITH_CHECKPOINT: Final = 0.1
"""The assumed fraction of a trial with checkpoints that is lost, until trials have ended."""

_STEPS_LOST: Final = 2
"""The assumed number of steps that a trial with checkpoints loses, including its restart."""

_FRACTIONS: Final = (*(1 / parts for parts in (20, 15, 12, 10, 8, 6, 5, 4, 3, 2)), 2 / 5, 3 / 5, 2 / 3, 3 / 4, 1)

PARTS_OF_CPU: Final = tuple(sorted(math.floor(fraction * TICKS) / TICKS for fraction in _FRACTIONS))
"""The requests of at most 1 CPU, in ascending order. They are few, because each is a scheduling class of Ray. They are
rounded down, so that Ray's amounts add up: three times 0.6667 is more than 2."""

_GROWTH: Final = 2
"""The factor of the next attempt, if no larger amount was observed. ``trainers/retries/oom_retry.py`` has its own."""

_UNKNOWN_GROWTH: Final = 2.0
"""The assumed growth of the memory of trials without checkpoints, until a trial has ended."""


class LearnedNeeds(Value):
    """What a trial with each config needs, by resource. A resource that was not measured is missing.

    Attributes:
        num_trials: The number of trials from which the amounts were learned.
        num_ended: The number of these trials that have ended, so that their largest peaks are known.
        amounts: The amount of each resource, by the name of the field of ``TrialNeed``.
    """

    num_trials: Count
    num_ended: Count = 0
    amounts: dict[str, LearnedAmount]

    def need_for(self, config: Mapping[str, Any]) -> TrialNeed:
        """Return what a trial with this config needs, with headroom for memory."""
        return self.need_of(features_of(flat(config)))

    def need_of(self, features: Mapping[str, float]) -> TrialNeed:
        """Return what a trial whose config has these features needs, with headroom for memory."""
        amounts = {}
        for name, amount in self.amounts.items():
            amounts[name] = amount.amount_for(features, HEADROOM if name in MEMORY else 0.0)
        return _as_need(amounts)

    def is_outside(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config is outside the range of the observed trials for any amount."""
        return bool(self.names_outside(config))

    def names_outside(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the amounts for which a config is outside the range of the observed trials."""
        features = features_of(flat(config))
        return [name for name, amount in self.amounts.items() if amount.is_outside(features)]

    def need_after(self, config: Mapping[str, Any], too_little: TrialNeed) -> TrialNeed:
        """Return what a trial with this config needs after it ran out of memory with ``too_little``.

        If no formula determines the memory, the retry gets the amount with the highest expected throughput among the
        observed amounts. Otherwise, it gets twice the memory that was too little, but at most the largest observed
        amount if this is more.
        """
        raised = {}
        for name, amount in too_little:
            if amount is None:
                continue
            raised[name] = _GROWTH * amount
            if name not in self.amounts:
                continue
            more = [step for step in self.amounts[name].retries if step > amount]
            if more:
                raised[name] = more[0]
            elif amount < self.amounts[name].largest:
                raised[name] = min(_GROWTH * amount, getattr(self.observed, name))
        return self.need_for(config) | TrialNeed(**raised)

    @cached_property
    def usual(self) -> TrialNeed:
        """The need of a config inside the observed range, if it is the same for all configs."""
        return self.need_of({})

    @cached_property
    def at_most(self) -> TrialNeed:
        """The largest need of an observed config. An amount without a formula is the same for all configs."""
        amounts = {}
        for name, amount in self.amounts.items():
            amounts[name] = getattr(self.observed if amount.terms else self.usual, name)
        return TrialNeed(**amounts)

    @cached_property
    def observed(self) -> TrialNeed:
        """The largest observed amounts, with headroom for memory."""
        return self._times(1, self.amounts)

    @cached_property
    def outside(self) -> TrialNeed:
        """What a config gets at least that is outside the observed range for every amount that has one."""
        return self._outside([name for name, amount in self.amounts.items() if amount.most])

    @cached_property
    def all_outside(self) -> tuple[TrialNeed, ...]:
        """What configs outside the observed range get at least, or nothing if no config can be outside.

        Amounts that were measured for different trials have different ranges. So a config may be outside the range of
        one of them, and gets more of this amount only.
        """
        names_of: dict[FrozenDict, list[str]] = {}
        for name, amount in self.amounts.items():
            if amount.most:
                names_of.setdefault(FrozenDict(amount.most), []).append(name)
        needs = [self._outside(names) for names in names_of.values()]
        if len(needs) > 1:
            needs.append(self.outside)
        return tuple(needs)

    def _outside(self, names: Collection[str]) -> TrialNeed:
        """Return what a config gets at least that is outside the observed range for these amounts only."""
        return self.at_most | self._times(2, names)

    def _times(self, factor: float, names: Collection[str]) -> TrialNeed:
        """Return the largest observed amounts with these names, multiplied, with headroom for memory."""
        amounts = {}
        for name in names:
            headroom = HEADROOM if name in MEMORY else 0.0
            amounts[name] = math.ceil(factor * self.amounts[name].largest * (1 + headroom))
        return _as_need(amounts)

    @property
    def depends_on_config(self) -> bool:
        """Whether a formula determines any amount."""
        return any(amount.terms for amount in self.amounts.values())


def _as_need(amounts: Mapping[str, int]) -> TrialNeed:
    """Return the need with rounded amounts, so that similar configs get equal requests."""
    need: dict[str, float] = {}
    for name, amount in amounts.items():
        match name:
            case "cpus":
                need[name] = _rounded_cpus(amount / TICKS)
            case "gpu_utilization":
                need[name] = min(1.0, amount / TICKS)
            case "gpu_memory_bytes":  # the fraction of a GPU is rounded again
                need[name] = _rounded_bytes(amount, num_digits=8)
            case _:
                need[name] = _rounded_bytes(amount, num_digits=6)
    return TrialNeed.from_dict(need)


def _rounded_cpus(cpus: float) -> float:
    """Return at least ``cpus``: a whole number, or a simple fraction such as 2/3. The smallest amount is 1/20.

    Ray adds up the CPUs of a node, so three trials with 2/3 of a CPU use two CPUs.
    """
    if cpus > 1:
        return math.ceil(round(cpus, 4))
    # A tiny excess, such as 0.3334 CPUs for a third, does not lead to the next larger part.
    return next(part for part in PARTS_OF_CPU if part >= cpus - 1 / 1_000)


def _rounded_bytes(amount: int, *, num_digits: int) -> int:
    """Return ``amount`` rounded up to this number of binary digits. With 5 digits, this adds at most a sixteenth.

    The result is at least 1 MiB, the smallest request, because a formula can give 0 bytes for a small config.
    """
    step = 1 << max(0, amount.bit_length() - num_digits)
    return min(MOST_BYTES, max(MIB, -(-amount // step) * step))


def learn_needs(observations: Sequence[TrialObservation]) -> LearnedNeeds:
    """Return what trials need. Observations of trials that have reported less than twice are ignored."""
    counted = [seen for seen in observations if seen.counts]
    lost = _lost_part(counted)
    values = values_by_feature([seen.features for seen in counted])
    amounts: dict[str, LearnedAmount] = {}
    for name in TrialNeed.model_fields:
        growth = _growth(counted, name)
        found = [seen.needed(name, growth) for seen in counted]
        points = [point for point in found if point.amount]
        if not points:
            continue
        of_points = values
        if len(points) < len(counted):
            of_points = values_by_feature([point.features for point in points])
        lost_part = lost if name in MEMORY else None  # a trial with too few CPUs is slower, but does not fail
        amount = learn_amount(points, of_points, lost=lost_part)
        if name not in MEMORY and not amount.terms:
            # Trials that were too short to measure their CPUs are no reason to expect more CPUs for their configs, and
            # with too few CPUs, a trial is only slower. A formula is valid only for the trials to which it was fitted.
            amount = amount.in_range_of(values)
        amounts[name] = amount.model_copy(update={"num_trials": len(points)})
    num_ended = sum(seen.ended for seen in counted)
    return LearnedNeeds(num_trials=len(counted), num_ended=num_ended, amounts=amounts)


def _lost_part(observations: Sequence[TrialObservation]) -> float:
    """Return the expected fraction of a trial that is lost if it runs out of memory."""
    ended = [seen for seen in observations if seen.ended]
    ran_out = [seen for seen in observations if seen.ran_out]
    run_s = fmean(seen.elapsed_s for seen in ended) if ended else 0.0
    is_saved = all(seen.is_saved for seen in observations)
    grows = any(_growth(ended, name) > ALIKE for name in MEMORY)
    # Memory that grows late runs out late. The first failures come early, because these trials need far more.
    if grows and not is_saved:
        return 1.0
    if ran_out and run_s > 0:
        return min(1.0, fmean(seen.lost_s for seen in ran_out) / run_s)
    if not is_saved:
        return LOST
    if not any(seen.num_steps for seen in ended):
        return _LOST_WITH_CHECKPOINT
    num_steps = fmean(seen.num_steps for seen in ended)
    return min(LOST, _STEPS_LOST / num_steps)


def _growth(observations: Sequence[TrialObservation], name: str) -> float:
    """Return by which factor an amount grew at most between the first observation and the end of a trial."""
    if name not in MEMORY:
        return 1.0
    growth = 1.0
    if not any(seen.ended or seen.is_saved for seen in observations):
        growth = _UNKNOWN_GROWTH  # a failure would lose the whole trial
    return max([growth, *(seen.growths[name] for seen in observations)])
