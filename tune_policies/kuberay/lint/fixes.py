"""Applies the edits of findings to a YAML text or its file, and leaves everything else as it is written.

Each edit replaces only the characters of the part that it changes, so comments, quotes and blank lines stay. The result
is read again. An edit that changes more than it should is not applied, such as one in a part whose anchor others use.
"""

import difflib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeAlias

import yaml

from tune_policies.files.reading import UnreadableFileError, read_bytes
from tune_policies.files.writing import replace_file
from tune_policies.files.yaml_documents import DocumentError, read_documents
from tune_policies.kuberay.lint.crd import CrdSet
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.lint.rule import Edit, Finding
from tune_policies.kuberay.reading.documents import GZIP
from tune_policies.kuberay.writing.block_yaml import dump
from tune_policies.values.errors import InvalidResourcesError


class _MarkingLoader(yaml.SafeLoader):
    """Composes nodes with their places in the text. An alias is a node of its own, with its own place."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)
        return super().compose_node(parent, index)


_Splice: TypeAlias = tuple[int, int, str]
"""The start and the end of a part of the text, and the text that replaces it."""


def _edited(text: str, edits: Sequence[tuple[int, Edit]]) -> str:
    """Return the text with edits applied. Only reading the result shows whether it means what it should.

    Args:
        text: The text.
        edits: The edits, each with the index of its document among those that are not empty.

    Raises:
        yaml.YAMLError: The text is not YAML.
        LookupError: The text has no such part.
    """
    nodes = [node for node in yaml.compose_all(text, Loader=_MarkingLoader) if not _is_null(node)]
    splices = [_splice(text, nodes[document], edit) for document, edit in edits]
    splices.sort(key=lambda splice: splice[:2])
    for start, end, new in reversed(splices):
        text = text[:start] + new + text[end:]
    return text


def _splice(text: str, node: Any, edit: Edit) -> _Splice:
    for depth, step in enumerate(edit.path, start=1):
        parent, entries, rest = node, _entries(node), edit.path[depth:]
        at = next((number for number, entry in enumerate(entries) if entry.step == step), None)
        if at is None:
            return _added(text, parent, entries, step, _nested(rest, edit.value))
        if edit.value is None and not rest:
            return _removed(text, parent, entries, at)
        node = entries[at].value
        if _is_null(node):
            return _replaced(text, node, _nested(rest, edit.value))
    return _replaced(text, node, edit.value)


class _Entry(NamedTuple):
    """An entry of a mapping or a list, and the index in the text at which it starts."""

    step: str | int
    start: int
    value: Any


def _entries(node: Any) -> list[_Entry]:
    if isinstance(node, yaml.MappingNode):
        return [_Entry(key.value, key.start_mark.index, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [_Entry(number, value.start_mark.index, value) for number, value in enumerate(node.value)]
    raise LookupError("a scalar has no parts")


def _is_null(node: Any) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _nested(path: Sequence[str | int], value: Any) -> Any:
    """Return what must be written at a part that is missing, so that ``value`` has the rest of its path."""
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _end(text: str, node: Any) -> int:
    """Return the index after the last character of a part. The end mark of a block is behind its comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        return _end(text, _entries(node)[-1].value)
    return len(text[: node.end_mark.index].rstrip())


def _replaced(text: str, node: Any, value: Any) -> _Splice:
    start, end = node.start_mark.index, _end(text, node)
    if start >= end:  # nothing stands behind the colon
        return end, end, f" {dump(value, is_flow=True)}"
    return start, end, dump(value, is_flow=True)


def _added(text: str, parent: Any, entries: Sequence[_Entry], step: str | int, value: Any) -> _Splice:
    """Add an entry behind the last one."""
    addition = [value] if isinstance(step, int) else {step: value}
    if parent.flow_style:
        end = _end(text, entries[-1].value) if entries else parent.end_mark.index - 1
        return end, end, (", " if entries else "") + dump(addition, is_flow=True)[1:-1]
    first = entries[0].start if isinstance(step, str) else text.rindex("-", 0, entries[0].start)
    indent = " " * (first - _line_start(text, first))
    line_end = "\r\n" if "\r\n" in text else "\n"
    end = _next_line(text, _end(text, entries[-1].value))
    before = "" if text[:end].endswith("\n") else line_end
    return end, end, before + "".join(f"{indent}{line}{line_end}" for line in dump(addition).splitlines())


def _removed(text: str, parent: Any, entries: Sequence[_Entry], at: int) -> _Splice:
    start, end = entries[at].start, _end(text, entries[at].value)
    if len(entries) == 1:
        return start, end, "" if parent.flow_style else "{}"
    if not parent.flow_style and not text[_line_start(text, start) : start].strip():
        return _line_start(text, start), _next_line(text, end), ""
    return (start, entries[1].start, "") if at == 0 else (_end(text, entries[at - 1].value), end, "")


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _next_line(text: str, index: int) -> int:
    return text.find("\n", index) + 1 or len(text)


def _apply_to_data(data: Any, edit: Edit) -> None:
    part = data
    for here, below in pairwise(edit.path):
        if isinstance(here, str) and part.get(here) is None:
            part[here] = [] if isinstance(below, int) else {}
        part = part[here]
    last = edit.path[-1]
    if edit.value is None:
        del part[last]
    elif isinstance(part, list) and last == len(part):
        part.append(edit.value)
    else:
        part[last] = edit.value


def _unshared(value: Any) -> Any:
    """Return a copy in which nothing is shared, although the text has aliases."""
    if isinstance(value, dict):
        return {key: _unshared(each) for key, each in value.items()}
    return [_unshared(each) for each in value] if isinstance(value, list) else value


_MAX_ROUNDS = 10
"""An edit may bring up the next finding, and two edits of the same part are applied one after the other."""

_MAX_LINES = 50_000
"""Fixes that cannot be applied together compose the whole text several times."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Fixed(NamedTuple):
    """A text after its fixes, and the findings that were fixed, in order."""

    text: str
    changes: tuple[Finding, ...]


def fix_text(
    text: str, source: str, crds: CrdSet | None = None, name: str | None = None, *, unsafe: bool = False
) -> Fixed:
    """Return the text with all safe fixes applied. A second call finds nothing more to fix.

    Args:
        text: The text.
        source: The file name in findings.
        crds: Definitions to check against in addition.
        name: The only cluster, job or service to fix; ``None`` fixes all.
        unsafe: Also apply the fixes that may change what runs.
    """
    changes: list[Finding] = []
    for _ in range(_MAX_ROUNDS):
        fixable = _without_conflicts(
            [each for each in lint_text(text, source, crds, name) if each.edits and (each.is_safe or unsafe)]
        )
        text, done = _apply(text, fixable)
        if not done:
            break
        changes += done
    return Fixed(text, tuple(changes))


class FixedFile(NamedTuple):
    """The content of a file before and after its fixes, which are not written yet."""

    path: FilePath
    before: bytes
    after: bytes
    changes: tuple[Finding, ...]

    def diff(self) -> list[str]:
        """Return the lines of the difference, as ``diff -u`` writes them."""
        if not self.changes:  # a file that is not UTF-8 has none
            return []
        before, after = (each.decode("utf-8").splitlines() for each in (self.before, self.after))
        name = str(self.path)
        return list(difflib.unified_diff(before, after, name, name, lineterm=""))

    def write(self) -> None:
        """Replace the file atomically.

        Raises:
            InvalidResourcesError: The file cannot be written, for example because it has changed in the meantime.
        """
        if self.changes:
            replace_file(self.path, self.after, expected=self.before)


def fixed_file(
    path: FilePath, crds: CrdSet | None = None, name: str | None = None, *, unsafe: bool = False
) -> FixedFile:
    """Return a file with its fixes as :func:`fix_text` applies them, and write nothing.

    A file that cannot be read has no fixes, because that is a finding.

    Raises:
        InvalidResourcesError: The file is gzipped, has too many lines, or is stdin.
    """
    if str(path) == "-":
        raise InvalidResourcesError("--fix changes files, so it cannot fix what is piped in: name the file")
    try:
        content = read_bytes(path)
    except UnreadableFileError:
        return FixedFile(path, b"", b"", ())
    if content.startswith(GZIP):
        raise InvalidResourcesError(f"--fix writes plain text, and {path} is gzipped: unpack it first")
    if content.count(b"\n") > _MAX_LINES:
        raise InvalidResourcesError(f"--fix takes minutes for more than {_MAX_LINES:,} lines: split {path}")
    mark = _BYTE_ORDER_MARK if content.startswith(_BYTE_ORDER_MARK) else b""
    try:
        text = content.removeprefix(mark).decode("utf-8")
    except UnicodeDecodeError:
        return FixedFile(path, content, content, ())
    fixed = fix_text(text, str(path), crds, name, unsafe=unsafe)
    return FixedFile(path, content, mark + fixed.text.encode("utf-8"), fixed.changes)


def _without_conflicts(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings that edit different parts. Linting again finds the others."""
    kept: list[Finding] = []
    touched: set[tuple[str | int, ...]] = set()
    above: set[tuple[str | int, ...]] = set()
    for finding in findings:
        # An edit of an item touches its whole list, because it may move the other items.
        ends = [(each.path, -1 if isinstance(each.path[-1], int) else None) for each in finding.edits]
        paths = {(finding.document, *path[:end]) for path, end in ends}
        prefixes = {path[:end] for path in paths for end in range(len(path) + 1)}
        if touched.isdisjoint(prefixes) and above.isdisjoint(paths):
            touched |= paths
            above |= prefixes
            kept.append(finding)
    return kept


def _apply(text: str, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Apply all findings at once or, if that fails, each half of them by itself."""
    if not findings:
        return text, []
    if (changed := _changed(text, findings)) is not None:
        return changed, list(findings)
    if len(findings) == 1:
        return text, []
    half = len(findings) // 2
    text, first = _apply(text, findings[:half])
    text, second = _apply(text, findings[half:])
    return text, first + second


def _changed(text: str, findings: Sequence[Finding]) -> str | None:
    """Return the text with the edits, or ``None`` if they cannot be applied without changing more."""
    edits = [(finding.document, edit) for finding in findings for edit in finding.edits]
    wanted, changed = _data(text) or [], text
    try:
        for number in {number for number, _ in edits}:
            wanted[number] = _unshared(wanted[number])
        # A mapping must not be empty while one of its keys is renamed, so removals come last.
        for is_removal in (False, True):
            some = [(number, edit) for number, edit in edits if (edit.value is None) == is_removal]
            for number, edit in some:
                _apply_to_data(wanted[number], edit)
            changed = _edited(changed, some) if some else changed
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError):  # a part that only one of both finds
        return None
    return changed if changed != text and _data(changed) == wanted else None


def _data(text: str) -> list[Any] | None:
    try:
        return [document.data for document in read_documents(text, "")]
    except DocumentError:
        return None
