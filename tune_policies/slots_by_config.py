"""What a trial gets by its config: the smallest of several slots that holds what a profile says of it."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from tune_policies.errors import InfeasibleRequestError
from tune_policies.gpu_memory_profile import GpuMemoryProfile
from tune_policies.slot import TrialSlot
from tune_policies.units import format_bytes
from tune_policies.values import Value

Headroom = Annotated[float, Field(ge=0, le=10)]
"""How much more than was measured is given, as a part of it: 0.1 is a tenth more."""


class SlotsByConfig(Value):
    """Slots of several sizes, and the profile that says which of them a config needs.

    Attributes:
        profile: What was measured.
        headroom: How much more than the profile says a trial gets, as a part of it.
        slots: The sizes, the smallest first; the last is the largest GPU as a whole, or where a trial's workers must
            share it, as much of it as each can have.
    """

    profile: GpuMemoryProfile
    headroom: Headroom
    slots: tuple[TrialSlot, ...] = Field(min_length=1)

    @property
    def max_concurrent_trials(self) -> int:
        """How many trials run at once, if all have the slot of which the most do."""
        return max(slot.max_concurrent_trials for slot in self.slots)

    def with_slots(self, change: Callable[[TrialSlot], TrialSlot]) -> "SlotsByConfig":
        """Return the same with each slot changed."""
        return self.model_copy(update={"slots": tuple(map(change, self.slots))})

    def needed_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the GPU memory that a trial with this config needs on these GPUs; ``None``: it cannot be told."""
        return self.profile.gpu_memory_bytes(config, self.slots[-1].gpu_overhead_bytes)

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the smallest slot that holds a trial with this config; of an unknown config, the largest.

        Raises:
            InfeasibleRequestError: It is known to need more than the largest.
        """
        largest = self.slots[-1]
        has = largest.gpu_memory_bytes or 0
        needed = self.needed_bytes(config)
        if needed is None:
            more_than = self.profile.more_than_bytes(config) or 0
            if more_than < has:
                return largest
            raise _too_large(config, f"more than {format_bytes(more_than)}", largest)
        # What leaves no headroom on a whole device has no neighbour there, so it may use all of it.
        wanted = min(with_headroom(needed, self.headroom), max(needed, has))
        for slot in self.slots:
            if (slot.gpu_memory_bytes or 0) >= wanted:
                return slot
        raise _too_large(config, format_bytes(needed), largest)


def with_headroom(needed_bytes: int, headroom: float) -> int:
    """Return so many bytes and ``headroom`` of them, rounded up."""
    return math.ceil(needed_bytes * (1 + headroom))


def _too_large(config: Mapping[str, Any], needed: str, largest: TrialSlot) -> InfeasibleRequestError:
    has = format_bytes(largest.gpu_memory_bytes or 0)
    return InfeasibleRequestError(
        f"{needed} of GPU memory with the config {dict(config)!r}",
        f"each of its {largest.num_workers} workers can have {has} of a GPU at most"
        if largest.shares_gpu
        else f"the largest GPU in use has {has}",
        "GPU memory",
        "Leave the config out, make it smaller, or add a larger GPU.",
    )
