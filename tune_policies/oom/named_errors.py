"""The errors that the text of a traceback names, each with its message.

Only the lines on which a traceback names an error count, with what follows them up to the next frame: source lines,
which are indented, and the log around them may mention memory as they like. A message goes on until the next frame,
though a line of it looks like the name of another error.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tune_policies.oom.forms import KILLED_BY_RAY, KILLED_BY_RAY_SENTENCE

_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_GROUP_MARGIN: Final = re.compile(r"^ *[|+] ?", re.MULTILINE)
_NAME: Final = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|ExceptionGroup|Interrupt|Exit)(?:\(\w+\))?)(?:: ?(.*))?")
_NAME_BELOW_FRAMES: Final = re.compile(r"([\w.]+(?:<locals>[\w.]+)*(?:\(\w+\))?)(?:: ?(.*))?")
_END: Final = re.compile(
    r"(?:Exception Group |Original )?Traceback \(|The above exception was|During handling of the above"
    r"|Failure # \d|(?:[\w.]+(?:\(\w+\))?: )?ray::|[-+]{3,}"
)
_FAILURE: Final = re.compile(r"^Failure # \d+ \(occurred at ", re.MULTILINE)
"""Tune adds each failure of a trial to the same file (``Trial.handle_error``)."""


def named_errors(text: str) -> Iterator[tuple[str, str]]:
    """Yield the type and the message of each error that ``text`` names, in the order of the text.

    Of several failures of one trial only the last counts.
    """
    failures = [match.start() for match in _FAILURE.finditer(text)]
    lines = _GROUP_MARGIN.sub("", _COLOUR.sub("", text[failures[-1] :] if failures else text)).splitlines()
    name: str | None = None
    message: list[str] = []
    for above, line in pairwise(["", *lines]):
        below_frames = above.startswith("  ")
        ended = _END.match(line)
        is_message = name is not None and not below_frames
        started = (
            None
            if ended or is_message
            else _start(line, _NAME_BELOW_FRAMES if name is None and below_frames else _NAME)
        )
        if name is not None and (started or ended):
            yield name, "\n".join(message)
            name = None
        if started:
            name, message = started[0], [started[1]]
        elif name is not None:
            message.append(line)
    if name is not None:
        yield name, "\n".join(message)


def _start(line: str, name: re.Pattern[str]) -> tuple[str, str] | None:
    if named := name.fullmatch(line):
        return named[1], named[2] or ""
    # Of an actor's death Tune writes the message alone.
    return (KILLED_BY_RAY, line) if re.match(KILLED_BY_RAY_SENTENCE, line) else None
