"""Classifies an error, or the text of one, by the innermost error in it that means memory."""

from typing import Final

from tune_policies.oom.error_chain import ChainedError, named_errors, shortened, walk_errors
from tune_policies.oom.out_of_memory import OutOfMemory
from tune_policies.oom.signatures import KILLED_BY_RAY, match_signature

_NONE: Final = OutOfMemory(kind="none")
_TRACEBACK: Final = "Traceback (most recent call last)"


def classify_oom(error: object) -> OutOfMemory:
    """Return what ``error`` says about memory that ran out; never raises.

    It also reads causes, contexts, members of exception groups and what Ray wraps; the innermost error that means
    memory gives the answer. A context that ``raise ... from None`` hides does not count. A text is read as a traceback.
    """
    if type(error) is str:
        return classify_oom_text(error)
    deepest, answer = -1, _NONE
    for inner in walk_errors(error):
        if inner.depth > deepest and (found := _classify_one(inner)):
            deepest, answer = inner.depth, found
    return answer


def classify_oom_text(text: str) -> OutOfMemory:
    """Return what the text of a traceback says about memory that ran out; never raises.

    Use it where you do not have the error itself, such as for Tune's ``error.txt``. Of several failures in that file
    the last one counts. Only lines that name an error count. Of a very long text, the beginning and the end are read.
    """
    return _in_traceback(shortened(text)) or _NONE


def _classify_one(error: ChainedError) -> OutOfMemory | None:
    # The message of an error from another process has that process's traceback in it. The message of Ray's own errors
    # is nothing but such a traceback.
    message, traceback, _ = error.text.partition(_TRACEBACK)
    of_ray = any(name.startswith("ray.") for name in error.types[:1]) and KILLED_BY_RAY not in error.types
    found = None if of_ray else match_signature(error.types, message)
    return _in_traceback(error.text) if found is None and (of_ray or traceback) else found


def _in_traceback(text: str) -> OutOfMemory | None:
    answers = (match_signature((name,), message) for name, message in named_errors(text))
    return next((answer for answer in answers if answer is not None), None)
