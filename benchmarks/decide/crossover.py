"""Finds the size from which on the GPU is faster, with as few processes as possible.

Sizes are powers of two. The search gallops from the smallest to the largest, one round each, so that it notices if the
answer changes back at large sizes. Where the faster device changes, it bisects the sizes between, one round each. Sizes
next to a change at which one round is ambiguous are measured in all rounds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import log, log2
from pathlib import Path
from typing import NamedTuple

from tune_policies.files.terminal import tell
from tune_policies.files.writing import locked
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.value import counted

from ..compare.judge import Comparison, Outcome
from ..record.run_set import RunSet, Settings
from ..record.run_set_file import write_run_set
from .decide import Terms, UndecidedError, both_arms, compare_trials


class Looked(NamedTuple):
    """The result at a size after ``num_rounds`` rounds.

    ``comparison`` compares the CPU, as the first arm, to the GPU. It is ``None`` if nothing could be measured.
    """

    num_rounds: int
    comparison: Comparison | None

    @property
    def is_clear(self) -> bool:
        """Whether one device is surely faster."""
        return self.comparison is not None and self.comparison.outcome in (Outcome.FIRST, Outcome.SECOND)

    @property
    def ratio(self) -> float:
        """How many times as long the CPU takes."""
        return 1.0 if self.comparison is None else self.comparison.ratio

    def is_on_gpu(self, num_rounds: int) -> bool:
        """Return whether the GPU is surely faster, or seems so before ``num_rounds`` rounds were measured."""
        return self.ratio > 1 and (self.is_clear or self.num_rounds < num_rounds)


class Step(NamedTuple):
    """A size to measure next, until it has ``num_rounds`` rounds in all."""

    size: int
    num_rounds: int


def powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from ``least`` to ``most``, or raise ``InvalidResourcesError`` if there is none."""
    least, most = check_count(least, least=1, name="min_size"), check_count(most, least=1, name="max_size")
    sizes = tuple(2**exponent for exponent in range((least - 1).bit_length(), int(log2(most)) + 1))
    if not sizes:
        raise InvalidResourcesError(f"there is no power of two from {least} to {most}: raise the largest size")
    return sizes


def search(
    measure: Callable[[int, int], Comparison | None], sizes: Sequence[int], num_rounds: int
) -> dict[int, Looked]:
    """Return the results of ``measure`` at the sizes that matter, among ascending powers of two.

    ``measure`` takes a size and its number of rounds in all: 1, or ``num_rounds`` if one round is ambiguous.
    """
    found: dict[int, Looked] = {}
    while (step := next_step(found, sizes, num_rounds)) is not None:
        found[step.size] = Looked(step.num_rounds, measure(*step))
    return found


def next_step(found: Mapping[int, Looked], sizes: Sequence[int], num_rounds: int) -> Step | None:
    """Return the size to measure next, or ``None`` if further measurements would not change the crossover."""
    for size in _galloped(sizes):
        if size not in found:
            return Step(size, 1)
    known = [size for size in sizes if size in found and found[size].comparison is not None]
    is_on_gpu = [found[size].is_on_gpu(num_rounds) for size in known]
    changes = [at for at, (low, high) in enumerate(pairwise(is_on_gpu)) if low != high]
    for at in changes:
        between = [size for size in sizes if known[at] < size < known[at + 1] and size not in found]
        if between:
            return Step(between[len(between) // 2], 1)
    # Both sides of a change, the closer to a tie first because it may move the change; then their neighbours.
    beside = [known[at + side] for at in changes for side in (0, 1)]
    further = [known[at + side] for at in changes for side in (-1, 2) if 0 <= at + side < len(known)]
    for size in (*sorted(beside, key=lambda size: abs(log(found[size].ratio))), *further):
        if not found[size].is_clear and found[size].num_rounds < num_rounds:
            return Step(size, num_rounds)
    return None


def _galloped(sizes: Sequence[int]) -> list[int]:
    """Return the sizes at the places 0, 1, 3, 7, …, and the last."""
    places = [2**i - 1 for i in range(len(sizes).bit_length())]
    return [sizes[at] for at in dict.fromkeys((*(at for at in places if at < len(sizes)), len(sizes) - 1))]


class Search(NamedTuple):
    """A search, and the file of its record.

    Attributes:
        sizes: The powers of two to choose from, ascending.
        settings: A CPU and one GPU, and how many rounds decide. Its sizes do not count.
    """

    workload: str
    sizes: tuple[int, ...]
    settings: Settings
    terms: Terms
    command: str
    output: Path


def search_to_file(wanted: Search, *, address: str | None = None, timeout_s: float = 30) -> RunSet:
    """Search for the crossover, write the record after each round, and return it.

    Raises:
        InvalidResourcesError: A device does not exist, or the file cannot be written.
        UndecidedError: The cluster lacks one of the devices.
        ProbeError: Ray does not answer.
    """
    # Ray takes seconds to import, and the search itself does not need it.
    from tune_policies import probe_cluster

    from ..measuring.runner import measure, new_run_set, ray_of_a_run
    from ..record.machine import read_environment

    with locked(wanted.output), ray_of_a_run(address, timeout_s):
        capacity = probe_cluster(timeout_s=timeout_s)
        run_set = new_run_set(wanted.settings, capacity, read_environment(), wanted.command)
        if missing := [each for each in run_set.devices if each.why_missing]:
            raise UndecidedError(
                f"{missing[0].device} is not there, so there is no crossover: {missing[0].why_missing}"
            )
        sizes: set[int] = set()

        def asked(of_sizes: Iterable[int], num_rounds: int) -> RunSet:
            changes = {"sizes": {wanted.workload: tuple(sorted(of_sizes))}, "num_rounds": num_rounds}
            return run_set.model_copy(update={"settings": wanted.settings.model_copy(update=changes)})

        def compare(size: int, num_rounds: int) -> Comparison | None:
            """Measure a size until it has ``num_rounds`` rounds, and compare trials of it."""
            nonlocal run_set
            sizes.add(size)
            tell(f"measuring {wanted.workload}[{size}], {counted(num_rounds, 'round')}")
            for run_set in measure(asked([size], num_rounds), capacity):
                write_run_set(run_set, wanted.output)
            terms = wanted.terms
            arms = both_arms(run_set, wanted.workload, size, terms.gpu or "gpu")
            if arms is None:
                return None
            return compare_trials(run_set, arms, terms.steps_per_trial, same_within=terms.same_within)

        search(compare, wanted.sizes, wanted.settings.num_rounds)
        # Mark the record as complete, so that it is not resumed: the search left out the other rounds.
        whole = asked(sizes, wanted.settings.num_rounds).model_copy(update={"is_complete": True})
        write_run_set(whole, wanted.output)
        return whole
