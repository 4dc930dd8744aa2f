"""Computes how much longer trials take under ``BenchmarkedPolicy`` than with the faster device for each trial.

The decision and the judgment use different measurements, because the noise of a decision would otherwise count as
truth.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tune_policies import BenchmarkedPolicy, ClusterCapacity, InvalidResourcesError, Resources
from tune_policies.benchmarks.decide.device_decision import Terms, decide
from tune_policies.benchmarks.record.machine import own_command
from tune_policies.benchmarks.record.run_set import RunSet
from tune_policies.benchmarks.record.run_set_file import read_run_set
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.plan.slots_by_config import Device

ALLOWED: Final = 0.01
"""The regret up to which the command reports success."""

_CLUSTER: Final = ClusterCapacity.of(Resources(cpus=64, gpus=1))


class Case(NamedTuple):
    """A trial of a workload and size: the policy's device, and the duration on each device in seconds."""

    workload: str
    size: int
    chosen: Device
    cpu_s: float
    gpu_s: float

    @property
    def chosen_s(self) -> float:
        """The duration on the policy's device, in seconds."""
        return self.gpu_s if self.chosen == "GPU" else self.cpu_s

    @property
    def best_s(self) -> float:
        """The duration on the faster device, in seconds."""
        return min(self.cpu_s, self.gpu_s)


def judged_cases(decided: RunSet, judged: RunSet, steps_per_trial: int) -> Iterator[Case]:
    """Decide from one run, and yield the cases of another run. Workloads that only one run contains are omitted."""
    terms = Terms(steps_per_trial=steps_per_trial)
    decision, truth = (decide(each, terms, _CLUSTER).decision for each in (decided, judged))
    for workload in truth.workloads:
        if workload.workload not in {each.workload for each in decision.workloads}:
            continue
        plan = BenchmarkedPolicy(
            decision, workload=workload.workload, size="size", max_age_days=None, accept_other_versions=True
        ).plan(_CLUSTER)
        for each in workload.sizes:
            chosen: Device = "GPU" if plan.slot_for({"size": each.size}).trial.gpus else "CPU"
            yield Case(workload.workload, each.size, chosen, each.cpu.trial_s, each.gpu.trial_s)


def cases_by_round(run_set: RunSet, steps_per_trial: int) -> Iterator[Case]:
    """Yield the cases of each round, with the decision from all other rounds."""
    rounds = {run.round for run in run_set.runs}
    if len(rounds) < 2:
        raise InvalidResourcesError("the run has fewer than two rounds. Pass a second run, or measure more rounds")
    for number in sorted(rounds):
        own, others = (
            run_set.model_copy(update={"runs": tuple(run for run in run_set.runs if (run.round == number) == is_own)})
            for is_own in (True, False)
        )
        if len(own.measured_devices) < 2:
            continue  # the processes of a device failed in this round
        yield from judged_cases(others, own, steps_per_trial)


def regret_of(cases: list[Case]) -> float:
    """Return the total time on the policy's devices divided by the total time on the faster devices, minus 1."""
    return sum(each.chosen_s for each in cases) / sum(each.best_s for each in cases) - 1


def measure_regret(run: Path, judge: Path | None, steps_per_trial: int) -> bool:
    """Print the cases and the regret, and return whether the regret is at most ``ALLOWED``."""
    run_set = read_run_set(run)
    cases = [
        *(
            cases_by_round(run_set, steps_per_trial)
            if judge is None
            else judged_cases(run_set, read_run_set(judge), steps_per_trial)
        )
    ]
    if not cases:
        raise InvalidResourcesError(
            f"no workload was measured on both devices in {run} and in {judge or 'a round of it'}"
        )
    table = empty_table(
        f"Trials of {steps_per_trial:,} steps", "Workload", "Size", "Policy", "CPU (s)", "GPU (s)", "Lost (s)"
    )
    for each in sorted(cases):
        lost_s = each.chosen_s - each.best_s
        table.add_row(
            *(each.workload, f"{each.size:,}", each.chosen, f"{each.cpu_s:.2f}", f"{each.gpu_s:.2f}"),
            f"{lost_s:.2f}" if lost_s else "",
        )
    TextConsole(width=110).print(table)
    regret = regret_of(cases)
    print(
        f"{len(cases)} cases, {sum(each.chosen_s == each.best_s for each in cases)} on the faster device. Total time "
        f"relative to the faster device: {1 + regret:.4f} under the policy, {_ratio(cases, 'CPU')} on CPUs alone, "
        f"{_ratio(cases, 'GPU')} on the GPU alone"
    )
    print(f"regret: {regret:.2%}\ncommand: {own_command()}")
    return regret <= ALLOWED


def _ratio(cases: list[Case], device: Device) -> str:
    return f"{1 + regret_of([each._replace(chosen=device) for each in cases]):.2f}"
