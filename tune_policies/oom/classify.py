"""The answer for an error, or for the text of one."""

from typing import Final

from tune_policies.oom.error_chain import Link, links, named_errors, shortened
from tune_policies.oom.out_of_memory import OutOfMemory
from tune_policies.oom.signatures import KILLED_BY_RAY, recognise

_NONE: Final = OutOfMemory(kind="none")
_TRACEBACK: Final = "Traceback (most recent call last)"


def classify_oom(error: object) -> OutOfMemory:
    """Return what ``error`` says about memory that ran out; never raises.

    Causes, contexts, members of groups and what Ray wraps are looked at too; the innermost error that means memory
    gives the answer. A context that ``raise ... from None`` hides does not count. A text is taken for a traceback.
    """
    if type(error) is str:
        return classify_oom_text(error)
    deepest, answer = -1, _NONE
    for link in links(error):
        if link.depth > deepest and (found := _classify_one(link)):
            deepest, answer = link.depth, found
    return answer


def classify_oom_text(text: str) -> OutOfMemory:
    """Return what the text of a traceback says about memory that ran out; never raises.

    For where the error itself cannot be had, such as Tune's ``error.txt``, of whose failures the last one counts.
    Only the lines on which the text names an error count; of a very long text the beginning and the end.
    """
    return _in_traceback(shortened(text)) or _NONE


def _classify_one(link: Link) -> OutOfMemory | None:
    # The message of an error that comes from another process has that process's traceback in it; Ray's own errors
    # are nothing but that.
    message, traceback, _ = link.text.partition(_TRACEBACK)
    of_ray = any(name.startswith("ray.") for name in link.types[:1]) and KILLED_BY_RAY not in link.types
    found = None if of_ray else recognise(link.types, message)
    return _in_traceback(link.text) if found is None and (of_ray or traceback) else found


def _in_traceback(text: str) -> OutOfMemory | None:
    answers = (recognise((name,), message) for name, message in named_errors(text))
    return next((answer for answer in answers if answer is not None), None)
