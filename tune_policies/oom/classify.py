"""Classifies an error, or its text, by the innermost out-of-memory error in it.

Errors can be objects of any library. Reading their attributes, text or type can raise another error, and chains of
errors can form cycles or be endless.

In a string, only the lines of a traceback with an error's type and message are evaluated, because source lines and the
surrounding log can mention memory, too.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeGuard

from tune_policies.oom.signatures import KILLED_BY_RAY, KILLED_BY_RAY_SENTENCE, OutOfMemory, match_signature

_MAX_ERRORS: Final = 10_000
_MAX_CHARACTERS: Final = 100_000

_WRAPPING_ATTRIBUTES: Final = ("cause", "controller_failure", "health_check_failure", "_base_exc")
"""The attributes that contain the wrapped error in Ray's RayTaskError and the errors of Ray Train."""


class ChainedError(NamedTuple):
    """One error of a chain.

    Attributes:
        depth: The number of errors that wrap this error.
        types: The full names of the error's type and base types. The names of built-in types omit the module.
        text: The message, shortened if it is very long.
    """

    depth: int
    types: tuple[str, ...]
    text: str


def walk_errors(error: object) -> Iterator[ChainedError]:
    """Yield ``error`` and each error inside it once, with outer errors first. This function never raises an error."""
    waiting: list[tuple[int, object]] = [(0, error)]
    seen: dict[int, BaseException] = {}  # keep the errors alive, so that no new object reuses an ID
    while waiting and len(seen) < _MAX_ERRORS:
        depth, current = waiting.pop()
        if id(current) in seen or not _is_error(current):
            continue
        seen[id(current)] = current
        yield ChainedError(depth, _types(current), _text(current))
        # ``pop`` takes the last entry, so the first inner error is added last.
        waiting.extend((depth + 1, inner) for inner in reversed(_inner_errors(current)))


def _is_error(value: object) -> TypeGuard[BaseException]:
    return issubclass(type(value), BaseException)  # isinstance() would read the object's own __class__


def _inner_errors(error: BaseException) -> list[object]:
    cause = _read_attribute(error, "__cause__")
    # A cause or "from None" hides the context, as in Python's tracebacks.
    hides_context = cause is not None or _read_attribute(error, "__suppress_context__")
    context = None if hides_context else _read_attribute(error, "__context__")
    failures = _read_attribute(error, "worker_failures")  # an attribute of Ray Train's WorkerGroupError
    of_workers = list(failures.values()) if type(failures) is dict else None
    return [
        *(cause, context),
        *_members(_read_attribute(error, "exceptions")),
        *(_read_attribute(error, name) for name in _WRAPPING_ATTRIBUTES),
        *_members(of_workers),
        *_members(_read_attribute(error, "args")),
    ]


def _members(values: object) -> tuple[object, ...] | list[object]:
    if type(values) is tuple or type(values) is list:
        return values
    return ()


def _read_attribute(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a foreign object can raise any error
        return None


def _types(error: BaseException) -> tuple[str, ...]:
    try:
        return tuple(f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.") for cls in type(error).__mro__)
    except Exception:  # noqa: BLE001 - a foreign object can raise any error
        return ()


def _text(error: BaseException) -> str:
    try:
        text = str(error) or str(_read_attribute(error, "message") or "")
    except Exception:  # noqa: BLE001 - a foreign object can raise any error
        return ""
    return shortened(text)


def shortened(text: str) -> str:
    """Return ``text``, or only its beginning and end if it is very long."""
    half = _MAX_CHARACTERS // 2
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:half]}\n{text[-half:]}"


_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_GROUP_MARGIN: Final = re.compile(r"^ *[|+] ?", re.MULTILINE)
_NAME: Final = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|ExceptionGroup|Interrupt|Exit)(?:\(\w+\))?)(?:: ?(.*))?")
_NAME_BELOW_FRAMES: Final = re.compile(r"([\w.]+(?:<locals>[\w.]+)*(?:\(\w+\))?)(?:: ?(.*))?")
_END: Final = re.compile(
    r"(?:Exception Group |Original )?Traceback \(|The above exception was|During handling of the above"
    r"|Failure # \d|(?:[\w.]+(?:\(\w+\))?: )?ray::|[-+]{3,}"
)
_FAILURE: Final = re.compile(r"^Failure # \d+ \(occurred at ", re.MULTILINE)
"""The header of a failure. Tune appends each failure of a trial to the same file (``Trial.handle_error``)."""


def named_errors(text: str) -> Iterator[tuple[str, str]]:
    """Yield the type and the message of each error in the tracebacks of ``text``, in the order of the text.

    If a trial failed several times, only the errors of the last failure are included.
    """
    failures = [match.start() for match in _FAILURE.finditer(text)]
    if failures:
        text = text[failures[-1] :]
    lines = _GROUP_MARGIN.sub("", _COLOUR.sub("", text)).splitlines()
    name: str | None = None
    message: list[str] = []
    for above, line in pairwise(["", *lines]):
        below_frames = above.startswith("  ")  # in a traceback, the error follows the indented frames
        ended, started = _END.match(line), None
        if not ended and name is None and below_frames:
            started = _start(line, _NAME_BELOW_FRAMES)
        elif not ended and (name is None or below_frames):
            started = _start(line, _NAME)
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
    named = name.fullmatch(line)
    if named:
        return named[1], named[2] or ""
    # If an actor died, Tune writes only the error's message.
    if re.match(KILLED_BY_RAY_SENTENCE, line):
        return (KILLED_BY_RAY, line)
    return None


_NONE: Final = OutOfMemory(kind="none")
_TRACEBACK: Final = "Traceback (most recent call last)"


def classify_oom(error: object) -> OutOfMemory:
    """Return the out-of-memory error in ``error``, or an ``OutOfMemory`` of kind ``"none"``.

    The function never raises an error. It also searches causes, contexts that are not hidden, members of exception
    groups and the errors that Ray wraps, and returns the innermost out-of-memory error. If ``error`` is a string, it is
    parsed as a traceback.
    """
    if type(error) is str:
        return classify_oom_text(error)
    deepest, answer = -1, _NONE
    for inner in walk_errors(error):
        # Only a deeper error is closer to the origin. Of several at the same depth, the first one counts.
        if inner.depth <= deepest:
            continue
        found = _classify_one(inner)
        if found:
            deepest, answer = inner.depth, found
    return answer


def classify_oom_text(text: str) -> OutOfMemory:
    """Return the out-of-memory error in the text of a traceback, or an ``OutOfMemory`` of kind ``"none"``.

    Use this function if you only have the text of an error, such as Tune's ``error.txt``. The function evaluates
    only the last failure in the text, and only the lines with an error's type and message. It skips the middle of a
    very long text, and never raises an error.
    """
    return _in_traceback(shortened(text)) or _NONE


def _classify_one(error: ChainedError) -> OutOfMemory | None:
    # The message of an error from another process contains that process's traceback. The message of Ray's own errors
    # consists only of the traceback.
    message, traceback, _ = error.text.partition(_TRACEBACK)
    of_ray = any(name.startswith("ray.") for name in error.types[:1]) and KILLED_BY_RAY not in error.types
    found = None if of_ray else match_signature(error.types, message)
    if found is None and (of_ray or traceback):
        return _in_traceback(error.text)
    return found


def _in_traceback(text: str) -> OutOfMemory | None:
    answers = (match_signature((name,), message) for name, message in named_errors(text))
    return next((answer for answer in answers if answer is not None), None)
