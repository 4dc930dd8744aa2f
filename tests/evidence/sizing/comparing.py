"""Runs each rule on each sweep, and prints the speeds, the out-of-memory errors and the claims that follow."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from tune_policies import LearningPolicy
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation

from .forecasts import LENGTHS, coverage
from .rules import all_rules
from .rules.fixed import Fixed, LateOracle, Oracle
from .rules.learning import Learning, capacity_of
from .simulated_programs import slowdowns
from .simulation import GIB, Outcome, Simulation, SizingRule
from .sweeps import SWEEPS, TWO_GPUS, Sweep

_PARTS: Final = (8, 13, 5, 1, 2, 3, 4, 6, 7, 10, 16, 20, 26)
_CPUS: Final = (0.1, 0.25, 0.5, 1, 2, 6)
_HOST_GIB: Final = (0.55, 1, 2, 4, 8)
_LEARNING: Final = "LearningPolicy"
_FIXED: Final = "best fixed setting"
_BOUND: Final = "oracle after two results"
_PROGRAMS: Final = range(10_000, 11_500)
"""The seeds of the random programs, which were not used while the limits by progress were developed."""
_SLOWER: Final = 1.05
_EXPLAINED: Final = ("explained by config", "long and short", "early stopping", "two populations")


def best_fixed(sweep: Sweep) -> Outcome:
    """Return the outcome of the fastest fixed request, found by trying all."""
    if sweep.machine.gpus_gib:
        rules = [Fixed("", 1 / parts, cpus) for parts in _PARTS for cpus in (1, sweep.machine.cpus / 10)]
    else:
        rules = [Fixed("", 0, cpus, host) for cpus in _CPUS for host in _HOST_GIB]
    return _best(sweep, rules)


def best_oracle(sweep: Sweep, oracle: type[Oracle] = Oracle) -> Outcome:
    """Return the outcome of the fastest oracle: that may or may not let trials share the time of a busy device."""
    return _best(sweep, [oracle("", crowding) for crowding in (1.5, 1, 2, 4)])


def _best(sweep: Sweep, rules: Sequence[SizingRule]) -> Outcome:
    """Return the outcome of the rule that loses the fewest trials and is the fastest."""
    best = Simulation(*sweep, rules[0]).run()
    for rule in rules[1:]:
        limit_s = math.inf if best.num_lost else best.makespan_s
        outcome = Simulation(*sweep, rule, limit_s=limit_s).run()
        best = min(best, outcome, key=lambda outcome: (outcome.num_lost, outcome.makespan_s))
    return best


def measure_sizing(seeds: range, only: list[str]) -> bool:
    """Print the speed of each rule relative to the oracle, and the goals. Return whether no trial was lost."""
    rules = all_rules()
    outcomes: dict[str, dict[str, list[Outcome]]] = {}
    oracle: dict[str, list[float]] = {}
    costs: list[float] = []
    for name in only or SWEEPS:
        sweeps = [SWEEPS[name](random.Random(seed)) for seed in seeds]
        oracle[name] = [best_oracle(sweep).makespan_s for sweep in sweeps]
        results = {
            _BOUND: [best_oracle(sweep, LateOracle) for sweep in sweeps],
            _FIXED: [best_fixed(sweep) for sweep in sweeps],
        }
        for rule, create in rules.items():
            if rule == "oracle":
                continue
            results[rule] = []
            for sweep in sweeps:
                deciding = create()
                results[rule].append(Simulation(*sweep, deciding).run())
                if isinstance(deciding, Learning):
                    costs.append(deciding.cpu_s / results[rule][-1].makespan_s)
        outcomes[name] = results
    names = [_BOUND, _FIXED, *(rule for rule in rules if rule != "oracle")]
    table = empty_table(f"Speed relative to the oracle / out-of-memory errors, {len(seeds)} seeds", "Sweep", *names)
    for name, results in outcomes.items():
        cells = [_cell(results[rule], oracle[name]) for rule in names]
        table.add_row(name, *cells)
    console = TextConsole(width=180)
    console.print(table)
    claims = _claims(outcomes, oracle, max(costs))
    table = empty_table("Claims", "Claim", "Goal", "Measured", "Met")
    for claim, goal, measured, is_met in claims:
        met = "yes" if is_met else "no"
        table.add_row(claim, goal, measured, met)
    console.print(table)
    print(f"{describe_machine()}\ncommand: {own_command()}")
    return all(is_met for claim, *_, is_met in claims if claim == "lost trials")


def _cell(outcomes: list[Outcome], oracle: list[float]) -> str:
    num_lost = statistics.fmean(outcome.num_lost for outcome in outcomes)
    lost = f" ({num_lost:.0f} lost)" if num_lost >= 0.5 else ""
    return f"{_speed(outcomes, oracle):.2f} / {_ooms(outcomes):.0f}{lost}"


def _speed(outcomes: list[Outcome], oracle: list[float]) -> float:
    return statistics.fmean(best / outcome.makespan_s for best, outcome in zip(oracle, outcomes, strict=True))


def _ooms(outcomes: list[Outcome]) -> float:
    return statistics.fmean(outcome.num_ooms for outcome in outcomes)


def _claims(
    outcomes: dict[str, dict[str, list[Outcome]]], oracle: dict[str, list[float]], cost: float
) -> list[tuple[str, str, str, bool]]:
    speeds = {name: _speed(results[_LEARNING], oracle[name]) for name, results in outcomes.items()}
    fixed = {name: speeds[name] / _speed(results[_FIXED], oracle[name]) for name, results in outcomes.items()}
    start = {
        name: speeds[name] / _speed(results["Tune's default, a whole GPU or 1 CPU"], oracle[name])
        for name, results in outcomes.items()
    }
    ooms = {name: _ooms(outcomes[name][_LEARNING]) for name in _EXPLAINED if name in outcomes}
    of_learning = [outcome for results in outcomes.values() for outcome in results[_LEARNING]]
    lost = sum(outcome.num_lost for outcome in of_learning)
    fast = sum(speed >= 0.9 for speed in speeds.values())
    needed = len(speeds) - 2
    better = sum(ratio > 1 for ratio in fixed.values())
    explained_ms, unexplained_ms = _again_ms(_explained), _again_ms(_unexplained)
    inside, total = _coverage()
    covered = inside / total
    most_ooms = max(ooms.values(), default=0)
    twice, twice_most = _slower_programs(reports_once=False)
    once, once_most = _slower_programs(reports_once=True)
    return [
        ("speed against the oracle", f"0.9 in {needed} of {len(speeds)} sweeps", f"{fast}", fast >= needed),
        ("slowest sweep against the oracle", "0.8", _lowest(speeds), min(speeds.values()) >= 0.8),
        ("slowest sweep against the best fixed setting", "0.95", _lowest(fixed), min(fixed.values()) >= 0.95),
        ("sweeps faster than the best fixed setting", "6", f"{better}", better >= 6),
        ("slowest sweep against the start policy", "0.95", _lowest(start), min(start.values()) >= 0.95),
        (
            "random programs over 1.05 times as slow as under the start policy",
            f"0 of {len(_PROGRAMS)}",
            f"{twice} (at most {twice_most:.2f})",
            twice == 0,
        ),
        (
            "the same, if each trial reports only once",
            f"0 of {len(_PROGRAMS)}",
            f"{once} (at most {once_most:.2f})",
            once == 0,
        ),
        ("most OOM errors, memory explained", "2 of 64", f"{most_ooms:.1f}", most_ooms <= 2),
        (
            "forecast intervals with the end",
            "0.87 to 0.93",
            f"{covered:.3f} of {total}",
            0.87 <= covered <= 0.93,
        ),
        ("lost trials", "0", f"{lost}", lost == 0),
        ("CPU time of learning, relative to the sweep", "1 %", f"{cost:.3%}", cost <= 0.01),
        (
            "learning and planning again, 500 observed configs",
            "5 ms",
            f"{explained_ms:.1f} ms, unexplained: {unexplained_ms:.1f} ms (a slot: {_slot_ms():.2f} ms)",
            max(explained_ms, unexplained_ms) <= 5,
        ),
    ]


def _coverage() -> tuple[int, int]:
    """Return how many of the forecasts' intervals contain the end of a simulated run, and the number of intervals."""
    num_inside = num_total = 0
    for name in LENGTHS:
        for knows_progress in (True, False):
            inside, total = coverage(name, range(60), knows_progress=knows_progress)
            num_inside += inside
            num_total += total
    return num_inside, num_total


def _slower_programs(*, reports_once: bool) -> tuple[int, float]:
    """Return how many random programs are slower than under their start policy, and the largest ratio of the times."""
    ratios = [slowdown.ratio for slowdown in slowdowns(_PROGRAMS, reports_once=reports_once)]
    return sum(ratio > _SLOWER for ratio in ratios), max(ratios)


def _lowest(values: dict[str, float]) -> str:
    name = min(values, key=lambda sweep: values[sweep])
    return f"{values[name]:.2f} ({name})"


def _explained(i: int) -> TrialObservation:
    """Return an observation whose GPU memory follows from the config."""
    config = {"batch": 1 + i % 97, "width": 1 + i % 7, "lr": i / 500}
    gpu_gib = 1 + config["batch"] * config["width"] // 50
    used = TrialNeed(cpus=0.5, host_memory_bytes=GIB, gpu_memory_bytes=GIB * gpu_gib)
    return TrialObservation(trial_id=str(i), config=config, used=used, num_steps=2)


def _unexplained(i: int) -> TrialObservation:
    """Return an observation whose amounts are random, with two words and three numbers in the config."""
    rng = random.Random(i)
    config = {"net": rng.choice("abcdef"), "optimizer": rng.choice(("sgd", "adam")), "lr": rng.random()}
    config |= {"batch": rng.choice((16, 32, 64)), "width": rng.choice((1, 2, 4)), "depth": rng.choice((2, 4))}
    memory = {"host_memory_bytes": int(GIB * rng.uniform(1, 3)), "gpu_memory_bytes": int(GIB * rng.uniform(2, 25))}
    return TrialObservation(trial_id=str(i), config=config, used=TrialNeed(cpus=0.5, **memory), num_steps=2)


def _slot_ms() -> float:
    """Return the mean CPU time of choosing the slot of a trial with 500 observed configs, in milliseconds."""
    observed = [_explained(i) for i in range(500)]
    plan = LearningPolicy().learn(observed).plan(capacity_of(TWO_GPUS))
    begin_s = time.process_time()
    for i in range(10_000):
        plan.slot_for(observed[i % 500].config)
    return (time.process_time() - begin_s) / 10


def _again_ms(observation: Callable[[int], TrialObservation]) -> float:
    """Return the CPU time of learning and planning again with 500 observed configs, in milliseconds.

    It is the median of 11 times, each after a trial ran out of memory.
    """
    observed = [observation(i) for i in range(500)]
    policy, capacity = LearningPolicy().learn(observed), capacity_of(TWO_GPUS)
    policy.plan(capacity)
    again_ms = []
    for seen in observed[:11]:
        failed = seen.model_copy(update={"too_little": seen.used})
        begin_s = time.process_time()
        policy = policy.learn([failed])
        policy.plan(capacity)
        again_ms.append(1_000 * (time.process_time() - begin_s))
    return statistics.median(again_ms)
