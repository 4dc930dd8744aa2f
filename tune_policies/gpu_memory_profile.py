"""How much GPU memory trials need, by their configs: what was measured, and what follows for other configs."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tune_policies.config_values import flat, kind, numbers
from tune_policies.memory_fit import MemoryFit, fit_memory
from tune_policies.resources import Bytes, Count, UsedBytes
from tune_policies.units import format_bytes
from tune_policies.values import Value


class GpuMemoryMeasurement(Value):
    """What one short trial on a whole GPU used.

    Attributes:
        config: The trial's config as plain data; the keys of mappings within are joined by ``/``.
        peak_bytes: The most that each framework's allocator held, by framework.
        overhead_bytes: What was used outside the allocators; ``None``: not known.
        total_bytes: What the trial needs in all; where it ran out, what it had, which was not enough.
        num_steps: Results that it had reported.
        ended_by: Why it ended: by itself, by a cap, or for want of memory.
        gpu_model: The GPU's name by its driver; ``None``: not known.
    """

    config: Annotated[dict[str, Any], BeforeValidator(flat)]
    peak_bytes: dict[str, UsedBytes] = Field(default_factory=dict)
    overhead_bytes: UsedBytes | None = None
    total_bytes: Bytes
    num_steps: Count = 0
    ended_by: Literal["finished", "max_steps", "max_seconds", "out_of_memory"] = "finished"
    gpu_model: str | None = None

    @property
    def ran_out(self) -> bool:
        """Whether the whole GPU was not enough."""
        return self.ended_by == "out_of_memory"

    def __str__(self) -> str:
        needed = f"more than {format_bytes(self.total_bytes)}" if self.ran_out else format_bytes(self.total_bytes)
        return f"{self.config}: {needed}"


class GpuMemoryProfile(Value):
    """What trials need, by config.

    Configs are of one kind where they differ in numbers only. Memory is predicted within a kind, never across.

    Attributes:
        measurements: What was measured, config by config. At least one.
        versions: Versions of Ray and the frameworks that measured, by name.
    """

    measurements: tuple[GpuMemoryMeasurement, ...] = Field(min_length=1)
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPUs on which was measured, by their names."""
        return tuple(sorted({each.gpu_model for each in self.measurements if each.gpu_model}))

    @cached_property
    def fits(self) -> dict[str, MemoryFit]:
        """The formula for each kind of configs of which two or more were measured."""
        points: dict[str, list[tuple[dict[str, float], int]]] = {}
        for each in self.measurements:
            if not each.ran_out:
                points.setdefault(kind(each.config), []).append((numbers(each.config), each.total_bytes))
        return {name: fit_memory(found) for name, found in points.items() if len(found) > 1}

    def gpu_memory_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the GPU memory that a trial with ``config`` needs in all; ``None``: it cannot be told.

        It is what was measured of the same config, at the most; else what the formula of its kind says, with the
        formula's largest residual; without a formula, what was measured of the kind, unless a whole number of
        ``config`` is above those measured.
        """
        values = flat(config)
        measured = [each.total_bytes for each in self._of_kind(values) if each.config == values and not each.ran_out]
        if measured:
            return max(measured)
        needed = self._predicted(values)
        return None if needed is None or needed <= (self.more_than_bytes(config) or 0) else needed

    def more_than_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the largest GPU memory that is known not to be enough for ``config``; ``None``: none is known.

        It is that of a trial that ran out with the same config, or one of its kind with no larger number.
        """
        values = flat(config)
        wanted = numbers(values)
        not_enough = (
            each.total_bytes
            for each in self._of_kind(values)
            if each.ran_out and all(wanted[name] >= least for name, least in numbers(each.config).items())
        )
        return max(not_enough, default=None)

    def is_extrapolated(self, config: Mapping[str, Any]) -> bool:
        """Return whether the answer for ``config`` comes from a formula beyond the numbers that were measured."""
        values = flat(config)
        fit = self.fits.get(kind(values))
        return fit is not None and fit.is_beyond(numbers(values))

    def explain(self) -> str:
        """Return the profile as text: what was measured, and the formulas."""
        on = f" on {', '.join(self.gpu_models)}" if self.gpu_models else ""
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        lines = [f"{len(self.measurements)} measured{on}{f' with {versions}' if versions else ''}"]
        lines += [f"  {each} ({_ended(each)})" for each in self.measurements]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])

    @property
    def reasons(self) -> tuple[str, ...]:
        """The formulas, a sentence each."""
        return tuple(
            f"GPU memory by config: {fit}, at most {format_bytes(fit.residual_bytes)} below what was measured, "
            f"which is added; {_range(fit)}"
            for _, fit in sorted(self.fits.items())
        )

    def _of_kind(self, values: dict[str, Any]) -> list[GpuMemoryMeasurement]:
        return self._by_kind.get(kind(values), [])

    @cached_property
    def _by_kind(self) -> dict[str, list[GpuMemoryMeasurement]]:
        found: dict[str, list[GpuMemoryMeasurement]] = {}
        for each in self.measurements:
            found.setdefault(kind(each.config), []).append(each)
        return found

    def _predicted(self, values: dict[str, Any]) -> int | None:
        wanted = numbers(values)
        if (fit := self.fits.get(kind(values))) is not None:
            return fit.bytes_for(wanted)
        alike = [each for each in self._of_kind(values) if not each.ran_out]
        # A float such as a learning rate seldom matters; a whole number such as a batch size does.
        are_within = all(
            any(wanted[name] <= number for number in (numbers(each.config)[name] for each in alike))
            for name, number in wanted.items()
            if isinstance(number, int)
        )
        return max((each.total_bytes for each in alike), default=None) if are_within else None


def _ended(measurement: GpuMemoryMeasurement) -> str:
    steps = f"{measurement.num_steps} {'step' if measurement.num_steps == 1 else 'steps'}"
    how = {
        "finished": "finished",
        "max_steps": "stopped",
        "max_seconds": "stopped by the clock",
        "out_of_memory": "ran out",
    }
    return f"{how[measurement.ended_by]} after {steps}"


def _range(fit: MemoryFit) -> str:
    if not fit.largest:
        return "it does not depend on the numbers of the config"
    most = ", ".join(f"{name} {number:g}" for name, number in sorted(fit.largest.items()))
    return f"beyond {most} it is extrapolated"
