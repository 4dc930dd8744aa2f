"""Builds decisions for tests."""

from datetime import UTC, datetime

from tune_policies.plan.benchmark_decision import Decision, DeviceTimes, SizeDecision, WorkloadDecision

MEASURED_AT = datetime(2026, 6, 1, tzinfo=UTC)


def device_times(device, trial_s, **changes):
    fields = {"step_s": trial_s / 100, "start_s": 0, "at_once": 4, "trials_per_hour": 4 * 3600 / trial_s}
    return DeviceTimes(device=device, trial_s=trial_s, **fields | changes)


def a_size(size, answer, *, cpu_s=1.0, gpu_s=None, **changes):
    gpu_s = gpu_s or {"GPU": cpu_s / 4, "CPU": cpu_s * 4}.get(answer, cpu_s)
    speedup = cpu_s / gpu_s
    return SizeDecision(
        size=size,
        answer=answer,
        speedup=speedup,
        low=0.9 * speedup,
        high=1.1 * speedup,
        cpu=device_times("cpu", cpu_s, num_threads=2),
        gpu=device_times("gpu", gpu_s),
        **changes,
    )


def a_decision(accelerator_type=None, answers=None, *, workload="mlp", **changes):
    """Return a decision about one workload. By default, the GPU is the answer from size 64 on."""
    answers = answers or {16: "CPU", 32: "same", 64: "GPU", 256: "GPU"}
    decided = WorkloadDecision(
        workload=workload,
        sizes=[a_size(size, each) if isinstance(each, str) else each for size, each in answers.items()],
        crossover_above=32,
        crossover_at=64,
        steps_per_trial=100,
    )
    fields = {"measured_at": MEASURED_AT, "cpu_model": "a CPU", "accelerator_type": accelerator_type}
    return Decision(workloads=(decided,), **fields | changes)
