"""The sizes of the trials of a run that learns: few amounts, because each is a scheduling class of Ray."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tune_policies.plan.learned_needs import LearnedNeeds
from tune_policies.plan.trial_observation import MEMORY, TrialNeed, TrialObservation

_MOST_SIZES: Final = 12
"""The maximum number of sizes that are added when the policy learns again."""

_MOST_KEPT: Final = 24
"""The maximum number of sizes of a run. The other requests are for trials that ran out of memory."""

MOST_SAMPLED: Final = 32
"""The maximum number of observed configs from whose needs the sizes are chosen."""

_SAME_SIZE: Final = 1.1
"""An earlier size is used again if its amounts are larger by at most this factor."""

_FAR: Final = 1.3
"""A size is added between two sizes if their memory differs by more than this factor."""


def learned_sizes(
    needs: LearnedNeeds, observations: Sequence[TrialObservation], earlier: Sequence[TrialNeed]
) -> tuple[TrialNeed, ...]:
    """Return the sizes for these needs in ascending order, with the earlier sizes."""
    if needs.depends_on_config:
        step = max(1, len(observations) // MOST_SAMPLED)
        wanted = {needs.need_of(seen.features) for seen in observations[::step]} | {needs.at_most}
    else:
        wanted = {needs.usual}
    # The sizes for configs outside the observed range are added last, so that they are not merged with other ones.
    outside = needs.all_outside
    ordered = sorted(wanted.difference(outside), key=_order)
    most_inside = _MOST_SIZES - len(outside)
    _merge_neighbors(ordered, most_inside)
    _fill_gaps(ordered, most_inside)
    new = {_near(size, earlier) for size in (*ordered, *outside)}
    # A size without the CPUs that trials are now known to use would get those of the start policy.
    complete = [size for size in earlier if all(getattr(size, name) is not None for name in needs.amounts)]
    if "cpus" not in needs.amounts or not needs.amounts["cpus"].terms:
        # All observed configs now get the same CPUs, so no config would get a size with other CPUs.
        cpus = {size.cpus for size in new}
        complete = [size for size in complete if size.cpus in cpus]
    unused = [size for size in complete if size not in new]
    num_kept = max(0, _MOST_KEPT - len(new))
    kept = unused[len(unused) - num_kept :]  # the largest ones, in which smaller trials also fit
    return tuple(sorted((*kept, *new), key=_order))


def _merge_neighbors(ordered: list[TrialNeed], most: int) -> None:
    """Merge the neighbors that waste the least together until at most ``most`` sizes are left."""
    waste = [_waste(small, large) for small, large in pairwise(ordered)]
    while len(ordered) > most:
        at = waste.index(min(waste))
        ordered[at : at + 2] = [ordered[at] | ordered[at + 1]]
        # Only the waste beside the merged size has changed.
        near = ordered[max(0, at - 1) : at + 2]
        waste[max(0, at - 1) : at + 2] = [_waste(small, large) for small, large in pairwise(near)]


def _fill_gaps(ordered: list[TrialNeed], most: int) -> None:
    """Add sizes between distant sizes, so that a config between them does not get much more than it needs.

    There are at most ``most`` sizes afterwards.
    """
    while 1 < len(ordered) < most:
        gaps = [_distance(small, large, MEMORY) for small, large in pairwise(ordered)]
        at = gaps.index(max(gaps))
        if gaps[at] < _FAR:
            return
        between = _between(ordered[at], ordered[at + 1])
        if between in ordered:
            return
        ordered.insert(at + 1, between)


def _near(size: TrialNeed, earlier: Sequence[TrialNeed]) -> TrialNeed:
    """Return an earlier size that is at most slightly larger than ``size``, or ``size``."""
    return next((known for known in earlier if known.covers(size) and _distance(size, known) <= _SAME_SIZE), size)


def _order(size: TrialNeed) -> tuple[float, ...]:
    memory = size.gpu_memory_bytes or 0, size.host_memory_bytes or 0
    return *memory, size.cpus or 0, size.gpu_utilization or 0


def _distance(small: TrialNeed, large: TrialNeed, names: Sequence[str] = (*MEMORY, "cpus")) -> float:
    """Return the largest factor between two amounts with the same name."""
    pairs = [(getattr(small, name), getattr(large, name)) for name in names]
    return max((more / less for less, more in pairs if less and more), default=1.0)


def _waste(small: TrialNeed, large: TrialNeed) -> float:
    """Return the largest factor between an amount of ``small`` and the maximum of both amounts."""
    return max(1.0, _distance(small, large))


def _between(small: TrialNeed, large: TrialNeed) -> TrialNeed:
    """Return a size between two sizes: the geometric mean of the memory, and the larger of the other amounts."""
    size = (small | large).model_dump()
    for name in MEMORY:
        less, more = getattr(small, name), getattr(large, name)
        if less and more:
            size[name] = max(less, round((less * more) ** 0.5))
    return TrialNeed(**size)
