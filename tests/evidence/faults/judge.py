"""Evaluates a run with faults from its events: lost and disturbed trials, repeated steps and recovery times."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """An event that a trial recorded.

    Attributes:
        what: Whether a process started the trial, began a step, or received an order.
        at_s: The time of the event, in seconds since 1970.
        trial: The trial's ID.
        pid: The process ID.
        node: The ID of the node.
        step: The number of the step. For a start, it is the last step in the checkpoint.
    """

    what: Literal["start", "step", "order"]
    at_s: float
    trial: str
    pid: int
    node: str
    step: int


class Hit(NamedTuple):
    """An injected fault.

    Attributes:
        at_s: The start of the fault, in seconds since 1970.
        pids: The IDs of the processes that the fault kills.
        nodes: The IDs of the nodes on which the fault kills all processes.
        until_s: The end of the fault, in seconds since 1970. Until then, it also kills processes that start.
    """

    at_s: float
    pids: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    until_s: float = 0.0

    def is_on(self, event: Event) -> bool:
        """Return whether the fault kills the process or the node of ``event``."""
        return event.pid in self.pids or event.node in self.nodes

    def ends(self, event: Event) -> bool:
        """Return whether the fault killed the process of ``event``."""
        return (self.at_s >= event.at_s and self.is_on(event)) or self.at_s <= event.at_s <= self.until_s


class TrialEnd(NamedTuple):
    """Tune's final status of a trial, and the last step in Tune's results, or ``None`` without results."""

    status: str
    step: int | None


class Verdict(NamedTuple):
    """The effects of faults on a run.

    Attributes:
        lost: The trials that did not end normally, with reasons.
        disturbed: The trials that restarted without a fault, or ran in two processes at once.
        repeated: The number of repeated steps for each restart after a fault.
        recovery_s: The seconds from the fault to the next step, for each restart after a fault.
    """

    lost: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    repeated: tuple[int, ...] = ()
    recovery_s: tuple[float, ...] = ()


def judge(events: Iterable[Event], hits: Sequence[Hit], ends: Mapping[str, TrialEnd]) -> Verdict:
    """Return the effects of faults on the trials.

    ``hits`` must be in order of time. ``ends`` contains how each trial ended according to Tune.
    """
    by_trial = sorted(events, key=attrgetter("trial", "at_s"))
    trials = {trial: list(its) for trial, its in groupby(by_trial, key=attrgetter("trial"))}
    found = [_judge_trial(trial, its, hits, ends.get(trial)) for trial, its in trials.items()]
    never = tuple(f"{trial}: never started" for trial in sorted(ends.keys() - trials.keys()))
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
                disturbed.append(f"{trial}: processes {event.pid} and {start.pid} run at once")
                former.discard(event.pid)  # once is enough
            continue
        hit = next((hit for hit in reversed(hits) if hit.at_s <= event.at_s and hit.ends(start)), None)
        if hit is None:
            disturbed.append(f"{trial}: restarted at step {event.step} of {most} without a fault")
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
        return "the run did not finish, or does not contain the trial"
    if end.status != "TERMINATED":
        return end.status
    # A scheduler may stop a trial during its last step, so one step may be missing.
    return (
        "" if end.step is not None and end.step >= most - 1 else f"Tune's last result is of step {end.step} of {most}"
    )
