"""What faults did to a run: trials lost, steps taken twice, neighbours disturbed, and how soon the trials went on.

Pure: what trials noted and what was done to them in, a verdict out.
"""

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
    """

    at_s: float
    pids: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()

    def ends(self, event: Event) -> bool:
        """Return whether the fault came after ``event`` and ended the process that noted it."""
        return self.at_s >= event.at_s and self.is_on(event)

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
        lost: The trials that did not end well, each with why.
        repeated: For each trial that started again after a fault, how many steps it took twice.
        disturbed: The trials that started again though nothing had hit them, and those that two processes ran at once.
        recovery_s: For each trial that started again, seconds from the fault to its next step.
        ended_s: Where the fault ends the run, seconds from the fault to the end of the program.
        told_s: For each fault, seconds until the program's log said so; ``None``: it did not.
        left: What the run left behind.
    """

    num_faults: int = 0
    lost: tuple[str, ...] = ()
    repeated: tuple[int, ...] = ()
    disturbed: tuple[str, ...] = ()
    recovery_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    told_s: tuple[float | None, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: "Verdict") -> "Verdict":
        """Return what the faults of both did."""
        return Verdict(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def judge(
    events: Iterable[Event],
    hits: Sequence[Hit],
    ends: Mapping[str, TrialEnd],
    *,
    ends_early: bool = False,
) -> Verdict:
    """Return what ``hits`` did to the trials.

    Args:
        events: What the trials noted, in order of time.
        hits: The faults.
        ends: How each trial ended; empty: the program did not say.
        ends_early: Whether the fault ends the run by itself, so that a trial may have an error.
    """
    verdict = Verdict(num_faults=sum(max(1, len(hit.pids)) for hit in hits))
    by_trial = sorted(events, key=attrgetter("trial", "at_s"))
    seen = set()
    for trial, its in groupby(by_trial, key=attrgetter("trial")):
        seen.add(trial)
        its_events = list(its)
        verdict += _judge_trial(trial, its_events, hits)
        if not ends_early and (why := _why_lost(its_events, ends.get(trial))):
            verdict += Verdict(lost=(f"{trial}: {why}",))
    if not ends_early:
        verdict += Verdict(lost=tuple(f"{trial}: it never started" for trial in sorted(ends.keys() - seen)))
    return verdict


def _why_lost(events: Sequence[Event], end: TrialEnd | None) -> str:
    if end is None:
        return "the run did not end, or does not know it"
    if end.status != "TERMINATED":
        return end.status
    last = max(event.step for event in events if event.pid == events[-1].pid)
    # A trial that a scheduler stops has heard of all its steps but perhaps the one that it began meanwhile.
    return "" if end.step is not None and end.step >= last - 1 else f"Tune knows step {end.step} of {last}"


def _judge_trial(trial: str, events: Sequence[Event], hits: Sequence[Hit]) -> Verdict:
    verdict = Verdict()
    start = latest = events[0]
    former: set[int] = set()
    most = start.step
    for place, event in enumerate(events[1:], 1):
        if event.what != "start":
            if event.pid in former:
                verdict += Verdict(disturbed=(f"{trial}: process {event.pid} goes on beside {start.pid}",))
                former.discard(event.pid)  # once is enough
            elif event.pid == start.pid:
                latest, most = event, max(most, event.step)
            continue
        owner = event.origin.partition("/")[0]
        is_taken_over = owner not in ("", trial) and event.origin != start.origin
        hit = next((hit for hit in reversed(hits) if hit.at_s <= event.at_s and hit.ends(start)), None)
        if hit is not None and not is_taken_over:
            next_step = next((each for each in events[place:] if each.what == "step" and each.pid == event.pid), None)
            verdict += Verdict(
                repeated=(max(0, most - event.step),),
                recovery_s=() if next_step is None else (next_step.at_s - hit.at_s,),
            )
        elif hit is None and not is_taken_over:
            verdict += Verdict(disturbed=(f"{trial}: starts again at step {event.step} of {latest.step}, unhit",))
        if event.pid != start.pid:
            former.add(start.pid)
        start = latest = event
        most = event.step
    return verdict


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
