"""Parses YAML as plain data, and records the line of each part for error messages.

Only YAML's own tags are accepted, so no code is executed. Scalars are interpreted as in Kubernetes, which converts YAML
to JSON, so dates and keys are strings.

The data are built from PyYAML's events and not from its tree of nodes, because the limits must be checked before a tree
exists: ``yaml.compose`` with libyaml ends the process with a segmentation fault for a text of 1,000,000 opening
brackets. The nodes also have no line for an alias. A manifest of 9,000 worker groups (2.2 MB) is read in 1.1 s and
87 MiB of memory. ``yaml.compose`` alone takes 1.5 s and 149 MiB, and ``yaml.load`` 2.1 s and 178 MiB (PyYAML 6.0.3,
Python 3.11, one core of an Intel Xeon).
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

_PREFIX: Final = "tag:yaml.org,2002:"
_KNOWN: Final = frozenset(f"{_PREFIX}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value"))

# PyYAML reads 1e3 as a string and 12:30 as 750. Kubernetes (sigs.k8s.io/yaml) reads them as 1000 and as a string.
_EXPONENT: Final = re.compile(r"[-+]?(\d++(\.\d*+)?|\.\d++)[eE][-+]?\d++")

# PyYAML knows only the octal numbers of YAML 1.1, such as 0644. Kubernetes also reads those of YAML 1.2.
_OCTAL: Final = re.compile(r"[-+]?0o[0-7]{1,20}")

_resolver: Final[Any] = yaml.resolver.Resolver()
_constructor: Final = yaml.constructor.SafeConstructor()


def read_scalar(text: str, tag: str | None, implicit: tuple[bool, bool]) -> Any:
    """Return the value of a scalar: a string, a number, a boolean or ``None``.

    ``tag`` and ``implicit`` come from PyYAML's event, and ``text`` has no quotes.

    Raises:
        ValueError: The tag is not supported, or does not match the text.
    """
    kind = tag
    if tag in (None, "!"):
        kind = _resolver.resolve(yaml.ScalarNode, text, implicit)
    if kind == f"{_PREFIX}merge":
        return text
    if kind not in _KNOWN:
        raise ValueError(f"the tag {kind} is not supported. Remove it")
    is_plain_text = kind == f"{_PREFIX}str" and tag is None and implicit[0]
    if is_plain_text and _EXPONENT.fullmatch(text):
        return float(text)
    if is_plain_text and _OCTAL.fullmatch(text):
        return int(text, 8)
    if kind in (f"{_PREFIX}str", f"{_PREFIX}timestamp", f"{_PREFIX}value"):
        return text
    if kind in (f"{_PREFIX}int", f"{_PREFIX}float") and ":" in text:
        return text
    try:
        value = _constructor.construct_object(yaml.ScalarNode(kind, text))
        if isinstance(value, int):
            str(value)  # fails if a hexadecimal number has too many decimal digits
        return value
    except (ValueError, KeyError, OverflowError, yaml.YAMLError) as error:  # such as a number with thousands of digits
        raise ValueError(f"{shorten(text)} cannot be read as {kind.removeprefix(_PREFIX)}") from error


def key_as_text(key: Any) -> str:
    """Return a key in its JSON form: ``on`` becomes ``"true"``, because YAML reads it as a boolean."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    return shorten(key)


Path = tuple[str | int, ...]
"""The keys and indices that lead to a part, such as ``("spec", "workerGroupSpecs", 0, "groupName")``."""

MAX_CHARACTERS: Final = 10_000_000
"""The maximum length of a text, in characters. In Kubernetes, an object has at most 1.5 MiB (etcd's request limit)."""

_MAX_DEPTH: Final = 100
"""The maximum depth of nesting. The definition of a RayCluster has a depth of about 30."""

_MAX_PARTS: Final = 200_000
"""The maximum number of parts of a document after its aliases are expanded. A few lines can have billions of parts."""

_MAX_DOCUMENTS: Final = 10_000
"""The maximum number of documents in a text. It is limited because the findings about each document use memory."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # uses libyaml if PyYAML was built with it


class Document(NamedTuple):
    """One YAML document from the file ``source``.

    Attributes:
        lines: The line on which each part begins, starting at 1. An aliased part has the line of the alias.
        repeated: The line of each duplicate key that has the same value as the first one.
    """

    data: Any
    lines: Mapping[Path, int]
    source: str
    repeated: Mapping[Path, int] = MappingProxyType({})

    def line(self, path: Path) -> int:
        """Return the line of a part, or of the innermost existing part that would contain it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


class DocumentError(InvalidResourcesError):
    """A text is not YAML, or not plain data. ``line`` is the line number, starting at 1."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(source, line, reason)
        self.source = source
        self.line = line
        self.reason = reason

    def _message(self) -> str:
        return f"{self.source}, line {self.line}: {self.reason}"


def read_documents(text: str, source: str, room: int = 1) -> tuple[Document, ...]:
    """Return the nonempty documents of a text in YAML or JSON. ``room`` multiplies the size limits.

    Raises:
        DocumentError: The text is not YAML or not plain data, or is too long or nested too deeply. No other error is
            raised.
    """
    if len(text) > MAX_CHARACTERS * room:
        limit = f"{MAX_CHARACTERS * room:,} characters"
        raise DocumentError(source, 1, f"the text has more than {limit}. Remove unneeded parts")
    unreadable = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if unreadable:
        line = text.count("\n", 0, unreadable.start()) + 1
        raise DocumentError(source, line, f"the character {unreadable.group()!r} is not valid in YAML")
    try:
        return tuple(_documents(text, source, _MAX_PARTS * room))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1
        if mark is not None:
            line = min(mark.line, text.count("\n")) + 1  # libyaml may mark the line after the end
        raise DocumentError(source, line, _explain(error, text, line)) from error
    except yaml.YAMLError as error:
        raise DocumentError(source, 1, f"the text is not YAML: {error}") from error


def _documents(text: str, source: str, max_parts: int) -> Iterator[Document]:
    events = yaml.parse(text, Loader=_LOADER)
    num_documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > _MAX_DOCUMENTS:
                line = event.start_mark.line + 1 if event.start_mark else 1
                reason = f"the text has more than {_MAX_DOCUMENTS:,} documents. Remove unneeded documents"
                raise DocumentError(source, line, reason)
            # The builder takes the events of its document from the same iterator, which then continues with the next
            # document.
            builder = _Builder(events, source, max_parts)
            data = builder.value(next(events), ())
            if data is not None:
                yield Document(data, builder.lines, source, builder.repeated)


class _Anchored(NamedTuple):
    """The value of an anchor, its number of parts, and its nesting depth."""

    data: Any
    num_parts: int
    height: int


class _Builder:
    """Builds the data of one document from the parser's events."""

    def __init__(self, events: Iterator[Any], source: str, max_parts: int) -> None:
        self.lines: dict[Path, int] = {}
        self.repeated: dict[Path, int] = {}
        self._events = events
        self._source = source
        self._max_parts = max_parts
        self._anchored: dict[str, _Anchored] = {}
        self._open: set[str] = set()  # anchors of unfinished parts
        self._num_parts = 0
        self._deepest = 0

    def value(self, event: Any, path: Path) -> Any:
        """Return the part that begins with ``event``."""
        line = event.start_mark.line + 1
        self.lines[path] = line
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, path, line)
        # What this part adds to the count and the depth is remembered with its anchor, because each alias adds it
        # again.
        before, deepest = self._num_parts, self._deepest
        self._deepest = 0
        self._count(1, len(path), line)
        if event.anchor:
            self._open.add(event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            data: Any = self._scalar(event, line)
        elif isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, "map", line)
            data = self._mapping(path)
        else:
            self._check_tag(event, "seq", line)
            items = enumerate(self._until(yaml.SequenceEndEvent))
            data = [self.value(item, (*path, number)) for number, item in items]
        if event.anchor:
            self._open.discard(event.anchor)
            self._anchored[event.anchor] = _Anchored(data, self._num_parts - before, self._deepest - len(path))
        self._deepest = max(self._deepest, deepest)
        return data

    def _alias(self, name: str | None, path: Path, line: int) -> Any:
        if name in self._open:
            raise self._error(line, f"the alias *{name} contains itself")
        if name is None or name not in self._anchored:
            raise self._error(line, f"the alias *{name} is undefined: no part above has the anchor &{name}")
        data, num_parts, height = self._anchored[name]
        self._count(num_parts, len(path) + height, line)
        return data

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_event in self._until(yaml.MappingEndEvent):
            line = key_event.start_mark.line + 1
            key = self._key(key_event, path, line)
            if key is None:
                parts = self.value(next(self._events), (*path, "<<"))
                for name, value in self._merged(parts, line).items():
                    if name not in merged:
                        merged[name] = value
                        self.lines.setdefault((*path, name), line)
                continue
            if key in found:
                self._repeat(found[key], (*path, key), line)
                continue
            found[key] = self.value(next(self._events), (*path, key))
            self.lines[(*path, key)] = line
        return {**merged, **found}  # the mapping's own keys have precedence, also if << is the last key

    def _repeat(self, value: Any, path: Path, line: int) -> None:
        """Read the value of a duplicate key. Raise an error unless it equals the first value."""
        first = self.lines[path]
        again = self.value(next(self._events), path)
        self.lines[path] = first
        if json.dumps(again, sort_keys=True) != json.dumps(value, sort_keys=True):  # True == 1 in Python
            raise self._error(
                line, f"duplicate key {shorten(path[-1])} (first in line {first}). Keep only one of the keys"
            )
        self.repeated[path] = line

    def _key(self, event: Any, path: Path, line: int) -> str | None:
        """Return a key as a string, or ``None`` for the key ``<<``, which merges another mapping."""
        key = None
        is_scalar = isinstance(event, yaml.ScalarEvent)
        if isinstance(event, yaml.AliasEvent):
            key = self._alias(event.anchor, path, line)
        elif is_scalar:
            key = self._scalar(event, line)
            if event.anchor:
                self._anchored[event.anchor] = _Anchored(key, 1, 0)
        if isinstance(event, yaml.CollectionStartEvent) or isinstance(key, list | dict):
            raise self._error(line, "a key must be a string (for a Helm chart, use the output of `helm template`)")
        if key == "<<" and is_scalar and event.implicit[0]:
            return None
        return key_as_text(key)

    def _merged(self, value: Any, line: int) -> dict[str, Any]:
        parts = value
        if not isinstance(value, list):
            parts = [value]
        if not all(isinstance(part, dict) for part in parts):
            raise self._error(line, "the value of << must be a mapping or a list of mappings")
        return {name: part[name] for part in reversed(parts) for name in part}  # the first mapping has precedence

    def _scalar(self, event: Any, line: int) -> Any:
        try:
            return read_scalar(event.value, event.tag, event.implicit)
        except ValueError as error:
            raise self._error(line, str(error)) from error

    def _check_tag(self, event: Any, kind: str, line: int) -> None:
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{kind}"):
            raise self._error(line, f"the tag {event.tag} is not supported. Remove it")

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _count(self, num_parts: int, depth: int, line: int) -> None:
        """Add parts to the count, and check the limits of the count and the depth."""
        self._num_parts += num_parts
        self._deepest = max(self._deepest, depth)
        if depth > _MAX_DEPTH:
            raise self._error(line, f"the document is nested more than {_MAX_DEPTH} levels deep")
        if self._num_parts > self._max_parts:
            raise self._error(
                line, f"the document has more than {self._max_parts:,} parts after its aliases are expanded"
            )

    def _error(self, line: int, reason: str) -> DocumentError:
        return DocumentError(self._source, line, reason)


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    written = text.splitlines()[line - 1 : line]
    if written and "{{" in written[0]:
        return f"the text is a template and not YAML. Use the output of `helm template` ({reason})"
    if written and written[0][: len(written[0]) - len(written[0].lstrip())].count("\t"):
        return f"the text is not YAML, because the line is indented with tabs. Use spaces ({reason})"
    return f"the text is not YAML: {reason}"
