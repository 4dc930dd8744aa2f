"""What faults did to a run: trials lost, steps taken twice, neighbours disturbed, and how soon the trials went on.

Pure: what trials noted and what was done to them in, a verdict on each kind of fault out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from .trial import Event


class Hit(NamedTuple):
    """A fault that struck.

    Attributes:
        at_s: When, in seconds since 1970.
        pids: The processes that it ends, whose trials may start again.
        nodes: The nodes of which the same holds for all processes.
        until_s: How long it goes on, in seconds since 1970: processes that start meanwhile are hit, too.
        number: How many faults it counts as.
        doomed: The trials that cannot go on after it, whatever is done.
        kind: The name of its kind.
    """

    at_s: float
    pids: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    until_s: float = 0.0
    number: int = 1
    doomed: frozenset[str] = frozenset()
    kind: str = ""

    def ends(self, event: Event) -> bool:
        """Return whether the fault came after ``event``, or while it was noted, and ended the process that noted it."""
        return (self.at_s >= event.at_s and self.is_on(event)) or self.at_s <= event.at_s <= self.until_s

    def is_on(self, event: Event) -> bool:
        """Return whether ``event`` was noted in a process, or on a node, that the fault ends."""
        return event.pid in self.pids or event.node in self.nodes


class TrialEnd(NamedTuple):
    """How a trial ended, as Tune says.

    Attributes:
        status: Tune's word.
        step: The last step that Tune has heard of; ``None``: of none.
    """

    status: str
    step: int | None


@dataclass(frozen=True)
class Verdict:
    """What faults did to one run, or to several.

    Attributes:
        num_faults: How many struck.
        missed: Why faults could not be made to strike.
        lost: The trials that did not end well, each with why.
        repeated: For each trial that started again after a fault, how many steps it took twice.
        disturbed: The trials that started again though nothing had hit them, and those that two processes ran at once.
        recovery_s: For each trial that started again, seconds from the fault to its next step.
        process_s: How many of these seconds until its new process was there, which then starts and imports.
        ended_s: Where the fault ends the program, seconds from the fault to that end.
        told_s: For each fault, seconds until the program's log said so; ``None``: it did not.
        left: What the run left behind.
    """

    num_faults: int = 0
    missed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    repeated: tuple[int, ...] = ()
    disturbed: tuple[str, ...] = ()
    recovery_s: tuple[float, ...] = ()
    process_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    told_s: tuple[float | None, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: "Verdict") -> "Verdict":
        """Return what the faults of both did."""
        return Verdict(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    @property
    def failures(self) -> tuple[str, ...]:
        """What should not have been."""
        missed, left = (f"missed: {each}" for each in self.missed), (f"left: {each}" for each in self.left)
        return (*self.lost, *self.disturbed, *left, *missed)


Verdicts = defaultdict[str, Verdict]
"""Verdicts by kind of fault; of none where nothing had struck yet."""


def judge(
    events: Iterable[Event],
    hits: Sequence[Hit],
    ends: Mapping[str, TrialEnd],
    *,
    ends_early: bool = False,
    may_pause: bool = False,
) -> Verdicts:
    """Return what ``hits`` did to the trials, by kind: what came after several is of the last.

    Args:
        events: What the trials noted, in order of time.
        hits: The faults, in order of time.
        ends: How each trial ended; empty: the program did not say.
        ends_early: Whether the fault ends the run by itself, so that a trial may have an error.
        may_pause: Whether the scheduler pauses trials that it lets go on later, as PBT does while others wait.
    """
    verdicts = Verdicts(Verdict)
    for hit in hits:
        verdicts[hit.kind] += Verdict(num_faults=hit.number)
    last_kind = hits[-1].kind if hits else ""
    doomed = frozenset[str]().union(*(hit.doomed for hit in hits))
    by_trial = sorted(events, key=attrgetter("trial", "at_s"))
    seen = set()
    for trial, its in groupby(by_trial, key=attrgetter("trial")):
        seen.add(trial)
        its_events = list(its)
        _judge_trial(trial, its_events, hits, verdicts, may_pause=may_pause)
        if not (ends_early or trial in doomed) and (why := _why_lost(its_events, ends.get(trial))):
            kinds = [hit.kind for hit in hits if any(map(hit.is_on, its_events))]
            verdicts[kinds[-1] if kinds else last_kind] += Verdict(lost=(f"{trial}: {why}",))
    if not ends_early:
        never = sorted(ends.keys() - seen)
        verdicts[last_kind] += Verdict(lost=tuple(f"{trial}: it never started" for trial in never))
    return verdicts


def _why_lost(events: Sequence[Event], end: TrialEnd | None) -> str:
    if end is None:
        return "the run did not end, or does not know it"
    if end.status != "TERMINATED":
        return end.status
    last = max(event.step for event in events if event.pid == events[-1].pid)
    # A trial that a scheduler stops has heard of all its steps but perhaps the one that it began meanwhile.
    return "" if end.step is not None and end.step >= last - 1 else f"Tune knows step {end.step} of {last}"


def _judge_trial(
    trial: str, events: Sequence[Event], hits: Sequence[Hit], verdicts: Verdicts, *, may_pause: bool
) -> None:
    def disturb(event: Event, why: str) -> None:
        kind = next((hit.kind for hit in reversed(hits) if hit.at_s <= event.at_s), hits[0].kind if hits else "")
        verdicts[kind] += Verdict(disturbed=(f"{trial}: {why}",))

    start = latest = events[0]
    former: set[int] = set()
    most = start.step
    for place, event in enumerate(events[1:], 1):
        if event.what != "start":
            if event.pid in former:
                disturb(event, f"process {event.pid} goes on beside {start.pid}")
                former.discard(event.pid)  # once is enough
            elif event.pid == start.pid:
                latest, most = event, max(most, event.step)
            continue
        owner = event.origin.partition("/")[0]
        is_taken_over = owner not in ("", trial) and event.origin != start.origin
        hit = next((hit for hit in reversed(hits) if hit.at_s <= event.at_s and hit.ends(start)), None)
        if hit is not None and not is_taken_over:
            verdicts[hit.kind] += _judge_restart(event, events[place:], hit, most)
        elif hit is None and not is_taken_over and not (may_pause and event.step == latest.step):
            disturb(event, f"starts again at step {event.step} of {latest.step}, unhit")
        if event.pid != start.pid:
            former.add(start.pid)
        start = latest = event
        most = event.step


def _judge_restart(start: Event, events: Iterable[Event], hit: Hit, most: int) -> Verdict:
    """Return what a trial took twice, and how soon it went on, which it cannot while the fault still lasts."""
    repeated = Verdict(repeated=(max(0, most - start.step),))
    next_step = next((each for each in events if each.what == "step" and each.pid == start.pid), None)
    if next_step is None or start.at_s < hit.until_s:
        return repeated
    since_s = max(hit.at_s, hit.until_s)
    process_s = max(0.0, start.began_s - since_s)  # one that is reused was there before
    return repeated + Verdict(recovery_s=(next_step.at_s - since_s,), process_s=(process_s,))


def not_kept(events: Iterable[Event], saved: Mapping[str, int]) -> Verdict:
    """Return the trials of a run that has ended early whose last checkpoint lacks more than the step that was begun.

    Args:
        events: What the trials noted.
        saved: The last step of which there is a checkpoint, by trial.
    """
    begun: dict[str, int] = {}
    for event in events:
        begun[event.trial] = max(event.step, begun.get(event.trial, 0))
    return Verdict(
        lost=tuple(
            f"{trial}: its last checkpoint is of step {saved.get(trial, 0)} of {step}"
            for trial, step in begun.items()
            if saved.get(trial, 0) < step - 1
        )
    )
