"""Reads single values as Kubernetes reads them, which turns YAML into JSON first."""

import re
from typing import Any, Final

import yaml

from tune_policies.values import shorten

_PREFIX: Final = "tag:yaml.org,2002:"
_KNOWN: Final = frozenset(f"{_PREFIX}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value"))

# PyYAML reads 1e3 as a text and 12:30 as 750; the parser of Kubernetes (sigs.k8s.io/yaml) as 1000 and as a text.
_EXPONENT: Final = re.compile(r"[-+]?(\d++(\.\d*+)?|\.\d++)[eE][-+]?\d++")

_resolver: Final[Any] = yaml.resolver.Resolver()
_constructor: Final = yaml.constructor.SafeConstructor()


def read_scalar(text: str, tag: str | None, implicit: tuple[bool, bool]) -> Any:
    """Return a value: a text, a number, a truth value or ``None``.

    Args:
        text: As it is written, without quotes.
        tag: The tag that is written before it; ``None``: none is.
        implicit: Whether its form decides what it is: unquoted, and quoted, as PyYAML's parser says.

    Raises:
        ValueError: The tag is not one of plain data, or the text is not what the tag says.
    """
    kind = tag if tag not in (None, "!") else _resolver.resolve(yaml.ScalarNode, text, implicit)
    if kind == f"{_PREFIX}merge":
        return text
    if kind not in _KNOWN:
        raise ValueError(f"the tag {kind} is not plain data, and nothing is run here: leave it out")
    if kind == f"{_PREFIX}str" and tag is None and implicit[0] and _EXPONENT.fullmatch(text):
        return float(text)
    if kind in (f"{_PREFIX}str", f"{_PREFIX}timestamp", f"{_PREFIX}value"):
        return text
    if kind in (f"{_PREFIX}int", f"{_PREFIX}float") and ":" in text:
        return text
    try:
        return _constructor.construct_object(yaml.ScalarNode(kind, text))
    except (ValueError, KeyError, OverflowError, yaml.YAMLError) as error:  # such as a number of thousands of digits
        raise ValueError(f"{shorten(text)} cannot be read as {kind.removeprefix(_PREFIX)}") from error


def key_as_text(key: Any) -> str:
    """Return a key as JSON has it: ``on`` is ``"true"``, as YAML takes it for a truth value."""
    match key:
        case str():
            return key
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case _:
            return shorten(key)
