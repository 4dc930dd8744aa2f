"""Faults of nodes: killed, taken away with notice, added, out of reach, and gone since the plan was made."""

import os
import random
import time
from collections.abc import Mapping
from typing import Final
from unittest.mock import patch

import psutil

from .cluster import NODE
from .judge import Hit, Verdict
from .program import Fault, MissedError, RunningProgram
from .ways import WAYS, WITH_OOM_RETRY

_ALL: Final = tuple(way for way in WAYS if way != "tuner")
_WITH_GPUS: Final = ("ray-gpus", "mixed", *WITH_OOM_RETRY)
_SOME: Final = ("ray", "fixed-plan", "policy-scheduler", "mixed", "oom-asha", "as_trainable")
_FEW: Final = ("ray", "policy-scheduler", "as_trainable")
_NOTICE_S: Final = 3.0
_STALL_S: Final = 1.0
_END_S: Final = 60.0
_FREE_BYTES: Final = 2 * 2**30
_WATCHED: Final = "watched"
_LOST: Final = r"was lost with node|nodes? went"


def kill_node(program: RunningProgram, rng: random.Random) -> Hit:
    """End the raylet of a node on which a trial runs, by SIGKILL."""
    node = program.pick(rng).node
    at_s = time.time()
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def preempt(program: RunningProgram, rng: random.Random) -> Hit:
    """Give notice of a node, as a cloud does of a spot instance, and take it away then."""
    node = program.pick(rng).node
    at_s = time.time() + _NOTICE_S
    if not program.cluster.drain(node, _NOTICE_S):
        raise MissedError("Ray does not drain the node")
    time.sleep(_NOTICE_S)
    program.cluster.kill_node(node)
    return Hit(at_s, nodes=frozenset({node}))


def add_node(program: RunningProgram, rng: random.Random) -> Hit:
    """Add a node while trials wait."""
    at_s = time.time()
    program.cluster.add_node()
    return Hit(at_s)


def _first_step_on_new_node(program: RunningProgram, hit: Hit) -> Verdict:
    """Return how soon each trial that waited for the node runs; one that does not is lost."""
    ran = {event.trial for event in program.events() if event.at_s < hit.at_s}
    num_to_run = len(ran) + NODE["num_cpus"]
    if not program.wait_until(lambda: len(program.current()) >= num_to_run, 60):
        return Verdict(lost=(f"{len(program.current())} trials run on nodes for {num_to_run}",))
    begun: dict[str, float] = {}
    for event in program.events():
        if event.what == "step" and event.trial not in ran:
            begun.setdefault(event.trial, event.at_s - hit.at_s)
    return Verdict(recovery_s=tuple(begun.values()))


def stall(program: RunningProgram, rng: random.Random) -> Hit:
    """Stop a raylet for a second, which nobody is to notice."""
    node = program.pick(rng).node
    at_s = time.time()
    with program.cluster.stopped(node):
        time.sleep(_STALL_S)
    return Hit(at_s)


def stall_until_dead(program: RunningProgram, rng: random.Random) -> Hit:
    """Stop a raylet until Ray counts its node as dead, and let it go on then."""
    node = program.pick(rng).node
    at_s = time.time()
    hit = Hit(at_s, nodes=frozenset({node}))
    with program.cluster.stopped(node):
        if not program.wait_until(lambda: not program.cluster.is_alive(node), 30):
            raise MissedError("Ray counts a node as alive whose raylet does not answer")
        program.goes_on_after(hit)
    program.cluster.kill_node(node)
    return hit


def lose_node_after_plan(program: RunningProgram) -> None:
    """Kill a node between the plan and the run."""
    program.wait_for_plan()
    program.cluster.kill_node(program.cluster.node_ids()[0])
    program.begin()


def lose_gpu_after_plan(program: RunningProgram) -> None:
    """Let a node come back without its GPU between the plan and the run."""
    program.wait_for_plan()
    program.cluster.kill_node(program.cluster.node_ids()[0])
    program.cluster.add_node(num_gpus=0)
    program.begin()


def renew_nodes(program: RunningProgram) -> None:
    """Take the nodes away, so that the cluster gets others as they were."""
    for node_id in program.cluster.node_ids():
        program.cluster.kill_node(node_id)


def watch_memory(program: RunningProgram) -> None:
    """Let Ray's memory monitor watch one of the nodes, and no other: all have the memory of this machine."""
    program.wait_for_plan()
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + _FREE_BYTES) / memory.total
    program.cluster.kill_node(program.cluster.node_ids()[0])
    variables = {"RAY_memory_usage_threshold": f"{threshold:.4f}", "RAY_memory_monitor_refresh_ms": "250"}
    with patch.dict(os.environ, variables):
        node = program.cluster.add_node()
    (program.folder / _WATCHED).write_text(node)
    program.begin()


def take_memory(program: RunningProgram, rng: random.Random) -> Hit:
    """Let a trial on the node that is watched take memory, until Ray ends it and whichever else Ray chooses there."""
    node = (program.folder / _WATCHED).read_text()
    on_node = [event.trial for event in program.current().values() if event.node == node]
    if not on_node:
        raise MissedError("no trial runs on the node whose memory is watched")
    event = program.tell(rng.choice(sorted(on_node)), f"take-host-memory {2 * _FREE_BYTES}")
    program.wait_until(lambda: not psutil.pid_exists(event.pid), 60)
    return Hit(event.at_s, nodes=frozenset({node}), until_s=time.time())


def lose_gcs(program: RunningProgram, rng: random.Random) -> Hit:
    """End the GCS by SIGKILL, and wait until the program has ended."""
    at_s = time.time()
    program.cluster.lose_gcs()
    program.wait_until(lambda: program.process.poll() is not None, _END_S)
    return Hit(at_s)


def nothing_more(program: RunningProgram, rng: random.Random) -> Hit:
    """Count what struck before the run began."""
    return Hit(min(event.at_s for event in program.events()) - 1)


FAULTS: Final[Mapping[str, Fault]] = {
    "node-killed": Fault("raylet SIGKILLed", kill_node, _ALL, number=2),
    "node-killed-no-failure-allowed": Fault(
        "raylet SIGKILLed, with max_failures=0",
        kill_node,
        ("policy-scheduler", "mixed", "oom-asha", "as_trainable"),
        number=2,
        order={"max_failures": 0},
        told=_LOST,
        group="no failure allowed",
    ),
    "node-preempted": Fault(f"node drained, and killed {_NOTICE_S:g} s later", preempt, _SOME),
    "node-added": Fault(
        "node added while trials wait",
        add_node,
        ("ray", "fixed-plan", "policy-scheduler"),
        num_trials=10,
        num_at_once=6,
        after=_first_step_on_new_node,
        group="nodes added",
    ),
    "node-stalls": Fault(f"raylet SIGSTOPped for {_STALL_S:g} s", stall, _SOME),
    "node-out-of-reach": Fault("raylet SIGSTOPped until Ray counts it as dead", stall_until_dead, _SOME),
    "stale-plan": Fault(
        "node gone between plan and run",
        nothing_more,
        _SOME,
        order={"waits_for_plan": True},
        before=lose_node_after_plan,
        group="stale plan",
    ),
    "memory-monitor": Fault(
        "Ray's memory monitor ends a trial",
        take_memory,
        ("ray", "policy-scheduler", "oom-fifo"),
        order={"waits_for_plan": True},
        before=watch_memory,
        cleanup=renew_nodes,
        group="memory",
    ),
    "gcs-lost": Fault("GCS SIGKILLed for good", lose_gcs, _FEW, ends_run=True, group="gcs"),
    "gpu-gone": Fault(
        "node has lost its GPU between plan and run",
        nothing_more,
        _WITH_GPUS,
        order={"waits_for_plan": True},
        before=lose_gpu_after_plan,
        cleanup=renew_nodes,
        group="gpu",
    ),
}
