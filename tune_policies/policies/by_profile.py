"""Plans slots of several sizes from a GPU-memory profile, and each config gets the smallest that is enough."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.plan.slots_by_config import SlotsByProfile, with_headroom
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.gpu_selection import Selection, labels_of
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import format_amount
from tune_policies.values.units import format_bytes

_MOST_SIZES: Final = 12
"""Each size costs a plan; with twelve a trial gets a sixth more than it needs in the mean, from 1 to 80 GiB."""

_NEAR: Final = 1.1
"""Sizes that differ by less than this factor need no other one between them."""

_MOST_NAMED: Final = 8
"""Of more measured configs, only those that need the least and the most are named."""


def plan_by_profile(
    profile: GpuMemoryProfile,
    headroom: float,
    capacity: ClusterCapacity,
    *,
    sizes: Collection[int],
    gpu_models: Collection[str | None],
    best: Callable[[int], tuple[TrialPlan, Selection]],
    plan_on: Callable[[Selection, int], TrialPlan],
) -> TrialPlan:
    """Return the plan whose first slot is enough for every measured config, with smaller slots for smaller configs.

    Args:
        profile: What was measured.
        headroom: How much more than measured a worker gets, as a part of it.
        capacity: The cluster.
        sizes: The bytes of the devices that there are; 0 for one that is not known.
        gpu_models: The devices' names by their drivers; ``None`` for one that is not known.
        best: Returns the devices to use for workers that need so many bytes each, and their plan without labels.
        plan_on: Returns the plan on given devices, without labels. Both raise where no such worker fits.

    Raises:
        InfeasibleRequestError: No device holds the largest of the configs that ran.
    """
    largest_device = max(sizes, default=0)
    overhead = profile.overhead_bytes(gpu_models)
    ran = [profile.gpu_memory_bytes(each.config, overhead) for each in profile.measurements if not each.ran_out]
    held = [needed for needed in ran if needed is not None]
    not_held = [each.total_bytes for each in profile.measurements if each.ran_out]
    if not held:  # so only a larger device may do, and as a whole
        held = [max(max(not_held) + 1, largest_device)]
    wanted = sorted({_wanted(needed, headroom, largest_device) for needed in held})
    plan, selection = best(wanted[-1])
    selections = [selection]
    if len(sizes) > 1:  # small configs may do with small devices, and unknown ones are best off on the largest
        for needed in (wanted[0], largest_device):
            with suppress(InfeasibleRequestError):  # too few devices of that size for all workers of a trial
                selections.append(best(needed)[1])
    told = [(each, labels_of(capacity, each)) for each in _different(selections)]
    plan = plan.on_nodes(told[0][1])
    counted = {"gpu_overhead_bytes": overhead, "measured_with": profile.versions}
    plan = plan.with_slots(lambda slot: slot.model_copy(update=counted))
    sized = _slots(_spread(wanted, largest_device), plan, told, plan_on)
    slots = tuple(slot.model_copy(update=counted) for slot in sized)
    by_config = SlotsByProfile(profile=profile, headroom=headroom, slots=slots)
    reasons = [
        _what_was_measured(profile, held, headroom),
        *_what_they_get(by_config),
        *profile.reasons,
        *_where_it_was_not_measured(profile, gpu_models, overhead),
        f"a config of which nothing is known gets {_whole(slots[-1])}",
        *(f"for the largest: {reason}" for reason in plan.reasons),
    ]
    if not_held:
        count = f"{len(not_held)} {'config' if len(not_held) == 1 else 'configs'}"
        reasons.insert(1, f"{count} ran out of {format_bytes(max(not_held))}, the whole GPU: not counted")
    return plan.model_copy(update={"by_config": by_config, "reasons": tuple(reasons)})


def _wanted(needed: int, headroom: float, largest_device: int) -> int:
    """Return what a worker is given: with headroom, but no more than a device has, if that is enough."""
    return min(with_headroom(needed, headroom), max(needed, largest_device))


def _spread(wanted: list[int], largest_device: int) -> Iterator[int]:
    """Yield sizes from the smallest that is wanted to the largest device: the wanted ones, and some between."""
    sizes = sorted({*wanted, max(largest_device, wanted[-1])})
    if len(sizes) > _MOST_SIZES:
        steps = (len(sizes) - 1) / (_MOST_SIZES - 1)
        sizes = [sizes[math.ceil(i * steps)] for i in range(_MOST_SIZES - 1)] + [sizes[-1]]
    while len(sizes) < _MOST_SIZES:
        gaps = ((high / low, i) for i, (low, high) in enumerate(pairwise(sizes)))
        gap, at = max(gaps, default=(1.0, 0))
        if gap < _NEAR:
            break
        sizes.insert(at + 1, math.isqrt(sizes[at] * sizes[at + 1]))
    yield from sizes


def _different(selections: Iterable[Selection]) -> Iterator[Selection]:
    seen: set[frozenset[Hashable]] = set()
    for selection in selections:
        shapes = frozenset(node.shape for node, _ in selection.groups)
        if shapes not in seen:
            seen.add(shapes)
            yield selection


def _slots(
    sizes: Iterable[int],
    plan: TrialPlan,
    told: list[tuple[Selection, dict[str, str]]],
    plan_on: Callable[[Selection, int], TrialPlan],
) -> tuple[TrialSlot, ...]:
    """Return a slot for each size, the one of which the most run at once, beside that of ``plan``."""
    found = {plan.slots[0].gpu_memory_bytes or 0: plan.slots[0]}
    for size in sizes:
        slots = []
        for selection, labels in told:
            with suppress(InfeasibleRequestError):  # too few whole GPUs are there, or not with the CPUs
                if (selection.memory_bytes or 0) >= size:
                    slots.append(plan_on(selection, size).slots[0].on_nodes(labels))
        if slots:
            most = max(slots, key=lambda slot: slot.max_concurrent_trials)
            found.setdefault(most.gpu_memory_bytes or 0, most)
    return tuple(slot for _, slot in sorted(found.items()))


def _what_they_get(by_config: SlotsByProfile) -> Iterator[str]:
    """Yield what the measured configs get, those with the least and the most first where there are many."""
    ran = sorted(
        (each for each in by_config.profile.measurements if not each.ran_out), key=lambda each: each.total_bytes
    )
    for each in ran if len(ran) <= _MOST_NAMED else (ran[0], ran[-1]):
        with suppress(InfeasibleRequestError):
            yield f"{_counted(by_config, each)}, so {format_amount(by_config.slot_for(each.config).worker.gpus)} GPU"


def _whole(largest: TrialSlot) -> str:
    share = format_amount(largest.worker.gpus)
    return f"{share} GPU a worker, as much as there is for each" if largest.shares_gpu else "a whole GPU"


def _where_it_was_not_measured(
    profile: GpuMemoryProfile, gpu_models: Collection[str | None], overhead: int | None
) -> Iterator[str]:
    others = sorted({name for name in gpu_models if name is not None} - set(profile.gpu_models))
    if others and profile.gpu_models:
        counted = "" if overhead is None else f"; {format_bytes(overhead)} are counted for what is outside allocators"
        yield (
            f"measured on {', '.join(profile.gpu_models)} and planned for {', '.join(others)}, where trials may need "
            f"more or less{counted}"
        )


def _counted(by_config: SlotsByProfile, measured: GpuMemoryMeasurement) -> str:
    """Return what was measured, and what is counted, where another overhead makes that more."""
    needed = by_config.needed_bytes(measured.config) or 0
    more = format_bytes(needed) != format_bytes(measured.total_bytes)
    return f"{measured}, {format_bytes(needed)} counted" if more else str(measured)


def _what_was_measured(profile: GpuMemoryProfile, held: list[int], headroom: float) -> str:
    count = len(profile.measurements)
    on = f" on {', '.join(profile.gpu_models)}" if profile.gpu_models else ""
    least, most = format_bytes(min(held)), format_bytes(max(held))
    amount = least if least == most else f"{least} to {most}"
    return (
        f"{count} {'config' if count == 1 else 'configs'} measured{on}, {amount}: each trial gets what its config "
        f"needs and {headroom:.0%} more"
    )
