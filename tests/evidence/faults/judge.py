"""What faults did to a run: trials lost, steps repeated, neighbors disturbed, and how soon the trials went on.

Pure: the events that trials noted and the faults that struck in, a verdict out.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """What a trial has noted.

    Attributes:
        what: Whether a process starts the trial, begins a step, or obeys an order.
        at_s: When, in seconds since 1970.
        trial: The trial's identifier.
        pid: The process.
        node: The identifier of the node.
        step: Which step; at a start, the last step in the checkpoint.
    """

    what: Literal["start", "step", "order"]
    at_s: float
    trial: str
    pid: int
    node: str
    step: int


class Hit(NamedTuple):
    """A fault that struck.

    Attributes:
        at_s: When, in seconds since 1970.
        pids: The processes that it ends.
        nodes: The nodes all of whose processes it ends.
        until_s: When it is over: until then it also ends processes that start.
    """

    at_s: float
    pids: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    until_s: float = 0.0

    def is_on(self, event: Event) -> bool:
        """Whether ``event`` was noted in a process, or on a node, that the fault ends."""
        return event.pid in self.pids or event.node in self.nodes

    def ends(self, event: Event) -> bool:
        """Whether the fault ended the process that noted ``event``."""
        return (self.at_s >= event.at_s and self.is_on(event)) or self.at_s <= event.at_s <= self.until_s


class TrialEnd(NamedTuple):
    """How a trial ended: Tune's status, and the last step in Tune's results, or ``None``."""

    status: str
    step: int | None


class Verdict(NamedTuple):
    """What faults did to a run.

    Attributes:
        lost: The trials that did not end well, and why.
        disturbed: The trials that started again although nothing had hit them, or that two processes ran at once.
        repeated: For each restart after a fault, how many steps were repeated.
        recovery_s: For each restart after a fault, seconds from the fault to the next step.
    """

    lost: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    repeated: tuple[int, ...] = ()
    recovery_s: tuple[float, ...] = ()


def judge(events: Iterable[Event], hits: Sequence[Hit], ends: Mapping[str, TrialEnd]) -> Verdict:
    """Return what ``hits``, in order of time, did to the trials, whose ends are what Tune reported."""
    by_trial = sorted(events, key=attrgetter("trial", "at_s"))
    trials = {trial: list(its) for trial, its in groupby(by_trial, key=attrgetter("trial"))}
    found = [_judge_trial(trial, its, hits, ends.get(trial)) for trial, its in trials.items()]
    never = tuple(f"{trial}: it never started" for trial in sorted(ends.keys() - trials.keys()))
    together = Verdict(*(sum(each, ()) for each in zip(*found, strict=True))) if found else Verdict()
    return together._replace(lost=together.lost + never)


def _judge_trial(trial: str, events: Sequence[Event], hits: Sequence[Hit], end: TrialEnd | None) -> Verdict:
    disturbed, repeated, recovery_s = [], [], []
    start, most = events[0], events[0].step
    former: set[int] = set()
    for place, event in enumerate(events[1:], 1):
        if event.what != "start":
            if event.pid == start.pid:
                most = max(most, event.step)
            elif event.pid in former:
                disturbed.append(f"{trial}: process {event.pid} goes on beside {start.pid}")
                former.discard(event.pid)  # once is enough
            continue
        hit = next((hit for hit in reversed(hits) if hit.at_s <= event.at_s and hit.ends(start)), None)
        if hit is None:
            disturbed.append(f"{trial}: starts again at step {event.step} of {most}, and nothing had hit it")
        else:
            repeated.append(most - event.step)
            following = (each.at_s for each in events[place:] if (each.what, each.pid) == ("step", event.pid))
            recovery_s += [at_s - max(hit.at_s, hit.until_s) for at_s in [next(following, None)] if at_s is not None]
        former.add(start.pid)
        start, most = event, max(most, event.step)
    why = _why_lost(most, end)
    return Verdict((f"{trial}: {why}",) if why else (), tuple(disturbed), tuple(repeated), tuple(recovery_s))


def _why_lost(most: int, end: TrialEnd | None) -> str:
    if end is None:
        return "the run did not end, or does not have it"
    if end.status != "TERMINATED":
        return end.status
    # A scheduler may stop a trial whose next step has begun.
    return "" if end.step is not None and end.step >= most - 1 else f"Tune has step {end.step} of {most}"
