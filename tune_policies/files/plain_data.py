"""Parses JSON and YAML as plain data, with limits on time and memory.

JSON is parsed strictly: repeated keys, numbers beyond the range of floats, and excessive nesting are errors. Other
texts are parsed as YAML by :mod:`tune_policies.files.yaml_documents`. The number of parts (entries of lists and
mappings) is limited, because parts need much more memory than their text: the 3 characters ``[],`` need 64 bytes, and
an error about a part needs 3,000 bytes.
"""

import json
import math
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from tune_policies.files.yaml_documents import DocumentError, read_documents
from tune_policies.values.wording import shorten

MAX_PARTS: Final = 100_000
"""The maximum number of parts in a handwritten file."""

MAX_RECORD_PARTS: Final = 2_000_000
"""The maximum number of parts in a generated file. A cluster of 10,000 nodes with 8 GPUs each has 800,000 parts."""

_MAX_KEYS: Final = 100_000


def parse_json(text: str | bytes, *, max_parts: int = MAX_RECORD_PARTS) -> Any:
    """Return the data of a JSON text with at most ``max_parts`` parts.

    Raises:
        ValueError: The text is not strict JSON, or has more parts.
    """
    _check_parts(text, max_parts)
    from_json(text, allow_inf_nan=False)  # reports better errors and limits the depth, but accepts repeated keys
    return json.loads(text, object_pairs_hook=_mapping, parse_float=_finite)


def parse_data(text: str, source: str, *, max_parts: int = MAX_PARTS) -> Any:
    """Return the data of a JSON or YAML text, or ``None`` if it is empty. In YAML, each line also counts as a part.

    Raises:
        DocumentError: The text is neither JSON nor YAML, exceeds the limits, or contains several documents. The
            message contains ``source``.
    """
    try:
        return parse_json(text, max_parts=max_parts)  # tried first, because the YAML parser is slower and rejects tabs
    except ValueError as error:
        not_json = error
    try:
        _check_parts(text, max_parts, "\n")
        documents = read_documents(text, source)
    except ValueError as error:
        if not isinstance(error, DocumentError):
            raise DocumentError(source, 1, str(error)) from error
        if text.lstrip()[:1] in ("{", "["):
            reason = f"the text is neither JSON ({not_json}) nor YAML ({error.reason})"
            raise DocumentError(source, error.line, reason) from error
        raise
    if len(documents) > 1:
        first = documents[1].line(())
        reason = f"document 2 of {len(documents)} begins here, but a file may contain only one. Split the file"
        raise DocumentError(source, first, reason)
    for document in documents:
        for path, line in document.repeated.items():  # `kuberay lint` accepts them with a note
            raise DocumentError(source, line, f"duplicate key {shorten(path[-1])}. Keep only one of the keys")
    if documents:
        return documents[0].data
    return None


class Format(NamedTuple):
    """A file format, and a description of the options and arguments that accept it."""

    name: str
    given_as: str


SAVED_CLUSTER: Final = Format("cluster saved by `probe --json`", "--cluster to `plan` or `bench decide`")
NODE_LIST: Final = Format("catalog", "--nodes to `plan`, `bench decide` or `kuberay design`")
_CLUSTER_FILE: Final = Format(
    "cluster's file", "--cluster to `plan` or `bench decide`, or as the argument of `kuberay lint`"
)
_POLICY: Final = Format("policy", "the argument of `plan` or `kuberay design`")
_PRICES: Final = Format("price file", "--prices to `bench decide`")


def format_of(data: object) -> Format | None:
    """Return the format of a file's data, determined from its keys, or ``None`` if the format is unknown."""
    if isinstance(data, list):
        if any(isinstance(item, dict) and "cpus" in item for item in data):
            return NODE_LIST
        return None
    if not isinstance(data, dict):
        return None
    kind = data.get("kind")
    if isinstance(kind, str) and kind.endswith("Policy"):
        return _POLICY
    if not {"draining", "read_at", "max_nodes_to_add"}.isdisjoint(data):
        return SAVED_CLUSTER
    for rows in (data.get("nodes"), data.get("node_types")):
        # A node list contains the amounts directly, and a saved cluster contains them in "resources".
        if isinstance(rows, list) and any(_is_saved_node(row) for row in rows):
            return SAVED_CLUSTER
    if "nodes" in data or "node_types" in data:
        return NODE_LIST
    if {"available_node_types", "cluster_name"} & data.keys() or (isinstance(kind, str) and kind.startswith("Ray")):
        return _CLUSTER_FILE
    if "instances" in data:
        return _PRICES
    return None


def _is_saved_node(row: object) -> bool:
    return isinstance(row, dict) and not {"node_id", "resources"}.isdisjoint(row)


def _check_parts(text: str | bytes, max_parts: int, *more: str) -> None:
    """Raise ``ValueError`` if a string has too many characters that begin or separate parts."""
    found = 0
    for sign in (",", "[", "{", *more):
        found += text.count(sign) if isinstance(text, str) else text.count(sign.encode())
    if found > max_parts:
        raise ValueError(f"the text has about {found:,} parts, but the limit is {max_parts:,}. Remove unneeded parts")


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS:
        raise ValueError(f"a mapping has {len(pairs):,} keys, but the limit is {_MAX_KEYS:,}. Remove unneeded keys")
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {shorten(key)}. Keep only one of the keys")
            seen.add(key)
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is too large for a float")
    return number
