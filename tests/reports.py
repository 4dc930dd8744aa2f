"""Builds a decision with prices, and a throughput record, for tests of reports."""

from tests.decisions import device_times
from tests.run_sets import BEGAN
from tune_policies.benchmarks.record.packing_record import ThroughputRecord, ThroughputSample
from tune_policies.plan.benchmark_decision import Decision, SizeDecision, WorkloadDecision


def a_decision(workload="mlp", sizes=(16, 64, 256, 1024, 4096), *, has_prices=True):
    """Return a decision in which the GPU is faster from size 1024 on, and cheaper from size 4096 on."""
    decided = []
    for size in sizes:
        cpu, gpu = 2 + 0.01 * size, 5 + 0.0005 * size
        costs = (cpu * 2e-5, gpu * 8e-5) if has_prices else (None, None)
        decided.append(
            SizeDecision(
                size=size,
                answer="GPU" if cpu > gpu * 1.05 else "CPU",
                speedup=cpu / gpu,
                low=cpu / gpu * 0.97,
                high=cpu / gpu * 1.03,
                cpu=_times("cpu", cpu, 8, costs[0]),
                gpu=_times("gpu", gpu, 4, costs[1]),
                cheapest=("CPU" if costs[0] < costs[1] else "GPU") if has_prices else None,
                flips_at=cpu / gpu if has_prices else None,
            )
        )
    crossed = [each.size for each in decided if each.answer == "GPU"]
    return Decision(
        measured_at=BEGAN,
        cpu_model="Example CPU",
        accelerator_type="H200",
        workloads=(
            WorkloadDecision(
                workload=workload,
                sizes=tuple(decided),
                crossover_above=max((size for size in sizes if size not in crossed), default=None),
                crossover_at=min(crossed, default=None),
                steps_per_trial=1000,
            ),
        ),
        price_date="2026-01-01" if has_prices else None,
        currency="USD" if has_prices else None,
        price_source="prices.yaml" if has_prices else None,
    )


def _times(device, trial_s, at_once, cost):
    rate = at_once * 3600 / trial_s
    return device_times(device, trial_s, at_once=at_once, trials_per_hour=rate, cost_per_trial=cost)


def a_packing_record(workload="mlp"):
    """Return a record in which more than four trials per GPU hardly increase the throughput."""
    rates = {("alone", 1): 100, ("packed", 2): 180, ("packed", 4): 260, ("packed", 8): 265, ("plan", 8): 262}
    samples = [
        ThroughputSample(
            workload=workload,
            mode=mode,
            trials_per_gpu=number,
            num_trials=8,
            seconds=8 * 3600 / rate * factor,
            trial_seconds=(),
            losses=(),
        )
        for (mode, number), rate in rates.items()
        for factor in (0.98, 1, 1.03)
    ]
    return ThroughputRecord(
        gpu="Example GPU",
        machine="Example CPU, 16 cores",
        command="tune-policies bench packing --output packing.json",
        plans={},
        samples=tuple(samples),
    )
