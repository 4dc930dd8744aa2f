"""Adds the report of an out-of-memory error to the error itself, so that the program that runs the trial can read it.

Tune copies the error of a function before Ray formats it. The copy of an error with its own ``__reduce__``, such as an
error of CuPy or TensorFlow, would lose its notes.
"""

import copy
import copyreg
from contextlib import suppress
from typing import Any

from ..usage.gpu_memory_records import OOM_NOTE
from ..usage.oom_report import OomReport


class _NotesOfProcess(list[str]):
    """The notes of an error. Pickling omits the report, because Ray already sends it in the text of the traceback."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([note for note in self if not note.startswith(OOM_NOTE)],)


def has_report(error: BaseException) -> bool:
    """Return whether ``add_report`` has added a report to an error."""
    return isinstance(getattr(error, "__notes__", None), _NotesOfProcess)


def add_report(error: Exception, report: OomReport) -> None:
    """Add ``report`` to an error as a note. Tune writes the note to ``error.txt``."""
    error.add_note(report.to_note())
    error.__notes__ = _NotesOfProcess(error.__notes__)
    with suppress(Exception):  # the constructor of a foreign error can raise any error
        # A copy without the report shows that the error's own ``__reduce__`` drops its notes.
        if not has_report(copy.copy(error)):
            copyreg.pickle(type(error), _reduced_with_notes)


def _reduced_with_notes(error: BaseException) -> tuple[Any, ...]:
    """Return how to copy or pickle ``error``, in the form of ``__reduce__``, with its notes."""
    reduced: tuple[Any, ...] = error.__reduce_ex__(4)  # type: ignore[assignment]
    notes = getattr(error, "__notes__", None)
    state = reduced[2] if len(reduced) > 2 else None
    if notes is None or not (state is None or isinstance(state, dict)):
        return reduced
    return (*reduced[:2], {**(state or {}), "__notes__": notes}, *reduced[3:])
