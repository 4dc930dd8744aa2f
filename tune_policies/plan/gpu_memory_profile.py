"""The GPU memory that trials with each config need: measurements, and a formula for other configs.

Configs are compared as plain data. Nested mappings are flattened, and their keys are joined with ``/`` as in Tune.

The formula is a sum of terms. A term is a constant, a number of the config, its square, or a product of two numbers,
because the sizes of parameters, gradients and activations have this form. No coefficient is negative, so a larger
number never reduces the predicted memory. Leave-one-out cross-validation selects the terms.

The formula uses only whole numbers. Floats are mostly rates, which do not affect memory, but may correlate with a few
measurements by chance.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, combinations_with_replacement
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import ByName, FrozenDict
from tune_policies.values.resources import Bytes, Count, UsedBytes
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` as plain data without nesting.

    NumPy numbers become Python numbers, lists and sets become tuples, and functions and classes become their names. Any
    other object becomes the name of its type, so two objects of the same type are equal.

    Raises:
        InvalidResourcesError: ``config`` is not a mapping.
    """
    if not isinstance(config, Mapping):
        raise InvalidResourcesError(f"a config must be a mapping of names to values, got {shorten(config)}")
    return dict(sorted(_items(config)))


def _items(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _items(value, f"{name}/")
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Any:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if abs(float(value)) < float("inf"):
            return float(value)
        return str(value)  # JSON has no numbers for NaN and infinity
    if isinstance(value, list | tuple | set | frozenset):
        items = map(_plain, value)
        if isinstance(value, set | frozenset):
            return tuple(sorted(items, key=repr))  # a set has no order, but equal configs must stay equal
        return tuple(items)
    if isinstance(value, Mapping):
        return flat(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a flat config by name, without booleans."""
    return {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def whole_numbers(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the whole numbers of a flat config, without booleans."""
    return [name for name, number in numbers(values).items() if isinstance(number, int)]


def group_key(values: Mapping[str, Any]) -> str:
    """Return a key that is the same for all flat configs that differ only in numbers."""
    numeric = numbers(values)
    rest = {name: value for name, value in values.items() if name not in numeric}
    return json.dumps([rest, sorted(numeric)], sort_keys=True)


_MOST_NUMBERS: Final = 4
"""The maximum number of config values in a formula. A few short trials cannot distinguish more terms."""

_MOST: Final = 1e15
"""The upper bound of values in the formula. Larger values count as this bound, and negative values as 0."""

_SIMPLER: Final = 1.05
"""A formula with more terms, or with products, is preferred only if it reduces the error by more than this factor."""

_PRECISION: Final = 1e-4
"""The assumed precision of the allocators' measurements, as a fraction of the largest measurement."""

_DECIDES_ALONE: Final = 1 - 1e-9
"""A measurement with at least this leverage determines a coefficient alone."""

_UNIQUE: Final = 1e-9
"""The smallest ratio of eigenvalues with which a system of equations counts as uniquely solvable."""

Term = tuple[str, ...]
"""The names of the numbers that a term multiplies, or an empty tuple for the constant term."""


class MemoryFit(NamedTuple):
    """A formula for memory, and its error.

    Attributes:
        coefficients: The coefficient of each term, in bytes.
        residual_bytes: The largest amount by which a measurement exceeds the formula, in bytes.
        largest: The largest measured value of each number that the formula uses.
        largest_unused: The largest measured value of each whole number that the formula does not use.
        explained: The fraction of the variance that the formula explains in leave-one-out cross-validation.
    """

    coefficients: dict[Term, float]
    residual_bytes: int
    largest: dict[str, float]
    largest_unused: dict[str, float]
    explained: float = 0.0

    def bytes_for(self, numbers: Mapping[str, float]) -> int:
        """Return the predicted memory for these numbers in bytes, including the largest residual."""
        needed = sum(coefficient * _product(term, numbers) for term, coefficient in self.coefficients.items())
        return math.ceil(needed) + self.residual_bytes

    def covers(self, numbers: Mapping[str, float]) -> bool:
        """Return whether each whole number that the formula does not use is at most its largest measured value."""
        return all(numbers[name] <= most for name, most in self.largest_unused.items())

    def __str__(self) -> str:
        terms = [
            (format_bytes(round(coefficient)), *term)
            for term, coefficient in self.coefficients.items()
            if round(coefficient)
        ]
        return " + ".join(map(" x ".join, terms)) or "0 B"


def fit_memory(points: Sequence[tuple[Mapping[str, float], int]], *, most_terms: int | None = None) -> MemoryFit:
    """Return the formula that fits the measurements best. At least one measurement is required.

    Each measurement consists of the numbers of a config and the measured bytes. ``most_terms`` is the maximum number of
    terms, or ``None`` for the default of 3, or 4 if at most two numbers vary.
    """
    whole = {name for name in points[0][0] if all(isinstance(numbers[name], int) for numbers, _ in points)}
    coefficients, expected, explained = _best_formula(points, whole, most_terms)
    used = {name for term in coefficients for name in term}
    largest = {name: max(numbers[name] for numbers, _ in points) for name in sorted(whole)}
    of_used = {name: most for name, most in largest.items() if name in used}
    of_unused = {name: most for name, most in largest.items() if name not in used}
    residual = max(amount - math.ceil(bytes_) for (_, amount), bytes_ in zip(points, expected, strict=True))
    return MemoryFit(FrozenDict(coefficients), max(0, residual), FrozenDict(of_used), FrozenDict(of_unused), explained)


def _best_formula(
    points: Sequence[tuple[Mapping[str, float], int]], usable: Collection[str], most_terms: int | None
) -> tuple[dict[Term, float], Sequence[float], float]:
    """Return the best formula that uses only ``usable`` numbers.

    The result contains its coefficients, its amount for each measurement, and the fraction of the variance that it
    explains.
    """
    import numpy as np

    needed = np.array([amount for _, amount in points], dtype=float)
    names = _relevant_numbers(points, usable)
    possible: list[Term] = [(), *((name,) for name in names), *combinations_with_replacement(names, 2)]
    values = {name: np.clip([float(numbers[name]) for numbers, _ in points], 0, _MOST) for name in names}
    by_term = {term: math.prod((values[name] for name in term), start=np.ones(len(points))) for term in possible}
    terms = _different_terms(by_term)
    columns = np.column_stack([by_term[term] for term in terms])
    scales = columns.max(axis=0)
    columns /= scales  # a product of numbers can be many orders of magnitude larger than the constant
    precision = _PRECISION * float(needed.max())
    best: tuple[float, tuple[int, ...], NDArray[float64]] = (math.inf, (), needed)
    of_constant = math.inf
    most_combined = 4 if len(names) <= 2 else 3
    most = min(len(terms), most_combined, most_terms or len(terms), len(points))
    # Simple formulas are tried first, because a later one must be clearly better to replace them.
    for size in range(1, most + 1):
        for chosen, solution, error in _solved(columns, needed, size):
            # An error below the precision of the measurements does not justify more terms.
            error += precision
            # The first column is the constant. What it does not explain is what the best formula should explain.
            if chosen == (0,):
                of_constant = error
            if error * _SIMPLER < best[0]:
                best = (error, chosen, solution)
    error, chosen, solution = best  # always set, because a formula with only the constant is possible
    coefficients = {terms[i]: float(weight / scales[i]) for i, weight in zip(chosen, solution, strict=True)}
    expected = np.sum([weight * by_term[term] for term, weight in coefficients.items()], axis=0)
    return coefficients, expected.tolist(), max(0.0, 1 - (error / of_constant) ** 2)


def _different_terms(by_term: "Mapping[Term, NDArray[float64]]") -> list[Term]:
    """Return the terms that are not 0 in all measurements, without those that equal an earlier term in all of them.

    The square of a number that is only 0 or 1 is such a term.
    """
    first: dict[bytes, Term] = {}
    for term, column in by_term.items():
        if column.any():
            first.setdefault(column.tobytes(), term)
    return list(first.values())


def _solved(
    columns: "NDArray[float64]", needed: "NDArray[float64]", size: int
) -> Iterator[tuple[tuple[int, ...], "NDArray[float64]", float]]:
    """Yield the formulas with ``size`` terms and no negative coefficient: the terms, the coefficients and the error.

    Thousands of small systems are solved at once. A system whose solution is not unique is solved alone.
    """
    import numpy as np

    combos = np.array(list(combinations(range(columns.shape[1]), size)))
    parts = columns.T[combos].transpose(0, 2, 1)
    squares = parts.transpose(0, 2, 1) @ parts
    spread = np.linalg.eigvalsh(squares)
    is_unique = spread[:, 0] > _UNIQUE * spread[:, -1]
    # These systems get any solvable matrix, because one singular matrix makes ``inv`` fail for all. They are solved
    # below.
    squares[~is_unique] = np.eye(size)
    inverse = np.linalg.inv(squares)
    solutions = (inverse @ (parts.transpose(0, 2, 1) @ needed)[..., None])[..., 0]
    residuals = (parts @ solutions[..., None])[..., 0] - needed
    leverage = ((parts @ inverse) * parts).sum(axis=2)
    is_plain = is_unique & (leverage < _DECIDES_ALONE).all(axis=1) & (len(needed) > 1)
    # The error of predicting each measurement from the others follows from its leverage (the PRESS statistic).
    left_out = residuals / np.where(leverage < _DECIDES_ALONE, 1 - leverage, 1)
    errors = np.sqrt((left_out**2).mean(axis=1)) + np.sqrt((residuals**2).mean(axis=1))
    for i in np.flatnonzero(~is_unique | (solutions >= 0).all(axis=1)):
        chosen = tuple(map(int, combos[i]))
        solution, error = solutions[i], float(errors[i])
        if not is_plain[i]:
            part = parts[i]
            solution = np.linalg.lstsq(part, needed, rcond=None)[0]
            if (solution < 0).any():
                continue
            # Two measurements cannot predict each other, so the error of the fit itself is added.
            error = leave_one_out_error(part, needed, has_constant=0 in chosen)
            error += _root_mean_square(part @ solution - needed)
        yield chosen, solution, error


def _relevant_numbers(points: Sequence[tuple[Mapping[str, float], int]], usable: Collection[str]) -> list[str]:
    """Return the names of usable numbers that vary and are never negative.

    If more than ``_MOST_NUMBERS`` remain, return the names with the highest correlation with the memory.
    """
    import numpy as np

    needed = np.array([amount for _, amount in points], dtype=float)
    correlation: dict[str, float] = {}
    for name in sorted(usable):
        found = [numbers[name] for numbers, _ in points]
        if 0 <= min(found) < max(found) <= _MOST:
            values = np.array(found, dtype=float)
            covariance = float(((values - values.mean()) * (needed - needed.mean())).sum())
            # If all measurements are equal, the deviation is 0, and so is the covariance.
            correlation[name] = covariance / (float(values.std() * needed.std()) or 1.0)
    return sorted(sorted(correlation, key=lambda name: (-correlation[name], name))[:_MOST_NUMBERS])


def leave_one_out_error(columns: "NDArray[float64]", needed: "NDArray[float64]", *, has_constant: bool) -> float:
    """Return the root mean square error of predicting each measurement from all other measurements."""
    import numpy as np

    count = len(needed)
    if count == 1:
        return 0.0
    # The predictions follow from the fit to all measurements and their leverages (the PRESS statistic).
    hat = columns @ np.linalg.pinv(columns)
    leverage = hat.diagonal()
    errors = (hat @ needed - needed) / np.where(leverage < _DECIDES_ALONE, 1 - leverage, 1)
    for i in np.flatnonzero(leverage >= _DECIDES_ALONE):  # true for at most one measurement per term
        others = np.arange(count) != i
        known, bytes_known = columns[others], needed[others]
        # Center the values, so that an undetermined constant becomes the mean of ``bytes_known`` instead of 0.
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
        product *= min(max(numbers[name], 0.0), _MOST)
    return product


class GpuMemoryMeasurement(Value):
    """The memory use of one short trial on a whole GPU.

    Attributes:
        config: The trial's config as plain data, with the keys of nested mappings joined by ``/``.
        peak_bytes: The peak memory of each framework's allocator in bytes, by framework.
        overhead_bytes: The memory outside the allocators in bytes, or ``None`` if it is unknown.
        total_bytes: The memory that the trial needs in total, in bytes. If the trial ran out of memory, this is
            the amount that was too small.
        host_memory_bytes: The peak host memory of the trial's processes in bytes, or ``None`` if it is unknown.
        num_steps: The number of reported results.
        ended_by: The reason why the trial ended.
        gpu_model: The GPU model that the driver reports, or ``None`` if it is unknown.
    """

    config: Annotated[dict[str, Any], BeforeValidator(flat)]
    peak_bytes: ByName[UsedBytes] = Field(default_factory=dict)
    overhead_bytes: UsedBytes | None = None
    total_bytes: Bytes
    host_memory_bytes: Bytes | None = None
    num_steps: Count = 0
    ended_by: Literal["finished", "max_steps", "timeout", "out_of_memory"] = "finished"
    gpu_model: str | None = None

    @property
    def ran_out(self) -> bool:
        """Whether the trial ran out of memory on the whole GPU."""
        return self.ended_by == "out_of_memory"

    @property
    def safe_overhead_bytes(self) -> int:
        """The sum of the safe overheads of the trial's frameworks in bytes, or 0 if no framework is known."""
        return sum(safe_overhead_bytes(framework) for framework in self.peak_bytes)

    def counted_overhead_bytes(self, *, is_safe: bool) -> int | None:
        """Return the memory outside the allocators in bytes, or ``None`` if it is unknown.

        If ``is_safe`` is true, the result is at least ``safe_overhead_bytes``.
        """
        if self.overhead_bytes is not None and not (is_safe and self.safe_overhead_bytes > self.overhead_bytes):
            return self.overhead_bytes
        return self.safe_overhead_bytes or None

    def held_bytes(self, overhead_bytes: int) -> int:
        """Return the memory of the allocators in bytes. If the overhead is unknown, it counts as ``overhead_bytes``."""
        outside = overhead_bytes if self.overhead_bytes is None else self.overhead_bytes
        return max(self.total_bytes - outside, sum(self.peak_bytes.values()), 0)

    def __str__(self) -> str:
        needed = format_bytes(self.total_bytes)
        if self.ran_out:
            return f"{self.config}: more than {needed}"
        return f"{self.config}: {needed}"


class GpuMemoryProfile(Value):
    """The GPU memory that trials need, by config.

    Configs that differ only in numbers form a group. Predictions use only measurements of the same group.

    Attributes:
        measurements: One or more measurements.
        versions: The versions of Ray and the frameworks with which the memory was measured, by name.
    """

    measurements: tuple[GpuMemoryMeasurement, ...] = Field(min_length=1)
    versions: ByName[str] = Field(default_factory=dict)

    @property
    def host_memory_bytes(self) -> int | None:
        """The peak host memory of all trials in bytes, or ``None`` if it was not measured."""
        return max(
            (measurement.host_memory_bytes for measurement in self.measurements if measurement.host_memory_bytes),
            default=None,
        )

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The names of the GPUs on which the trials were measured."""
        return tuple(sorted({measurement.gpu_model for measurement in self.measurements if measurement.gpu_model}))

    def overhead_bytes(self, gpu_models: Iterable[str | None] | None = None) -> int | None:
        """Return the memory outside the frameworks' allocators in bytes, or ``None`` if it is unknown.

        The result is the largest measured overhead of all configs. On an unmeasured or unknown GPU model, it is at
        least the safe overhead.

        Args:
            gpu_models: The names of the GPUs to use, as the driver reports them, or ``None`` for the measured GPUs.
        """
        is_safe = gpu_models is not None and not set(gpu_models) <= set(self.gpu_models)
        known = (measurement.counted_overhead_bytes(is_safe=is_safe) for measurement in self.measurements)
        return max((overhead for overhead in known if overhead is not None), default=None)

    @cached_property
    def fits(self) -> dict[str, MemoryFit]:
        """The formula for the memory of the allocators, for each group with at least two measured configs."""
        outside = self.overhead_bytes() or 0
        points: dict[str, list[tuple[dict[str, float], int]]] = {}
        for measurement in self.measurements:
            if not measurement.ran_out:
                point = (numbers(measurement.config), measurement.held_bytes(outside))
                points.setdefault(group_key(measurement.config), []).append(point)
        return FrozenDict({name: fit_memory(found) for name, found in points.items() if len(found) > 1})

    def gpu_memory_bytes(self, config: Mapping[str, Any], overhead_bytes: int | None = None) -> int | None:
        """Return the GPU memory that a trial with ``config`` needs in total, in bytes, or ``None`` if it is unknown.

        If the same config was measured, the result is the measured peak of the allocators plus the overhead. For
        another config, the peak is predicted by the formula of the config's group plus the largest residual, and is at
        least the peak of each smaller config. If the group has no formula, the result uses the largest peak of all
        configs whose whole numbers are not smaller. The memory is unknown if a whole number that is not in the formula
        exceeds the measured range.

        Args:
            config: The trial's config.
            overhead_bytes: The memory outside the allocators, or ``None`` for the largest measured overhead.
        """
        values = flat(config)
        outside = overhead_bytes
        if outside is None:
            outside = self.overhead_bytes() or 0
        measured = [
            measurement
            for measurement in self._same_group(values)
            if measurement.config == values and not measurement.ran_out
        ]
        if measured:
            return max(measurement.held_bytes(outside) for measurement in measured) + outside
        held = self._predicted(values, outside)
        if held is None:
            return None
        needed = held + outside
        # A config that is not larger ran out of this amount, so the prediction is too low.
        if needed <= (self.more_than_bytes(config) or 0):
            return None
        return max(1, needed)

    def more_than_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the largest amount of GPU memory that was too small for ``config`` in bytes, or ``None`` if unknown.

        A trial with this amount ran out of memory. Its config is in the same group as ``config``, and none of its
        whole numbers is larger.
        """
        values = flat(config)
        not_enough = (
            measurement.total_bytes
            for measurement in self._same_group(values)
            if measurement.ran_out and _is_within(measurement.config, values, whole_numbers(measurement.config))
        )
        return max(not_enough, default=None)

    def explain(self) -> str:
        """Return the measurements and the formulas as text."""
        headline = counted(len(self.measurements), "measurement")
        if self.gpu_models:
            headline += f" on {', '.join(self.gpu_models)}"
        if self.versions:
            versions = (f"{name} {version}" for name, version in sorted(self.versions.items()))
            headline += f" with {', '.join(versions)}"
        lines = [headline]
        lines += [f"  {measurement} ({_ended(measurement)})" for measurement in self.measurements]
        lines += [f"  {reason}" for reason in self.reasons]
        return "\n".join(map(one_line, lines))

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence about each formula."""
        outside = self.overhead_bytes()
        on_top = f" + {format_bytes(outside)} outside the allocators" if outside else ""
        reasons = []
        for _, fit in sorted(self.fits.items()):
            formula = f"{fit}{on_top} + {format_bytes(fit.residual_bytes)} (the largest residual)"
            reasons.append(f"GPU memory by config: {formula}. {_range(fit)}")
        return tuple(reasons)

    def _same_group(self, values: dict[str, Any]) -> list[GpuMemoryMeasurement]:
        return self._by_group.get(group_key(values), [])

    @cached_property
    def _by_group(self) -> dict[str, list[GpuMemoryMeasurement]]:
        found: dict[str, list[GpuMemoryMeasurement]] = {}
        for measurement in self.measurements:
            found.setdefault(group_key(measurement.config), []).append(measurement)
        return found

    def _predicted(self, values: dict[str, Any], outside: int) -> int | None:
        """Return the predicted memory of the allocators in bytes, or ``None`` if it is unknown."""
        alike = [measurement for measurement in self._same_group(values) if not measurement.ran_out]
        wanted = numbers(values)
        # One measured config is not enough for a formula, so the group then has none.
        fit = self.fits.get(group_key(values))
        if fit is None:
            # A float such as a learning rate rarely affects memory, but a whole number such as a batch size does.
            above = (
                measurement
                for measurement in alike
                if _is_within(values, measurement.config, whole_numbers(measurement.config))
            )
            return max((measurement.held_bytes(outside) for measurement in above), default=None)
        if not fit.covers(wanted):
            return None
        below = (
            measurement
            for measurement in alike
            if _is_within(measurement.config, values, (*fit.largest, *fit.largest_unused))
        )
        largest_below = max((measurement.held_bytes(outside) for measurement in below), default=0)
        return max(fit.bytes_for(wanted), largest_below)


def _is_within(values: Mapping[str, Any], limits: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether each named number in ``values`` is at most the number of the same name in ``limits``."""
    return all(values[name] <= limits[name] for name in names)


def _ended(measurement: GpuMemoryMeasurement) -> str:
    how = {
        "finished": "finished",
        "max_steps": "stopped",
        "timeout": "timed out",
        "out_of_memory": "ran out of memory",
    }
    return f"{how[measurement.ended_by]} after {counted(measurement.num_steps, 'step')}"


def _range(fit: MemoryFit) -> str:
    used = _named(fit.largest)
    above = "The formula uses no number of the config"
    if used:
        above = f"The formula extrapolates above {used}"
    unused = _named(fit.largest_unused)
    if unused:
        return f"{above}, and the memory is unknown above {unused}"
    return above


def _named(largest: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in sorted(largest.items()))
