"""Reads texts as plain data, within bounds: no text takes more time or memory than its length allows.

JSON is read strictly: a key that comes twice, a number that no float can hold and parts that stand in each other too
deep are errors. All other texts are read as YAML, by :mod:`tune_policies.files.yaml_documents`.
"""

import json
import math
from typing import Any

from pydantic_core import from_json

from tune_policies.files.yaml_documents import DocumentError, read_documents
from tune_policies.values.value import shorten


def parse_json(text: str | bytes) -> Any:
    """Return the data of a JSON text.

    Raises:
        ValueError: It is not JSON, or not strictly.
    """
    from_json(text, allow_inf_nan=False)  # which says where a text is wrong, and how deep it is, but keeps the last key
    return json.loads(text, object_pairs_hook=_mapping, parse_float=_finite)


def parse_data(text: str, source: str) -> Any:
    """Return the data of a text that is JSON, or else YAML; ``None``: it holds nothing.

    Args:
        text: The text.
        source: The name of the file.

    Raises:
        DocumentError: It is neither, goes beyond the bounds, or holds several documents.
    """
    try:
        # JSON first: it is read faster, and YAML refuses its tabs.
        return parse_json(text)
    except ValueError as error:
        not_json = error
    try:
        documents = read_documents(text, source)
    except DocumentError as error:
        if text.lstrip()[:1] in ("{", "["):
            raise DocumentError(source, error.line, f"neither JSON ({not_json}) nor YAML ({error.reason})") from error
        raise
    if len(documents) > 1:
        first = documents[1].line(())
        raise DocumentError(
            source, first, f"a second document begins here, of {len(documents)}: give one file for each"
        )
    for document in documents:
        for path, line in document.repeated.items():  # with the same value: in a manifest that is only a note
            raise DocumentError(source, line, f"the key {shorten(path[-1])} comes twice: only one can hold")
    return documents[0].data if documents else None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shorten(twice)} comes twice: only one can hold")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"no float is as large as {shorten(text)}")
    return number
