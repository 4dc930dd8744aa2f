"""The file of a run set: one JSON file that is pyperf's, too.

At its top stand pyperf's ``version``, ``benchmarks`` and ``metadata``, and ``tune_policies``, which pyperf passes over:
the whole run set. It is read from there alone; what is pyperf's is a view of it.
"""

import json
from pathlib import Path
from typing import Any, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, read_beginning, read_bytes
from tune_policies.files.writing import replace_file, write_new
from tune_policies.plain_data import parse_json

from .pyperf_suite import pyperf_data
from .run_set import RunSet

KEY: Final = "tune_policies"
"""Of the run set in the file. It comes first, so that the first bytes of a file say whether it is one."""

_BEGINS: Final = f'{{"{KEY}":'.encode()
_VERSION: Final = RunSet.model_fields["schema_version"].default
_MOST_MISTAKES: Final = 3
_MEASURE: Final = "`tune-policies bench run … --output FILE` writes one"


def write_run_set(run_set: RunSet, path: Path, *, overwrite: bool = False) -> None:
    """Write ``run_set`` to ``path``, as a whole or not at all. An older run set there is replaced.

    Args:
        run_set: What was measured.
        path: A file in a folder that is there.
        overwrite: Whether to replace a file of another kind, too.

    Raises:
        InvalidResourcesError: ``path`` is a file of another kind, or cannot be written.
    """
    if path.suffix == ".gz":
        raise InvalidResourcesError(f"{path}: a run set is not compressed, and pyperf would take it for that: drop .gz")
    if not overwrite and _beginning(path) and not is_run_set(path):
        raise InvalidResourcesError(
            f"{path} is there and is no run set of these benchmarks: name another file, or delete this one"
        )
    data = {KEY: run_set.model_dump(mode="json"), **pyperf_data(run_set)}
    replace_file(path, json.dumps(data, separators=(",", ":")) + "\n")


def write_view(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write what follows from a run, or is beside it, as a whole or not at all.

    Args:
        path: A file in a folder that is there.
        content: What it is to hold.
        force: Whether to replace a file that is there; never a run set.

    Raises:
        InvalidResourcesError: ``path`` is in the way, or cannot be written.
    """
    if force and is_run_set(path):
        raise InvalidResourcesError(f"{path} is the record of a run, which would be lost: name another file")
    write_new(path, content, force=force)


def is_run_set(path: Path) -> bool:
    """Return whether ``path`` is one, whole or cut off. It is read only where it does not begin as it was written."""
    beginning = _beginning(path)
    return beginning == _BEGINS or (beginning != b"" and _can_be_read(path))


def _can_be_read(path: Path) -> bool:
    try:
        read_run_set(path)
    except InvalidResourcesError:
        return False
    return True


def _beginning(path: Path) -> bytes:
    """Return the first bytes of an ordinary file; none: there is no such file, or nothing in it."""
    try:
        return read_beginning(path, len(_BEGINS))
    except UnreadableFileError:
        return b""


def read_run_set(path: Path) -> RunSet:
    """Read what :func:`write_run_set` wrote.

    Raises:
        InvalidResourcesError: There is no such file, or it is none of these: too large, cut off, not JSON, of pyperf
            alone, of a newer version, or with a field that is wrong.
    """
    data = _parsed(path, _content(path))
    if not isinstance(data, dict) or KEY not in data:
        raise InvalidResourcesError(f"{path} {_what_else(data)}; {_MEASURE}")
    own = data[KEY]
    version = own.get("schema_version") if isinstance(own, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise InvalidResourcesError(
            f"{path} is a run set of version {version}, and this tune-policies reads version {_VERSION}: "
            "read it with a newer one"
        )
    try:
        return RunSet.from_dict(own)
    except InvalidResourcesError as error:
        mistakes = str(error).splitlines()
        more = "\n  and more" if len(mistakes) > _MOST_MISTAKES else ""
        shown = "".join(f"\n  {mistake}" for mistake in mistakes[:_MOST_MISTAKES])
        raise InvalidResourcesError(f"{path} has been changed, or is no run set ({_MEASURE}):{shown}{more}") from error


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, what="run set", max_bytes=MAX_RECORD_BYTES)
    except UnreadableFileError as error:
        raise InvalidResourcesError(f"{error}; {_MEASURE}") from error


def _parsed(path: Path, content: bytes) -> Any:
    if content.startswith(b"\x1f\x8b"):
        raise InvalidResourcesError(f"{path} is compressed: unpack it with gunzip")
    try:
        return parse_json(content)
    except ValueError as error:
        is_cut = str(error).startswith("EOF")
        what = f"is cut off ({error}): copy it again" if is_cut else f"is not JSON ({error})"
        raise InvalidResourcesError(f"{path} {what}; {_MEASURE}") from error


def _what_else(data: object) -> str:
    if isinstance(data, dict) and {"version", "benchmarks"} <= data.keys():
        return (
            "is a file of pyperf alone, without devices, rounds and environment: "
            "`python -m pyperf show` and `python -m pyperf compare_to` read it"
        )
    return f"is JSON, but no run set: it has no {KEY!r} at its top"
