"""The report of an out-of-memory error that the trial's process adds to the error as a note.

The note is one line of JSON. It travels with the text of the traceback, because Ray keeps this text for every error:
Ray replaces an error that cannot be pickled, and keeps only the text of an error that a trainable's constructor raised.
"""

import json
from contextlib import suppress
from typing import Final, Self

from tune_policies.oom import OutOfMemory
from tune_policies.oom.classify import walk_errors
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value

from .gpu_memory_records import OOM_NOTE, GpuMemoryUsage

_MAX_CHARACTERS: Final = 100_000


class OomReport(Value):
    """An out-of-memory error, as classified in the process where it was raised.

    Attributes:
        out_of_memory: The classified error.
        gpu_memory: The GPU memory that the process used, or ``None`` if it has no GPU or the memory is not known.
    """

    out_of_memory: OutOfMemory
    gpu_memory: GpuMemoryUsage | None = None

    def to_note(self) -> str:
        """Return the note for the error."""
        return OOM_NOTE + json.dumps(self.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return the last report in the text of a traceback, or ``None`` if it contains no report."""
        for line in reversed(text.splitlines()):
            _, note, report = line.partition(OOM_NOTE)
            if note and len(report) <= _MAX_CHARACTERS:
                with suppress(InvalidResourcesError):  # a line of the user that looks like a report
                    return cls.from_json(report)
        return None

    @classmethod
    def from_error(cls, error: object) -> Self | None:
        """Return the report in ``error`` or in an error inside it, or ``None`` if they contain no report."""
        for inner in walk_errors(error):
            report = cls.from_text(inner.text)
            if report is not None:
                return report
        return None
