"""A trial's config as plain data: what is compared, and the numbers that GPU memory may depend on.

Nested mappings become one, with their keys joined by ``/`` as Tune does.
"""

import json
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` without nesting, as plain data.

    Numbers of NumPy become Python's, tuples lists, functions and classes their names; any other object becomes the
    name of its type, so that two objects of one type count as the same.

    Raises:
        InvalidResourcesError: ``config`` is no mapping.
    """
    if not isinstance(config, Mapping):
        raise InvalidResourcesError(f"a config must be a mapping of names to values, got {shorten(config)}")
    return dict(sorted(_items(config)))


def _items(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _items(value, f"{name}/")
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Any:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()  # or its truth values would not be Python's
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if abs(float(value)) < float("inf") else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(each) for each in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    if isinstance(value, Mapping):
        return flat(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of a flat config that are numbers; truth values are none."""
    return {name: each for name, each in values.items() if isinstance(each, int | float) and not isinstance(each, bool)}


def whole_numbers(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the entries of a flat config that are whole numbers; truth values are none."""
    return [name for name, each in numbers(values).items() if isinstance(each, int)]


def group_key(values: Mapping[str, Any]) -> str:
    """Return the same text for all flat configs that differ in numbers only."""
    numeric = numbers(values)
    rest = {name: each for name, each in values.items() if name not in numeric}
    return json.dumps([rest, sorted(numeric)], sort_keys=True)
