"""Makes external texts safe to print: names, errors and files must not control a terminal or a build service.

Characters without a glyph are replaced by JSON escapes, because they can move the cursor, set colors, hide text, change
the writing direction, or end a line. Commands of build services are disabled.

:func:`one_line` escapes and shortens a string within a line, because a label of 100,000 characters must not fill a
screen or a log. ``terminal`` passes all output of a command through :func:`printable`. :func:`without_secrets` removes
secrets.
"""

import json
import re
from collections.abc import Collection
from typing import Annotated, Final

from pydantic import AfterValidator

LEFT_OUT: Final = "(left out)"
"""The replacement for a string that is not published."""

_MOST_IN_WORD: Final = 400
"""The maximum number of characters in a word. Paths in messages are usually shorter."""
_MOST_IN_LINE: Final = 4000
_LONG_WORD: Final = re.compile(rf"(?<!\S)\S{{{_MOST_IN_WORD + 1},}}+")
_LONG_LINE: Final = re.compile(rf"^.{{{_MOST_IN_LINE + 1},}}+", re.MULTILINE)

_NOT_ASCII: Final = re.compile(r"[^ -~]")
_NOT_ASCII_TEXT: Final = re.compile(r"[^\n\t -~]")
_STYLE_OR_NOT_ASCII: Final = re.compile(r"\x1b\[[0-9;?]*[A-HJKhlm]|[^\n\r\t -~]")
"""Matches each color sequence or cursor movement of Rich as a whole, and each other non-ASCII or control character."""

_COMMAND_OF_LINE: Final = re.compile(r"^([^\S\n]*+):(?=:)", re.MULTILINE)
"""A GitHub Actions command, such as ``::add-mask::x``, at the beginning of a line."""
_COMMAND_ANYWHERE: Final = re.compile(r"##(?=\w*+\[)")
"""``##[add-mask]x`` (GitHub's older form), ``##vso[...]`` and ``##teamcity[...]``, anywhere in a line."""

# The quantifiers are possessive (``*+``) or limited, because hostile texts must not cause endless backtracking.
_QUOTED: Final = r"""(?:(?P<slashes>\\*)(?P<quote>["'])(?s:.{0,1000}?)(?<!\\)(?P=slashes)(?P=quote))+"""
"""A quoted value. JSON inside a JSON string has backslashes before its quotes, and YAML doubles inner quotes."""
_BLOCK: Final = r"(?:[|>][\d+-]{0,2}[^\S\n]*(?:\n[^\S\n]+[^\n]*)+)"
"""A YAML value with several lines."""
_SPACE: Final = r"(?:\s|\\[nrt])*+"
_NAME: Final = (
    r"(?:(?i:password|passwd|passphrase|pwd|secret|token|credential|authorization|(?:api|access|private)[ _-]?key)"
    r"|KEY|PASS(?![A-Z]))[\w-]{0,64}+"
)
"""A pattern for the part of a variable name that indicates a secret value, and the rest of the name."""
_SECRETS: Final = (
    (re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]+"), r"\1***"),
    (re.compile(rf"({_NAME}=)(?=\S)(?:{_QUOTED}|\S+)"), r"\1***"),
    (re.compile(rf"""({_NAME}(?:\\*["'])?[^\S\n]*+[:=>]{{1,3}}{_SPACE})(?:{_QUOTED}|{_BLOCK}|[^\n]+)"""), r"\1***"),
    (re.compile(rf"""(?<![\w-])(--[\w-]{{0,64}}?{_NAME}(?:\\*["'])?,?\s+(?!\\*["']?-))(?:{_QUOTED}|\S+)"""), r"\1***"),
    (re.compile(r"((?i:bearer|basic)\s+)[\w.~+/=-]{8,}+"), r"\1***"),
)
"""Patterns of secrets and their replacements. If the end of a secret is unclear, a pattern also matches later text."""

_SIGNED_IN: Final = re.compile(r"://[^/@:]*[:@]")


def shortened(text: str) -> str:
    """Return the text without the middle of very long words and lines.

    Both ends are kept, because a message begins with the problem and ends with the solution.
    """
    if len(text) <= _MOST_IN_WORD:
        return text
    words = _LONG_WORD.sub(lambda found: _without_middle(found[0], "...", _MOST_IN_WORD), text)
    return _LONG_LINE.sub(lambda found: _without_middle(found[0], " ... ", _MOST_IN_LINE), words)


def _without_middle(text: str, mark: str, most: int) -> str:
    half = (most - len(mark)) // 2
    return f"{text[:half]}{mark}{text[-half:]}"


def one_line(text: object) -> str:
    r"""Return an external text as a single line. The text is :func:`shortened`, and line breaks become ``\n``."""
    plain = str(text)
    if not plain.isprintable():
        plain = _NOT_ASCII.sub(_escaped, plain)
    return shortened(_commandless(plain))


def printable(text: str, *, is_styled: bool = False) -> str:
    """Return the text with all characters without a glyph escaped, except line breaks and tabs.

    If ``is_styled`` is true, the colors and progress bars of Rich are kept.
    """
    pattern = _STYLE_OR_NOT_ASCII if is_styled else _NOT_ASCII_TEXT
    return _commandless(pattern.sub(_escaped, text))


def indented(text: object) -> str:
    """Return the message with all lines except the first one indented."""
    first, *others = str(text).splitlines() or [""]
    return "\n".join([one_line(first), *(f"  {one_line(line).strip()}" for line in others)])


def without_secrets(text: str) -> str:
    """Return the text without parts that look like secrets.

    Secrets are the user and password in a URL (``user:password@``), and the values of ``token=``, ``--api-key``,
    ``password:``, ``Bearer``, and of variables with KEY, PASS, PWD, SECRET or TOKEN in their names.
    """
    if "@" in text:
        text = re.sub(r"\S+", _without_user, text)
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text


def _without_user(word: re.Match[str]) -> str:
    """Return a word without the user and password in a URL. A password can contain ``/``, ``:`` and ``@``."""
    text = word[0]
    end = text.rfind("@")
    found = _SIGNED_IN.search(text, 0, end + 1)
    if found is None:
        return text
    return f"{text[: found.start()]}://***{text[end:]}"


_NUMBER: Final = re.compile(r"\d+(?:\.\d+|(?:,\d{3})+)?%?|\d+(?:x\d+)*")
_WORDS: Final = frozenset(
    re.findall(
        r"\S+",
        """
    a accelerator add added additional adds all allows already also although among amount an and another any are as ask
    asked asks assumed assumes at autoscaler back based be because been before below beside but by came can cap change
    changed cluster come concurrent config configs configuration configurations cost costs could counted counting counts
    cpu cpus cupy cut decision depend depending device devices divided does down draining driver driver's drivers each
    earlier effect else end ended ending enough even every excludes exists failed faster feasible few fewer fewest first
    fit fits for formula fraction fractions free from full further gave get gets gib give goes gpu gpus grow growth had
    has have head held hold holds host hosts how idle if in indefinitely instead into is it its jax known label larger
    largest last least leaves left less limit limited limits list listed little lost many max_concurrent_trials
    max_trials_per_gpu may measurably measured measurement memory memory_bytes mib minimum more most much must near
    nearest need needed needs never next no node nodes nominal none not nothing now num_trials num_workers number of
    offers on once one ones only or other others out over overhead own pass paused peak pending per place plan plan's
    plus policy possible possibly profile programs purpose pytorch ran ray read regardless removed reports request
    requested requests reserve reserved reserves resources rest restored room round rounded rounding rounds run running
    runs same search searcher selected selector set share short size sizes skipped slice slices slot slots slow slower
    small smaller smallest so some speed spread start started starting starts stay stays steps still suggested
    tensorflow tensors than that the their them then there these they this though threads to together too topology total
    tpu trial trial's trials tune tune.run tuner type types unequal unknown until up use used uses value values waited
    waiting waits was went were what when whether which while whole whose with within without worker workers would you
    """,
    )
)
"""The words that :func:`without_names` keeps. Other words can be names of hosts, labels, resources or slices."""


def without_names(text: str, known: Collection[str]) -> str:
    """Return the text with ``(left out)`` in place of each word that can be a name from the user's cluster.

    Numbers, common words and the ``known`` names are kept.
    """

    def shown(word: re.Match[str]) -> str:
        bare = word[0].strip(".,;:()[]'\"-÷=")
        is_public = not bare or bare.lower() in _WORDS or bare in known or _NUMBER.fullmatch(bare)
        if is_public:
            return word[0]
        return LEFT_OUT

    return re.sub(rf"{re.escape(LEFT_OUT)}(?: {re.escape(LEFT_OUT)})+", LEFT_OUT, re.sub(r"\S+", shown, text))


WithoutSecrets = Annotated[str, AfterValidator(without_secrets)]
"""A string in a record that quotes an error or a command. Secrets are removed from it."""


def escape(character: str) -> str:
    r"""Return a character as a JSON escape, such as ``"\\n"`` or ``"\\u202e"``."""
    return json.dumps(character)[1:-1]


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    # A match of several characters is a color sequence or a cursor movement of Rich.
    if len(text) > 1 or text.isprintable():
        return text
    return escape(text)


def _commandless(text: str) -> str:
    # Build services look for the exact signs, so escaping one sign disables the command.
    if "::" in text:
        text = _COMMAND_OF_LINE.sub(r"\1\\u003a", text)
    if "##" in text:
        text = _COMMAND_ANYWHERE.sub(r"#\\u0023", text)
    return text
