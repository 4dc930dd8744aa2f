"""Shows plans and decisions as tables and lines."""

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType

from tune_policies.cluster.labels import format_selector
from tune_policies.files.terminal import empty_table, line
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.benchmark_decision import Decision, SizeDecision, WorkloadDecision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.resources import amount_of, format_amount
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted

_NUMBER: Final = "At once"


def plan_view(plan: TrialPlan, idle_lines: Iterable[str] = ()) -> RenderableType:
    """Return the plan's headline, a table of its slots, the nodes to add, the reasons, and the idle lines.

    A plan does not contain the nodes, so the lines about idle resources come from :meth:`TrialPlan.explain`.
    """
    if plan.by_config is None:
        rows = _merged([_slot_columns(slot) for slot in plan.slots])
    else:
        rows = [{**_slot_columns(slot), "for": plan.by_config.configs_of(slot)} for slot in plan.by_config.slots]
    # A column without any text is omitted, such as "Train workers" if the trials train in their own processes.
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    table = empty_table("", *headings)
    for row in rows:
        table.add_row(*(row[heading] or "-" for heading in headings))
    below = [f"- {reason}" for reason in plan.all_reasons]
    if plan.about_nodes_to_add:
        below.insert(0, plan.about_nodes_to_add)
    return Group(line(plan.headline, "bold"), table, *map(line, below), *(line(text.strip()) for text in idle_lines))


def _merged(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows with those added up that differ only in the number of slots."""
    numbers: dict[tuple[tuple[str, str], ...], int] = {}
    for row in rows:
        rest = tuple((heading, text) for heading, text in row.items() if heading != _NUMBER)
        numbers[rest] = numbers.get(rest, 0) + int(row[_NUMBER])
    return [{_NUMBER: str(number), **dict(rest)} for rest, number in numbers.items()]


def _slot_columns(slot: TrialSlot) -> dict[str, str]:
    """Return the text of each column, or an empty string if the slot does not use the column."""
    worker = slot.worker
    num_workers = str(slot.num_workers) if slot.num_workers else ""
    if slot.is_elastic:
        num_workers += f" to {slot.max_workers}"
    speed = "" if slot.speed is None else f"{slot.speed:g}"
    return {
        _NUMBER: str(slot.max_concurrent_trials),
        "Train workers": num_workers,
        "CPU": format_amount(worker.cpus),
        "GPU": format_amount(worker.gpus),
        "Other": ", ".join(amount_of(amount, name) for name, amount in sorted(worker.custom.items())),
        "Host memory": _memory(worker.memory_bytes),
        "GPU memory": _memory(slot.gpu_memory_bytes),
        "Speed": speed,
        "Where": _where(slot),
    }


def _memory(num_bytes: int | None) -> str:
    if num_bytes:
        return format_bytes(num_bytes)
    return ""


def _where(slot: TrialSlot) -> str:
    """Return the restrictions on the nodes of a slot."""
    restrictions = []
    if slot.accelerator_type:
        restrictions.append(slot.accelerator_type)
    if slot.topology:
        restrictions.append(f"whole {slot.topology} slices")
    if slot.label_selector:
        restrictions.append(f"nodes with {format_selector(slot.label_selector)}")
    return ", ".join(restrictions)


def decision_view(decision: Decision) -> RenderableType:
    """Return a table of workloads and sizes, followed by sentences about each crossover and the measurement."""
    headings = ["Workload", "Size", "Faster", "GPU speed-up", "Trial on CPU", "Trial on GPU"]
    if decision.has_prices:
        headings += ["Cheaper", "CPU cost", "GPU cost"]
    table = empty_table("GPU or CPU", *headings)
    for workload in decision.workloads:
        for size in workload.sizes:
            columns = [workload.workload, *_size_columns(size)]
            if decision.has_prices:
                columns += _costs(size)
            table.add_row(*columns)
    gpu = decision.accelerator_type or "a GPU of unknown type"
    measured = f"measured on {decision.measured_at:%Y-%m-%d} on {decision.cpu_model} and {gpu}"
    if decision.has_prices:
        measured += f"; the costs are in {decision.currency}, at prices of {decision.price_date}"
    crossovers = [line(f"- {_crossover(workload)}") for workload in decision.workloads]
    return Group(table, *crossovers, line(f"- {measured}"))


def _size_columns(size: SizeDecision) -> tuple[str, ...]:
    speedup = f"{size.speedup:.3g} ({size.low:.3g} to {size.high:.3g})"
    return (str(size.size), size.answer, speedup, f"{size.cpu.trial_s:.3g} s", f"{size.gpu.trial_s:.3g} s")


def _costs(size: SizeDecision) -> Iterator[str]:
    yield size.cheapest or "-"
    for times in (size.cpu, size.gpu):
        if times.cost_per_trial is None:
            yield "-"
        else:
            yield f"{times.cost_per_trial:.3g}"


def _crossover(decided: WorkloadDecision) -> str:
    trials = f"{decided.workload}: in trials of {counted(decided.steps_per_trial, 'step')}"
    if decided.crossover_at is None:
        return f"{trials}, the GPU is not clearly faster at any measured size"
    sentence = f"{trials}, the GPU is faster from size {decided.crossover_at} on"
    if decided.crossover_above is None:
        return sentence
    answers = {size.size: size.answer for size in decided.sizes}
    if answers.get(decided.crossover_above) == "CPU":
        return f"{sentence}, and the CPU up to size {decided.crossover_above}"
    return f"{sentence}, but not clearly at {decided.crossover_above}"
