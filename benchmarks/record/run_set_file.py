"""Reads and writes the file of a run set, and exports its raw times as CSV.

The file is a JSON object with the run set under the key ``tune_policies``.
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import Final

from tune_policies.files.plain_data import parse_json
from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, read_bytes
from tune_policies.files.writing import replace_file
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

from .run_set import Phase, ProcessRun, RunSet

KEY: Final = "tune_policies"
"""The key of the run set. It comes first, so that the first bytes of a file show whether it contains a run set."""

_BEGINS: Final = f'{{"{KEY}":'.encode()
_VERSION: Final = RunSet.model_fields["schema_version"].default
_MOST_MISTAKES: Final = 3
_MEASURE: Final = "Write a run set with `tune-policies bench run … --output FILE`"


def write_run_set(run_set: RunSet, path: Path) -> None:
    """Write ``run_set`` to ``path`` atomically. An older run set is replaced, and the file mode does not change.

    The file contains host names and the command; ``RunSet.redacted`` removes both.

    Raises:
        InvalidResourcesError: ``path`` is a file without a run set, or cannot be written.
    """
    try:
        # A run writes the file many times, and the first bytes answer the question without reading all of it.
        beginning = read_bytes(path, max_bytes=len(_BEGINS), is_cut=True)
        if beginning not in (b"", _BEGINS):  # check whether the file is a run set with another JSON layout
            read_run_set(path)
    except UnreadableFileError:  # if the file exists, replace_file reports why it cannot be written
        pass
    except InvalidResourcesError as error:
        raise InvalidResourcesError(
            f"{path} exists and is not a run set of these benchmarks. Choose another file, or delete {path}"
        ) from error
    replace_file(path, file_text(run_set))


def name_for_gpu(record: Path | None) -> str:
    """Return the name of a new file in the working directory for the same measurements on a machine with a GPU.

    The record ``cpu-small.json`` leads to ``gpu-small.json``, and ``mine.json`` to ``gpu-mine.json``.

    Args:
        record: The file of the run without a GPU, or ``None`` if it is not known.
    """
    if record is None:
        return "gpu-run.json"
    stem = re.sub(r"(?<![a-zA-Z])cpu(?![a-zA-Z])", "gpu", record.stem)
    if "gpu" not in stem:
        stem = f"gpu-{stem}"
    return new_name(f"{stem}.json", record)


def new_name(name: str, record: Path) -> str:
    """Return ``name``, with a number if the working directory contains such a file, or if ``record`` has this name."""
    stem, suffix = Path(name).stem, Path(name).suffix
    number = 1
    while name == record.name or Path(name).exists():
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name


def file_text(run_set: RunSet) -> str:
    """Return the text of the file that :func:`write_run_set` writes."""
    # Without spaces, because a file can contain many thousands of blocks, and because ``_BEGINS`` has none.
    return json.dumps({KEY: run_set.model_dump(mode="json")}, separators=(",", ":")) + "\n"


def read_run_set(path: Path) -> RunSet:
    """Read the file that :func:`write_run_set` wrote.

    Raises:
        InvalidResourcesError: The file is missing, too large, truncated or not JSON, contains no run set, has a newer
            version, or contains an invalid field.
    """
    try:
        content = read_bytes(path, what="run set", max_bytes=MAX_RECORD_BYTES)
    except UnreadableFileError as error:
        raise InvalidResourcesError(f"{error}. {_MEASURE}") from error
    try:
        data = parse_json(content)
    except ValueError as error:
        raise InvalidResourcesError(
            f"{path} is not a run set, because it is not valid JSON, or is truncated ({error}). {_MEASURE}"
        ) from error
    if not isinstance(data, dict) or KEY not in data:
        raise InvalidResourcesError(f"{path} is JSON, but not a run set. It has no top-level key {KEY!r}. {_MEASURE}")
    # The version comes before the validation, because an older version cannot judge fields that it does not know.
    own = data[KEY]
    version = own.get("schema_version") if isinstance(own, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise InvalidResourcesError(
            f"{path} is a run set of version {version}, but the installed tune-policies reads version {_VERSION}. "
            "Upgrade tune-policies"
        )
    try:
        return RunSet.from_dict(own)
    except InvalidResourcesError as error:
        mistakes = str(error).splitlines()
        more = "\n  and more" if len(mistakes) > _MOST_MISTAKES else ""
        shown = "".join(f"\n  {mistake}" for mistake in mistakes[:_MOST_MISTAKES])
        raise InvalidResourcesError(
            f"{path} is not a valid run set. {_MEASURE}. The invalid fields are:{shown}{more}"
        ) from error


_HEADINGS: Final = (
    *("workload", "size", "device", "is_control", "round", "process", "pid", "node", "started_at"),
    *("num_threads", "dtype", "phase", "is_warmup", "order", "at_s", "num_steps", "seconds"),
)


def csv_text(run_set: RunSet) -> str:
    """Return the raw times as CSV, with a row for each block and for each first epoch.

    The rows of first epochs have no values for ``order`` and ``at_s``.
    """
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_HEADINGS)
    for run in run_set.runs:
        rows.writerows([_cell(value) for value in row] for row in _rows(run))
    return file.getvalue()


_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The characters that start a formula in a spreadsheet, and their full-width forms."""


def _cell(value: object) -> object:
    """Return the content of a cell.

    Text is converted to one line. If a spreadsheet would interpret it as a formula, an apostrophe precedes it.
    """
    if not isinstance(value, str):
        return value
    text = one_line(value)
    if text.startswith(_FORMULA):
        return f"'{text}"
    return text


def _rows(run: ProcessRun) -> list[tuple[object, ...]]:
    process = (
        *(value for _, value in run.configuration),
        *(run.round, run.order, run.pid, run.node),
        *(run.started_at.isoformat(), run.num_threads, run.dtype or ""),
    )
    rows: list[tuple[object, ...]] = [
        (*process, block.phase, block.is_warmup, block.order, block.at_s, block.num_steps, block.seconds)
        for block in run.blocks
    ]
    if run.first_epoch_s is not None:
        rows.append((*process, Phase.FIRST_EPOCH, False, "", "", run.steps_per_epoch, run.first_epoch_s))
    return rows
