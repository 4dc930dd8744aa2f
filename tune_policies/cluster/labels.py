"""Label selectors, which restrict the nodes on which Ray runs tasks and actors.

A selector maps label keys to conditions in Ray's form: ``"eu"``, ``"!eu"``, ``"in(eu,us)"`` or ``"!in(eu,us)"``. A node
without the label satisfies only conditions with ``!``. Source: ``ray._private.label_utils`` and the guide "Use labels
to control scheduling" of Ray 2.60.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, NamedTuple, Self

from pydantic import BeforeValidator

from tune_policies.values.errors import InvalidResourcesError

NODE_ID: Final = "ray.io/node-id"
"""The label with the identifier of a node."""

ACCELERATOR_TYPE: Final = "ray.io/accelerator-type"
"""The label with the device type that Ray has detected on a node."""

_KEY: Final = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*/)?"
    r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?"
)
_VALUE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?")
_NODE_ID: Final = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{48}\b")
_CONDITION: Final = re.compile(r"(?P<excluded>!?)(?:in\((?P<list>[^()]*)\)|(?P<one>[^()!]*))")


class _Condition(NamedTuple):
    """The condition that a label has one of ``values``, or none of them if ``is_excluded`` is true."""

    values: frozenset[str]
    is_excluded: bool

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = _CONDITION.fullmatch(text)
        if match is None:
            return None
        one, several = match["one"], match["list"]
        if several is None:
            listed = [one]
        elif several:
            listed = several.split(",")
        else:  # Ray rejects "in()", but merging contradictory conditions produces it. No node satisfies it.
            listed = []
        return cls(frozenset(value.strip() for value in listed), is_excluded=bool(match["excluded"]))

    def __and__(self, other: "_Condition") -> "_Condition":
        if self.is_excluded and other.is_excluded:
            return _Condition(self.values | other.values, is_excluded=True)
        if self.is_excluded or other.is_excluded:
            # A label that must be one of some values and none of others must be one of the remaining values.
            wanted, unwanted = (other, self) if self.is_excluded else (self, other)
            return _Condition(wanted.values - unwanted.values, is_excluded=False)
        return _Condition(self.values & other.values, is_excluded=False)

    def __str__(self) -> str:
        text = ",".join(sorted(self.values))
        if len(self.values) != 1:
            text = f"in({text})"
        if self.is_excluded:
            return f"!{text}"
        return text


def check_selector(value: object) -> dict[str, str]:
    """Return the selector without spaces in its conditions, or raise an ``InvalidResourcesError``.

    Ray 2.60 accepts ``"in(eu, us)"``, but no node matches it.
    """
    if not isinstance(value, Mapping):
        raise InvalidResourcesError(f"a label selector must map label keys to conditions, got {value!r}")
    checked = {}
    for key, condition in sorted(value.items(), key=str):
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidResourcesError(
                f"{key!r} is not a label key. Use letters, digits, '.', '_' and '-', optionally after a prefix such as "
                "'ray.io/'"
            )
        parsed = _Condition.parse(condition) if isinstance(condition, str) else None
        if parsed is None or not parsed.values or not all(map(is_label_value, parsed.values)):
            raise InvalidResourcesError(
                f"{condition!r} is not a condition on label {key!r}. Write 'a', '!a', 'in(a,b)' or '!in(a,b)'"
            )
        checked[key] = str(parsed)
    return checked


LabelSelector = Annotated[dict[str, str], BeforeValidator(check_selector)]
"""A label selector in Ray's format."""


def conditions_of(selector: Mapping[str, str]) -> list[tuple[str, frozenset[str], bool]]:
    """For each condition, return the label key, the values, and whether these values are excluded."""
    return [(key, *condition) for key, condition in _parsed(selector).items()]


def matcher(selector: Mapping[str, str]) -> Callable[[Mapping[str, str]], bool]:
    """Return a function that tests whether the selector matches a node's labels."""
    conditions = conditions_of(selector)

    def is_selected(labels: Mapping[str, str]) -> bool:
        for key, values, is_excluded in conditions:  # noqa: SIM110 - called for every node: twice as fast as all()
            if (labels.get(key) in values) == is_excluded:
                return False
        return True

    return is_selected


def merged(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return a selector that matches the nodes that match both selectors."""
    if not one or not other:
        return dict(one or other)
    conditions = _parsed(one)
    for key, condition in _parsed(other).items():
        if key in conditions:
            condition = conditions[key] & condition
        conditions[key] = condition
    return {key: str(condition) for key, condition in sorted(conditions.items())}


def is_label_value(text: str) -> bool:
    """Return whether Ray accepts ``text`` as the value of a label in a selector."""
    return _VALUE.fullmatch(text) is not None


def is_one_of(values: Iterable[str]) -> str:
    """Return the condition that a label has one of ``values``."""
    return str(_Condition(frozenset(values), is_excluded=False))


def is_none_of(values: Iterable[str]) -> str:
    """Return the condition that a label has none of ``values``, or is missing."""
    return str(_Condition(frozenset(values), is_excluded=True))


def format_selector(selector: Mapping[str, str]) -> str:
    """Return the selector as text of at most 120 characters, with short node identifiers as in Ray's messages."""
    parts = (f"{key}={condition}" for key, condition in sorted(selector.items()))
    text = _NODE_ID.sub(r"\1", ", ".join(parts))
    if len(text) <= 120:
        return text
    return f"{text[:117]}..."


def _parsed(selector: Mapping[str, str]) -> dict[str, _Condition]:
    found = {}
    for key, text in selector.items():
        condition = _Condition.parse(text)
        if condition is not None:
            found[key] = condition
    return found
