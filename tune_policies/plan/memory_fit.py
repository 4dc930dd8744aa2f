"""Fits a formula to a few measurements: how GPU memory grows with the numbers of a config.

The formula is a sum of terms, each a number, its square, or a product of two numbers, as the sizes of parameters,
gradients and activations are. No term is negative, so more of anything never means less memory. Which terms it has is
decided by leaving out each measurement in turn and predicting it from the others.

Sizes are whole numbers, while floats are mostly rates, on which no memory depends but which a few measurements may go
with by chance. So floats are taken in only where whole numbers explain too little, and measurements are many.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Final, NamedTuple

from tune_policies.values.units import format_bytes

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

_MOST_NUMBERS: Final = 4
"""More numbers than this have more terms than a few short trials can tell apart."""

_LEAST: Final = 1e-9
_MOST: Final = 1e15
"""Memory depends on no number beyond these, and floats could not hold their products: what is smaller counts as 0."""

_SIMPLER: Final = 1.05
"""A formula with fewer terms is taken, unless another one's error is smaller by more than this factor."""

_PRECISION: Final = 1e-4
"""What allocators round is no error of a formula: a part of the largest measurement."""

_EXPLAINED: Final = 0.05
"""A formula of whole numbers that is off by no more than this part of the largest measurement needs no floats."""

_SPARE: Final = 2
"""So many more measurements than terms a formula with floats must have."""

_TELLS_ITSELF: Final = 1 - 1e-9
"""A measurement of more leverage than this is the only one to tell some coefficient."""

Term = tuple[str, ...]
"""The names that are multiplied: none for the constant."""


class MemoryFit(NamedTuple):
    """A formula, and how far it was off.

    Attributes:
        coefficients: Bytes of each term.
        residual_bytes: The most by which a measurement was above the formula.
        largest: The largest measured value of each number that the formula uses.
        largest_unused: The same of each whole number that it leaves out: always the same, or without effect.
    """

    coefficients: dict[Term, float]
    residual_bytes: int
    largest: dict[str, float]
    largest_unused: dict[str, float]

    def bytes_for(self, numbers: Mapping[str, float]) -> int:
        """Return the bytes for these numbers, the largest residual included."""
        return int(-(-self._formula(numbers) // 1)) + self.residual_bytes

    def tells(self, numbers: Mapping[str, float]) -> bool:
        """Return whether the formula holds: not where a whole number that it leaves out is above those measured."""
        return not _is_above(numbers, self.largest_unused)

    def _formula(self, numbers: Mapping[str, float]) -> float:
        return sum(each * _product(term, numbers) for term, each in self.coefficients.items())

    def __str__(self) -> str:
        terms = (
            " x ".join((format_bytes(round(each)), *term)) for term, each in self.coefficients.items() if round(each)
        )
        return " + ".join(terms) or "0 B"


def fit_memory(points: Sequence[tuple[Mapping[str, float], int]]) -> MemoryFit:
    """Return the formula for measurements: the numbers of each config, and its bytes. At least one is needed."""
    whole = {name for name in points[0][0] if all(isinstance(numbers[name], int) for numbers, _ in points)}
    coefficients, error = _best_formula(points, whole, spare=0)
    if error > _EXPLAINED * max(amount for _, amount in points):
        with_floats, its_error = _best_formula(points, points[0][0].keys(), spare=_SPARE)
        coefficients = with_floats if its_error < error else coefficients
    used = {name for term in coefficients for name in term}
    largest = {name: max(numbers[name] for numbers, _ in points) for name in sorted(used | whole)}
    exact = MemoryFit(
        coefficients,
        residual_bytes=0,
        largest={name: most for name, most in largest.items() if name in used},
        largest_unused={name: most for name, most in largest.items() if name not in used},
    )
    residual = max(amount - exact.bytes_for(numbers) for numbers, amount in points)
    return exact._replace(residual_bytes=max(0, residual))


def _best_formula(
    points: Sequence[tuple[Mapping[str, float], int]], usable: Collection[str], *, spare: int
) -> tuple[dict[Term, float], float]:
    """Return the best formula of ``usable`` numbers, and the most by which it is off, in bytes.

    Args:
        points: The measurements.
        usable: The names of the numbers that the formula may use.
        spare: So many more measurements than terms there must be, but for the constant.
    """
    import numpy as np

    needed = np.array([amount for _, amount in points], dtype=float)
    names = _numbers_that_matter(points, usable)
    possible: list[Term] = [(), *((name,) for name in names), *combinations_with_replacement(names, 2)]
    # A product that is 0 in all of them says nothing.
    terms = [term for term in possible if any(_product(term, numbers) for numbers, _ in points)]
    columns = np.array([[_product(term, numbers) for term in terms] for numbers, _ in points], dtype=float)
    scales = columns.max(axis=0)
    columns /= scales
    best: tuple[float, tuple[int, ...], NDArray[float64]] | None = None
    precision = _PRECISION * float(needed.max())
    for chosen in _subsets(len(terms), len(names)):
        if chosen != (0,) and len(chosen) + spare > len(points):
            continue
        part = columns[:, chosen]
        solution = np.linalg.lstsq(part, needed, rcond=None)[0]
        if (solution < 0).any():
            continue
        # Of two measurements, one does not tell the other; so what a formula leaves unexplained counts as well.
        error = error_left_out(part, needed, has_constant=0 in chosen) + _root_mean_square(part @ solution - needed)
        error += precision
        if best is None or error * _SIMPLER < best[0]:
            best = (error, chosen, solution)
    if best is None:  # which the constant alone never lets happen
        raise AssertionError("the constant is a formula for everything")
    _, chosen, solution = best
    coefficients = {terms[i]: float(each / scales[i]) for i, each in zip(chosen, solution, strict=True)}
    return coefficients, float(np.abs(columns[:, chosen] @ solution - needed).max())


def _numbers_that_matter(points: Sequence[tuple[Mapping[str, float], int]], usable: Collection[str]) -> list[str]:
    """Return the usable numbers that vary and are never negative; of too many, those that go most with the bytes."""
    import numpy as np

    needed = np.array([amount for _, amount in points], dtype=float)
    going_with: dict[str, float] = {}
    for name in sorted(usable):
        found = [numbers[name] for numbers, _ in points]
        if 0 <= min(found) < max(found) <= _MOST and max(found) >= _LEAST:
            values = np.array(found, dtype=float)
            together = float(((values - values.mean()) * (needed - needed.mean())).sum())
            spread = float(values.std() * needed.std()) or 1.0
            going_with[name] = together / spread
    most = sorted(going_with, key=lambda name: (-going_with[name], name))[:_MOST_NUMBERS]
    return sorted(most)


def _subsets(num_terms: int, num_numbers: int) -> Iterable[tuple[int, ...]]:
    """Yield the choices of terms, those with fewer terms first."""
    most = 4 if num_numbers <= 2 else 3
    for size in range(1, min(most, num_terms) + 1):
        yield from combinations(range(num_terms), size)


def error_left_out(columns: "NDArray[float64]", needed: "NDArray[float64]", *, has_constant: bool) -> float:
    """Return the root of the mean squared error with which each measurement is predicted from the others."""
    import numpy as np

    count = len(needed)
    if count == 1:
        return 0.0
    # What the others predict follows from the fit to all, by the leverage of each (PRESS): nothing is fitted again.
    hat = columns @ np.linalg.pinv(columns)
    leverage = hat.diagonal()
    errors = (hat @ needed - needed) / np.where(leverage < _TELLS_ITSELF, 1 - leverage, 1)
    for i in np.flatnonzero(leverage >= _TELLS_ITSELF):  # as many as there are terms, at the most
        others = np.arange(count) != i
        known, bytes_known = columns[others], needed[others]
        # About their mean, so that where the others do not tell, the constant is what they are, and not the smallest.
        middle = known.mean(axis=0) * has_constant
        mean = bytes_known.mean() * has_constant
        slope = np.linalg.pinv(known - middle) @ (bytes_known - mean)
        errors[i] = mean + (columns[i] - middle) @ slope - needed[i]
    return _root_mean_square(errors)


def _root_mean_square(errors: "NDArray[float64]") -> float:
    return float((errors**2).mean() ** 0.5)


def _product(term: Term, numbers: Mapping[str, float]) -> float:
    product = 1.0
    for name in term:
        product *= 0.0 if numbers[name] < _LEAST else min(numbers[name], _MOST)
    return product


def _is_above(numbers: Mapping[str, float], largest: Mapping[str, float]) -> bool:
    return any(numbers[name] > most for name, most in largest.items())
