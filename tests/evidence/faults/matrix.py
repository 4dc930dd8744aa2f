"""Injects each fault into each way to run trials, in successive runs on one cluster, and prints a table."""

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
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.child_python import child_python
from tune_policies.values.sanitize import one_line

from .cluster import FREE_BYTES, FaultCluster
from .judge import Event, Hit, Verdict, judge
from .program import EVENTS, FINISH, ORDERS, read_outcome

_ROOT: Final = Path(__file__).parents[3]
_START_S: Final = 120.0
_RECOVER_S: Final = 60.0
_END_S: Final = 180.0
_AFTER_S: Final = 1.0
_NOTICE_S: Final = 3.0
_LEFT_S: Final = 60.0
"""How long Ray may take to end its processes after a run, in seconds.

A worker whose raylet is killed while the worker starts tries to connect ten times after its imports, for a second each.
"""


class MissedError(Exception):
    """A fault could not be injected."""


class RunningProgram:
    """A program that runs trials on a cluster and writes to its own folder.

    ``order`` contains the arguments of the program's ``main``.
    """

    def __init__(self, cluster: FaultCluster, folder: Path, order: Mapping[str, Any]) -> None:
        self.cluster, self.folder, self._order = cluster, folder, order
        self.log = folder / "program.log"
        for name in (EVENTS, ORDERS):
            (folder / name).mkdir()
        self.process = self.start(resumes=False)

    def start(self, *, resumes: bool) -> "subprocess.Popen[bytes]":
        """Start the program and return its process. If ``resumes`` is set, the program resumes its run."""
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        order = json.dumps({"address": self.cluster.address, "resumes": resumes, **self._order})
        command = child_python("-m", "tests.evidence.faults.program", str(self.folder), order)
        with self.log.open("ab") as output:
            environment = {**os.environ, "PYTHONPATH": path}
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=_ROOT)

    def events(self) -> list[Event]:
        """Return the recorded events in order of time."""
        # The last line of a file may be incomplete.
        lines = [line for path in (self.folder / EVENTS).iterdir() for line in path.read_text().split("\n")[:-1]]
        return sorted((Event(*json.loads(line)) for line in lines), key=attrgetter("at_s"))

    def current(self) -> dict[str, Event]:
        """Return the latest step of each trial whose current process exists and has begun a step."""
        latest = {event.trial: event for event in self.events()}
        return {
            trial: event for trial, event in latest.items() if event.what == "step" and psutil.pid_exists(event.pid)
        }

    def wait_until(self, is_met: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition. Return whether it is met before the program ends and ``timeout_s`` seconds pass."""
        deadline = time.monotonic() + timeout_s
        while not is_met():
            if time.monotonic() > deadline or self.process.poll() is not None:
                return is_met()
            time.sleep(0.1)
        return True

    def pick(self, rng: random.Random, on_node: str | None = None) -> Event:
        """Return the latest step of a random running trial, or raise ``MissedError`` if no trial runs."""
        running = self.current()
        trials = sorted(trial for trial, event in running.items() if on_node in (None, event.node))
        if not trials:
            raise MissedError("no trial runs")
        return running[rng.choice(trials)]

    def order(self, trial: str, order: str) -> Event:
        """Send a trial an order. Return the event in which the trial receives it, or raise ``MissedError``."""
        since_s = time.time()

        def obeyed() -> list[Event]:
            return [each for each in self.events() if (each.what, each.trial) == ("order", trial)]

        (self.folder / ORDERS / f"{trial}.new").write_text(order)
        (self.folder / ORDERS / f"{trial}.new").replace(self.folder / ORDERS / trial)
        if not self.wait_until(lambda: any(each.at_s > since_s for each in obeyed()), 30):
            raise MissedError(f"{trial} does not obey {order!r}")
        return obeyed()[-1]

    def wait_for_recovery(self, hit: Hit) -> None:
        """Wait until every trial that the fault hit takes steps again, or until a timeout."""
        hit_trials = {event.trial for event in self.events() if event.at_s <= hit.at_s and hit.ends(event)}

        def has_recovered(event: Event) -> bool:
            # A killed process may take another step before it ends, and a lasting fault does not kill every process.
            return not hit.is_on(event) or 0 < hit.until_s < event.at_s - _AFTER_S

        self.wait_until(
            lambda: hit_trials <= {trial for trial, event in self.current().items() if has_recovered(event)}, _RECOVER_S
        )


Inject = Callable[[RunningProgram, random.Random], Hit]


def _kill_worker(program: RunningProgram, rng: random.Random) -> Hit:
    """Send SIGKILL to the process in which a trial trains. With Ray Train, this is the worker."""
    event = program.pick(rng)
    with suppress(ProcessLookupError):
        os.kill(event.pid, signal.SIGKILL)
    return Hit(time.time(), frozenset({event.pid}))


def _order(order: str) -> Inject:
    def inject(program: RunningProgram, rng: random.Random) -> Hit:
        event = program.order(program.pick(rng).trial, order)
        return Hit(event.at_s, frozenset({event.pid}))

    return inject


def _kill_node(program: RunningProgram, rng: random.Random) -> Hit:
    """Send SIGKILL to the raylet of a node on which a trial runs."""
    node, at_s = program.pick(rng).node, time.time()
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def _preempt(program: RunningProgram, rng: random.Random) -> Hit:
    """Drain a node, and then kill it, as when a cloud provider reclaims a spot instance."""
    node = program.pick(rng).node
    if not program.cluster.drain(node, _NOTICE_S):
        raise MissedError("Ray does not drain the node")
    time.sleep(_NOTICE_S)
    at_s = time.time()
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def _take_memory(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial on the watched node allocate memory until Ray kills it. Ray may also kill other trials there."""
    node = program.cluster.watched
    event = program.order(program.pick(rng, on_node=node).trial, f"take-host-memory {2 * FREE_BYTES}")
    program.wait_until(lambda: not psutil.pid_exists(event.pid), 60)
    return Hit(event.at_s, nodes=frozenset({node}), until_s=time.time())


def _end_program(number: int) -> Inject:
    def inject(program: RunningProgram, rng: random.Random) -> Hit:
        """Send the program a signal, wait for its end, and resume its run."""
        pids, at_s = frozenset(event.pid for event in program.events()), time.time()
        program.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(_END_S)
        if program.process.poll() is None:
            raise MissedError(f"the program does not end within {_END_S:g} s of signal {number}")
        ended_s = time.time()
        program.process = program.start(resumes=True)
        return Hit(at_s, pids, until_s=ended_s)

    return inject


class Fault(NamedTuple):
    """A type of fault.

    Attributes:
        inject: Injects the fault into a running program.
        number: How often the fault is injected in a run.
        max_failures: Tune's ``max_failures`` for the run.
        is_watched: Whether a node with Ray's memory monitor is added for the run.
    """

    inject: Inject
    number: int = 2
    max_failures: int = -1
    is_watched: bool = False


FAULTS: Final[Mapping[str, Fault]] = {
    "worker-killed": Fault(_kill_worker, number=8),
    "trial-raises": Fault(_order("fail")),
    "out-of-gpu-memory": Fault(_order("run-out")),
    "node-killed": Fault(_kill_node),
    "node-killed-no-failure-allowed": Fault(_kill_node, max_failures=0),
    "node-preempted": Fault(_preempt, number=1),
    "memory-monitor": Fault(_take_memory, number=1, is_watched=True),
    "program-killed": Fault(_end_program(signal.SIGKILL), number=1),
    "program-interrupted": Fault(_end_program(signal.SIGINT), number=1),
}


class Cell(NamedTuple):
    """The effects of one fault on one way to run trials.

    Attributes:
        num_hits: How often the fault was injected.
        verdict: The effects of the faults on the trials.
        other_failures: Sentences about faults that could not be injected, the error of the run, and leaked resources.
    """

    num_hits: int
    verdict: Verdict
    other_failures: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """All failures, as sentences."""
        return (*self.verdict.lost, *self.verdict.disturbed, *self.other_failures)


def measure_faults(faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int, ray_folder: str) -> bool:
    """Inject each of the named faults into each of the named ways to run trials, and print the table.

    ``number`` is how often each fault is injected in a run. If it is ``None``, each fault has its own default.
    ``ray_folder`` is the value of ``RAY_TMPDIR``.

    Returns:
        Whether no trial was lost or disturbed and no resource leaked in the runs under a policy.
    """
    cells: dict[tuple[str, str], Cell] = {}
    cluster = FaultCluster(ray_folder)
    try:
        for way in ways:
            for name in faults:
                with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as folder:
                    cell = _run(FAULTS[name], way, cluster, Path(folder), number, random.Random(f"{seed} {name} {way}"))
                cells[name, way] = cell
                print(f"{name}, {way}: injected {cell.num_hits}", *cell.failures, sep="\n  * ", file=sys.stderr)
    finally:
        cluster.end()
    print("| Fault | Way | Injected | Lost | Disturbed | Most steps repeated | Recovers after (s) | Other failures |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for (name, way), (num_hits, verdict, others) in cells.items():
        counts = (num_hits, len(verdict.lost), len(verdict.disturbed), max(verdict.repeated, default=0))
        times = verdict.recovery_s
        recovery = "{:.1f}, {:.1f}".format(*np.percentile(times, (50, 95))) if times else ""
        print(f"| {name} | {way} | {' | '.join(map(str, counts))} | {recovery} | {len(others)} |")
    print(f"\nTimes: median, 95th percentile. {describe_machine()}\ncommand: {own_command()}")
    return not any(cell.failures for (_, way), cell in cells.items() if way != "ray")


def _run(fault: Fault, way: str, cluster: FaultCluster, folder: Path, number: int | None, rng: random.Random) -> Cell:
    """Run trials, and inject a fault repeatedly. Before each injection, wait until all trials have recovered."""
    cluster.replenish()
    if fault.is_watched:
        cluster.watch_memory()
    # With Train, each trial has four processes.
    num_trials = 2 if way == "as_trainable" else 4
    order = {"way": way, "num_trials": num_trials, "max_failures": fault.max_failures}
    program = RunningProgram(cluster, folder, order)
    hits: list[Hit] = []
    others: list[str] = []
    try:
        if not program.wait_until(lambda: len(program.current()) >= num_trials, _START_S):
            raise MissedError(f"only {len(program.current())} of {num_trials} trials run")
        for _ in range(number or fault.number):
            hits.append(fault.inject(program, rng))
            program.wait_for_recovery(hits[-1])
            cluster.replenish()
            time.sleep(rng.uniform(0.1, 0.6))
    except MissedError as missed:
        others.append(f"not injected: {missed}")
    try:
        (folder / FINISH).touch()
        program.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        others.append("the program hung and was killed")
    finally:
        program.process.kill()
        program.process.wait()
        if fault.is_watched:
            cluster.kill_node(cluster.watched)
    ends, error = read_outcome(folder)
    if error:
        others.append(f"the run failed: {one_line(error[:200])}")
    verdict = judge(program.events(), hits, ends)
    cell = Cell(len(hits), verdict, (*others, *(f"leaked: {each}" for each in cluster.left_within(_LEFT_S))))
    if cell.failures:
        print(program.log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return cell
