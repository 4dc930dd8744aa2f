"""Each kind of fault under each way to run trials, one run after the other on one cluster, and the table of results."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psutil

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.child_python import child_python
from tune_policies.values.sanitize import one_line

from .cluster import FREE_BYTES, FaultCluster
from .judge import Event, Hit, Verdict, judge
from .program import EVENTS, FINISH, ORDERS, Order, read_outcome, write_order

_ROOT: Final = Path(__file__).parents[3]
_START_S: Final = 120.0
_RECOVER_S: Final = 60.0
_END_S: Final = 180.0
_AFTER_S: Final = 1.0
_NOTICE_S: Final = 3.0
_LEFT_S: Final = 60.0
"""How long after a run Ray may take to end its processes.

A worker that is just starting when its raylet is killed looks for it ten times, for a second each, after its imports.
"""


class MissedError(Exception):
    """A fault could not be made to strike."""


class RunningProgram:
    """A program on a cluster, in a folder of its own."""

    def __init__(self, cluster: FaultCluster, folder: Path, order: Order) -> None:
        self.cluster, self.folder, self.order = cluster, folder, order
        self.log = folder / "program.log"
        for name in (EVENTS, ORDERS):
            (folder / name).mkdir()
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        write_order(self.folder, self.order)
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        command = child_python("-m", "tests.evidence.faults.program", str(self.folder))
        with self.log.open("ab") as output:
            environment = {**os.environ, "PYTHONPATH": path}
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=_ROOT)

    def resume(self) -> None:
        """Start the program again, once it has ended, to resume its run."""
        self.order = replace(self.order, resumes=True)
        self.process = self._start()

    def events(self) -> list[Event]:
        """Return what the trials have noted so far, in order of time."""
        # The last line of a file may not be complete yet.
        lines = [line for path in (self.folder / EVENTS).iterdir() for line in path.read_text().split("\n")[:-1]]
        return sorted((Event(*json.loads(line)) for line in lines), key=attrgetter("at_s"))

    def current(self) -> dict[str, Event]:
        """Return the last step of each trial that runs and has taken one in its present process."""
        latest = {event.trial: event for event in self.events()}
        return {
            trial: event for trial, event in latest.items() if event.what == "step" and psutil.pid_exists(event.pid)
        }

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds; return whether it did before the program or the time was over."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline or self.process.poll() is not None:
                return holds()
            time.sleep(0.1)
        return True

    def pick(self, rng: random.Random, on_node: str | None = None) -> Event:
        """Return the last step of a trial that runs, on any node or on one.

        Raises:
            MissedError: None runs there.
        """
        running = self.current()
        trials = sorted(trial for trial, event in running.items() if on_node in (None, event.node))
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
            return [each for each in self.events() if (each.what, each.trial) == ("order", trial)]

        (self.folder / ORDERS / f"{trial}.new").write_text(order)
        (self.folder / ORDERS / f"{trial}.new").replace(self.folder / ORDERS / trial)
        if not self.wait_until(lambda: any(each.at_s > since_s for each in obeyed()), 30):
            raise MissedError(f"{trial} does not obey {order!r}")
        return obeyed()[-1]

    def goes_on_after(self, hit: Hit) -> bool:
        """Wait until every trial that was hit takes steps again; return whether all do."""
        hit_trials = {event.trial for event in self.events() if event.at_s <= hit.at_s and hit.ends(event)}

        def goes_on(event: Event) -> bool:
            # A process may take another step before it ends, and a fault that lasts does not end every process.
            return not hit.is_on(event) or 0 < hit.until_s < event.at_s - _AFTER_S

        def go_on() -> bool:
            return hit_trials <= {trial for trial, event in self.current().items() if goes_on(event)}

        return self.wait_until(go_on, _RECOVER_S)


Strike = Callable[[RunningProgram, random.Random], Hit]


def _kill_worker(program: RunningProgram, rng: random.Random) -> Hit:
    """End the process in which a trial trains by SIGKILL; with Train, this is the worker."""
    event = program.pick(rng)
    with suppress(ProcessLookupError):
        os.kill(event.pid, signal.SIGKILL)
    return Hit(time.time(), frozenset({event.pid}))


def _tell(order: str) -> Strike:
    """Let a trial fail in the way that ``order`` says."""

    def strike(program: RunningProgram, rng: random.Random) -> Hit:
        event = program.tell(program.pick(rng).trial, order)
        return Hit(event.at_s, frozenset({event.pid}))

    return strike


def _kill_node(program: RunningProgram, rng: random.Random) -> Hit:
    """End the raylet of a node on which a trial runs by SIGKILL."""
    node, at_s = program.pick(rng).node, time.time()
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def _preempt(program: RunningProgram, rng: random.Random) -> Hit:
    """Give notice of a node, as a cloud does for a spot instance, and remove it then."""
    node = program.pick(rng).node
    if not program.cluster.drain(node, _NOTICE_S):
        raise MissedError("Ray does not drain the node")
    time.sleep(_NOTICE_S)
    at_s = time.time()
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def _take_memory(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial on the watched node take memory, until Ray ends it, and whatever else Ray ends there."""
    node = program.cluster.watched
    event = program.tell(program.pick(rng, on_node=node).trial, f"take-host-memory {2 * FREE_BYTES}")
    program.wait_until(lambda: not psutil.pid_exists(event.pid), 60)
    return Hit(event.at_s, nodes=frozenset({node}), until_s=time.time())


def _end_program(number: int) -> Strike:
    """Send the program a signal, wait for its end, and start it again to resume the run."""

    def strike(program: RunningProgram, rng: random.Random) -> Hit:
        pids, at_s = frozenset(event.pid for event in program.events()), time.time()
        program.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(_END_S)
        if program.process.poll() is None:
            raise MissedError(f"the program does not end within {_END_S:g} s of signal {number}")
        ended_s = time.time()
        program.resume()
        return Hit(at_s, pids, until_s=ended_s)

    return strike


class Fault(NamedTuple):
    """A kind of fault: how it strikes, how often in a run, and what Tune and the cluster are told before."""

    strike: Strike
    number: int = 2
    max_failures: int = -1
    is_watched: bool = False


FAULTS: Final[Mapping[str, Fault]] = {
    "worker-killed": Fault(_kill_worker, number=8),
    "trial-raises": Fault(_tell("fail")),
    "out-of-gpu-memory": Fault(_tell("run-out")),
    "node-killed": Fault(_kill_node),
    "node-killed-no-failure-allowed": Fault(_kill_node, max_failures=0),
    "node-preempted": Fault(_preempt, number=1),
    "memory-monitor": Fault(_take_memory, number=1, is_watched=True),
    "program-killed": Fault(_end_program(signal.SIGKILL), number=1),
    "program-interrupted": Fault(_end_program(signal.SIGINT), number=1),
}


class Cell(NamedTuple):
    """What one kind of fault did to a run in one way.

    Attributes:
        num_struck: How often it struck.
        verdict: What it did to the trials.
        troubles: What else went wrong: faults that did not strike, the error of the run, and what it left.
    """

    num_struck: int
    verdict: Verdict
    troubles: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """What should not have happened, a sentence each."""
        return (*self.verdict.lost, *self.verdict.disturbed, *self.troubles)


def measure_faults(faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int, ray_folder: str) -> bool:
    """Run every kind of fault in every way, and print the table.

    Args:
        faults: The kinds of faults, by their names.
        ways: The ways, by their names.
        number: How often each strikes in a run; ``None``: as often as it says.
        seed: The seed of what is hit, and when.
        ray_folder: The folder of the cluster's Ray.

    Returns:
        Whether nothing was lost, disturbed or left under a policy.
    """
    cells: dict[tuple[str, str], Cell] = {}
    cluster = FaultCluster(ray_folder)
    try:
        for way in ways:
            for name in faults:
                with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as folder:
                    cell = _run(FAULTS[name], way, cluster, Path(folder), number, random.Random(f"{seed} {name} {way}"))
                cells[name, way] = cell
                print(f"{name}, {way}: {cell.num_struck} struck", *cell.failures, sep="\n  * ", file=sys.stderr)
    finally:
        cluster.end()
    print("| Fault | Way | Struck | Lost | Disturbed | Most steps twice | Goes on after (s) | Other failures |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for (name, way), (num_struck, verdict, troubles) in cells.items():
        counts = (num_struck, len(verdict.lost), len(verdict.disturbed), max(verdict.repeated, default=0))
        print(f"| {name} | {way} | {' | '.join(map(str, counts))} | {_times(verdict.recovery_s)} | {len(troubles)} |")
    print(f"\nTimes: median, 95th percentile. {describe_machine()}\ncommand: {own_command()}")
    return not any(cell.failures for (_, way), cell in cells.items() if way != "ray")


def _times(seconds: Sequence[float]) -> str:
    return "{:.1f}, {:.1f}".format(*np.percentile(seconds, (50, 95))) if seconds else ""


def _run(fault: Fault, way: str, cluster: FaultCluster, folder: Path, number: int | None, rng: random.Random) -> Cell:
    """Run trials in one way while a kind of fault strikes, each time once all trials that it hit before go on."""
    cluster.replenish()
    if fault.is_watched:
        cluster.watch_memory()
    # The trials of Train have four processes each, for two cores.
    num_trials = 2 if way == "as_trainable" else 4
    program = RunningProgram(cluster, folder, Order(cluster.address, way, num_trials, fault.max_failures))
    hits: list[Hit] = []
    troubles: list[str] = []
    try:
        if not program.wait_until(lambda: len(program.current()) >= num_trials, _START_S):
            raise MissedError(f"only {len(program.current())} of {num_trials} trials run")
        for _ in range(number or fault.number):
            hits.append(fault.strike(program, rng))
            program.goes_on_after(hits[-1])
            cluster.replenish()
            time.sleep(rng.uniform(0.1, 0.6))
    except MissedError as missed:
        troubles.append(f"missed: {missed}")
    try:
        (folder / FINISH).touch()
        program.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        troubles.append("the program hung, and was killed")
    finally:
        program.process.kill()
        program.process.wait()
        if fault.is_watched:
            cluster.kill_node(cluster.watched)
    ends, error = read_outcome(folder)
    if error:
        troubles.append(f"the run ended: {one_line(error[:200])}")
    verdict = judge(program.events(), hits, ends)
    cell = Cell(len(hits), verdict, (*troubles, *(f"left: {each}" for each in cluster.left_within(_LEFT_S))))
    if cell.failures:
        print(program.log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return cell
