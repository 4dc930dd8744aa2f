"""Measures a workload where the crossover is looked for, size by size, and writes down what was measured."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tune_policies import probe_cluster
from tune_policies.cli.terminal import tell
from tune_policies.files.locking import locked
from tune_policies.values.value import counted

from ..compare.judge import Comparison
from ..measuring.runner import measure, new_run_set, ray_of_a_run
from ..record.machine import read_environment
from ..record.run_set import RunSet, Settings
from ..record.run_set_file import write_run_set
from .crossover import search
from .decide import Terms, UndecidedError, both_arms, compare_trials


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
