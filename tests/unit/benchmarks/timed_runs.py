"""Runs of a few processes with known step times."""

from datetime import UTC, datetime

from tune_policies.benchmarks.record.run_set import (
    Block,
    Configuration,
    DeviceFound,
    Environment,
    NoiseReading,
    Phase,
    ProcessRun,
    RunSet,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = 5
QUIET = tuple(NoiseReading(round=number, load=0.05) for number in range(ROUNDS))


def processes(device, step_s, *, size=1, is_control=False, wobble=0.001):
    """Yield five processes of one configuration. Their times differ slightly."""
    configuration = Configuration(workload="mlp", size=size, device=device, is_control=is_control)
    for number in range(ROUNDS):
        seconds = step_s * (1 + wobble * (number % 3)) * 10
        blocks = (Block(phase=Phase.COMPUTE, order=0, at_s=0, num_steps=10, seconds=seconds),)
        yield ProcessRun(
            configuration=configuration, round=number, order=0, pid=1, node="a", started_at=NOW, blocks=blocks
        )


def run_set(*configurations, **others):
    defaults = {
        "command": "",
        "seed": 0,
        "created_at": NOW,
        "environment": Environment(cpu_model="EPYC", num_cpus=2),
        "devices": (DeviceFound(device="cpu"),),
        "num_rounds": ROUNDS,
        "noise": QUIET,
    }
    return RunSet(
        **{**defaults, "runs": tuple(run for configuration in configurations for run in configuration), **others}
    )
