"""Simulates the random programs of ``programs.draw`` under a start policy, and under a policy that begins with it."""

import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from tune_policies import CpuPolicy

from .programs import Program, draw
from .rules.fixed import Fixed
from .rules.learning import Learning
from .simulation import Machine, Outcome, SimTrial, Simulation, SizingRule

_START_S: Final = (2.2, 3.8)
"""The time from the start of a process until its training, in seconds, as measured in real runs."""

_START_CPUS: Final = 0.8
_PROCESS_GIB: Final = 0.15
_LOCKED: Final = 0.5
_THRASHING: Final = 0.15


class Slowdown(NamedTuple):
    """The time of a program while a policy learns, relative to its start policy, and the number of lost trials."""

    seed: int
    program: Program
    ratio: float
    num_lost: int


def slowdowns(seeds: Iterable[int], *, reports_once: bool = False) -> list[Slowdown]:
    """Simulate the programs with these seeds. If ``reports_once`` is true, each trial has a single, long step."""
    found = []
    for seed in seeds:
        program = draw(seed)
        if reports_once:
            trial_s = program.num_steps * program.step_s
            program = program.model_copy(update={"num_steps": 1, "step_s": trial_s})
        start = _simulate(program, Fixed("", 0.0, program.start_cpus, 0.0), seed)
        learning = _simulate(program, Learning("", CpuPolicy(cpus=program.start_cpus)), seed)
        found.append(Slowdown(seed, program, learning.makespan_s / start.makespan_s, learning.num_lost))
    return found


def _simulate(program: Program, rule: SizingRule, seed: int) -> Outcome:
    rng = random.Random(seed)
    trials = [_trial(program, case, rng) for case in program.cases]
    starts_s = [rng.uniform(*_START_S) for _ in range(3 * program.num_trials)]
    simulation = Simulation(
        Machine((), program.num_cpus, program.memory_gib),
        trials,
        rule,
        num_steps=program.num_steps,
        starts_s=starts_s,
        start_cpus=_START_CPUS,
        thrashing=_THRASHING if program.kind == "thrashing" else 0.0,
    )
    return simulation.run()


def _trial(program: Program, case: dict[str, object], rng: random.Random) -> SimTrial:
    gib = _PROCESS_GIB
    if program.kind == "memory":
        gib += int(str(case["size"])) / 1024
    return SimTrial(
        case,
        program.num_steps * program.step_s * rng.uniform(0.98, 1.02),
        host_gib=gib,
        cpus=1.0 if program.kind == "busy" else 0.02,
        disk=_LOCKED if program.kind in ("shared", "thrashing") else 0.0,
        saves=program.saves,
    )
