"""Builds benchmark runs with known times. On GPUs, trials start more slowly, and step times hardly depend on sizes."""

from datetime import UTC, datetime

from tests.clusters import GIB
from tune_policies.benchmarks.record.run_set import (
    Block,
    Configuration,
    DeviceFound,
    Environment,
    Phase,
    ProcessRun,
    RunSet,
)

MEASURED_AT = datetime(2026, 6, 1, tzinfo=UTC)
START_S = {"cpu": 1.0, "gpu": 5.0, "gpu@0.25": 5.0}


def step_s(device, size):
    return 1e-4 * size if device == "cpu" else 1e-3 + 1e-6 * size


def process(workload, size, device, number, **changes):
    each = step_s(device, size) * (1 + 0.001 * number)
    blocks = [
        Block(phase=Phase.TRANSFERS, order=at, at_s=at, num_steps=10, seconds=10 * each, is_warmup=at == 0)
        for at in range(3)
    ]
    fields = {
        "configuration": Configuration(workload=workload, size=size, device=device),
        "round": number,
        "order": 0,
        "pid": 1,
        "node": "a",
        "started_at": MEASURED_AT,
        "first_epoch_s": START_S[device] + 16 * each,
        "blocks": blocks,
        "num_threads": 4,
        "steps_per_epoch": 16,
        "peak_gpu_bytes": None if device == "cpu" else 2 * GIB,
    }
    return ProcessRun(**fields | changes)


def a_run(on=("cpu", "gpu"), sizes=(1, 16, 256), rounds=5, **changes):
    runs = [process("mlp", size, device, number) for size in sizes for device in on for number in range(rounds)]
    found = [DeviceFound(device=d, slot="a slot", at_once=2, accelerator_type="A10G") for d in on if d != "cpu"]
    fields = {
        "command": "run",
        "seed": 0,
        "created_at": MEASURED_AT,
        "environment": Environment(cpu_model="a CPU", num_cpus=16, versions={"torch": "2.9.0", "ray": "2.60.0"}),
        "devices": (DeviceFound(device="cpu", slot="4 CPUs", at_once=4), *found),
        "num_rounds": rounds,
        "runs": runs,
        "is_complete": True,
    }
    return RunSet(**fields | changes)
