"""The file of a run set: one JSON file that is pyperf's, too.

At its top stand pyperf's ``version``, ``benchmarks`` and ``metadata``, and ``tune_policies``, which pyperf passes over:
the whole run set. It is read from there alone; what is pyperf's is a view of it.
"""

import io
import json
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from tune_policies.errors import InvalidResourcesError
from tune_policies.units import MIB, format_bytes

from .pyperf_suite import pyperf_data
from .run_set import RunSet
from .writing import replace_file

KEY: Final = "tune_policies"
"""Of the run set in the file. It comes first, so that the first bytes of a file say whether it is one."""

MOST_BYTES: Final = 512 * MIB
"""A file that is larger is not read: in memory it takes several times as much."""

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


def write_view(path: Path, content: str | bytes) -> None:
    """Write what follows from a run, or is beside it, as a whole or not at all; never in the place of a run set.

    Raises:
        InvalidResourcesError: ``path`` is a run set, or cannot be written.
    """
    if is_run_set(path):
        raise InvalidResourcesError(f"{path} is the record of a run, which would be lost: name another file")
    replace_file(path, content)


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
        with path.open("rb") if path.is_file() else io.BytesIO() as file:
            return file.read(len(_BEGINS))
    except OSError:
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
        more = f"\n  and {len(mistakes) - _MOST_MISTAKES} more" if len(mistakes) > _MOST_MISTAKES else ""
        shown = "".join(f"\n  {mistake}" for mistake in mistakes[:_MOST_MISTAKES])
        raise InvalidResourcesError(f"{path} has been changed, or is no run set ({_MEASURE}):{shown}{more}") from error


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise InvalidResourcesError(f"{path} is no file: name the one that a run wrote")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidResourcesError(f"{path} cannot be read: {error.strerror or error}; {_MEASURE}") from error
    if len(content) > MOST_BYTES:
        raise InvalidResourcesError(
            f"{path} holds {format_bytes(path.stat().st_size)}, and no more than {format_bytes(MOST_BYTES)} are read: "
            "measure fewer workloads or sizes into one file"
        )
    return content


def _parsed(path: Path, content: bytes) -> Any:
    if content.startswith(b"\x1f\x8b"):
        raise InvalidResourcesError(f"{path} is compressed: unpack it with gunzip")
    try:
        return from_json(content, allow_inf_nan=False)
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
