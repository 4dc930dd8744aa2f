"""Reads what stands beside a run: a decision, or a record of throughput."""

from pathlib import Path
from typing import TypeVar

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import Value

V = TypeVar("V", bound=Value)


def read_value(path: Path, kind: type[V], way_out: str) -> V:
    """Read a value from its JSON.

    Raises:
        InvalidResourcesError: There is no such file, or it is another one.
    """
    try:
        return kind.from_json(path.read_bytes())
    except OSError as error:
        raise InvalidResourcesError(f"{path} cannot be read: {error.strerror or error}; {way_out}") from error
    except InvalidResourcesError as error:
        mistakes = str(error).splitlines()
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        raise InvalidResourcesError(f"{path} is no {kind.__name__}: {mistakes[0]}{more}; {way_out}") from error
