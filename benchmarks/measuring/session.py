"""A run from its beginning to its end: connected to Ray, with its progress on stderr, and written after each step."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import ray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tune_policies import probe_cluster
from tune_policies.cli.terminal import TextConsole
from tune_policies.files.writing import locked
from tune_policies.ray_compat.connection import connection, find_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError

from ..record.environment_reader import read_environment
from ..record.run_set import RunSet, Settings
from ..record.run_set_file import read_run_set, write_run_set
from .interleaving import check_same, num_missing
from .runner import GrowingRunSet, measure, new_run_set


class Session(NamedTuple):
    """What is measured, where, and where it is written.

    Attributes:
        settings: What is asked for; ``None``: what the file says that is gone on with.
        command: By which.
        output: The file of the record.
        resume: The file of a run that is gone on with; ``None``: a new one.
        address: Of Ray, as for ``ray.init``.
        timeout_s: Deadline for Ray to answer, in seconds.
        budget_s: After so many seconds the program ends, from its start on; ``None``: when all is measured.
    """

    settings: Settings | None
    command: str
    output: Path
    resume: Path | None = None
    address: str | None = None
    timeout_s: float = 30
    budget_s: float | None = None


class InterruptedRunError(Exception):
    """The user ended the run.

    Attributes:
        run_set: What was measured, which is in the file.
    """

    def __init__(self, run_set: RunSet) -> None:
        super().__init__(run_set)
        self.run_set = run_set


def measure_to_file(session: Session) -> RunSet:
    """Measure, and return what is in the file at the end.

    Raises:
        InvalidResourcesError: The file is there already, is none that can be gone on with, or is being written by
            another process; a device or a size makes no sense.
        ProbeError: Ray does not answer.
        InterruptedRunError: The user ended it.
    """
    with locked(session.output):  # a second process would go on from the same runs, and one would lose what it adds
        return _measure_to_file(session)


def _measure_to_file(session: Session) -> RunSet:
    before = None if session.resume is None else read_run_set(session.resume)
    if session.output != session.resume and session.output.exists():
        raise InvalidResourcesError(
            f"{session.output} is there already, and nothing that was measured is lost by a new run: name another "
            f"file, or go on with it by --resume {session.output}"
        )
    if before is not None and before.is_complete and session.settings in (None, before.settings):
        if session.output != session.resume:
            write_run_set(before, session.output)
        return before
    settings = session.settings or (before.settings if before else None)
    if settings is None:
        raise InvalidResourcesError(f"{session.resume} does not say what was asked for: run anew, into a new file")
    deadline_at = None
    if session.budget_s is not None:
        deadline_at = time.monotonic() + session.budget_s - (time.time() - psutil.Process().create_time())
    with ray_of_a_run(session.address, session.timeout_s):
        capacity = probe_cluster(timeout_s=session.timeout_s)
        run_set = new_run_set(settings, capacity, read_environment(), session.command)
        if before is not None:
            check_same(before, run_set)
            run_set = before
        return _write_all(measure(run_set, capacity, deadline_at=deadline_at), run_set, session.output)


def _write_all(growing: GrowingRunSet, run_set: RunSet, output: Path) -> RunSet:
    total = num_missing(run_set)
    try:
        with _progress() as progress:
            bar = progress.add_task("measuring", total=total)
            for run_set in growing:
                write_run_set(run_set, output)
                progress.update(bar, completed=total - num_missing(run_set))
    except KeyboardInterrupt:
        write_run_set(run_set, output)  # it may have come while this was done
        raise InterruptedRunError(run_set) from None
    finally:
        growing.close()  # ends the processes, where it was not the one that was ended
    return run_set


def _progress() -> Progress:
    console = TextConsole(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())


@contextmanager
def ray_of_a_run(address: str | None, timeout_s: float) -> Iterator[None]:
    """Stay connected to the Ray that is named or found, else to one that is started for the time of the run.

    Raises:
        ProbeError: Ray does not answer in time, or none can be started.
    """
    if ray.is_initialized() or find_ray(address) is not None:
        with connection(address, timeout_s, local="starts a Ray for the run"):
            yield
        return
    try:
        # Its dashboard would use CPU while others are measured.
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # a Ray that does not start says so by a plain `Exception`
        raise ProbeError(f"cannot start a Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
