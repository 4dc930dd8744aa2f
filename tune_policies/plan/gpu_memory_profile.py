"""How much GPU memory trials need, by their configs: what was measured, and what follows for other configs.

A config is compared as plain data; its numbers are what memory may depend on. Nested mappings become one, with their
keys joined by ``/`` as Tune does.

For other configs a formula is fitted: a sum of terms, each a number, its square, or a product of two numbers, as the
sizes of parameters, gradients and activations are. No term is negative, so more of anything never means less memory.
Which terms it has is decided by leaving out each measurement in turn and predicting it from the others.

Sizes are whole numbers, while floats are mostly rates, on which no memory depends but which a few measurements may go
with by chance. So floats are taken in only where whole numbers explain too little, and measurements are many.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, combinations_with_replacement
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Bytes, Count, UsedBytes
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, MIB, format_bytes
from tune_policies.values.value import Value, counted, shorten

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` without nesting, as plain data.

    Numbers of NumPy become Python's, tuples lists, functions and classes their names; any other object becomes the
    name of its type, so that two objects of one type count as the same.

    Raises:
        InvalidResourcesError: ``config`` is no mapping.
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
        value = value.item()  # or its truth values would not be Python's
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if abs(float(value)) < float("inf") else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(each) for each in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    if isinstance(value, Mapping):
        return flat(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of a flat config that are numbers; truth values are none."""
    return {name: each for name, each in values.items() if isinstance(each, int | float) and not isinstance(each, bool)}


def whole_numbers(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the entries of a flat config that are whole numbers; truth values are none."""
    return [name for name, each in numbers(values).items() if isinstance(each, int)]


def group_key(values: Mapping[str, Any]) -> str:
    """Return the same text for all flat configs that differ in numbers only."""
    numeric = numbers(values)
    rest = {name: each for name, each in values.items() if name not in numeric}
    return json.dumps([rest, sorted(numeric)], sort_keys=True)


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
        needed = sum(each * _product(term, numbers) for term, each in self.coefficients.items())
        return math.ceil(needed) + self.residual_bytes

    def tells(self, numbers: Mapping[str, float]) -> bool:
        """Return whether the formula holds: not where a whole number that it leaves out is above those measured."""
        return all(numbers[name] <= most for name, most in self.largest_unused.items())

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


class GpuMemoryMeasurement(Value):
    """What one short trial on a whole GPU used.

    Attributes:
        config: The trial's config as plain data; the keys of mappings within are joined by ``/``.
        peak_bytes: The most that each framework's allocator held, by framework.
        overhead_bytes: What was used outside the allocators; ``None``: not known.
        total_bytes: What the trial needs in all; where it ran out, what it had, which was not enough.
        host_memory_bytes: The most host memory that its process and their children held; ``None``: not known.
        num_steps: Results that it had reported.
        ended_by: Why it ended: by itself, by a cap, or for want of memory.
        gpu_model: The GPU's name by its driver; ``None``: not known.
    """

    config: Annotated[dict[str, Any], BeforeValidator(flat)]
    peak_bytes: dict[str, UsedBytes] = Field(default_factory=dict)
    overhead_bytes: UsedBytes | None = None
    total_bytes: Bytes
    host_memory_bytes: Bytes | None = None
    num_steps: Count = 0
    ended_by: Literal["finished", "max_steps", "timeout", "out_of_memory"] = "finished"
    gpu_model: str | None = None

    @property
    def ran_out(self) -> bool:
        """Whether the whole GPU was not enough."""
        return self.ended_by == "out_of_memory"

    @property
    def safe_overhead_bytes(self) -> int:
        """What its frameworks use outside their allocators at most, on any GPU; 0: it names no framework."""
        return sum(safe_overhead_bytes(framework) for framework in self.peak_bytes)

    def counted_overhead_bytes(self, *, is_safe: bool) -> int | None:
        """Return what is outside the allocators, or a safe figure where that is more; ``None``: nothing is known."""
        if self.overhead_bytes is not None and not (is_safe and self.safe_overhead_bytes > self.overhead_bytes):
            return self.overhead_bytes
        return self.safe_overhead_bytes or None

    def held_bytes(self, overhead_bytes: int) -> int:
        """Return what the allocators held; ``overhead_bytes`` are those outside, where they were not measured."""
        outside = overhead_bytes if self.overhead_bytes is None else self.overhead_bytes
        return max(self.total_bytes - outside, sum(self.peak_bytes.values()), 0)

    def __str__(self) -> str:
        needed = f"more than {format_bytes(self.total_bytes)}" if self.ran_out else format_bytes(self.total_bytes)
        return f"{self.config}: {needed}"


class GpuMemoryProfile(Value):
    """What trials need, by config.

    Configs that differ in numbers only form a group. Memory is predicted within a group, never across.

    Attributes:
        measurements: What was measured, config by config. At least one.
        versions: Versions of Ray and the frameworks that measured, by name.
    """

    measurements: tuple[GpuMemoryMeasurement, ...] = Field(min_length=1)
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def host_memory_bytes(self) -> int | None:
        """The most host memory that a trial held, whatever its config; ``None``: it was not measured."""
        return max((each.host_memory_bytes for each in self.measurements if each.host_memory_bytes), default=None)

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPUs on which was measured, by their names."""
        return tuple(sorted({each.gpu_model for each in self.measurements if each.gpu_model}))

    def overhead_bytes(self, gpu_models: Iterable[str | None] | None = None) -> int | None:
        """Return what a share of GPU memory must count on for what is outside the frameworks' allocators.

        It is the most that was measured, one figure for all configs. On a GPU of another model, or of one that is not
        known, it is no less than a safe figure.

        Args:
            gpu_models: The GPUs to be used, by their drivers' names; ``None``: those on which was measured.

        Returns:
            Bytes; ``None``: nothing is known of it, as where measurements state their total only.
        """
        is_safe = gpu_models is not None and not set(gpu_models) <= set(self.gpu_models)
        known = (each.counted_overhead_bytes(is_safe=is_safe) for each in self.measurements)
        return max((each for each in known if each is not None), default=None)

    @cached_property
    def fits(self) -> dict[str, MemoryFit]:
        """The formula for what the allocators hold, for each group of which two or more configs were measured."""
        outside = self.overhead_bytes() or 0
        points: dict[str, list[tuple[dict[str, float], int]]] = {}
        for each in self.measurements:
            if not each.ran_out:
                points.setdefault(group_key(each.config), []).append((numbers(each.config), each.held_bytes(outside)))
        return {name: fit_memory(found) for name, found in points.items() if len(found) > 1}

    def gpu_memory_bytes(self, config: Mapping[str, Any], overhead_bytes: int | None = None) -> int | None:
        """Return the GPU memory that a trial with ``config`` needs in all; ``None``: it cannot be told.

        It is what the allocators held with the same config, at the most; else what the formula of its group says, with
        the formula's largest residual, and no less than what a smaller config of its group was measured to hold;
        without a formula, what was measured of the group. Where a whole number of ``config`` that is in no formula is
        above those measured, it cannot be told. On top comes what is outside the allocators.

        Args:
            config: The trial's config.
            overhead_bytes: What to count for what is outside the allocators; ``None``: the most that was measured.
        """
        values = flat(config)
        outside = (self.overhead_bytes() if overhead_bytes is None else overhead_bytes) or 0
        measured = [each for each in self._same_group(values) if each.config == values and not each.ran_out]
        if measured:
            return max(each.held_bytes(outside) for each in measured) + outside
        held = self._predicted(values, outside)
        needed = None if held is None else held + outside
        return None if needed is None or needed <= (self.more_than_bytes(config) or 0) else max(1, needed)

    def more_than_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the largest GPU memory that is known not to be enough for ``config``; ``None``: none is known.

        It is that of a trial that ran out with the same config, or one of its group with no larger whole number.
        """
        values = flat(config)
        not_enough = (
            each.total_bytes
            for each in self._same_group(values)
            if each.ran_out and _is_within(each.config, values, whole_numbers(each.config))
        )
        return max(not_enough, default=None)

    def explain(self) -> str:
        """Return the profile as text: what was measured, and the formulas."""
        on = f" on {', '.join(self.gpu_models)}" if self.gpu_models else ""
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        lines = [f"{len(self.measurements)} measured{on}{f' with {versions}' if versions else ''}"]
        lines += [f"  {each} ({_ended(each)})" for each in self.measurements]
        return "\n".join(map(one_line, [*lines, *(f"  {reason}" for reason in self.reasons)]))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The formulas, a sentence each."""
        outside = self.overhead_bytes()
        on_top = f" + {format_bytes(outside)} outside the allocators" if outside else ""
        return tuple(
            f"GPU memory by config: {fit}{on_top}, and {format_bytes(fit.residual_bytes)} more, the most by which a "
            f"measurement was above that; {_range(fit)}"
            for _, fit in sorted(self.fits.items())
        )

    def _same_group(self, values: dict[str, Any]) -> list[GpuMemoryMeasurement]:
        return self._by_group.get(group_key(values), [])

    @cached_property
    def _by_group(self) -> dict[str, list[GpuMemoryMeasurement]]:
        found: dict[str, list[GpuMemoryMeasurement]] = {}
        for each in self.measurements:
            found.setdefault(group_key(each.config), []).append(each)
        return found

    def _predicted(self, values: dict[str, Any], outside: int) -> int | None:
        """Return what the allocators will hold; ``None``: it cannot be told."""
        alike = [each for each in self._same_group(values) if not each.ran_out]
        wanted = numbers(values)
        fit = self.fits.get(group_key(values))
        if fit is None:
            # A float such as a learning rate seldom matters; a whole number such as a batch size does.
            above = (each for each in alike if _is_within(values, each.config, whole_numbers(each.config)))
            return max((each.held_bytes(outside) for each in above), default=None)
        if not fit.tells(wanted):
            return None
        below = (each for each in alike if _is_within(each.config, values, (*fit.largest, *fit.largest_unused)))
        return max(fit.bytes_for(wanted), max((each.held_bytes(outside) for each in below), default=0))


def _is_within(values: Mapping[str, Any], limits: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether none of the named numbers of a config is above that of another one."""
    return all(values[name] <= limits[name] for name in names)


def _ended(measurement: GpuMemoryMeasurement) -> str:
    how = {
        "finished": "finished",
        "max_steps": "stopped",
        "timeout": "stopped by the clock",
        "out_of_memory": "ran out",
    }
    return f"{how[measurement.ended_by]} after {counted(measurement.num_steps, 'step')}"


def _range(fit: MemoryFit) -> str:
    used = _named(fit.largest)
    beyond = f"beyond {used} it is extrapolated" if used else "it does not depend on the numbers of the config"
    unused = _named(fit.largest_unused)
    return f"{beyond}; beyond {unused} it is not known" if unused else beyond


def _named(largest: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in sorted(largest.items()))


TORCH_OVERHEAD_BYTES: Final = int(0.85 * GIB)
"""What PyTorch uses outside its allocator, at most: the figure by which its own tests share a GPU."""


def tensorflow_overhead_bytes(compute_capability: tuple[int, int] | None) -> int:
    """Return what TensorFlow leaves to the system on a device (``MinSystemMemory`` in its GPU device)."""
    is_older = compute_capability is not None and compute_capability < (9, 0)
    return (1536 if is_older else 1800) * MIB


def safe_overhead_bytes(framework: str, compute_capability: tuple[int, int] | None = None) -> int:
    """Return what a framework uses outside its allocator, at most.

    Args:
        framework: Its name, such as ``"torch"``.
        compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.
    """
    return tensorflow_overhead_bytes(compute_capability) if framework == "tensorflow" else TORCH_OVERHEAD_BYTES
