"""Makes the changes that findings bring, in a YAML text or its file, and keeps everything else as it is written.

ruamel.yaml edits a document with its comments, but may write untouched lines in another form than they had. So only the
lines that an edit changes are taken from it.

What was changed is read again. A change that would do more than it says is not made, as where a part has an anchor that
others use.
"""

import difflib
import io
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, ScalarString, SingleQuotedScalarString

from tune_policies.files.reading import UnreadableFileError, read_bytes
from tune_policies.files.writing import replace_file
from tune_policies.files.yaml_documents import DocumentError, read_documents
from tune_policies.kuberay.lint.crd import CrdSet
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.kuberay.lint.rule import Edit, Finding
from tune_policies.kuberay.reading.documents import GZIP
from tune_policies.values.errors import InvalidResourcesError

_INDENTS = ((2, 2, 0), (2, 4, 2), (4, 4, 2), (4, 4, 0), (4, 6, 4), (4, 8, 4))
"""How far mappings and lists stand in, and how far the dash of a list: the usual styles."""


def _rewritten(text: str, edits: Sequence[tuple[int, Edit]]) -> list[str]:
    """Return the text with changes made: what it may become, the best form first.

    Whether it has come to mean more than that the caller must see: a part may have an anchor that others use.

    Args:
        text: The text.
        edits: Each with the number of its document, from 0, among those that are not empty.

    Raises:
        ruamel.yaml.error.YAMLError: The editor does not read the text.
        LookupError: There is no such part.
        TypeError: A part is not what its path takes it for.
    """
    plain = text.replace("\r\n", "\n")
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 2**20
    documents = list(editor.load_all(plain))
    before = _in_nearest_style(editor, documents, plain)
    filled = [number for number, each in enumerate(documents) if each is not None]
    for number, edit in edits:
        _made(documents[filled[number]], edit)
    after = _dumped(editor, documents)
    line_end = "\r" if "\r\n" in text else ""
    forms = [_patched(text.split("\n"), before, after, line_end, above_comments=above) for above in (True, False)]
    return [form for form in forms if form is not None]


def _unshared(value: Any) -> Any:
    """Return a copy in which nothing is shared, as it is where there are aliases."""
    if isinstance(value, dict):
        return {key: _unshared(each) for key, each in value.items()}
    return [_unshared(each) for each in value] if isinstance(value, list) else value


def _made(data: Any, edit: Edit) -> Any:
    """Make a change in a document, and return it; the place after a list's last one adds to it."""
    part = data
    for here, below in zip(edit.path, edit.path[1:], strict=False):
        if isinstance(here, str) and part.get(here) is None:
            part[here] = _commented([] if isinstance(below, int) else {}, part)
        part = part[here]
    last = edit.path[-1]
    if edit.value is None:
        del part[last]
    elif isinstance(part, list) and last == len(part):
        part.append(_commented(edit.value, part))
    else:
        old = part.get(last) if isinstance(part, dict) else part[last]
        part[last] = _commented(edit.value, part, old)
    return data


def _commented(value: Any, into: Any, old: Any = None) -> Any:
    """Return a value as the editor has it, with the quotes of what it replaces; plain data stay plain."""
    if not isinstance(into, CommentedMap | CommentedSeq):
        return value
    if isinstance(value, dict):
        return CommentedMap({key: _commented(each, into) for key, each in value.items()})
    if isinstance(value, list):
        return CommentedSeq([_commented(each, into) for each in value])
    if not isinstance(value, str):
        return value
    if isinstance(old, ScalarString) and "\n" not in value:
        return type(old)(value)
    if "\\" in value or '"' in value:
        return SingleQuotedScalarString(value)
    return value if _is_plain(value) else DoubleQuotedScalarString(value)


def _is_plain(text: str) -> bool:
    """Return whether a text can stand without quotes."""
    try:
        return bool(yaml.safe_load(f"- {text}\n") == [text])
    except yaml.YAMLError:
        return False


def _in_nearest_style(editor: YAML, documents: list[Any], text: str) -> list[str]:
    """Give the editor the style that comes nearest to the text's, and return the text as it then writes it."""
    lines = set(text.split("\n"))
    forms = []
    for number, (mapping, sequence, offset) in enumerate(_INDENTS):
        editor.indent(mapping=mapping, sequence=sequence, offset=offset)
        written = _dumped(editor, documents)
        forms.append((len(set(written) - lines), number, written))
        if written == text.split("\n"):
            break
    _, best, written = min(forms)
    mapping, sequence, offset = _INDENTS[best]
    editor.indent(mapping=mapping, sequence=sequence, offset=offset)
    return written


def _dumped(editor: YAML, documents: list[Any]) -> list[str]:
    written = io.StringIO()
    editor.dump_all(documents, written)
    return written.getvalue().split("\n")


def _patched(
    text: list[str], before: list[str], after: list[str], line_end: str, *, above_comments: bool
) -> str | None:
    """Carry what differs between two forms of a text over to the text; ``None``: its lines are not found in it."""
    places = _places(text, before)
    patched = list(text)
    operations = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for tag, first, end, new_first, new_end in reversed(operations):
        if tag == "equal":
            continue
        near = first - 1 if first == end else first  # what is added is written as the line above it
        if near not in places or (first < end and places.get(end - 1) != places[first] + end - 1 - first):
            return None
        start = places[near] + (first == end)
        stop = start + end - first
        further = _indent(text[places[near]]) - _indent(before[near])
        new = [
            f"{' ' * max(0, _indent(line) + further)}{line.lstrip(' ')}{line_end}"
            if line.strip()
            else f"{line}{line_end}"
            for line in after[new_first:new_end]
        ]
        if first == end and above_comments:
            while start > 0 and _is_comment(patched[start - 1]):
                start = stop = start - 1
        lost = [line for line in patched[start:stop] if _is_comment(line) and line not in new]
        patched[start:stop] = [*new, *lost]
    return "\n".join(patched)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _places(text: list[str], before: list[str]) -> dict[int, int]:
    """Return where each line of the written form stands in the text; those that are cut otherwise are left out."""
    if len(text) == len(before):
        return {number: number for number in range(len(before))}
    written, found = (["".join(line.split()) for line in lines] for lines in (before, text))
    blocks = difflib.SequenceMatcher(None, written, found, autojunk=False).get_matching_blocks()
    return {first + number: place + number for first, place, size in blocks for number in range(size)}


_MAX_ROUNDS = 10
"""A change may bring up the next finding, and two for the same part are made one after the other."""

_MAX_LINES = 5000
"""To compare two texts takes time by the square of their lines, which is some ten seconds here."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Fixed(NamedTuple):
    """A text after its changes.

    Attributes:
        text: The text.
        changes: What was mended, in order.
    """

    text: str
    changes: tuple[Finding, ...]


def fix_text(
    text: str, source: str, crds: CrdSet | None = None, name: str | None = None, *, unsafe: bool = False
) -> Fixed:
    """Return the text with all safe changes made; asked again, it finds none to make.

    Args:
        text: The text.
        source: The name under which findings tell of it.
        crds: Also check against these definitions.
        name: Check the cluster, job or service of this name alone.
        unsafe: Make those changes too that may change what runs.
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


def check_fixable(path: FilePath) -> None:
    """Make sure that changes can be written to a file; one that cannot be read is a finding, and no error here.

    Raises:
        InvalidResourcesError: It is gzipped, very long, or what is piped in.
    """
    if str(path) == "-":
        raise InvalidResourcesError("--fix changes files, so it cannot fix what is piped in: name the file")
    content = _content(path)
    if content.startswith(GZIP):
        raise InvalidResourcesError(f"--fix writes plain text, and {path} is gzipped: unpack it first")
    if content.count(b"\n") > _MAX_LINES:
        raise InvalidResourcesError(f"--fix takes minutes for more than {_MAX_LINES:,} lines: split {path}")


class FixedFile(NamedTuple):
    """A file's content before and after its changes, which nobody has written yet.

    Attributes:
        path: The file.
        before: What is in it.
        after: What would be.
        changes: What is mended, in order.
    """

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
        """Write the changes, at once or not at all.

        Raises:
            InvalidResourcesError: The file cannot be written, as when it is read-only or was changed meanwhile.
        """
        if self.changes:
            replace_file(self.path, self.after, expected=self.before)


def fixed_file(
    path: FilePath, crds: CrdSet | None = None, name: str | None = None, *, unsafe: bool = False
) -> FixedFile:
    """Return a file with all safe changes made, and write nothing.

    Args:
        path: The file.
        crds: Also check against these definitions.
        name: Check the cluster, job or service of this name alone.
        unsafe: Make those changes too that may change what runs.

    Raises:
        InvalidResourcesError: It is gzipped, very long, or what is piped in.
    """
    check_fixable(path)
    content = _content(path)
    mark = _BYTE_ORDER_MARK if content.startswith(_BYTE_ORDER_MARK) else b""
    try:
        text = content.removeprefix(mark).decode("utf-8")
    except UnicodeDecodeError:
        return FixedFile(path, content, content, ())
    fixed = fix_text(text, str(path), crds, name, unsafe=unsafe)
    return FixedFile(path, content, mark + fixed.text.encode("utf-8"), fixed.changes)


def _content(path: FilePath) -> bytes:
    """Return what is in a file; nothing, where it cannot be read, which is a finding."""
    try:
        return read_bytes(path)
    except UnreadableFileError:
        return b""


def _without_conflicts(findings: Sequence[Finding]) -> list[Finding]:
    """Return those that touch different parts; the others are found again when these are mended."""
    kept: list[Finding] = []
    touched: set[tuple[str | int, ...]] = set()
    for finding in findings:
        # Of a list the whole, where the places of others may change.
        ends = [(each.path, -1 if isinstance(each.path[-1], int) else None) for each in finding.edits]
        paths = {(finding.document, *path[:end]) for path, end in ends}
        if not any(one[: len(other)] == other[: len(one)] for one in paths for other in touched):
            touched |= paths
            kept.append(finding)
    return kept


def _apply(text: str, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Make all changes at once, or where that does not work one by one those that do."""
    changed = _changed(text, findings) if findings else None
    if changed is not None:
        return changed, list(findings)
    done = []
    for finding in findings if len(findings) > 1 else ():
        if (changed := _changed(text, [finding])) is not None:
            text = changed
            done.append(finding)
    return text, done


def _changed(text: str, findings: Sequence[Finding]) -> str | None:
    """Return the text with the changes; ``None``: they cannot be made, or not without changing more."""
    edits = [(finding.document, edit) for finding in findings for edit in finding.edits]
    wanted = _data(text) or []
    try:
        for number, edit in edits:
            wanted[number] = _made(_unshared(wanted[number]), edit)
        forms = _rewritten(text, edits)
    except (YAMLError, LookupError, TypeError, AttributeError, ValueError):  # a part that only we, or it, can see
        return None
    return next((form for form in forms if form != text and _data(form) == wanted), None)


def _data(text: str) -> list[Any] | None:
    try:
        return [document.data for document in read_documents(text, "")]
    except DocumentError:
        return None
