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
    decision = decide(decided, terms, _CLUSTER).decision
    truth = decide(judged, terms, _CLUSTER).decision
    decided_workloads = {workload.workload for workload in decision.workloads}
    for workload in truth.workloads:
        if workload.workload not in decided_workloads:
            continue
        plan = BenchmarkedPolicy(
            decision, workload=workload.workload, size="size", max_age_days=None, accept_other_versions=True
        ).plan(_CLUSTER)
        for size in workload.sizes:
            slot = plan.slot_for({"size": size.size})
            chosen: Device = "GPU" if slot.trial.gpus else "CPU"
            yield Case(workload.workload, size.size, chosen, size.cpu.trial_s, size.gpu.trial_s)


def cases_by_round(run_set: RunSet, steps_per_trial: int) -> Iterator[Case]:
    """Yield the cases of each round, with the decision from all other rounds."""
    rounds = {run.round for run in run_set.runs}
    if len(rounds) < 2:
        raise InvalidResourcesError("the run has fewer than two rounds. Pass a second run, or measure more rounds")
    for number in sorted(rounds):
        runs_of_round = tuple(run for run in run_set.runs if run.round == number)
        other_runs = tuple(run for run in run_set.runs if run.round != number)
        own = run_set.model_copy(update={"runs": runs_of_round})
        others = run_set.model_copy(update={"runs": other_runs})
        if len(own.measured_devices) < 2:
            continue  # the processes of a device failed in this round
        yield from judged_cases(others, own, steps_per_trial)


def regret_of(cases: list[Case]) -> float:
    """Return the total time on the policy's devices divided by the total time on the faster devices, minus 1."""
    return sum(case.chosen_s for case in cases) / sum(case.best_s for case in cases) - 1


def measure_regret(run: Path, judge: Path | None, steps_per_trial: int) -> bool:
    """Print the cases and the regret, and return whether the regret is at most ``ALLOWED``."""
    run_set = read_run_set(run)
    if judge is None:
        cases = list(cases_by_round(run_set, steps_per_trial))
    else:
        cases = list(judged_cases(run_set, read_run_set(judge), steps_per_trial))
    if not cases:
        raise InvalidResourcesError(
            f"no workload was measured on both devices in {run} and in {judge or 'a round of it'}"
        )
    table = empty_table(
        f"Trials of {steps_per_trial:,} steps", "Workload", "Size", "Policy", "CPU (s)", "GPU (s)", "Lost (s)"
    )
    for case in sorted(cases):
        lost_s = case.chosen_s - case.best_s
        lost = f"{lost_s:.2f}" if lost_s else ""
        table.add_row(case.workload, f"{case.size:,}", case.chosen, f"{case.cpu_s:.2f}", f"{case.gpu_s:.2f}", lost)
    TextConsole(width=110).print(table)
    regret = regret_of(cases)
    num_best = sum(case.chosen_s == case.best_s for case in cases)
    print(
        f"{len(cases)} cases, {num_best} on the faster device. Total time "
        f"relative to the faster device: {1 + regret:.4f} under the policy, {_ratio(cases, 'CPU')} on CPUs alone, "
        f"{_ratio(cases, 'GPU')} on the GPU alone"
    )
    print(f"regret: {regret:.2%}\ncommand: {own_command()}")
    return regret <= ALLOWED


def _ratio(cases: list[Case], device: Device) -> str:
    return f"{1 + regret_of([case._replace(chosen=device) for case in cases]):.2f}"
