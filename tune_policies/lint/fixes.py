"""Makes the changes that findings bring, in a text or a file: the safe ones, or all.

Whatever is written is read again: a change that would do more than it says, as where a part has an anchor that others
use, is not made.
"""

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from ruamel.yaml.error import YAMLError

from tune_policies.errors import InvalidResourcesError
from tune_policies.files.reading import UnreadableFileError, read_bytes
from tune_policies.files.writing import replace_file
from tune_policies.lint.crd import CrdSet
from tune_policies.lint.finding import Edit, Finding
from tune_policies.lint.linting import lint_text
from tune_policies.lint.yaml_editing import PlacedEdit, edited, rewritten
from tune_policies.manifests.documents import DocumentError, Path, read_documents
from tune_policies.manifests.file_text import GZIP

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
        raise InvalidResourcesError("--fix writes files, and what is piped in is none: name the file")
    content = _content(path)
    if content.startswith(GZIP):
        raise InvalidResourcesError(f"--fix writes plain text, and {path} is gzipped: unpack it first")
    if content.count(b"\n") > _MAX_LINES:
        raise InvalidResourcesError(f"--fix takes minutes for more than {_MAX_LINES:,} lines: split {path}")


def fix_file(
    path: FilePath, crds: CrdSet | None = None, name: str | None = None, *, unsafe: bool = False
) -> tuple[Finding, ...]:
    """Make all safe changes in a file, at once or not at all, and return what was mended.

    Args:
        path: The file.
        crds: Also check against these definitions.
        name: Check the cluster, job or service of this name alone.
        unsafe: Make those changes too that may change what runs.

    Raises:
        InvalidResourcesError: It is gzipped, very long, or what is piped in, or it cannot be written, as when it is
            read-only or was changed meanwhile.
    """
    check_fixable(path)
    content = _content(path)
    mark = _BYTE_ORDER_MARK if content.startswith(_BYTE_ORDER_MARK) else b""
    try:
        text = content.removeprefix(mark).decode("utf-8")
    except UnicodeDecodeError:
        return ()
    fixed = fix_text(text, str(path), crds, name, unsafe=unsafe)
    if fixed.changes:
        replace_file(path, mark + fixed.text.encode("utf-8"), expected=content)
    return fixed.changes


def _content(path: FilePath) -> bytes:
    """Return what is in a file; nothing, where it cannot be read, which is a finding."""
    try:
        return read_bytes(path)
    except UnreadableFileError:
        return b""


def _without_conflicts(findings: Sequence[Finding]) -> list[Finding]:
    """Return those that touch different parts; the others are found again when these are mended."""
    kept: list[Finding] = []
    touched: set[tuple[int, Path]] = set()
    for finding in findings:
        paths = {(finding.document, _touched_by(edit)) for edit in finding.edits}
        if not any(_overlap(one, other) for one in paths for other in touched):
            touched |= paths
            kept.append(finding)
    return kept


def _touched_by(edit: Edit) -> Path:
    """Return the part that an edit changes: the whole list where the places of others may change."""
    return edit.path[:-1] if isinstance(edit.path[-1], int) else edit.path


def _overlap(one: tuple[int, Path], other: tuple[int, Path]) -> bool:
    shorter = min(len(one[1]), len(other[1]))
    return one[0] == other[0] and one[1][:shorter] == other[1][:shorter]


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
    edits = [PlacedEdit(finding.document, edit) for finding in findings for edit in finding.edits]
    wanted = _data(text) or []
    try:
        for number, edit in edits:
            wanted[number] = edited(wanted[number], edit)
        forms = rewritten(text, edits)
    except (YAMLError, LookupError, TypeError, AttributeError, ValueError):  # a part that only we, or it, can see
        return None
    return next((form for form in forms if form != text and _data(form) == wanted), None)


def _data(text: str) -> list[Any] | None:
    try:
        return [document.data for document in read_documents(text, "")]
    except DocumentError:
        return None
