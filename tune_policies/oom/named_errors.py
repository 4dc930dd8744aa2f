"""The errors that the text of a traceback names, each with its message.

Only the lines on which a traceback names an error count, with what follows them up to the next frame: source lines,
which are indented, and the log around them may mention memory as they like.
"""

import re
from collections.abc import Iterator
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_GROUP_MARGIN: Final = re.compile(r"^ *[|+] ?", re.MULTILINE)
_NAME: Final = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|ExceptionGroup|Interrupt|Exit)(?:\(\w+\))?)(?:: ?(.*))?")
_END: Final = re.compile(
    r"(?:Exception Group |Original )?Traceback \(|The above exception was|During handling of the above"
    r"|Failure # \d|ray::|  File \"|[-+]{3,}"
)
_FAILURE: Final = re.compile(r"^Failure # \d+ \(occurred at ", re.MULTILINE)
"""Tune adds each failure of a trial to the same file (``Trial.handle_error``)."""

KILLED_BY_RAY: Final = "ray.exceptions.OutOfMemoryError"
_KILLED: Final = re.compile(
    r".*Worker exit type: NODE_OUT_OF_MEMORY"
    r"|(?:Task was|\d+ worker\(s\) were) killed due to the node running low on memory"
)
"""Ray's memory monitor, in the text of an actor's death, where Tune writes no type. The kernel's own killer leaves no
such trace: Ray then only lists what may have happened."""


def named_errors(text: str) -> Iterator[tuple[str, str]]:
    """Yield the type and the message of each error that ``text`` names, in the order of the text.

    Of several failures of one trial only the last counts.
    """
    failures = [match.start() for match in _FAILURE.finditer(text)]
    lines = _GROUP_MARGIN.sub("", _COLOUR.sub("", text[failures[-1] :] if failures else text)).splitlines()
    name: str | None = None
    message: list[str] = []
    for line in lines:
        started = _start(line)
        if name is not None and (started or _END.match(line)):
            yield name, "\n".join(message)
            name = None
        if started:
            name, message = started[0], [started[1]]
        elif name is not None:
            message.append(line)
    if name is not None:
        yield name, "\n".join(message)


def _start(line: str) -> tuple[str, str] | None:
    if named := _NAME.fullmatch(line):
        return named[1], named[2] or ""
    return (KILLED_BY_RAY, line) if _KILLED.match(line) else None
