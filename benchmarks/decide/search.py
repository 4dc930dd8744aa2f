"""Measures a workload where the crossover is looked for, size by size, and writes down what was measured."""

import sys
from pathlib import Path
from typing import NamedTuple

from tune_policies import ClusterCapacity, probe_cluster
from tune_policies.files.writing import locked
from tune_policies.values.value import counted

from ..compare.judge import Comparison
from ..measuring.runner import measure, new_run_set
from ..measuring.session import ray_of_a_run
from ..record.environment_reader import read_environment
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
        growing = _Growing(wanted, capacity, run_set)
        search(growing.compare, wanted.sizes, wanted.settings.num_rounds)
        return growing.finish()


class _Growing:
    """The record of a search, which grows with each size."""

    def __init__(self, wanted: Search, capacity: ClusterCapacity, run_set: RunSet) -> None:
        self._wanted = wanted
        self._capacity = capacity
        self._run_set = run_set
        self._sizes: set[int] = set()

    def compare(self, size: int, num_rounds: int) -> Comparison | None:
        """Measure a size until it has so many rounds, and compare trials of it."""
        self._sizes.add(size)
        print(f"measuring {self._wanted.workload}[{size}], {counted(num_rounds, 'round')}", file=sys.stderr)
        for run_set in measure(self._asked([size], num_rounds), self._capacity):
            self._keep(run_set)
        wanted = self._wanted
        arms = both_arms(self._run_set, wanted.workload, size, wanted.terms.gpu or "gpu")
        if arms is None:
            return None
        terms = wanted.terms
        return compare_trials(self._run_set, arms, terms.steps_per_trial, same_within=terms.same_within)

    def finish(self) -> RunSet:
        """Return the whole record, which says what all was asked for."""
        whole = self._asked(sorted(self._sizes), self._wanted.settings.num_rounds)
        # It lacks the rounds that a search leaves out, for which nobody is to go on with it.
        self._keep(whole.model_copy(update={"is_complete": True}))
        return self._run_set

    def _asked(self, sizes: list[int], num_rounds: int) -> RunSet:
        changes = {"sizes": {self._wanted.workload: tuple(sizes)}, "num_rounds": num_rounds}
        settings = self._wanted.settings.model_copy(update=changes)
        return self._run_set.model_copy(update={"settings": settings})

    def _keep(self, run_set: RunSet) -> None:
        self._run_set = run_set
        write_run_set(run_set, self._wanted.output)
