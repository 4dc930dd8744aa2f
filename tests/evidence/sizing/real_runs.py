"""Compares real runs on a local Ray with the simulator, with hand settings, and with the start policy."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tune_policies import CpuPolicy, LearningPolicy, ResourcePolicy
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table

from ..own_process import LOG, run_module, short_folder
from .programs import Program, draw
from .rules.fixed import Fixed
from .rules.learning import Learning
from .simulation import GIB, Machine, SimTrial, Simulation, SizingRule

AGREEMENT: Final = 0.05
"""The maximum relative difference between a simulated and a real makespan."""

HAND_GOAL: Final = 1.15
"""The maximum time under ``LearningPolicy()``, relative to the best hand setting."""

SLOWER: Final = 1.05
"""The maximum time under a ``LearningPolicy``, relative to its start policy."""

_DEADLINE_S: Final = 1_800.0

Outcome = Mapping[str, Any]


class Check(NamedTuple):
    """A real run that the simulator predicts."""

    name: str
    program: Program
    policy: ResourcePolicy


_WAITING = Program(kind="sleeping", num_trials=12, num_steps=8, step_s=1.1)
_BUSY = Program(kind="busy", num_trials=8, num_steps=6, step_s=1.1)
_MEMORY = Program(kind="memory", num_trials=12, num_steps=8, step_s=1.1, sizes=(32, 64, 128), start_cpus=0.25)
_TREES = Program(kind="scikit-learn", num_trials=8, num_steps=6, sizes=(300, 400, 500), waiting_s=0.6)
_BOOSTED = Program(kind="xgboost", num_trials=8, num_steps=6, sizes=(3, 4, 6), waiting_s=0.6)
_ONE, _HALF = CpuPolicy(), CpuPolicy(cpus=0.5)

CHECKS: Final = (
    Check("sleeping, 1 CPU", _WAITING, _ONE),
    Check("sleeping, 0.5 CPU", _WAITING, _HALF),
    Check("sleeping, LearningPolicy", _WAITING, LearningPolicy(_ONE)),
    Check("busy, 1 CPU", _BUSY, _ONE),
    Check("busy, 0.5 CPU", _BUSY, _HALF),
    Check("busy, LearningPolicy", _BUSY, LearningPolicy(_ONE)),
    Check("memory, 1 GiB", _MEMORY, CpuPolicy(cpus=0.25, memory="1GiB")),
    Check("memory, LearningPolicy", _MEMORY, LearningPolicy(CpuPolicy(cpus=0.25, memory="1GiB"))),
    Check("scikit-learn, 1 CPU", _TREES, _ONE),
    Check("scikit-learn, LearningPolicy", _TREES, LearningPolicy(_ONE)),
    Check("XGBoost, 1 CPU", _BOOSTED, _ONE),
    Check("XGBoost, LearningPolicy", _BOOSTED, LearningPolicy(_ONE)),
)

HAND_PROGRAMS: Final = {
    "scikit-learn": _TREES.model_copy(update={"num_trials": 20, "num_steps": 12, "saves": True}),
    "XGBoost": _BOOSTED.model_copy(update={"num_trials": 20, "num_steps": 12, "saves": True}),
}
_HAND_CPUS: Final = (0.25, 0.5, 1.0)


def run_program(program: Program, policies: Sequence[ResourcePolicy]) -> list[Outcome]:
    """Run the program under each policy in a new process with its own Ray, and return the outcomes.

    Raises:
        RuntimeError: The process ended without an outcome of each policy. The message contains the end of its log.
    """
    with short_folder() as folder:
        (folder / "program.json").write_text(program.to_json())
        (folder / "policies.json").write_text(json.dumps([_plain(policy) for policy in policies]))
        run_module("tests.evidence.sizing.running", folder, deadline_s=_DEADLINE_S, OMP_NUM_THREADS="1")
        outcomes = folder / "outcomes"
        lines = outcomes.read_text().splitlines() if outcomes.exists() else []
        if len(lines) < len(policies):
            tail = (folder / LOG).read_text(errors="replace")[-4_000:]
            raise RuntimeError(f"{len(lines)} of {len(policies)} runs of {program!r} ended:\n{tail}")
    return [json.loads(line) for line in lines]


def _plain(policy: ResourcePolicy) -> dict[str, Any]:
    return policy.model_dump(mode="json")


def start_times(outcome: Outcome) -> list[float]:
    """Return how long each process took from the event that allowed its start until its training, in seconds.

    Such an event is the last one before the decision to start a trial: the begin of the run, the end of a trial, or a
    second result, after which a policy may learn.
    """
    events = outcome["events"]
    times = [outcome["begin_s"], *(event.get("ended_s") or event.get("second_s") or 0.0 for event in events)]
    started = []
    for event in events:
        if "began_s" in event:
            decided = [at for trial, at in outcome["decisions"] if trial == event["trial"] and at < event["began_s"]]
            started.append((max(decided), event["began_s"]))
    return [began - max(time for time in times if time <= decided) for decided, began in sorted(started)]


def makespan(outcome: Outcome) -> float:
    """Return the seconds from the begin of the run until its last trial has finished training."""
    return float(max(event.get("ended_s", 0.0) for event in outcome["events"]) - outcome["begin_s"])


def predict(check: Check, outcome: Outcome) -> float:
    """Return the simulated makespan of a run in seconds.

    Measured in the run are the starts of processes and their CPU time, the CPU time and the memory of each trial, and
    the CPU time of Tune's driver and of Ray's own processes.
    Predicted are the times at which trials run, how much they slow down each other, what the policy learns, and when.
    """
    program, policy = check.program, check.policy
    needs = {event["x"]: event for event in outcome["events"] if "ended_s" in event}
    trials = []
    for case in program.cases:
        cpu_s = needs[case["x"]]["cpu_s"]
        sleeps = program.kind in ("sleeping", "memory")
        work_s = program.num_steps * program.step_s if sleeps else cpu_s
        alone_s = program.num_steps * program.waiting_s + work_s
        host_gib = needs[case["x"]]["rss"] / GIB
        cpus = max(0.01, min(1.0, cpu_s / alone_s))
        trials.append(SimTrial(case, alone_s, host_gib=host_gib, cpus=cpus, saves=program.saves))
    rule: SizingRule
    if isinstance(policy, LearningPolicy):
        rule = Learning("", policy.start)
    else:
        rule = Fixed("", 0.0, getattr(policy, "cpus", 1.0), (getattr(policy, "memory", None) or 0) / GIB)
    machine = Machine((), program.num_cpus, program.memory_gib)
    starts_s = start_times(outcome)
    start_cpu_s = sum(event.get("start_cpu_s", 0.0) for event in outcome["events"])
    options: dict[str, Any] = {
        "starts_s": starts_s,
        "start_cpus": start_cpu_s / sum(starts_s),
        "overhead_cpus": outcome["overhead_cpu_s"] / outcome["seconds"],
        "num_steps": program.num_steps,
    }
    return Simulation(machine, trials, rule, **options).run().makespan_s


def measure_simulator(names: Sequence[str]) -> bool:
    """Print real and simulated makespans, and return whether all differ by at most 5 %."""
    table = empty_table("Real and simulated runs", "Run", "Starts", "Real", "Simulated", "Difference", "Load")
    differences = []
    for check in CHECKS:
        if names and check.name not in names:
            continue
        (outcome,) = run_program(check.program, [check.policy])
        real_s, simulated_s = makespan(outcome), predict(check, outcome)
        differences.append(abs(simulated_s / real_s - 1))
        start_s = statistics.fmean(start_times(outcome))
        seconds = f"{start_s:.1f} s", f"{real_s:.1f} s", f"{simulated_s:.1f} s"
        row = (check.name, *seconds, f"{simulated_s / real_s - 1:+.1%}", f"{os.getloadavg()[0]:.0f}")
        print(*row, flush=True)
        table.add_row(*row)
    TextConsole(width=120).print(table)
    within = sum(difference <= AGREEMENT for difference in differences)
    print(f"{within} of {len(differences)} within {AGREEMENT:.0%}")
    _print_machine()
    return within == len(differences)


def measure_hand_settings(names: Sequence[str]) -> bool:
    """Compare ``LearningPolicy()`` with all hand settings, and return whether it is fast enough and loses no trial."""
    table = empty_table("LearningPolicy() and hand settings", "Trials", "Setting", "Time", "Lost trials", "Load")
    is_sound = True
    for name in names or HAND_PROGRAMS:
        hand: list[ResourcePolicy] = [CpuPolicy(cpus=cpus) for cpus in _HAND_CPUS]
        outcomes = run_program(HAND_PROGRAMS[name], [LearningPolicy(), *hand])
        for outcome in outcomes:
            num_lost, load = str(outcome["num_lost"]), f"{os.getloadavg()[0]:.0f}"
            row = (name, outcome["policy"], f"{outcome['seconds']:.1f} s", num_lost, load)
            print(*row, flush=True)
            table.add_row(*row)
        best_s = min(outcome["seconds"] for outcome in outcomes[1:] if not outcome["num_lost"])
        ratio = outcomes[0]["seconds"] / best_s
        print(f"{name}: {ratio:.2f} times the best hand setting", flush=True)
        is_sound &= ratio <= HAND_GOAL and not outcomes[0]["num_lost"]
    TextConsole(width=120).print(table)
    _print_machine()
    return is_sound


def measure_never_slower(seeds: Iterable[int], output: Path | None) -> bool:
    """Run the random programs of the seeds that ``output`` does not contain, and return whether none is slower."""
    known = {}
    if output is not None and output.exists():
        known = {record["seed"]: record for record in map(json.loads, output.read_text().splitlines())}
    records = []
    for seed in seeds:
        record = known.get(seed)
        if record is None:
            record = _compare_with_start(seed)
            print(f"{seed}: {_described(record)}", flush=True)
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        records.append(record)
    table = empty_table("LearningPolicy and its start policy", "Programs", "Number", "Seeds")
    slower = [record for record in records if record["ratio"] > SLOWER or record["num_lost"]]
    for title, found in (("all", records), ("slower, or lost trials", slower)):
        table.add_row(title, str(len(found)), " ".join(str(record["seed"]) for record in found))
    TextConsole(width=110).print(table)
    if records:
        print(f"median of the ratios: {statistics.median(record['ratio'] for record in records):.2f}")
    _print_machine()
    return not slower


def _compare_with_start(seed: int) -> dict[str, Any]:
    program = draw(seed)
    start = CpuPolicy(cpus=program.start_cpus)
    policies = [start, LearningPolicy(start)] if seed % 2 else [LearningPolicy(start), start]
    outcomes = {outcome["policy"]: outcome for outcome in run_program(program, policies)}
    plain, learning = outcomes[repr(start)], outcomes[repr(LearningPolicy(start))]
    return {
        "seed": seed,
        "program": program.model_dump(mode="json", exclude_defaults=True),
        "start_s": round(plain["seconds"], 2),
        "learning_s": round(learning["seconds"], 2),
        "ratio": round(learning["seconds"] / plain["seconds"], 3),
        "num_lost": learning["num_lost"],
        "load": round(os.getloadavg()[0], 1),
    }


def _described(record: Mapping[str, Any]) -> str:
    program = record["program"]
    trials = f"{program['num_trials']} {program['kind']} trials of {program['step_s'] * program['num_steps']:.1f} s"
    lost = f", {record['num_lost']} trials lost" if record["num_lost"] else ""
    times = f"{record['start_s']:.1f} s with the start policy, {record['learning_s']:.1f} s with LearningPolicy"
    return f"{trials}: {times} ({record['ratio']:.2f}){lost}, load {record['load']:.0f}"


def _print_machine() -> None:
    print(
        f"load: {', '.join(f'{load:.1f}' for load in os.getloadavg())}\n{describe_machine()}\ncommand: {own_command()}"
    )
