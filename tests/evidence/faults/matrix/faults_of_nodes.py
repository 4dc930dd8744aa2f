"""Faults of nodes: killed, taken away with notice, added, out of reach, and gone since the plan was made."""

import random
import time
from collections.abc import Mapping
from typing import Final

from .cluster import NODE
from .judge import Hit, Verdict
from .program import Fault, MissedError, RunningProgram
from .ways import PLANNED, WAYS

_ALL: Final = tuple(way for way in WAYS if way != "ray-gpus")
_SOME: Final = ("ray", "with_plan", "policy-scheduler", "mixed", "oom-asha", "as_trainable")
_NOTICE_S: Final = 3.0
_STALL_S: Final = 1.0
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
    marker = program.folder / PLANNED
    if not program.wait_until(marker.exists, 120):
        raise MissedError(f"the program does not plan: {program.last_words()}")
    program.cluster.kill_node(program.cluster.node_ids()[0])
    marker.unlink()


def nothing_more(program: RunningProgram, rng: random.Random) -> Hit:
    """Count what struck before the run began."""
    return Hit(min(event.at_s for event in program.events()) - 1)


FAULTS: Final[Mapping[str, Fault]] = {
    "node-killed": Fault("raylet SIGKILLed", kill_node, _ALL, number=3),
    "node-killed-no-failure-allowed": Fault(
        "raylet SIGKILLed, with max_failures=0",
        kill_node,
        ("ray", "policy-scheduler", "mixed", "oom-asha", "as_trainable"),
        number=2,
        order={"max_failures": 0},
        told=_LOST,
    ),
    "node-preempted": Fault(f"node drained, and killed {_NOTICE_S:g} s later", preempt, _SOME, number=2),
    "node-added": Fault(
        "node added while trials wait",
        add_node,
        ("ray", "with_plan", "policy-scheduler"),
        num_trials=10,
        num_at_once=6,
        after=_first_step_on_new_node,
    ),
    "node-stalls": Fault(f"raylet SIGSTOPped for {_STALL_S:g} s", stall, _SOME, number=3),
    "node-out-of-reach": Fault("raylet SIGSTOPped until Ray counts it as dead", stall_until_dead, _SOME),
    "stale-plan": Fault(
        "node gone between plan and run",
        nothing_more,
        _SOME,
        order={"waits_for_plan": True},
        before=lose_node_after_plan,
    ),
}
