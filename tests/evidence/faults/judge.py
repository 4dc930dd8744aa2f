"""Judges a run with faults from the events of its trials: lost and disturbed trials, repeated steps, recovery times."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """An event that a trial recorded.

    Attributes:
        what: A process started the trial, began a step, or obeyed an order.
        at_s: The time in seconds since 1970.
        trial: The trial's ID.
        pid: The process.
        node: The ID of the node.
        step: The step; at a start, the last step in the checkpoint.
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
        at_s: The time in seconds since 1970.
        pids: The processes that it kills.
        nodes: The nodes on which it kills all processes.
        until_s: The end of the fault, until which it also kills processes that start.
    """

    at_s: float
    pids: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    until_s: float = 0.0

    def is_on(self, event: Event) -> bool:
        """Return whether the process or the node of ``event`` is one that the fault kills."""
        return event.pid in self.pids or event.node in self.nodes

    def ends(self, event: Event) -> bool:
        """Return whether the fault killed the process of ``event``."""
        return (self.at_s >= event.at_s and self.is_on(event)) or self.at_s <= event.at_s <= self.until_s


class TrialEnd(NamedTuple):
    """Tune's status of a trial, and the last step in Tune's results, or ``None``."""

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
    """Return the effects of ``hits``, which are in order of time, on the trials; ``ends`` are from Tune."""
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
    # A scheduler may stop a trial during its next step.
    return (
        "" if end.step is not None and end.step >= most - 1 else f"Tune's last result is of step {end.step} of {most}"
    )
