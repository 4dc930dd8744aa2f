"""How much GPU memory trials need, by their configs: what was measured, and what follows for other configs."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from tune_policies.plan.config_values import flat, group_key, numbers, whole_numbers
from tune_policies.plan.memory_fit import MemoryFit, fit_memory
from tune_policies.values.resources import Bytes, Count, UsedBytes
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, MIB, format_bytes
from tune_policies.values.value import Value


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
        counted = (each.counted_overhead_bytes(is_safe=is_safe) for each in self.measurements)
        return max((each for each in counted if each is not None), default=None)

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
            f"GPU memory by config: {fit}{on_top}, at most {format_bytes(fit.residual_bytes)} below what was measured, "
            f"which is added; {_range(fit)}"
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
    steps = f"{measurement.num_steps} {'step' if measurement.num_steps == 1 else 'steps'}"
    how = {
        "finished": "finished",
        "max_steps": "stopped",
        "max_seconds": "stopped by the clock",
        "out_of_memory": "ran out",
    }
    return f"{how[measurement.ended_by]} after {steps}"


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
