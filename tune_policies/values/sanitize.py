"""Texts on their way out: names, errors and files come from anywhere, and may not steer who reads them.

What has no glyph is written as an escape: characters that move a cursor, colour or hide what follows, turn the
direction of writing, or end a line. The escapes are those of JSON, so JSON stays what it is. Nothing is left that the
services that run builds take for a command of theirs.

A text that is put into a line passes :func:`one_line` there, as only the writer knows its own line breaks from others'.
It is also shortened there, as every error is, because a label of 100,000 characters must not fill a screen or a log.
All that a command prints passes :func:`printable` once more in ``terminal``. What is secret passes neither:
:func:`redacted`.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

LEFT_OUT: Final = "(left out)"
"""In the place of a text that is not published."""

_MOST_IN_WORD: Final = 400
"""More characters than a path in a message usually has, in a word between two blanks."""
_MOST_IN_LINE: Final = 4000
_LONG_WORD: Final = re.compile(rf"(?<!\S)\S{{{_MOST_IN_WORD + 1},}}+")
_LONG_LINE: Final = re.compile(rf"^.{{{_MOST_IN_LINE + 1},}}+", re.MULTILINE)

_NOT_ASCII: Final = re.compile(r"[^ -~]")
_NOT_ASCII_TEXT: Final = re.compile(r"[^\n\t -~]")
_STYLE_OR_NOT_ASCII: Final = re.compile(r"\x1b\[[0-9;?]*[A-HJKhlm]|[^\n\r\t -~]")
"""What Rich writes to a terminal (colours, and for a bar of progress: moves of the cursor) is one match."""

_COMMAND_OF_LINE: Final = re.compile(r"^([^\S\n]*+):(?=:)", re.MULTILINE)
"""GitHub runs ``::add-mask::x`` where a line begins with it."""
_COMMAND_ANYWHERE: Final = re.compile(r"##(?=\w*+\[)")
"""GitHub's older form ``##[add-mask]x``, and ``##vso[...]`` and ``##teamcity[...]``, wherever they stand."""

_VALUE: Final = r"""(?:"[^"\n]{0,1000}"|'[^'\n]{0,1000}'|[^\s"'&;,)\]}]++)"""
_WORDS: Final = r"(?:(?i:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key)|KEY)"
_SECRETS: Final = (
    (re.compile(r"(?<=://)[^\s/@]{1,1000}@"), "***@"),
    (re.compile(rf"({_WORDS}[\w-]{{0,64}}=){_VALUE}"), r"\1***"),
    (re.compile(rf"({_WORDS}[\w-]{{0,64}}[\"']: ?){_VALUE}"), r"\1***"),  # of a mapping
    (re.compile(rf"(--[\w-]{{0,64}}?{_WORDS}[\w-]{{0,64}} )(?!-){_VALUE}"), r"\1***"),  # of a command
    (re.compile(r"((?i:bearer|basic) )[\w.~+/=-]{8,}+"), r"\1***"),
)


def shortened(text: str) -> str:
    """Return the text with the middle of each very long word and each very long line left out.

    Both ends stay, because a message begins with what is wrong and ends with what to do.
    """
    if len(text) <= _MOST_IN_WORD:
        return text
    words = _LONG_WORD.sub(lambda found: _without_middle(found[0], "...", _MOST_IN_WORD), text)
    return _LONG_LINE.sub(lambda found: _without_middle(found[0], " ... ", _MOST_IN_LINE), words)


def _without_middle(text: str, mark: str, most: int) -> str:
    half = (most - len(mark)) // 2
    return f"{text[:half]}{mark}{text[-half:]}"


def one_line(text: object) -> str:
    r"""Return a text from outside for a place in a line: a line break in it is ``\n``, and it is :func:`shortened`."""
    plain = str(text)
    return shortened(_commandless(plain if plain.isprintable() else _NOT_ASCII.sub(_escaped, plain)))


def printable(text: str, *, is_styled: bool = False) -> str:
    """Return a text of lines with an escape for all that is no glyph, no line's end and no tab.

    Args:
        text: What is to be printed.
        is_styled: Whether Rich has written it: then its colours, and its bars of progress, are left in.
    """
    return _commandless((_STYLE_OR_NOT_ASCII if is_styled else _NOT_ASCII_TEXT).sub(_escaped, text))


def indented(text: object) -> str:
    """Return a message of one or several lines, in which no line but the first begins at the left."""
    first, *others = str(text).splitlines() or [""]
    return "\n".join([one_line(first), *(f"  {one_line(line).strip()}" for line in others)])


def redacted(text: str) -> str:
    """Return the text without what looks like a secret.

    That is who a URL signs in as (``user:password@``), and what follows ``token=``, ``--api-key``, ``Bearer`` and the
    like, or a variable with KEY, SECRET, PASSWORD or TOKEN in its name.
    """
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text


Redacted = Annotated[str, AfterValidator(redacted)]
"""A field of a record that quotes an error or a command."""


def escape(character: str) -> str:
    r"""Return a character as JSON may write it: ``"\\n"``, ``"\\u202e"``."""
    if character in "\n\r\t":
        return {"\n": r"\n", "\r": r"\r", "\t": r"\t"}[character]
    code = ord(character)
    if code > 0xFFFF:  # JSON has two halves for it
        high, low = divmod(code - 0x10000, 0x400)
        return rf"\u{0xD800 + high:04x}\u{0xDC00 + low:04x}"
    return rf"\u{code:04x}"


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    return text if len(text) > 1 or text.isprintable() else escape(text)


def _commandless(text: str) -> str:
    if "::" in text:
        text = _COMMAND_OF_LINE.sub(r"\1\\u003a", text)
    return _COMMAND_ANYWHERE.sub(r"#\\u0023", text) if "##" in text else text
