"""Where a command's texts go: to streams that print whatever they are given, as text.

``guarded_streams`` stands around a whole command. Within, ``print`` and Rich write through ``values.sanitize``, a
terminal that knows only ASCII gets escapes, and a stream that is closed fails where it is written to, and not before.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO, cast

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tune_policies.values.sanitize import escape, one_line, printable, redacted

_NUMBERS: Final = frozenset({"At once", "Nodes", "CPU", "GPU", "OOMs"})
"""Headings of columns that count."""


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Let all that is printed in the block be plain text."""
    for number in range(3):
        _open(number)
    stdout, stderr = (cast("TextIO", _PlainStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield


def drop_stdout() -> None:
    """Let what could not be written go: Python would try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(text: object) -> None:
    """Print a line beside the result, on stderr."""
    print(one_line(redacted(str(text))), file=sys.stderr)


class TextConsole(Console):
    """A console for texts from outside: brackets and colons in them mean themselves, and nothing steers a terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text as it will look, so that tables are laid out by that."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is written; a name in a text that was styled elsewhere is plain, too."""
        for segment in super().render(renderable, options):
            plain = segment.text if segment.control else printable(segment.text)
            yield segment if plain == segment.text else Segment(plain, segment.style)


class TextTable(Table):
    """A table in which a text is one line. What has several lines of its own is a ``Text``."""

    def __init__(self, *headings: Any, title: str = "", title_style: str = "table.title", **options: Any) -> None:
        super().__init__(*headings, title=Text(one_line(title), style=title_style) if title else None, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in cells), **options)


def empty_table(title: str, *headings: str) -> Table:
    """Return an empty table in the style of all of these; columns that count stand at the right."""
    table = TextTable(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for heading in headings:
        is_number = heading in _NUMBERS
        table.add_column(
            Text(one_line(heading)), justify="right" if is_number else "left", overflow="fold", no_wrap=is_number
        )
    return table


def line(text: str, style: str = "") -> Text:
    """Return one line below a table, broken where the terminal ends."""
    return Text(one_line(text), style=style, overflow="fold")


class _PlainStream:
    """A stream that prints what it is given as text. Rich, which has a colour or two to add, finds its own way in."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_at_start = True

    def write(self, text: str) -> int:
        return self._write(text, is_styled=False)

    def _write(self, text: str, *, is_styled: bool) -> int:
        before = "" if self._is_at_start else "-"  # what stands before it in its line
        plain = printable(before + text, is_styled=is_styled)[len(before) :]
        if text.strip() or text.endswith("\n"):
            self._is_at_start = text.rstrip(" \t").endswith("\n")
        self._stream.write(_encodable(plain, self._stream.encoding or "utf-8"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for each in lines:
            self.write(each)

    @property
    def rich_proxied_file(self) -> "_StyledStream":
        """Where Rich writes what would go here."""
        return _StyledStream(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _StyledStream:
    """The same stream for Rich."""

    def __init__(self, stream: _PlainStream) -> None:
        self._plain = stream

    def write(self, text: str) -> int:
        return self._plain._write(text, is_styled=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _encodable(text: str, encoding: str) -> str:
    """Return the text with escapes for what the encoding has not; UTF-8 has no halves of characters."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(each if _has(encoding, each) else escape(each) for each in text)
    return text


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _open(number: int) -> None:
    """Put something in the place of a stream that is closed, or the next file that is opened would be stdout.

    What is read from it or written to it fails, as it does elsewhere; stderr alone has nobody to tell, and is dropped.
    """
    name = ("stdin", "stdout", "stderr")[number]
    if getattr(sys, name) is not None:
        return
    found = os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_WRONLY)
    if found != number:
        os.dup2(found, number)
        os.close(found)
    setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
