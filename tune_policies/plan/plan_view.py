"""Shows plans and decisions as tables and lines."""

from collections.abc import Iterator

from rich.console import Group, RenderableType

from tune_policies.cluster.labels import format_selector
from tune_policies.files.terminal import empty_table, line
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.decision import Decision, SizeDecision, WorkloadDecision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.resources import amount_of, format_amount
from tune_policies.values.units import format_bytes
from tune_policies.values.value import counted


def plan_view(plan: TrialPlan) -> RenderableType:
    """Return the plan's headline and a table of its slots, followed by the nodes to add and the reasons."""
    slots = plan.slots if plan.by_config is None else plan.by_config.slots
    rows = [_slot_columns(slot) for slot in slots]
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    table = empty_table("", *headings)
    for row in rows:
        table.add_row(*(row[heading] or "-" for heading in headings))
    below = [*filter(None, [plan.about_nodes_to_add]), *(f"- {reason}" for reason in plan.all_reasons)]
    return Group(line(plan.headline, "bold"), table, *map(line, below))


def _slot_columns(slot: TrialSlot) -> dict[str, str]:
    worker = slot.worker
    most = f" to {slot.max_workers}" if slot.is_elastic else ""
    where = [slot.accelerator_type, slot.topology and f"whole {slot.topology} slices"]
    selected = [f"nodes with {format_selector(slot.label_selector)}"] if slot.label_selector else []
    return {
        "At once": str(slot.max_concurrent_trials),
        "Train workers": f"{slot.num_workers}{most}" if slot.num_workers else "",
        "CPU": format_amount(worker.cpus),
        "GPU": format_amount(worker.gpus),
        "Other": ", ".join(amount_of(amount, name) for name, amount in sorted(worker.custom.items())),
        "Host memory": format_bytes(worker.memory_bytes) if worker.memory_bytes else "",
        "GPU memory": format_bytes(slot.gpu_memory_bytes) if slot.gpu_memory_bytes else "",
        "Speed": "" if slot.speed is None else f"{slot.speed:g}",
        "Where": ", ".join([*filter(None, where), *selected]),
    }


def decision_view(decision: Decision) -> RenderableType:
    """Return a table of workloads and sizes, followed by sentences about each crossover and the measurement."""
    costs = ("Cheaper", "CPU cost", "GPU cost") if decision.has_prices else ()
    headings = ("Workload", "Size", "Faster", "GPU speed-up", "Trial on CPU", "Trial on GPU", *costs)
    table = empty_table("GPU or CPU", *headings)
    for each in decision.workloads:
        for size in each.sizes:
            table.add_row(each.workload, *_size_columns(size), *(_costs(size) if costs else ()))
    gpu = decision.accelerator_type or "a GPU of unknown type"
    where = f"measured on {decision.measured_at:%Y-%m-%d} on {decision.cpu_model} and {gpu}"
    prices = f"; the costs are in {decision.currency}, at prices of {decision.price_date}" if costs else ""
    return Group(table, *(line(f"- {_crossover(each)}") for each in decision.workloads), line(f"- {where}{prices}"))


def _size_columns(size: SizeDecision) -> tuple[str, ...]:
    speedup = f"{size.speedup:.3g} ({size.low:.3g} to {size.high:.3g})"
    return (str(size.size), size.answer, speedup, f"{size.cpu.trial_s:.3g} s", f"{size.gpu.trial_s:.3g} s")


def _costs(size: SizeDecision) -> Iterator[str]:
    yield size.cheapest or "-"
    for times in (size.cpu, size.gpu):
        yield "-" if times.cost_per_trial is None else f"{times.cost_per_trial:.3g}"


def _crossover(decided: WorkloadDecision) -> str:
    trials = f"{decided.workload}: in trials of {counted(decided.steps_per_trial, 'step')}"
    if decided.crossover_at is None:
        return f"{trials}, the GPU is not clearly faster at any measured size"
    above = "" if decided.crossover_above is None else f", but not clearly at {decided.crossover_above}"
    return f"{trials}, the GPU is faster from size {decided.crossover_at}{above}"
