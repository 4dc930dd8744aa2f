"""Runs under a ``LearningPolicy`` without Ray: their results, their pilots, and their finished trials."""

from ray.tune.experiment import Trial

from tests.clusters import GIB
from tests.unit.runner.small_runs import new_trial
from tune_policies import (
    CpuPolicy,
    NodeCapacity,
    Resources,
)
from tune_policies.values.units import MIB

NODE = NodeCapacity(node_id="a", resources=Resources(cpus=8, memory_bytes=16 * GIB))


START = CpuPolicy(cpus=2, memory="4GiB")


def result_of(*, elapsed_s=10.0, cpus=0.4, memory_bytes=512 * MIB, **fields):
    """Return a result with the usage of the trial's process."""
    usage = {"elapsed_s": elapsed_s, "cpus": 2.0, "cpu_s": cpus * elapsed_s, "host_memory_bytes": memory_bytes}
    return {"usage": usage, "time_total_s": elapsed_s, **fields}


def report(run, trial, number=2, **fields):
    """Report results of a running trial."""
    for iteration in range(1, number + 1):
        result = result_of(training_iteration=iteration, **fields)
        run.scheduler.on_trial_result(run.controller, trial, result)
        trial.run_metadata.last_result = result


def policy_of(run):
    return run.slots.run_plan.learning


def end_pilots(run, **fields):
    """Let the first trials report twice, 10 s apart, and end."""
    report_all(run, (1, 2), step_s=10, **fields)
    for trial in list(run.slots.assignments):
        run.complete(trial)


def add_finished(run, number, status=Trial.TERMINATED):
    """Add trials that have ended before the run was restored."""
    slot = run.slots.run_plan.plan.common_slot.model_dump_json(exclude_defaults=True)
    for index in range(number):
        trial = new_trial(100 + index)
        trial.set_status(status)
        trial.policy_record = f'{{"slot": {slot}}}'
        trial.run_metadata.last_result = result_of(training_iteration=3)
        run.add_trial(trial)


def run_of_pilots(run, *, has_checkpoint=True, number=20):
    """Let the first four of a number of trials report three times, 10 s apart. Return one of them."""
    for index in range(number):
        trial = new_trial(index, stopping_criterion={"training_iteration": 40})
        trial.has_checkpoint = lambda: has_checkpoint
        run.add_trial(trial)
    pilots = run.run_all()
    for iteration in (1, 2, 3):
        run.cluster.clock.advance(10)
        for trial in pilots:
            result = result_of(training_iteration=iteration, cpus=0.2)
            run.scheduler.on_trial_result(run.controller, trial, result)
            trial.run_metadata.last_result = result
    run.step()
    return pilots[0]


def report_all(run, iterations, *, step_s, **fields):
    """Let all running trials report, with ``step_s`` between two results."""
    for iteration in iterations:
        run.cluster.clock.advance(step_s)
        for trial in run.slots.assignments:
            trial.run_metadata.last_result = result_of(training_iteration=iteration, **{"cpus": 0.2} | fields)
            run.scheduler.on_trial_result(run.controller, trial, trial.run_metadata.last_result)
    run.step()
