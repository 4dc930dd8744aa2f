"""What trials need, learned from the trials of a run: a formula of the config, or an amount for all configs.

Each resource is learned alone. If a formula explains at least 80 % of the variance in leave-one-out cross-validation,
each config gets its own amount. Otherwise all configs get the amount with the highest expected throughput (Tovar et
al., "A Job Sizing Strategy for High-Throughput Scientific Workflows", IEEE TPDS 29(2), 2018). CPUs and GPU utilization
do not end a trial if they are too small, so without a formula their mean counts.

Amounts are whole numbers: bytes of memory, and ticks of 1/10,000 of a CPU or of the time of a GPU.
"""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field

from tune_policies.plan.gpu_memory_profile import MemoryFit, Term, fit_memory, flat
from tune_policies.values.resources import TICKS, Bytes, Count, UsedBytes, amount_of
from tune_policies.values.units import GIB, MIB, MOST_BYTES, format_bytes
from tune_policies.values.value import FrozenDict, Value

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

HEADROOM: Final = 0.1
"""The fraction by which planned and advised amounts exceed the measured amounts."""

EXPLAINED: Final = 0.8
"""A formula is used if it explains at least this fraction of the variance of the amounts."""

_MEMORY: Final = ("host_memory_bytes", "gpu_memory_bytes")
"""The amounts that end a trial if they are too small."""

_ALIKE: Final = 1.1
"""Amounts count as equal if they differ by at most this factor."""

_MOST_FITTED: Final = 48
"""The maximum number of trials to which a formula is fitted, so that learning takes milliseconds."""

_KNOWN_AFTER: Final = 8
"""After this number of trials, a number that varied and is in no formula does not affect the amount."""

_FEWEST_FITTED: Final = 4
"""The minimum number of trials for a formula. Until then, each config gets twice the largest amount of memory."""

_FEWEST_FAILING: Final = 8
"""The minimum number of trials before an amount may be too little for some trials, if a failure loses much."""

_FEWEST_RESUMING: Final = 4
"""The minimum number if trials resume from checkpoints, so that a failure loses little."""

_MANY: Final = 16
"""With fewer trials, a formula must explain more, in proportion to the number of trials: 95 % of four trials."""

_ANY: Final = 1_000
"""The factor of the largest amount for a config that may need any amount, because its algorithm is unknown."""

_CPUS_NEEDED: Final = 0.95
"""The part of the used CPUs that is reserved before rounding up, so that 6.1 used CPUs do not become 7."""

_LOST: Final = 0.5
"""The assumed fraction of a trial without checkpoints that is lost if it runs out of memory."""

_LOST_WITH_CHECKPOINT: Final = 0.1
"""The assumed fraction of a trial with checkpoints that is lost, until trials have ended."""

_STEPS_LOST: Final = 2
"""The assumed number of steps that a trial with checkpoints loses, including its restart."""

_GUESS: Final = 1.5
"""The assumed need of a trial that has only run out of memory so far, relative to the memory that it had."""

_UNKNOWN_GROWTH: Final = 2.0
"""The assumed growth of the memory of trials without checkpoints, until a trial has ended."""


class TrialNeed(Value):
    """The amounts that a trial needs, or that its processes used. ``None`` means that an amount is unknown.

    Attributes:
        cpus: The CPUs.
        host_memory_bytes: The peak host memory in bytes.
        gpu_memory_bytes: The peak GPU memory in bytes, including the overhead outside the framework's allocator.
        gpu_utilization: The fraction of a GPU's time, from 0 to 1, in which it works for this trial.
    """

    cpus: float | None = Field(default=None, ge=0)
    host_memory_bytes: Bytes | None = None
    gpu_memory_bytes: Bytes | None = None
    gpu_utilization: float | None = Field(default=None, ge=0, le=1)

    def covers(self, other: "TrialNeed") -> bool:
        """Return whether each known amount of ``other`` is at most the amount of this need."""
        return all(map(operator.le, other._amounts, self._amounts))

    @cached_property
    def _amounts(self) -> tuple[float, ...]:
        """The amounts, with 0 for unknown ones."""
        return tuple(getattr(self, name) or 0 for name in TrialNeed.model_fields)

    def __or__(self, other: "TrialNeed") -> "TrialNeed":
        """Return the maximum of each amount."""
        most = {}
        for name in TrialNeed.model_fields:
            known = [need for need in (getattr(self, name), getattr(other, name)) if need is not None]
            most[name] = max(known, default=None)
        return TrialNeed(**most)

    def __str__(self) -> str:
        parts = []
        if self.gpu_memory_bytes is not None:
            parts.append(f"{format_bytes(self.gpu_memory_bytes)} of GPU memory")
        if self.gpu_utilization is not None:
            parts.append(f"{self.gpu_utilization:.0%} of the GPU's time")
        if self.cpus is not None:
            parts.append(amount_of(round(self.cpus, 2), "CPU"))
        if self.host_memory_bytes is not None:
            parts.append(f"{format_bytes(self.host_memory_bytes)} of host memory")
        return ", ".join(parts) or "nothing measured"


NOTHING: Final = TrialNeed()
"""A need without any known amount."""


class TrialObservation(Value):
    """What a trial has used so far. A later observation of the same trial replaces an earlier one.

    Attributes:
        trial_id: Tune's ID of the trial.
        config: The trial's config, with the keys of nested mappings joined by ``/``.
        reserved: The CPUs and the memory that the trial reserves.
        used: The peaks of memory, the mean number of CPUs, and the mean utilization by this trial alone.
        early: The amounts of the trial's first observation. ``learn`` sets them.
        too_little: The largest amounts of memory with which the trial ran out of memory.
        num_steps: The number of results that the trial has reported.
        is_saved: Whether the trial has a checkpoint, so that a failure loses only the time since then.
        elapsed_s: The time for which the trial has run, in seconds, without the lost time.
        lost_s: The time that the trial lost because it ran out of memory, in seconds.
        ended: Whether the trial has ended.
    """

    trial_id: str
    config: Annotated[dict[str, Any], BeforeValidator(flat)] = Field(default_factory=dict)
    reserved: TrialNeed = TrialNeed()
    used: TrialNeed = TrialNeed()
    early: TrialNeed | None = None
    too_little: TrialNeed = TrialNeed()
    num_steps: Count = 0
    is_saved: bool = False
    elapsed_s: float = Field(default=0.0, ge=0)
    lost_s: float = Field(default=0.0, ge=0)
    ended: bool = False

    @cached_property
    def features(self) -> Mapping[str, float]:
        """The numbers and words of the config that may affect memory. See ``features_of``."""
        return FrozenDict(features_of(self.config))

    @cached_property
    def _points(self) -> "dict[tuple[str, float], _Point]":
        """The amounts by name and growth that were computed before, because an observation is learned many times."""
        return {}

    @cached_property
    def _growths(self) -> Mapping[str, float]:
        """The factor by which each amount of memory grew after the first observation, at least 1."""
        growths = dict.fromkeys(_MEMORY, 1.0)
        for name in _MEMORY:
            early = getattr(self.early, name, None)
            grown = getattr(self.too_little, name) or 0  # the amount is 0 if the trial never ran out of memory
            if self.ended:
                grown = max(grown, getattr(self.used, name) or 0)
            if early:
                growths[name] = max(1.0, grown / early)
        return FrozenDict(growths)

    @cached_property
    def ran_out(self) -> bool:
        """Whether the trial ran out of memory."""
        return self.too_little != NOTHING

    @cached_property
    def counts(self) -> bool:
        """Whether the trial has reported at least twice, has ended, or ran out of memory."""
        return self.num_steps >= 2 or self.ended or self.ran_out

    def _point(self, name: str, growth: float) -> "_Point":
        point = _Point(self.features, self.amount(name, growth) or 0, is_guess=self.is_guess(name))
        self._points[name, growth] = point
        return point

    def amount(self, name: str, growth: float) -> int | None:
        """Return the amount of one resource that the trial needs, or ``None`` if it is unknown.

        Args:
            name: The name of a field of ``TrialNeed``.
            growth: The factor by which the amount grows after the first observation of a trial.
        """
        used: float | None = getattr(self.used, name)
        too_little = int(getattr(self.too_little, name) or 0)
        if used is None:
            return math.ceil(_GUESS * too_little) or None
        if name == "cpus":  # a trial that used all its CPUs may be able to use more, but this is not known
            wanted = used * _CPUS_NEEDED
            return math.ceil(TICKS * min(wanted, self.reserved.cpus or wanted))
        if name == "gpu_utilization":
            return math.ceil(TICKS * used)
        needed = int(used)
        if not self.ended:
            early = getattr(self.early, name, None) or used
            needed = max(needed, math.ceil(early * growth))
        # A trial that ran out of memory and has not succeeded since needs more than it had.
        if needed > too_little:
            return needed
        return math.ceil(_GUESS * too_little)

    def is_guess(self, name: str) -> bool:
        """Return whether an amount is not known, because the trial has only run out of memory so far."""
        return (getattr(self.used, name) or 0) <= (getattr(self.too_little, name) or 0)


class _Point(NamedTuple):
    """The features of a config, and an amount. A guess is ``_GUESS`` times an amount that was too little."""

    features: Mapping[str, float]
    amount: int
    is_guess: bool


def features_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the whole numbers of a flat config, and the number 1 for each other value, such as ``{"net=mlp": 1}``.

    Fractional numbers are mostly rates, which do not affect memory.
    """
    features: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, bool | str | None):
            features[f"{name}={value}"] = 1
        elif isinstance(value, int):
            features[name] = value
    return features


class LearnedAmount(Value):
    """How much of one resource a trial needs.

    Attributes:
        terms: The terms of the formula, each with its coefficient. Without terms, all configs need ``amount``.
        amount: The amount for all configs, or the largest residual of the formula.
        largest: The largest amount that a trial used, or that was too little.
        most: The largest observed value of each number that may affect the amount.
        explained: The fraction of the variance that the formula explains, or 0 if no formula is used.
        failing: The fraction of observed trials that need more than ``amount``.
        retries: The amounts for trials that need more than ``amount``, in ascending order.
        has_margin: Whether ``amount`` contains a margin, which follows from the differences of the trials.
    """

    terms: tuple[tuple[Term, float], ...] = ()
    amount: UsedBytes
    largest: UsedBytes
    most: dict[str, float] = Field(default_factory=dict)
    explained: float = 0.0
    failing: float = 0.0
    retries: tuple[UsedBytes, ...] = ()
    has_margin: bool = False

    def amount_for(self, features: Mapping[str, float], headroom: float = 0.0) -> int:
        """Return the amount for a config with these features.

        Outside the observed range, it is at least twice the largest amount, and more if numbers are more than twice as
        large as all observed ones. A config with an unknown word may need any amount.

        Args:
            features: The features of the config.
            headroom: The fraction that is added to the amount. The residual of a formula counts as headroom. An amount
                that already contains a margin gets none.
        """
        beyond = []
        for name, value in features.items():
            most = self.most.get(name, value)
            if value > most:
                beyond.append(value / most if most > 0 else 2.0)  # there is no ratio to 0 or to a negative number
        unknown = features.keys() - self.most.keys()
        if any(map(self._affects, unknown)):
            return _ANY * self.largest
        if beyond:
            return math.ceil(self.largest * max(2.0, min(math.prod(beyond), _ANY)) * (1 + headroom))
        if self.terms:
            expected = self._fit.bytes_for({name: features.get(name, 0) for name in self._fit.largest})
            if not headroom:
                return min(expected, self.largest)
            return max(expected, math.ceil((expected - self.amount) * (1 + headroom)))
        if self.has_margin:
            return self.amount
        return math.ceil(self.amount * (1 + headroom))

    def is_outside(self, features: Mapping[str, float]) -> bool:
        """Return whether a config with these features is outside the observed range."""
        return any(value > self.most.get(name, 0) for name, value in features.items() if self._affects(name))

    def _affects(self, name: str) -> bool:
        return _key_of(name) in self._keys

    @cached_property
    def _keys(self) -> Collection[str]:
        return {_key_of(name) for name in self.most}

    @cached_property
    def _fit(self) -> MemoryFit:
        names = {name for term, _ in self.terms for name in term}
        of_used = FrozenDict({name: self.most.get(name, 0) for name in names})
        return MemoryFit(FrozenDict(dict(self.terms)), self.amount, of_used, FrozenDict({}), self.explained)

    def describe(self, unit: str) -> str:
        """Return how the amount was decided, as text. ``unit`` is the name of the resource."""
        if self.terms:
            numbers = sorted({name for term, _ in self.terms for name in term}) or ["no number"]
            return f"{unit}: {', '.join(numbers)} of the config explain {self.explained:.0%} of the differences"
        if self.failing:
            return f"{unit}: the config does not explain it; {self.failing:.0%} of the trials need more than the amount"
        return f"{unit}: the same amount for all configs"


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
            amounts[name] = amount.amount_for(features, HEADROOM if name in _MEMORY else 0.0)
        return _as_need(amounts)

    def is_outside(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config is outside the range of the observed trials."""
        features = features_of(flat(config))
        return any(amount.is_outside(features) for amount in self.amounts.values())

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
            raised[name] = 2 * amount
            if name not in self.amounts:
                continue
            more = [step for step in self.amounts[name].retries if step > amount]
            if more:
                raised[name] = more[0]
            elif amount < self.amounts[name].largest:
                raised[name] = min(2 * amount, getattr(self.observed, name))
        return self.need_for(config) | TrialNeed(**raised)

    @cached_property
    def observed(self) -> TrialNeed:
        """The largest observed amounts, with headroom for memory."""
        return self._times(1)

    @cached_property
    def outside(self) -> TrialNeed:
        """What a config outside the observed range gets at least."""
        return self._times(2)

    def _times(self, factor: float) -> TrialNeed:
        amounts = {}
        for name, amount in self.amounts.items():
            headroom = HEADROOM if name in _MEMORY else 0.0
            amounts[name] = math.ceil(factor * amount.largest * (1 + headroom))
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
                need[name] = min(MOST_BYTES, _rounded_bytes(amount, num_digits=8))
            case _:
                need[name] = min(MOST_BYTES, _rounded_bytes(amount, num_digits=6))
    return TrialNeed.from_dict(need)


def _rounded_cpus(cpus: float) -> float:
    """Return at least ``cpus``: a whole number, or an equal part such as 1/3. The smallest amount is 1/20."""
    if cpus > 1:
        return math.ceil(round(cpus, 4))
    return 1 / max(1, min(20, math.floor(1 / max(cpus, 0.05))))


def _rounded_bytes(amount: int, *, num_digits: int) -> int:
    """Return ``amount`` rounded up to this number of binary digits. With 5 digits, this adds at most a sixteenth."""
    step = 1 << max(0, amount.bit_length() - num_digits)
    return -(-amount // step) * step


def learn_needs(observations: Sequence[TrialObservation]) -> LearnedNeeds:
    """Return what trials need. Observations of trials that have reported less than twice are ignored."""
    counted = [seen for seen in observations if seen.counts]
    lost = _lost_part(counted)
    values = _values([seen.features for seen in counted])
    amounts: dict[str, LearnedAmount] = {}
    for name in TrialNeed.model_fields:
        growth = _growth(counted, name)
        found = [seen._points.get((name, growth)) or seen._point(name, growth) for seen in counted]
        points = [point for point in found if point.amount]
        if not points:
            continue
        of_points = values
        if len(points) < len(counted):
            of_points = _values([point.features for point in points])
        lost_part = lost if name in _MEMORY else None  # a trial with too few CPUs is slower, but does not fail
        amounts[name] = _learn_amount(points, of_points, lost=lost_part)
    num_ended = sum(seen.ended for seen in counted)
    return LearnedNeeds(num_trials=len(counted), num_ended=num_ended, amounts=amounts)


def _lost_part(observations: Sequence[TrialObservation]) -> float:
    """Return the expected fraction of a trial that is lost if it runs out of memory."""
    ended = [seen for seen in observations if seen.ended]
    ran_out = [seen for seen in observations if seen.ran_out]
    run_s = fmean(seen.elapsed_s for seen in ended) if ended else 0.0
    is_saved = all(seen.is_saved for seen in observations)
    grows = any(_growth(ended, name) > _ALIKE for name in _MEMORY)
    # Memory that grows late runs out late. The first failures come early, because these trials need far more.
    if grows and not is_saved:
        return 1.0
    if ran_out and run_s > 0:
        return min(1.0, fmean(seen.lost_s for seen in ran_out) / run_s)
    if not is_saved:
        return _LOST
    if not any(seen.num_steps for seen in ended):
        return _LOST_WITH_CHECKPOINT
    num_steps = fmean(seen.num_steps for seen in ended)
    return min(_LOST, _STEPS_LOST / num_steps)


def _growth(observations: Sequence[TrialObservation], name: str) -> float:
    """Return by which factor an amount grew at most between the first observation and the end of a trial."""
    if name not in _MEMORY:
        return 1.0
    growth = 1.0
    if not any(seen.ended or seen.is_saved for seen in observations):
        growth = _UNKNOWN_GROWTH  # a failure would lose the whole trial
    return max([growth, *(seen._growths[name] for seen in observations)])


def _values(features: Sequence[Mapping[str, float]]) -> "dict[str, NDArray[float64]]":
    """Return the values of each feature."""
    import numpy as np

    names = sorted(set().union(*features))
    return {name: np.array([found.get(name, 0) for found in features], dtype=float) for name in names}


def _learn_amount(
    points: Sequence["_Point"], values: "Mapping[str, NDArray[float64]]", *, lost: float | None
) -> LearnedAmount:
    """Return the amount for the observed features and amounts.

    Args:
        points: The features of the observed trials, and the amount that each of them needs.
        values: The values of each feature in ``points``.
        lost: The fraction of a trial that is lost if the amount is too little, or ``None`` if nothing is lost.
    """
    import numpy as np

    amounts = sorted(point.amount for point in points)
    measured = [point for point in points if not point.is_guess]
    largest = max(map(_had, points))
    names = list(values)
    most = {name: float(found.max()) for name, found in values.items()}
    if len(points) < _FEWEST_FITTED and lost is not None:
        return LearnedAmount(amount=amounts[-1], largest=largest, most=_relevant(most, values, ()))
    if amounts[-1] <= _ALIKE * amounts[0]:
        return LearnedAmount(amount=amounts[-1], largest=largest, most=_relevant(most, values, ()))
    measured = sorted(measured or points, key=lambda point: point.amount)
    step = max(1, len(measured) / _MOST_FITTED)
    chosen = [measured[-1 - int(i * step)] for i in range(min(len(measured), _MOST_FITTED))]
    dense = [({name: point.features.get(name, 0) for name in names}, point.amount) for point in chosen]
    # A formula with two terms needs at least four trials, or it fits any amounts.
    fit = fit_memory(dense, most_terms=max(1, len(measured) // 2))
    # One of many formulas fits a few trials by chance, so few trials must be explained better.
    most_unexplained = (1 - EXPLAINED) * min(1, len(measured) / _MANY)
    if len(measured) >= _FEWEST_FITTED and 1 - fit.explained <= most_unexplained:
        terms = tuple(fit.coefficients.items())
        used = {name for term, _ in terms for name in term}
        margin = 0
        if lost is not None:  # the formula must give each observed trial at least what it had
            expected = sum(factor * math.prod(values[name] for name in term) for term, factor in terms)
            least = [_had(point) for point in points]
            missing = max(0, math.ceil(np.max(np.array(least) - expected)) - fit.residual_bytes)
            margin = fit.residual_bytes + missing
        return LearnedAmount(
            terms=terms,
            amount=margin,
            largest=largest,
            most=_relevant(most, values, used),
            explained=fit.explained,
        )
    relevant = _relevant(most, values, ())
    if lost is None:
        return LearnedAmount(amount=round(fmean(amounts)), largest=largest, most=relevant)
    steps = list(amounts)
    if lost >= _LOST:
        # The largest of few observed amounts is too small for many other trials, which matters if a failure loses much.
        steps.append(math.ceil(largest * (1 + 1 / len(points))))
    # A word in only one config, such as the name of a network, may explain why this trial needs more.
    has_rare_word = any(np.count_nonzero(found) == 1 for name, found in values.items() if "=" in name)
    fewest = _FEWEST_RESUMING
    if lost >= _LOST or has_rare_word:
        fewest = _FEWEST_FAILING
    has_margin = len(points) >= fewest
    if not has_margin:
        steps = steps[-1:]
    amount, *retries = most_productive(steps, lost)
    return LearnedAmount(
        amount=amount,
        largest=largest,
        most=relevant,
        failing=sum(needed > amount for needed in amounts) / len(amounts),
        retries=tuple(retries),
        has_margin=has_margin,
    )


def _had(point: _Point) -> int:
    """Return the largest amount that a trial is known to have used or to have run out of."""
    if point.is_guess:
        return int(point.amount / _GUESS)
    return point.amount


def _relevant(
    most: Mapping[str, float], values: "Mapping[str, NDArray[float64]]", used: Collection[str]
) -> dict[str, float]:
    """Return the largest values of the features that may affect an amount.

    A number that has varied without an effect in many trials has none. A word is kept with all words of its key.
    """
    if all(len(found) < _KNOWN_AFTER for found in values.values()):
        return dict(most)
    keys = {_key_of(name) for name, value in most.items() if name in used or values[name].min() == value}
    return {name: value for name, value in most.items() if _key_of(name) in keys}


def _key_of(feature: str) -> str:
    """Return the key of the config from which a feature such as ``"net=mlp"`` was made."""
    return feature.partition("=")[0]


def most_productive(amounts: Sequence[int], lost: float) -> list[int]:
    """Return the amounts, from ascending ``amounts``, for the first attempt and each retry of a trial.

    A trial that needs more than it gets loses the fraction ``lost`` of its time, and runs again with the next amount.
    The returned amounts have the highest expected throughput, which is the inverse of the expected product of memory
    and time. The last one is the largest of ``amounts``.
    """
    steps = sorted(set(amounts))
    num_above = [sum(needed > step for needed in amounts) for step in steps]
    # If all smaller steps were too little: the number of trials, their least cost, and the best next step. Costs are
    # computed from the last step to the first, because the cost of a step includes the cost of the later ones.
    num_left = [len(amounts), *num_above]
    least = [0.0] * (len(steps) + 1)
    best = [0] * len(steps)
    for first in reversed(range(len(steps))):
        costs = []
        for at in range(first, len(steps)):
            tried = steps[at] * (num_left[first] - num_above[at] + lost * num_above[at])
            costs.append((tried + least[at + 1], at))
        least[first], best[first] = min(costs)
    chosen: list[int] = []
    first = 0
    while first < len(steps):
        chosen.append(steps[best[first]])
        first = best[first] + 1
    return chosen


def memory_to_write(needed_bytes: int) -> str:
    """Return the amount for the field of a policy, with the usual headroom of 10 %, such as ``"1.1GiB"``."""
    with_headroom = needed_bytes * (1 + HEADROOM)
    if with_headroom < GIB:
        return f"{math.ceil(round(with_headroom / MIB, 6))}MiB"
    return f"{math.ceil(round(10 * with_headroom / GIB, 6)) / 10:g}GiB"
