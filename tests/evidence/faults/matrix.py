"""Injects each fault into each way to run trials, in successive runs on one cluster, and prints a table."""

import json
import logging
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
import ray
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.child_python import child_python

from ..own_process import ROOT, environment_of_child
from .program import EVENTS, FINISH, ORDERS, OUTCOME, Event

# With these settings, Ray detects a dead node within seconds.
_QUICK_HEALTH: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}
_NODE: Final = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
_NUM_NODES: Final = 3
_IDLE_WORKERS: Final = (
    "ray::IDLE",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    # Ray Train's. The second one never ends on a cluster without a dashboard if its driver was killed, also in plain
    # Train, because it asks the dashboard whether the driver lives.
    "ray::_AutoscalingCoordinator",
    "ray::PlacementGroupCleaner",
)
"""Worker processes of Ray that exist even if no program runs."""
_TIMEOUT_S: Final = 180.0
_NOTICE_S: Final = 3.0


class FaultCluster:
    """A Ray cluster with a head node without resources for trials, and with three worker nodes.

    ``folder`` is the value of ``RAY_TMPDIR``, which identifies the cluster's processes.
    """

    def __init__(self, folder: str) -> None:
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # Ray warns about each dead node
        self._folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK_HEALTH}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)

    def end(self) -> None:
        """Kill all processes of the cluster."""
        self._cluster.shutdown()
        for process in self._workers():  # kill workers whose raylet is dead, too
            with suppress(psutil.Error):
                process.kill()

    def replenish(self) -> None:
        """Add nodes until there are three worker nodes again."""
        while len(self._cluster.worker_nodes) < _NUM_NODES:
            self._cluster.add_node(**_NODE)

    def kill_node(self, node_id: str) -> None:
        """Kill the raylet with SIGKILL, and then the other processes of the node."""
        node = next(node for node in self._cluster.worker_nodes if node.node_id == node_id)
        node.all_processes["raylet"][0].process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node_id: str) -> None:
        """Announce to Ray that the node will be removed in ``_NOTICE_S`` seconds."""
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline_ms = int((time.time() + _NOTICE_S) * 1000)
        ray._raylet.GcsClient(address=self.address).drain_node(node_id, reason, "the fault matrix", deadline_ms)

    def left(self) -> list[str]:
        """Return the workers and placement groups that still exist."""
        groups = self._cluster.global_state.placement_group_table()
        left = [f"placement group {key[:8]}" for key, group in groups.items() if group["state"] != "REMOVED"]
        return left + [f"process {process.pid}" for process in self._workers()]

    def _workers(self) -> list[psutil.Process]:
        """Return the cluster's worker processes, including those whose raylet is dead."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                if command.startswith("ray::") and not command.startswith(_IDLE_WORKERS):
                    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                    if f"RAY_TMPDIR={self._folder}".encode() in environment:
                        found.append(process)
        return found


class RunningProgram:
    """A program that runs trials on a cluster and writes to its own folder.

    ``order`` contains the arguments of the program's ``main``.
    """

    def __init__(self, cluster: FaultCluster, folder: Path, order: Mapping[str, Any]) -> None:
        self.cluster, self.folder, self._order = cluster, folder, order
        self.log = folder / "program.log"
        for name in (EVENTS, ORDERS):
            (folder / name).mkdir()
        self.start(resumes=False)

    def start(self, *, resumes: bool) -> None:
        """Start the program. If ``resumes`` is set, the program resumes its run."""
        order = json.dumps({"address": self.cluster.address, "resumes": resumes, **self._order})
        command = child_python("-m", "tests.evidence.faults.program", str(self.folder), order)
        with self.log.open("ab") as output:
            environment = environment_of_child()
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)

    def events(self) -> list[Event]:
        """Return the recorded events in chronological order."""
        lines = []
        for path in (self.folder / EVENTS).iterdir():
            lines += path.read_text().split("\n")[:-1]  # the last line of a file may be incomplete
        return sorted((Event(*json.loads(line)) for line in lines), key=attrgetter("at_s"))

    def running(self) -> dict[str, Event]:
        """Return the latest step of each trial whose current process exists and has begun a step."""
        latest = {event.trial: event for event in self.events()}
        steps = {trial: event for trial, event in latest.items() if event.what == "step"}
        return {trial: step for trial, step in steps.items() if psutil.pid_exists(step.pid)}

    def order(self, trial: str, order: str) -> None:
        """Write an order for a trial, such as the order to fail in its next step."""
        (self.folder / ORDERS / f"{trial}.new").write_text(order)
        (self.folder / ORDERS / f"{trial}.new").replace(self.folder / ORDERS / trial)

    def end_and_resume(self, number: int) -> None:
        """Send the program a signal, wait until it ends, and resume its run."""
        self.process.send_signal(number)
        self.process.wait(_TIMEOUT_S)
        self.start(resumes=True)


def _preempt(program: RunningProgram, event: Event) -> None:
    """Drain a node, and then kill it, as when a cloud provider reclaims a spot instance."""
    program.cluster.drain(event.node)
    time.sleep(_NOTICE_S)
    program.cluster.kill_node(event.node)


class Fault(NamedTuple):
    """A type of fault.

    Attributes:
        inject: A function that injects the fault into a running program. An event selects the trial or the node.
        hits: The event field that is equal for all affected trials, or an empty string if all trials are affected.
        number: The number of times that the fault is injected in a run.
        max_failures: Tune's ``max_failures`` for the run.
    """

    inject: Callable[[RunningProgram, Event], object]
    hits: str
    number: int = 2
    max_failures: int = -1


FAULTS: Final[Mapping[str, Fault]] = {
    "worker-killed": Fault(lambda _, event: os.kill(event.pid, signal.SIGKILL), "pid", number=8),
    "trial-raises": Fault(lambda program, event: program.order(event.trial, "fail"), "pid"),
    "out-of-gpu-memory": Fault(lambda program, event: program.order(event.trial, "run-out"), "pid"),
    "node-killed": Fault(lambda program, event: program.cluster.kill_node(event.node), "node"),
    "node-killed-no-failure-allowed": Fault(
        lambda program, event: program.cluster.kill_node(event.node), "node", max_failures=0
    ),
    "node-preempted": Fault(_preempt, "node", number=1),
    "program-killed": Fault(lambda program, _: program.end_and_resume(signal.SIGKILL), "", number=1),
    "program-interrupted": Fault(lambda program, _: program.end_and_resume(signal.SIGINT), "", number=1),
}


class Cell(NamedTuple):
    """The effects of one fault on one way to run trials.

    Attributes:
        num_injected: The number of times that the fault was injected.
        repeated: The number of repeated steps for each trial that a fault hit.
        recovery_s: The seconds from the fault to the next step, for each trial that a fault hit.
        failures: Sentences about lost trials, trials that did not recover, errors of the run, and leaked resources.
    """

    num_injected: int
    repeated: list[int]
    recovery_s: list[float]
    failures: list[str]


def measure_faults(faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int, ray_folder: str) -> bool:
    """Inject each of the named faults into each of the named ways to run trials, and print the table.

    Each fault is injected ``number`` times in a run. If ``number`` is ``None``, the fault's own default applies.
    ``ray_folder`` is the value of ``RAY_TMPDIR``.

    Returns:
        Whether all trials finished and no resource leaked in the runs under a policy.
    """
    cells: dict[tuple[str, str], Cell] = {}
    cluster = FaultCluster(ray_folder)
    try:
        for way in ways:
            for name in faults:
                with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as folder:
                    cell = _run(FAULTS[name], way, cluster, Path(folder), number, random.Random(f"{seed} {name} {way}"))
                cells[name, way] = cell
                print(
                    f"{name}, {way}: {cell.num_injected} faults injected", *cell.failures, sep="\n  * ", file=sys.stderr
                )
    finally:
        cluster.end()
    print("| Fault | Way | Injected | Repeated steps (maximum) | Recovery (s) | Failures |")
    print("|---|---|---:|---:|---:|---:|")
    for (name, way), (injected, repeated, times, failures) in cells.items():
        recovery = "{:.1f}, {:.1f}".format(*np.percentile(times, (50, 95))) if times else ""
        print(f"| {name} | {way} | {injected} | {max(repeated, default=0)} | {recovery} | {len(failures)} |")
    print(f"\nRecovery: median and 95th percentile. {describe_machine()}\ncommand: {own_command()}")
    return not any(cell.failures for (_, way), cell in cells.items() if way != "ray")


def _run(fault: Fault, way: str, cluster: FaultCluster, folder: Path, number: int | None, rng: random.Random) -> Cell:
    """Run trials, and inject a fault repeatedly. Before each injection, wait until all trials have recovered."""
    cluster.replenish()
    # With Train, each trial has four processes.
    num_trials = 2 if way == "as_trainable" else 4
    program = RunningProgram(
        cluster, folder, {"way": way, "num_trials": num_trials, "max_failures": fault.max_failures}
    )
    cell = Cell(number or fault.number, [], [], [])
    try:
        _wait_until(lambda: len(program.running()) >= num_trials)
        for _ in range(cell.num_injected):
            running = program.running()
            victim = running[rng.choice(sorted(running))]
            at_s = time.time()
            fault.inject(program, victim)
            hit = [step for step in running.values() if not fault.hits or _same(step, victim, fault.hits)]
            _record_recovery(program, hit, at_s, cell)
            cluster.replenish()
            time.sleep(rng.uniform(0.1, 0.6))
        (folder / FINISH).touch()
        program.process.wait(_TIMEOUT_S)
    except (OSError, LookupError, subprocess.TimeoutExpired) as error:
        cell.failures.append(f"the fault was not injected, or the trials did not recover: {error!r}")
    finally:
        program.process.kill()
        program.process.wait()
    outcome = folder / OUTCOME
    found: dict[str, Any] = {"trials": {}, "error": "the program wrote no outcome"}
    if outcome.exists():
        found = json.loads(outcome.read_text())
    cell.failures.extend(filter(None, [found["error"]]))
    ended = found["trials"]
    started = {event.trial for event in program.events()}
    cell.failures.extend(f"{trial}: {ended.get(trial)}" for trial in started if ended.get(trial) != "TERMINATED")
    with suppress(TimeoutError):
        _wait_until(lambda: not cluster.left())
    cell.failures.extend(f"leaked: {what}" for what in cluster.left())
    if cell.failures:
        print(program.log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return cell


def _same(one: Event, other: Event, field: str) -> bool:
    return bool(getattr(one, field) == getattr(other, field))


def _record_recovery(program: RunningProgram, hit: Sequence[Event], at_s: float, cell: Cell) -> None:
    """Wait until each affected trial has begun a step in a new process, and record its delay and its repeated steps."""
    former = {(event.trial, event.pid) for event in hit}

    def first_in_new_process(trial: str, what: str) -> Event | None:
        later = (event for event in program.events() if event.at_s > at_s and (trial, event.pid) not in former)
        return next((event for event in later if (event.trial, event.what) == (trial, what)), None)

    _wait_until(lambda: all(first_in_new_process(event.trial, "step") for event in hit))
    for event in hit:
        start = first_in_new_process(event.trial, "start")
        step = first_in_new_process(event.trial, "step")
        before = [
            earlier.step for earlier in program.events() if (earlier.trial, earlier.pid) == (event.trial, event.pid)
        ]
        if start and step:
            cell.repeated.append(max(before) - start.step)
            cell.recovery_s.append(step.at_s - at_s)


def _wait_until(is_met: Callable[[], bool]) -> None:
    """Wait until ``is_met`` returns ``True``, or raise ``TimeoutError`` after ``_TIMEOUT_S``."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {_TIMEOUT_S:g} s")
        time.sleep(0.2)
