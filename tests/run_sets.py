"""Builds a small run set. Equal arguments give equal run sets.

A step takes ``a + b·size`` seconds. On the GPU, trials start more slowly than on the CPU, but steps are faster from
about size 100 on.
"""

import random
from datetime import UTC, datetime, timedelta

from tune_policies.benchmarks.record.run_set import (
    Block,
    Configuration,
    DeviceFound,
    Environment,
    Failure,
    GpuFacts,
    NoiseReading,
    Phase,
    ProcessRun,
    RunSet,
)

SIZES = (16, 64, 256, 1024, 4096)
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECONDS = {"cpu": (2e-5, 2e-6), "gpu": (2e-4, 1e-7)}
"""The constants ``a`` and ``b`` in seconds, by device."""
START_S = {"cpu": 0.8, "gpu": 3.0}
TRANSFER = {"cpu": 1.0, "gpu": 1.25}
ENVIRONMENT = Environment(
    cpu_model="Example CPU",
    num_cpus=16,
    usable_cpus=8,
    host_memory_bytes=64 * 2**30,
    cgroup_memory_bytes=32 * 2**30,
    gpus=(
        GpuFacts(name="Example GPU", memory_bytes=80 * 2**30, driver="550.1", max_clock_mhz=1980, power_limit_w=700),
    ),
    platform="Linux",
    python="3.12.1",
    versions={"ray": "2.60.0", "tune-policies": "0.1.0"},
)


def a_run_set(
    *,
    workloads=("mlp", "matmul"),
    sizes=SIZES,
    devices=("cpu", "gpu"),
    has_control=True,
    num_rounds=5,
    spread=0.01,
    seed=0,
    missing=("TPU",),
    has_failure=True,
    **fields,
):
    """Return a run set with each workload and size on each of ``devices``, which may be ``"cpu"`` and ``"gpu"``.

    With ``has_control``, the first device is measured twice. ``spread`` is the relative variation of times. With
    ``has_failure``, the last configuration raised an error in the second round. ``fields`` replace fields of the
    ``RunSet``.
    """
    draw = random.Random(seed)
    configurations = [
        Configuration(workload=workload, size=size, device=device, is_control=is_control)
        for workload in workloads
        for size in sizes
        for device, is_control in [*((device, False) for device in devices), *((d, True) for d in devices[:1])]
        if has_control or not is_control
    ]
    broken = [configuration for configuration in configurations if not configuration.is_control][-1]
    failures = (
        [Failure(configuration=broken, round=1, kind="raised", message="ValueError: <no> data")] if has_failure else []
    )
    failed = {(failure.configuration, failure.round) for failure in failures}
    runs = []
    for number in range(num_rounds):
        order = draw.sample(range(len(configurations)), len(configurations))
        runs += [
            _process(configurations[index], number, place, spread, draw)
            for place, index in enumerate(order)
            if (configurations[index], number) not in failed
        ]
    found = [DeviceFound(device=device, slot=f"1 {device.upper()}", at_once=2) for device in devices]
    not_there = [DeviceFound(device=device, why_missing=f"no node has a {device}") for device in missing]
    all_fields = {
        "command": "tune-policies bench run mlp matmul --device cpu --device gpu",
        "seed": seed,
        "created_at": BEGAN,
        "environment": ENVIRONMENT,
        "devices": (*found, *not_there),
        "num_rounds": num_rounds,
        "runs": tuple(runs),
        "failures": tuple(failures),
        "noise": tuple(NoiseReading(round=number, load=0.05) for number in range(num_rounds)),
        "is_complete": True,
    }
    return RunSet(**{**all_fields, **fields})


def _process(configuration, number, place, spread, draw):
    constant, per_unit = SECONDS[configuration.device]
    step_s = (constant + per_unit * configuration.size) * draw.lognormvariate(0, spread)
    num_steps = max(1, round(0.02 / step_s))
    blocks = []
    for index in range(10):
        phase = (Phase.COMPUTE, Phase.TRANSFERS)[index % 2]
        is_warmup = index < 2
        slower = (TRANSFER[configuration.device] if phase is Phase.TRANSFERS else 1) * (1.5 if is_warmup else 1)
        blocks.append(
            Block(
                phase=phase,
                order=index * 10 + place,
                at_s=START_S[configuration.device] + 0.1 * index,
                num_steps=num_steps,
                seconds=num_steps * step_s * slower * draw.lognormvariate(0, spread),
                is_warmup=is_warmup,
            )
        )
    on_gpu = configuration.device == "gpu"
    return ProcessRun(
        configuration=configuration,
        round=number,
        order=place,
        pid=1000 + 100 * number + place,
        node="node-a",
        started_at=BEGAN + timedelta(minutes=number),
        first_epoch_s=START_S[configuration.device] * draw.lognormvariate(0, spread) + 16 * step_s,
        blocks=tuple(blocks),
        losses=(1.0, 0.5, 0.25),
        peak_host_bytes=2**28 + 1024 * configuration.size,
        peak_gpu_bytes=2**30 + 2**16 * configuration.size if on_gpu else None,
        num_threads=4,
        dtype="float32",
        samples_per_step=configuration.size if configuration.workload == "mlp" else None,
        steps_per_epoch=16,
    )
