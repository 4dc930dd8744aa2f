"""Chooses the slot of a trial by its config, based on a GPU memory profile or a decision between CPU and GPU."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tune_policies.placement.packing import Limit
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile, flat, numbers
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

Headroom = Annotated[float, Field(ge=0, le=10)]
"""The additional memory of a trial, as a fraction of the measured memory: 0.1 adds a tenth."""

Device = Literal["CPU", "GPU"]
"""The kind of device on which a trial runs."""


class SlotsByConfig(Value):
    """Slot types, and the rule that selects the slot type for a trial's config.

    Attributes:
        slots: The slot types. A trial with an unknown config gets the last slot type.
        holds_for: The package versions of the measurement, by name. With other versions, the measurements are not
            valid. If the mapping is empty, the measurements are valid with any version.
    """

    slots: tuple[TrialSlot, ...] = Field(min_length=1)
    holds_for: dict[str, str] = Field(default_factory=dict)

    @abstractmethod
    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot of a trial with this config.

        Raises:
            InfeasibleRequestError: The config needs more GPU memory than any slot has.
        """

    @abstractmethod
    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the information that is missing for a config, or ``None`` if nothing is missing."""

    @property
    def max_concurrent_trials(self) -> int:
        """The number of concurrent trials if all trials have the smallest configs."""
        return max(slot.max_concurrent_trials for slot in self.slots)

    def with_slots(self, change: Callable[[TrialSlot], TrialSlot]) -> Self:
        """Return a copy with each slot changed."""
        return self.model_copy(update={"slots": tuple(map(change, self.slots))})

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit in ``num_places`` slots for any combination of measured configs."""
        return num_places


class SlotsByProfile(SlotsByConfig):
    """Slots of several sizes. A trial gets the smallest slot that is large enough for its config, based on a profile.

    Attributes:
        profile: The measured GPU memory of each config.
        headroom: The additional memory of a trial, as a fraction of the measured memory.
        slots: The slot types in ascending order of GPU memory. The last slot is the largest whole GPU, or the
            largest possible fraction if the workers of a trial must share a GPU.
    """

    profile: GpuMemoryProfile
    headroom: Headroom

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the missing information, or ``None``. See :meth:`SlotsByConfig.why_unknown`."""
        if self.needed_bytes(config) is not None:
            return None
        return f"the GPU memory of the config {dict(config)} was not measured"

    def needed_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the GPU memory that a trial with this config needs in bytes, or ``None`` if it is unknown."""
        return self.profile.gpu_memory_bytes(config, self.slots[-1].gpu_overhead_bytes)

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the smallest slot for a trial with this config, or the largest slot if the config is unknown.

        Raises:
            InfeasibleRequestError: The config needs more GPU memory than the largest slot has.
        """
        largest = self.slots[-1]
        has = largest.gpu_memory_bytes or 0
        needed = self.needed_bytes(config)
        if needed is None:
            more_than = self.profile.more_than_bytes(config) or 0
            if more_than < has:
                return largest
            raise _too_large(config, f"more than {format_bytes(more_than)}", largest)
        # A trial that needs nearly a whole device does not share it, so it needs no headroom.
        wanted = min(with_headroom(needed, self.headroom), max(needed, has))
        for slot in self.slots:
            if (slot.gpu_memory_bytes or 0) >= wanted:
                return slot
        raise _too_large(config, format_bytes(needed), largest)


class SlotsByDecision(SlotsByConfig):
    """A slot type on the CPU and a slot type on the GPU. A number in the config determines the slot type.

    Attributes:
        slots: The slot type on the CPU, and the slot type on the GPU.
        size: The name of the number in the config, such as ``"batch_size"``, or ``"model/batch_size"`` in a nested
            mapping.
        devices: The measured sizes in ascending order, each with the device for its trials.
    """

    size: str
    devices: tuple[tuple[PositiveCount, Device], ...] = Field(min_length=1)

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit even if all of them need the device with fewer slots."""
        return min(num_places, *(slot.max_concurrent_trials for slot in self.slots))

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the missing information, or ``None``. See :meth:`SlotsByConfig.why_unknown`."""
        if self._size_of(config) is not None:
            return None
        return f"the decision requires a number above 0 for {self.size!r}, but the config is {dict(config)}"

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot on the device that was better at the largest measured size up to the size in the config.

        If all measured sizes are larger, the smallest measured size is used. If the config has no size,
        the GPU slot is returned.
        """
        on_cpu, on_gpu = self.slots
        size = self._size_of(config)
        if size is None:
            return on_gpu
        up_to = [device for measured, device in self.devices if measured <= size]
        return on_gpu if (up_to[-1] if up_to else self.devices[0][1]) == "GPU" else on_cpu

    def _size_of(self, config: Mapping[str, Any]) -> float | None:
        size = numbers(flat(config)).get(self.size)
        return size if size is not None and size > 0 else None


def with_headroom(needed_bytes: int, headroom: float) -> int:
    """Return ``needed_bytes`` plus the headroom, rounded up."""
    return math.ceil(needed_bytes * (1 + headroom))


def _too_large(config: Mapping[str, Any], needed: str, largest: TrialSlot) -> InfeasibleRequestError:
    has = format_bytes(largest.gpu_memory_bytes or 0)
    return InfeasibleRequestError(
        f"{needed} of GPU memory with the config {dict(config)!r}",
        f"each of its {largest.num_workers} workers gets at most {has} of a GPU"
        if largest.has_gpu_fraction
        else f"the largest GPU of the plan has {has}",
        Limit.GPU_MEMORY,
        "Remove the config, change it to need less memory, or add a larger GPU.",
    )
