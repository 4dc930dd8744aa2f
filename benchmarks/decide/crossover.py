"""Finds the size from which on the GPU is faster, with as few processes as possible.

Sizes are powers of two. They are galloped through from the small end to the largest, one round each, so that a change
back at large sizes is seen: the time of a step need not grow evenly with the size. Where the faster device changes
between two of them, the sizes between are bisected, again with one round each. Beside a change, sizes at which one
round does not tell are measured in all rounds. Nothing is said of sizes beyond those that were measured.
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
    """What was found at a size.

    Attributes:
        num_rounds: How many rounds were asked for.
        comparison: The CPU, as the first, compared to the GPU; ``None``: it could not be measured.
    """

    num_rounds: int
    comparison: Comparison | None

    @property
    def is_clear(self) -> bool:
        """Whether one of them is surely the faster one."""
        return self.comparison is not None and self.comparison.outcome in (Outcome.FIRST, Outcome.SECOND)

    @property
    def ratio(self) -> float:
        """How many times as long the CPU takes."""
        return 1.0 if self.comparison is None else self.comparison.ratio

    def is_on_gpu(self, num_rounds: int) -> bool:
        """Whether the GPU is surely the faster one; or seems to be, where so many rounds were not asked for yet."""
        return self.ratio > 1 and (self.is_clear or self.num_rounds < num_rounds)


class Step(NamedTuple):
    """What is to be measured next.

    Attributes:
        size: Of the workload.
        num_rounds: How many rounds of it there should be in all.
    """

    size: int
    num_rounds: int


def powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from ``least`` to ``most``.

    Raises:
        InvalidResourcesError: There is none between.
    """
    least, most = check_count(least, least=1, name="min_size"), check_count(most, least=1, name="max_size")
    sizes = tuple(2**exponent for exponent in range((least - 1).bit_length(), int(log2(most)) + 1))
    if not sizes:
        raise InvalidResourcesError(f"there is no power of two from {least} to {most}: raise the largest size")
    return sizes


def search(
    measure: Callable[[int, int], Comparison | None], sizes: Sequence[int], num_rounds: int
) -> dict[int, Looked]:
    """Return what ``measure`` found for the sizes that matter.

    Args:
        measure: Takes a size and how many rounds of it there should be in all, and compares the CPU, as the first, to
            the GPU; ``None``: it could not be measured.
        sizes: The powers of two to look at, ascending.
        num_rounds: How many rounds decide where one does not.
    """
    found: dict[int, Looked] = {}
    while (step := next_step(found, sizes, num_rounds)) is not None:
        found[step.size] = Looked(step.num_rounds, measure(*step))
    return found


def next_step(found: Mapping[int, Looked], sizes: Sequence[int], num_rounds: int) -> Step | None:
    """Return what is to be measured next; ``None``: the crossover is known as well as it will be."""
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
    # Each side of a change, the nearer to a tie first, as that may move the change; then what is next to them.
    beside = [known[at + side] for at in changes for side in (0, 1)]
    further = [known[at + side] for at in changes for side in (-1, 2) if 0 <= at + side < len(known)]
    for size in (*sorted(beside, key=lambda size: abs(log(found[size].ratio))), *further):
        if not found[size].is_clear and found[size].num_rounds < num_rounds:
            return Step(size, num_rounds)
    return None


def _galloped(sizes: Sequence[int]) -> list[int]:
    """Return the sizes at 0, 1, 3, 7, …, and the last."""
    places = [2**i - 1 for i in range(len(sizes).bit_length())]
    return [sizes[at] for at in dict.fromkeys((*(at for at in places if at < len(sizes)), len(sizes) - 1))]


class Search(NamedTuple):
    """What is looked for, and where it is written.

    Attributes:
        workload: Its name, or ``module:function``.
        sizes: The powers of two to look at, ascending.
        settings: How it is measured: a CPU and one GPU, and how many rounds decide. Its sizes do not count.
        terms: For what trials.
        command: By which.
        output: The file of the record.
    """

    workload: str
    sizes: tuple[int, ...]
    settings: Settings
    terms: Terms
    command: str
    output: Path


def search_to_file(wanted: Search, *, address: str | None = None, timeout_s: float = 30) -> RunSet:
    """Look for the crossover, and return what was measured, which is in the file after each round.

    Raises:
        InvalidResourcesError: A device does not exist, or the file cannot be written.
        UndecidedError: The cluster lacks one of the devices.
        ProbeError: Ray does not answer.
        KeyboardInterrupt: The user ended it.
    """
    # Ray takes seconds to import; to look for the next size needs none.
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
            """Measure a size until it has so many rounds, and compare trials of it."""
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
        # It lacks the rounds that a search leaves out, for which nobody is to go on with it.
        whole = asked(sizes, wanted.settings.num_rounds).model_copy(update={"is_complete": True})
        write_run_set(whole, wanted.output)
        return whole
