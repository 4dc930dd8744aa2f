"""A program that runs trials while faults strike: what its trials noted, what hit them, and what its log said."""

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tune_policies.files.child_python import child_python

from .cluster import FaultCluster
from .judge import Hit, Verdict, judge, not_kept
from .trial import EVENTS, FINISH, ORDERS, SCRATCH, Event, read_events
from .ways import DRIVERS, OUTCOME, WITH_TRAIN, Order, read_outcome, write_order

_ROOT: Final = Path(__file__).parents[4]
_POLL_S: Final = 0.05
_START_S: Final = 240.0
_RECOVER_S: Final = 120.0
_END_S: Final = 120.0
_HALF: Final = re.compile(r"\.[0-9a-f]{8}$")
"""How a file is called that is not written to its end."""
_LEFT_S: Final = 20.0
"""How long after a run Ray may take to end its processes and free what they held."""


class MissedError(Exception):
    """A fault could not be made to strike."""


class RunningProgram:
    """A program on a cluster, in a folder of its own."""

    def __init__(self, cluster: FaultCluster, folder: Path, order: Order) -> None:
        self.cluster, self.folder = cluster, folder
        for name in (EVENTS, ORDERS, SCRATCH, DRIVERS):
            (folder / name).mkdir()
        write_order(folder, order)
        self.log = folder / "program.log"
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        command = child_python("-m", "tests.evidence.faults.matrix.ways", str(folder))
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=_ROOT)

    def events(self) -> list[Event]:
        """Return what the trials have noted so far."""
        return read_events(self.folder)

    def current(self) -> dict[str, Event]:
        """Return the last step of each trial in the process that runs it now, if it has taken one there."""
        pids: dict[str, int] = {}
        steps: dict[str, Event] = {}
        latest: dict[int, Event] = {}  # of each process, which may run one trial after the other
        for event in self.events():
            latest[event.pid] = event
            if event.what == "start":
                pids[event.trial] = event.pid
                steps.pop(event.trial, None)
            elif event.pid == pids.get(event.trial):
                steps[event.trial] = event
        return {
            trial: event
            for trial, event in steps.items()
            if latest[event.pid] == event and event.what != "end" and psutil.pid_exists(event.pid)
        }

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds; return whether it did, before the program or the time was over."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline or self.process.poll() is not None:
                return holds()
            time.sleep(_POLL_S)
        return True

    def wait_for_trials(self, number: int) -> None:
        """Wait until so many trials run.

        Raises:
            MissedError: They do not.
        """
        if not self.wait_until(lambda: len(self.current()) >= number, _START_S):
            raise MissedError(f"only {len(self.current())} of {number} trials run: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of the program's log."""
        return self.log.read_text(errors="replace")[-1500:]

    def pick(self, rng: random.Random, besides: Iterable[str] = ()) -> Event:
        """Return the latest step of some trial that runs.

        Raises:
            MissedError: None runs.
        """
        running = self.current()
        trials = sorted(running.keys() - set(besides)) or sorted(running)
        if not trials:
            raise MissedError("no trial runs")
        return running[rng.choice(trials)]

    def tell(self, trial: str, order: str) -> Event:
        """Give a trial an order; return when and where it obeys.

        Raises:
            MissedError: It does not.
        """
        since_s = time.time()

        def obeyed() -> list[Event]:
            return [
                each for each in self.events() if (each.what, each.trial) == ("order", trial) and each.at_s > since_s
            ]

        path = self.folder / ORDERS / trial
        path.with_suffix(".new").write_text(order)
        path.with_suffix(".new").replace(path)
        if not self.wait_until(lambda: bool(obeyed()), 60):
            errors = [path.read_text()[-500:] for path in (self.folder / "results").rglob("error.txt")]
            raise MissedError(f"{trial} does not obey {order!r}: {errors}")
        return obeyed()[-1]

    def goes_on_after(self, hit: Hit) -> bool:
        """Wait until every trial that was hit takes steps again, in another process; return whether all do."""
        events = self.events()
        latest = {event.trial: event for event in events if event.at_s <= hit.at_s}
        hit_trials = {trial for trial, event in latest.items() if event.what != "end" and hit.ends(event)}

        def go_on() -> bool:
            return hit_trials <= {trial for trial, event in self.current().items() if not hit.is_on(event)}

        return self.wait_until(go_on, _RECOVER_S)

    def finish(self) -> None:
        """Let the trials finish."""
        (self.folder / FINISH).touch()

    def end(self) -> int | None:
        """Wait for the program's end, and return its exit status. ``None``: it hung, and was killed."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_END_S)
        self.process.kill()
        self.process.wait()
        return None

    def told_after_s(self, hit: Hit, pattern: str) -> float | None:
        """Return how soon after a fault the log said something; ``None``: it did not."""
        found = re.findall(rf"^(\d+\.\d+) .*(?:{pattern})", self.log.read_text(errors="replace"), re.MULTILINE)
        after = [float(at_s) - hit.at_s for at_s in found if float(at_s) >= hit.at_s - 0.1]
        return max(0.0, min(after)) if after else None


Strike = Callable[[RunningProgram, random.Random], Hit]


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        title: What it is, in a few words.
        strike: Makes it strike once while trials run, and returns what it hit.
        ways: The ways under which it is tried.
        number: How many times it strikes in a run without Train.
        num_trials: How many trials a run has.
        num_at_once: How many run before the first strike.
        order: What else the program is told; see :class:`Order`.
        before: Called when the program has planned, before trials start.
        after: Called when the fault has struck and the trials that it hit go on; returns what it found.
        told: What the program's log says of the fault, as a regular expression; empty: nothing is to be told.
        ends_run: Whether the run ends by the fault, and does not go on.
    """

    title: str
    strike: Strike
    ways: tuple[str, ...]
    number: int = 1
    num_trials: int = 4
    num_at_once: int = 4
    order: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[RunningProgram], None] | None = None
    after: Callable[[RunningProgram, Hit], Verdict] | None = None
    told: str = ""
    ends_run: bool = False

    def number_under(self, way: str) -> int:
        """Return how many times it strikes in a run: with Train, which takes longer to go on, a third as often."""
        return -(-self.number // 3) if way in WITH_TRAIN else self.number


def run_under(fault: Fault, way: str, cluster: FaultCluster, folder: Path, number: int, seed: int) -> Verdict:
    """Run trials in one way while a fault strikes so many times; return what it did."""
    order = Order(cluster.address, way, fault.num_trials, **fault.order)
    program = RunningProgram(cluster, folder, order)
    hits: list[Hit] = []
    try:
        verdict = _strike(fault, program, hits, number, random.Random(f"{seed} {fault.title} {way}"))
        if not (hits and fault.ends_run):
            program.finish()
        if program.end() is None:
            verdict += Verdict(lost=(f"the program hung, and was killed: {program.last_words()[-300:]}",))
    finally:
        program.process.kill()  # does nothing to one that has ended
    ends, error = read_outcome(folder)
    events = program.events()
    if fault.ends_run:
        ended_s = (folder / OUTCOME).stat().st_mtime if ends or error else time.time()
        verdict += Verdict(ended_s=tuple(ended_s - hit.at_s for hit in hits)) + not_kept(events, _saved(folder))
    elif error:
        verdict += Verdict(lost=(f"the run ended: {error[:200]}",))
    verdict += judge(events, hits, ends, ends_early=fault.ends_run)
    if fault.told:
        verdict += Verdict(told_s=tuple(program.told_after_s(hit, fault.told) for hit in hits))
    halves = [f"file {each.name}" for each in (folder / "results").rglob(".*") if _HALF.search(each.name)]
    verdict += Verdict(left=(*cluster.left_within(_LEFT_S), *halves))
    cluster.restore()
    return verdict


def _strike(fault: Fault, program: RunningProgram, hits: list[Hit], number: int, rng: random.Random) -> Verdict:
    """Let a fault strike, and add to ``hits`` what it hits; return what it finds itself, or that it missed."""
    verdict = Verdict()
    try:
        if fault.before is not None:
            fault.before(program)
        program.wait_for_trials(fault.num_at_once)
        for _ in range(number):
            hits.append(fault.strike(program, rng))
            if fault.ends_run:
                break
            program.goes_on_after(hits[-1])
            if fault.after is not None:
                verdict += fault.after(program, hits[-1])
            program.cluster.restore()
            time.sleep(rng.uniform(0.1, 0.6))
    except MissedError as missed:
        verdict += Verdict(lost=(f"missed: {missed}",))
    return verdict


def _saved(folder: Path) -> dict[str, int]:
    """Return the last step of which there is a checkpoint, by trial."""
    saved: dict[str, int] = {}
    for path in (folder / "results").rglob("state.json"):
        state = json.loads(path.read_text())
        trial = state["name"].partition("/")[0]
        saved[trial] = max(state["done"], saved.get(trial, 0))
    return saved
