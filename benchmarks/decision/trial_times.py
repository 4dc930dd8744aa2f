"""How long trials of an arm take: what comes before their first step, and their steps."""

import statistics

from ..record.run_set import Arm, Phase, RunSet
from ..verdict.comparison import Comparison
from ..verdict.doubts import control_problem, disagreement, noise_problems, other_work
from ..verdict.judge import compare_arms

PHASE = Phase.TRANSFERS
"""A trial's data begin in host memory."""


def starts_s(run_set: RunSet, arm: Arm) -> dict[int, float]:
    """Return what comes before the first step, by round: the first epoch without what its steps take later."""
    starts = {}
    for run in run_set.of(arm):
        times = run.times_s(PHASE)
        if run.first_epoch_s is not None and times:
            starts[run.round] = max(0.0, run.first_epoch_s - run.steps_per_epoch * statistics.median(times))
    return starts


def steps_s(run_set: RunSet, arm: Arm) -> dict[int, tuple[float, ...]]:
    """Return the seconds of a step by round, block by block; where a start is not known, the round is left out."""
    starts = starts_s(run_set, arm)
    return {number: times for number, times in run_set.times_s(arm, PHASE).items() if number in starts}


def trials_s(run_set: RunSet, arm: Arm, steps_per_trial: int) -> dict[int, tuple[float, ...]]:
    """Return the seconds of a trial by round, by each block of steps that was timed."""
    starts = starts_s(run_set, arm)
    steps = steps_s(run_set, arm)
    return {number: tuple(starts[number] + steps_per_trial * each for each in steps[number]) for number in steps}


def both_arms(run_set: RunSet, workload: str, size: int, gpu: str) -> tuple[Arm, Arm] | None:
    """Return the arms on the CPU and on the GPU, which is called ``gpu``; ``None``: one of them has no times."""
    arms = Arm(workload=workload, size=size, device="cpu"), Arm(workload=workload, size=size, device=gpu)
    return arms if all(steps_s(run_set, arm) for arm in arms) else None


def compare_trials(
    run_set: RunSet,
    arms: tuple[Arm, Arm],
    steps_per_trial: int,
    *,
    same_within: float,
    prices: tuple[float, float] = (1.0, 1.0),
) -> Comparison:
    """Compare whole trials of two arms, by what they take at a price for their time."""
    doubts = [
        *noise_problems(run_set),
        *(control_problem(run_set, arm, PHASE, same_within) for arm in arms),
        disagreement(run_set, *arms),
        other_work(*map(run_set.of, arms)),
    ]
    first, second = (
        {number: tuple(price * each for each in times) for number, times in trials.items()}
        for trials, price in zip((trials_s(run_set, arm, steps_per_trial) for arm in arms), prices, strict=True)
    )
    return compare_arms(first, second, same_within=same_within, doubts=[doubt for doubt in doubts if doubt])


def middle(by_round: dict[int, tuple[float, ...]]) -> float:
    """Return the median over processes of the medians of their blocks."""
    return statistics.median(map(statistics.median, by_round.values()))


def num_threads(run_set: RunSet, arm: Arm) -> int:
    """Return the CPU threads of the arm's processes."""
    return max(run.num_threads for run in run_set.of(arm))


def peak_gpu_bytes(run_set: RunSet, arm: Arm) -> int | None:
    """Return the most GPU memory that any of its processes held; ``None``: not known, or none."""
    return max((run.peak_gpu_bytes for run in run_set.of(arm) if run.peak_gpu_bytes), default=None)
