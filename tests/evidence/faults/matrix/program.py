"""A program that runs trials while faults strike: what its trials noted, what hit them, and what its log said."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

from tune_policies.files.child_python import child_python

from .cluster import FaultCluster
from .judge import Hit, Verdict, Verdicts, judge, not_kept
from .trial import EVENTS, FINISH, ORDERS, SCRATCH, Event, EventReader
from .ways import DRIVERS, OUTCOME, PLANNED, WITH_PBT, WITH_TRAIN, Order, read_outcome, write_order

_ROOT: Final = Path(__file__).parents[4]
_POLL_S: Final = 0.1
_START_S: Final = 120.0
_RECOVER_S: Final = 60.0
_END_S: Final = 180.0
_HALF: Final = re.compile(r"\.[0-9a-f]{8}$")
"""How a file is called that is not written to its end."""
_AFTER_S: Final = 1.0
_LAST_CHARACTERS: Final = 3000
_LEFT_S: Final = 60.0
"""How long after a run Ray may take to end its processes and free what they held.

A worker that is just starting when its raylet is killed looks for it ten times, for a second each, after its imports.
"""


class MissedError(Exception):
    """A fault could not be made to strike."""


class RunningProgram:
    """A program on a cluster, in a folder of its own, with environment variables of its own."""

    def __init__(
        self, cluster: FaultCluster, folder: Path, order: Order, variables: Mapping[str, str] | None = None
    ) -> None:
        self.cluster, self.folder, self.order = cluster, folder, order
        self.neighbours: list[RunningProgram] = []
        self._variables = variables or {}
        for name in (EVENTS, ORDERS, SCRATCH, DRIVERS):
            (folder / name).mkdir()
        self._reader = EventReader(folder)
        self.log = folder / "program.log"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        write_order(self.folder, self.order)
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, **self._variables}
        command = child_python("-m", "tests.evidence.faults.matrix.ways", str(self.folder))
        with self.log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=_ROOT)

    def resume(self) -> None:
        """Start the program again once it has ended, to resume its run."""
        self.order = replace(self.order, resumes=True, waits_for_plan=False)
        (self.folder / OUTCOME).unlink(missing_ok=True)
        self.process = self._start()

    def start_neighbour(self) -> "RunningProgram":
        """Start another program on the same cluster, which runs the same in a folder of its own."""
        folder = self.folder / f"neighbour-{len(self.neighbours)}"
        folder.mkdir()
        self.neighbours.append(RunningProgram(self.cluster, folder, self.order))
        return self.neighbours[-1]

    def kill(self) -> None:
        """Kill the program and its neighbours; nothing happens to those that have ended."""
        for each in (self, *self.neighbours):
            each.process.kill()
            each.process.wait()

    def events(self) -> list[Event]:
        """Return what the trials have noted so far."""
        return self._reader.events()

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

    def wait_for_plan(self) -> None:
        """Wait until the program has planned.

        Raises:
            MissedError: It does not.
        """
        if not self.wait_until((self.folder / PLANNED).exists, _START_S):
            raise MissedError("the program does not plan")

    def begin(self) -> None:
        """Let a program that waits for it begin its run."""
        (self.folder / PLANNED).unlink()

    def wait_for_trials(self, number: int) -> None:
        """Wait until so many trials run.

        Raises:
            MissedError: They do not.
        """
        if not self.wait_until(lambda: len(self.current()) >= number, _START_S):
            raise MissedError(f"only {len(self.current())} of {number} trials run")

    def last_words(self) -> str:
        """Return the end of the program's log, without what raylets say in it."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "(raylet)" not in line and "state-dump" not in line)[
            -_LAST_CHARACTERS:
        ]

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
        if not self.wait_until(lambda: bool(obeyed()), 30):
            raise MissedError(f"{trial} does not obey {order!r}")
        return obeyed()[-1]

    def told_to(self, order: str) -> set[str]:
        """Return the trials that have obeyed an order which begins like this."""
        return {each.trial for each in self.events() if each.what == "order" and each.origin.startswith(order)}

    def goes_on_after(self, hit: Hit) -> bool:
        """Wait until every trial that was hit takes steps again; return whether all do."""
        latest = {event.trial: event for event in self.events() if event.at_s <= hit.at_s}
        hit_trials = {trial for trial, event in latest.items() if event.what != "end" and hit.is_on(event)}

        def goes_on(event: Event) -> bool:
            # A fault that lasts does not end every process.
            return not hit.is_on(event) or event.at_s > hit.until_s + _AFTER_S > _AFTER_S

        def go_on() -> bool:
            return hit_trials - hit.doomed <= {trial for trial, event in self.current().items() if goes_on(event)}

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
        found = re.finditer(rf"^(\d+\.\d+) .*(?:{pattern})", self.log.read_text(errors="replace"), re.MULTILINE)
        times_s = [float(each[1]) for each in found]
        after = [at_s - hit.at_s for at_s in times_s if at_s >= hit.at_s - 0.1]
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
        num_trials: How many trials a run without Train has.
        num_at_once: How many of them run before the first strike.
        order: What else the program is told; see :class:`Order`.
        variables: Returns environment variables for the program in a folder.
        before: Called when the program has planned, before trials start.
        after: Called when the fault has struck and the trials that it hit go on; returns what it found.
        cleanup: Called when the program has ended.
        told: What the program's log says of the fault, as a regular expression; empty: nothing is to be told.
        ends_run: Whether the run ends by the fault, and does not go on.
        group: The kinds of one group share a run, for which the first says what it needs. Empty: all that need nothing.
    """

    title: str
    strike: Strike
    ways: tuple[str, ...]
    number: int = 1
    num_trials: int = 4
    num_at_once: int = 4
    order: Mapping[str, Any] = field(default_factory=dict)
    variables: Callable[[Path], Mapping[str, str]] | None = None
    before: Callable[[RunningProgram], None] | None = None
    after: Callable[[RunningProgram, Hit], Verdict] | None = None
    cleanup: Callable[[RunningProgram], None] | None = None
    told: str = ""
    ends_run: bool = False
    group: str = ""

    def under(self, way: str) -> "Fault":
        """Return the fault for runs in this way: with Train, whose trials have four processes, less of all."""
        if way not in WITH_TRAIN:
            return self
        num_trials, num_at_once = -(-self.num_trials // 2), -(-self.num_at_once // 2)
        return replace(self, number=-(-self.number // 3), num_trials=num_trials, num_at_once=num_at_once)


def run_under(
    faults: Mapping[str, Fault], way: str, cluster: FaultCluster, folder: Path, number: int | None, seed: int
) -> Verdicts:
    """Run trials in one way while faults strike, each kind so often, in random order; return what each kind did.

    Args:
        faults: The kinds by their names, all of one group.
        way: How the trials run.
        cluster: Where they run.
        folder: For the program's files.
        number: How often each kind strikes; ``None``: as often as it says.
        seed: Of what is hit, and when.
    """
    rng = random.Random(f"{seed} {' '.join(faults)} {way}")
    faults = {name: fault.under(way) for name, fault in faults.items()}
    strikes = [name for name, fault in faults.items() for _ in range(number or fault.number)]
    rng.shuffle(strikes)
    first = next(iter(faults.values()))
    order = Order(cluster.address, way, first.num_trials, **first.order)
    program = RunningProgram(cluster, folder, order, first.variables and first.variables(folder))
    hits: list[Hit] = []
    try:
        verdicts = _strike(faults, strikes, program, hits, rng)
        last = hits[-1].kind if hits else strikes[0]
        if not (hits and first.ends_run):
            program.finish()
        status = program.end()
        if status is None:
            verdicts[last] += Verdict(lost=("the program hung, and was killed",))
        ends, error = read_outcome(folder)
        if not (ends or error or first.ends_run):
            verdicts[last] += Verdict(lost=(f"the program ended by itself with status {status}",))
        events = program.events()
        if first.ends_run:
            ended_s = (folder / OUTCOME).stat().st_mtime if ends or error else time.time()
            verdicts[last] += Verdict(ended_s=tuple(ended_s - hit.at_s for hit in hits))
            verdicts[last] += not_kept(events, _saved(folder))
        elif error:
            verdicts[last] += Verdict(lost=(f"the run ended: {error[:200]}",))
        found = judge(events, hits, ends, ends_early=first.ends_run, may_pause=way in WITH_PBT)
        for kind, verdict in found.items():
            verdicts[kind or strikes[0]] += verdict
        for hit in hits:
            if told := faults[hit.kind].told:
                verdicts[hit.kind] += Verdict(told_s=(program.told_after_s(hit, told),))
        if any(verdict.failures for verdict in verdicts.values()):
            print(f"the program's log ends:\n{program.last_words()}", file=sys.stderr, flush=True)
        halves = [f"file {each.name}" for each in (folder / "results").rglob(".*") if _HALF.search(each.name)]
        verdicts[last] += Verdict(left=(*cluster.left_within(_LEFT_S), *halves))
    finally:
        program.kill()
        if first.cleanup is not None:
            first.cleanup(program)
    cluster.restore()
    return verdicts


def _strike(
    faults: Mapping[str, Fault], strikes: Sequence[str], program: RunningProgram, hits: list[Hit], rng: random.Random
) -> Verdicts:
    """Let faults strike in turn, and add to ``hits`` what they hit; return what they find themselves, or missed."""
    verdicts = Verdicts(Verdict)
    first = faults[strikes[0]]
    try:
        if first.before is not None:
            first.before(program)
        program.wait_for_trials(first.num_at_once)
    except (MissedError, OSError, subprocess.SubprocessError) as missed:
        verdicts[strikes[0]] += Verdict(missed=(str(missed),))
        return verdicts
    for kind in strikes:
        fault = faults[kind]
        try:
            hits.append(fault.strike(program, rng)._replace(kind=kind))
            if fault.ends_run:
                break
            program.goes_on_after(hits[-1])
            if fault.after is not None:
                verdicts[kind] += fault.after(program, hits[-1])
        except (MissedError, OSError, subprocess.SubprocessError) as missed:
            verdicts[kind] += Verdict(missed=(str(missed),))
        if program.process.poll() is not None:
            break
        program.cluster.replenish()
        time.sleep(rng.uniform(0.1, 0.6))
    return verdicts


def _saved(folder: Path) -> dict[str, int]:
    """Return the last step of which there is a checkpoint, by trial."""
    saved: dict[str, int] = {}
    for path in (folder / "results").rglob("state.json"):
        state = json.loads(path.read_text())
        trial = state["name"].partition("/")[0]
        saved[trial] = max(state["done"], saved.get(trial, 0))
    return saved
