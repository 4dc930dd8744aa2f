"""Prints the output of commands so that it cannot control the terminal.

Inside ``guarded_streams``, the output of ``print`` and Rich is sanitized with ``values.sanitize``. Characters that the
terminal cannot encode are escaped. A closed stdout raises an error only if a command writes to it.
"""

import codecs
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO, cast

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from tune_policies.values.sanitize import escape, one_line, printable, without_secrets

_NUMBERS: Final = frozenset({"At once", "Nodes", "CPU", "GPU", "OOMs"})
"""The headings of columns with numbers."""

_NARROW: Final = 60
"""A table in a narrower terminal is printed as a list if its words do not fit."""

_WIDTH_OF_TEXT: Final = 120

_USUAL_WORD: Final = 9
_BETWEEN_COLUMNS: Final = 3

_PLAIN: Final[dict[str, Any]] = {"force_jupyter": False, "force_terminal": False, "color_system": None}
"""The options of a Rich console that writes plain text, also in a notebook.

There, Rich would display the text as HTML, with a text version that contains color codes, which the notebook's file
keeps. Jupyter also sets FORCE_COLOR, so that Rich would add color codes to text.
"""

_STREAMS: Final = ("stdin", "stdout", "stderr")

_ESCAPES: Final = "tune_policies_escapes"
"""The name of the error handler for characters that a stream cannot encode, such as surrogates in UTF-8."""


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(escape, error.object[error.start : error.end])), error.end


codecs.register_error(_ESCAPES, _escape_unencodable)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Sanitize all output that is printed inside the block. After the block, closed streams are closed again."""
    opened = [number for number in range(3) if _open(number)]
    stdout, stderr = (cast("TextIO", _PlainStream(stream)) for stream in (sys.stdout, sys.stderr))
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            yield
    finally:
        for number in opened:
            setattr(sys, _STREAMS[number], None)
            os.close(number)


def drop_stdout() -> None:
    """Discard output that could not be written, because Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_to_stderr(text: object) -> None:
    """Print a text to stderr as one line, without secrets."""
    print(one_line(without_secrets(str(text))), file=sys.stderr)


class TextConsole(Console):
    """A console for untrusted texts, without markup, emoji codes and control characters.

    In a pipe, lines are as wide as in the guides, unless ``COLUMNS`` is set. In a notebook, the text is plain, like the
    text that ``print`` writes.
    """

    def __init__(self, **options: Any) -> None:
        if Console().is_jupyter:
            options = {**_PLAIN, **options}
        super().__init__(markup=False, emoji=False, **options)
        has_width = self.is_terminal or "width" in options or "COLUMNS" in os.environ
        if not has_width:
            self.width = _WIDTH_OF_TEXT

    def on_broken_pipe(self) -> None:
        """Let the command end, because Rich would exit with status 1."""
        self.quiet = True
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Render the text with escaped control characters, so that tables have the correct widths."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments with escaped control characters, including segments of text that was styled elsewhere."""
        for segment in super().render(renderable, options):
            if not segment.control:
                plain = printable(segment.text)
                if plain != segment.text:
                    segment = Segment(plain, segment.style)
            yield segment


def to_text(view: RenderableType) -> str:
    """Return a view as text with a width of 120 columns, without styles."""
    console = TextConsole(file=io.StringIO(), width=_WIDTH_OF_TEXT, **_PLAIN)
    with console.capture() as captured:
        console.print(view)
    lines = captured.get().splitlines()
    return "\n".join(line.rstrip() for line in lines)


class TextTable(Table):
    """A table that prints each string on a single line. Pass a ``Text`` for a cell with several lines."""

    def __init__(self, *headings: Any, title: str = "", title_style: str = "table.title", **options: Any) -> None:
        shown = Text(one_line(title), style=title_style) if title else None
        super().__init__(*headings, title=shown, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        shown = []
        for cell in cells:
            if isinstance(cell, str):
                cell = Text(one_line(cell))
            shown.append(cell)
        super().add_row(*shown, **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or a list with a line for each cell if the terminal is too narrow for its words."""
        if options.max_width >= _NARROW or sum(map(_width_of_words, self.columns)) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield self.title
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for number, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
                marker = "  " if number else "- "
                text = Text(f"{marker}{cell}", overflow="fold")
                if str(column.header):
                    text = Text(f"{marker}{column.header}: {cell}", overflow="fold")
                yield text


def _width_of_words(column: Column) -> int:
    """Return the width that a column needs, so that its heading and its words of usual length are not divided."""
    cells = [len(word) for cell in column.cells for word in str(cell).split()]
    heading = max(map(len, str(column.header).split()), default=0)
    return max(heading, min(max(cells, default=0), _USUAL_WORD)) + _BETWEEN_COLUMNS


def empty_table(title: str, *headings: str) -> Table:
    """Return an empty table in the common style, with right-aligned numbers."""
    table = TextTable(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for heading in headings:
        text = Text(one_line(heading))
        if heading in _NUMBERS:
            table.add_column(text, justify="right", overflow="fold", no_wrap=True)
        else:
            table.add_column(text, justify="left", overflow="fold")
    return table


def line(text: str, style: str = "") -> Text:
    """Return the text of a line below a table, which Rich wraps at the width of the terminal."""
    return Text(one_line(text), style=style, overflow="fold")


class _PlainStream:
    """A stream that prints plain text. Rich, which adds colors, writes to ``rich_proxied_file``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_at_start = True

    def write(self, text: str) -> int:
        return self._write(text, is_styled=False)

    def _write(self, text: str, *, is_styled: bool) -> int:
        before = "-"  # a placeholder for the preceding text in the line
        if self._is_at_start:
            before = ""
        # Some commands of build services count only at the beginning of a line, and a line can be written in several
        # parts.
        plain = printable(before + text, is_styled=is_styled)[len(before) :]
        if text.strip() or text.endswith("\n"):
            self._is_at_start = text.rstrip(" \t").endswith("\n")
        # The error handler replaces what the stream cannot encode by escapes, so the stream itself never fails.
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(plain.encode(encoding, _ESCAPES).decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    @property
    def rich_proxied_file(self) -> "_StyledStream":
        """The stream to which Rich writes instead of this one."""
        return _StyledStream(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _StyledStream:
    """Wraps a plain stream for Rich, and keeps colors and cursor movements."""

    def __init__(self, stream: _PlainStream) -> None:
        self._plain = stream

    def write(self, text: str) -> int:
        return self._plain._write(text, is_styled=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _open(number: int) -> bool:
    """Replace a closed standard stream, because otherwise the next opened file would get its descriptor.

    Reading from a closed stdin, or writing to a closed stdout, raises an error. Output to a closed stderr is discarded.
    The function returns whether the stream was closed.
    """
    name = _STREAMS[number]
    if getattr(sys, name) is not None:
        return False
    # With the opposite direction, using the stream raises an error. A closed stderr (2) is written to nowhere.
    flags = os.O_RDONLY if number == 1 else os.O_WRONLY
    found = os.open(os.devnull, flags)
    if found != number:
        os.dup2(found, number)
        os.close(found)
    mode = "r" if number == 0 else "w"
    setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    return True
