"""How much of one resource trials need: a formula of the config, or an amount for all configs.

If a formula explains at least 80 % of the variance in leave-one-out cross-validation, each config gets its own amount.
Otherwise all configs get the amount with the highest expected throughput (Tovar et al., "A Job Sizing Strategy for
High-Throughput Scientific Workflows", IEEE TPDS 29(2), 2018). CPUs and GPU utilization do not end a trial if they are
too small, so without a formula their mean counts.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pydantic import Field

from tune_policies.plan.gpu_memory_profile import MemoryFit, Term, fit_memory
from tune_policies.plan.trial_observation import NeededAmount
from tune_policies.values.field_types import FrozenDict
from tune_policies.values.resources import Count, UsedBytes
from tune_policies.values.value import Value

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

EXPLAINED: Final = 0.8
"""A formula is used if it explains at least this fraction of the variance of the amounts."""

ALIKE: Final = 1.1
"""Amounts count as equal if they differ by at most this factor."""

_MOST_FITTED: Final = 48
"""The maximum number of trials to which a formula is fitted, so that learning takes milliseconds."""

_KNOWN_AFTER: Final = 8
"""After this number of trials, a number that varied and is in no formula does not affect the amount."""

_FEWEST_FITTED: Final = 4
"""The minimum number of trials for a formula. Until then, each config gets the largest amount of memory."""

_FEWEST_FAILING: Final = 8
"""The minimum number of trials before an amount may be too little for some trials, if a failure loses much."""

_FEWEST_RESUMING: Final = 4
"""The minimum number if trials resume from checkpoints, so that a failure loses little."""

_MOST_STEPS: Final = 64
"""The maximum number of amounts among which those for the attempts of a trial are chosen."""

_MANY: Final = 16
"""With fewer trials, a formula must explain more, in proportion to the number of trials: 95 % of four trials."""

_ANY: Final = 1_000
"""The factor of the largest amount for a config that may need any amount, because its algorithm is unknown."""

LOST: Final = 0.5
"""The assumed fraction of a trial without checkpoints that is lost if it runs out of memory."""


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
        num_trials: The number of trials for which the amount was measured, or 0 if the file does not contain it.
    """

    terms: tuple[tuple[Term, float], ...] = ()
    amount: UsedBytes
    largest: UsedBytes
    most: dict[str, float] = Field(default_factory=dict)
    explained: float = 0.0
    failing: float = 0.0
    retries: tuple[UsedBytes, ...] = ()
    has_margin: bool = False
    num_trials: Count = 0

    def amount_for(self, features: Mapping[str, float], headroom: float = 0.0) -> int:
        """Return the amount for a config with these features.

        Outside the observed range, it is at least twice the largest amount, and more if its numbers, multiplied,
        are more than twice as large as the observed ones. A config with an unknown word may need any amount.

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
            # Amounts without headroom, such as CPUs, do not end a trial if they are too small.
            if not headroom:
                return min(expected, self.largest)
            # ``expected`` contains the residual, which counts as headroom, so the larger of both is added and not their
            # sum.
            return max(expected, math.ceil((expected - self.amount) * (1 + headroom)))
        if self.has_margin:
            return self.amount
        return math.ceil(self.amount * (1 + headroom))

    def is_outside(self, features: Mapping[str, float]) -> bool:
        """Return whether a config with these features is outside the observed range."""
        return any(value > self.most.get(name, 0) for name, value in features.items() if self._affects(name))

    def in_range_of(self, values: "Mapping[str, NDArray[float64]]") -> "LearnedAmount":
        """Return this amount with the range of all these trials, also of those that did not measure it.

        Args:
            values: The values of each feature of the trials.
        """
        most = {name: float(found.max()) for name, found in values.items() if self._affects(name)}
        return self.model_copy(update={"most": most})

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
            explain = "explains" if len(numbers) == 1 else "explain"
            return f"{unit}: {', '.join(numbers)} of the config {explain} {self.explained:.0%} of the differences"
        if self.failing:
            return f"{unit}: the config does not explain it; {self.failing:.0%} of the trials need more than the amount"
        if self.most:
            return f"{unit}: the same amount for all configs in the observed range"
        return f"{unit}: the same amount for all configs"


def values_by_feature(features: Sequence[Mapping[str, float]]) -> "dict[str, NDArray[float64]]":
    """Return the values of each feature."""
    import numpy as np

    names = sorted(set().union(*features))
    return {name: np.array([found.get(name, 0) for found in features], dtype=float) for name in names}


def learn_amount(
    points: Sequence[NeededAmount], values: "Mapping[str, NDArray[float64]]", *, lost: float | None
) -> LearnedAmount:
    """Return the amount for the observed features and amounts.

    Args:
        points: The features of the observed trials, and the amount that each of them needs.
        values: The values of each feature in ``points``.
        lost: The fraction of a trial that is lost if the amount is too little, or ``None`` if nothing is lost.
    """
    amounts = sorted(point.amount for point in points)
    of_all = LearnedAmount(
        amount=amounts[-1], largest=max(point.had for point in points), most=_relevant(values, used=())
    )
    # A formula would fit a few trials by chance, and amounts that hardly differ need none.
    has_few = lost is not None and len(points) < _FEWEST_FITTED
    are_alike = amounts[-1] <= ALIKE * amounts[0]
    if has_few or are_alike:
        return of_all
    of_config = _fitted(points, values, largest=of_all.largest, lost=lost)
    if of_config is not None:
        return of_config
    if lost is None:
        return of_all.model_copy(update={"amount": round(fmean(amounts))})
    return _tried_in_steps(of_all, amounts, values, lost)


def _fitted(
    points: Sequence[NeededAmount], values: "Mapping[str, NDArray[float64]]", *, largest: int, lost: float | None
) -> LearnedAmount | None:
    """Return the formula of the config that explains the amounts, or ``None`` if none explains them well enough."""
    import numpy as np

    known = [point for point in points if not point.is_guess] or points
    known = sorted(known, key=lambda point: point.amount)
    step = max(1, len(known) / _MOST_FITTED)
    # Evenly chosen from the largest amount down, because the formula must cover the largest one.
    chosen = [known[-1 - int(i * step)] for i in range(min(len(known), _MOST_FITTED))]
    dense = [({name: point.features.get(name, 0) for name in values}, point.amount) for point in chosen]
    # A formula with two terms needs at least four trials, or it fits any amounts.
    fit = fit_memory(dense, most_terms=max(1, len(known) // 2))
    # One of many formulas fits a few trials by chance, so few trials must be explained better.
    most_unexplained = (1 - EXPLAINED) * min(1, len(known) / _MANY)
    if len(known) < _FEWEST_FITTED or 1 - fit.explained > most_unexplained:
        return None
    terms = tuple(fit.coefficients.items())
    margin = 0
    if lost is not None:  # the formula must give each observed trial at least what it had
        expected = sum(factor * math.prod(values[name] for name in term) for term, factor in terms)
        had = np.array([point.had for point in points])
        missing = max(0, math.ceil(np.max(had - expected)) - fit.residual_bytes)
        margin = fit.residual_bytes + missing
    return LearnedAmount(
        terms=terms,
        amount=margin,
        largest=largest,
        most=_relevant(values, used={name for term, _ in terms for name in term}),
        explained=fit.explained,
    )


def _tried_in_steps(
    of_all: LearnedAmount, amounts: Sequence[int], values: "Mapping[str, NDArray[float64]]", lost: float
) -> LearnedAmount:
    """Return the amount for the first attempt of a trial and for each retry, because no formula explains ``amounts``.

    Args:
        of_all: The largest amount for all configs.
        amounts: The amounts that the observed trials need, in ascending order.
        values: The values of each feature of the observed trials.
        lost: The fraction of a trial that is lost if the amount is too little.
    """
    import numpy as np

    steps = list(amounts)
    if lost >= LOST:
        # The largest of few observed amounts is too small for many other trials, which matters if a failure loses much.
        steps.append(math.ceil(of_all.largest * (1 + 1 / len(amounts))))
    # A word in only one config, such as the name of a network, may explain why this trial needs more.
    has_rare_word = any(np.count_nonzero(found) == 1 for name, found in values.items() if "=" in name)
    fewest = _FEWEST_RESUMING
    if lost >= LOST or has_rare_word:
        fewest = _FEWEST_FAILING
    has_margin = len(amounts) >= fewest
    if not has_margin:
        # Too few trials are known to risk a failure, so all trials get the largest amount.
        steps = steps[-1:]
    amount, *retries = most_productive(steps, lost)
    return LearnedAmount(
        amount=amount,
        largest=of_all.largest,
        most=of_all.most,
        failing=sum(needed > amount for needed in amounts) / len(amounts),
        retries=tuple(retries),
        has_margin=has_margin,
    )


def _relevant(values: "Mapping[str, NDArray[float64]]", *, used: Collection[str]) -> dict[str, float]:
    """Return the largest values of the features that may affect an amount.

    A number that has varied without an effect in many trials has none. A word is kept with all words of its key.

    Args:
        values: The values of each feature of the observed trials.
        used: The features in the formula.
    """
    most = {name: float(found.max()) for name, found in values.items()}
    if all(len(found) < _KNOWN_AFTER for found in values.values()):
        return most
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
    ordered = sorted(amounts)
    steps = _thinned(sorted(set(ordered)))
    num_above = [len(ordered) - bisect_right(ordered, step) for step in steps]
    # If all smaller steps were too little: the number of trials, their least cost, and the best next step. Costs are
    # computed from the last step to the first, because the cost of a step includes the cost of the later ones.
    num_left = [len(amounts), *num_above]
    least = [0.0] * (len(steps) + 1)
    best = [0] * len(steps)
    for first in reversed(range(len(steps))):
        costs = []
        for at in range(first, len(steps)):
            # The memory times the time of this attempt: trials that succeed take their whole time, and the others lose
            # a part of it.
            tried = steps[at] * (num_left[first] - num_above[at] + lost * num_above[at])
            costs.append((tried + least[at + 1], at))
        least[first], best[first] = min(costs)
    chosen: list[int] = []
    first = 0
    while first < len(steps):
        chosen.append(steps[best[first]])
        first = best[first] + 1
    return chosen


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    """Return at most ``_MOST_STEPS`` of the ascending ``steps``, evenly chosen, with the largest one."""
    every = max(1.0, len(steps) / _MOST_STEPS)
    number = min(len(steps), _MOST_STEPS)
    return [steps[-1 - int(i * every)] for i in reversed(range(number))]
