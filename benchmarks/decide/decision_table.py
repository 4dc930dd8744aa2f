"""A decision as text, for people."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from tune_policies.files.terminal import TextTable, line
from tune_policies.plan.decision import Decision, DeviceTimes, WorkloadDecision
from tune_policies.values.value import counted

from .crossover import describe


def decision_view(decision: Decision) -> RenderableType:
    """Return a table of times for each workload, and of costs where there are prices, with what follows below."""
    parts: list[RenderableType] = []
    for decided in decision.workloads:
        parts.append(_times(decided))
        if decision.currency is not None:
            parts.append(_costs(decided, decision.currency))
        parts += map(line, _below(decided))
    return Group(*parts, *map(line, _where_it_holds(decision)))


def _times(decided: WorkloadDecision) -> Table:
    title = f"{decided.workload}: trials of {counted(decided.steps_per_trial, 'step')}"
    headings = ("size", "better", "GPU ends sooner", "on CPU", "an hour", "on GPU", "an hour")
    table = _table(title, headings)
    for size in decided.sizes:
        ratio = f"{size.speedup:.3g}x ({size.low:.3g}-{size.high:.3g})"
        each = (text for times in (size.cpu, size.gpu) for text in (_duration(times.trial_s), _rate(times)))
        table.add_row(str(size.size), size.answer, ratio, *each)
    return table


def _costs(decided: WorkloadDecision, currency: str) -> Table:
    title = f"{decided.workload}: {currency} for 1,000 trials"
    table = _table(title, ("size", "cheaper", "on CPU", "on GPU", "flips at"))
    for size in decided.sizes:
        costs = (_cost(times) for times in (size.cpu, size.gpu))
        table.add_row(str(size.size), size.cheapest or "-", *costs, f"{size.flips_at or 0:.3g}x")
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = TextTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("better", "cheaper") else "right", no_wrap=True)
    return table


def _rate(times: DeviceTimes) -> str:
    return f"{times.trials_per_hour:,.0f}" if times.trials_per_hour >= 10 else f"{times.trials_per_hour:.2g}"


def _cost(times: DeviceTimes) -> str:
    return "-" if times.cost_per_trial is None else f"{1000 * times.cost_per_trial:.3g}"


def _below(decided: WorkloadDecision) -> Iterator[str]:
    yield f"{decided.workload}: {describe({size.size: size.answer for size in decided.sizes})}"
    by_cost = {size.size: size.cheapest for size in decided.sizes if size.cheapest is not None}
    if by_cost:
        yield f"{decided.workload}, by cost: {describe(by_cost, 'cheaper')}"
        paid = (_paid_for(each) for each in zip(*((size.cpu, size.gpu) for size in decided.sizes), strict=True))
        yield f"a trial pays for {' or, on a GPU, for '.join(paid)}"
    on_cpu, on_gpu = (_at_once(each) for each in zip(*((size.cpu, size.gpu) for size in decided.sizes), strict=True))
    yield f"trials at once: {on_cpu} on CPUs, {on_gpu} on GPUs"


def _at_once(times: tuple[DeviceTimes, ...]) -> str:
    numbers = sorted({each.at_once for each in times})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _paid_for(times: tuple[DeviceTimes, ...]) -> str:
    return ", ".join(dict.fromkeys(each.price_of or "what is not told" for each in times))


def _where_it_holds(decision: Decision) -> Iterator[str]:
    gpu = decision.accelerator_type or "a GPU of a type that is not known"
    yield f"measured on {decision.measured_at:%Y-%m-%d} on {decision.cpu_model} and {gpu}"
    if decision.price_date is not None:
        yield (
            f"prices of {decision.price_date}, from {decision.price_source}; a trial costs the same on both where the "
            "GPU's price is that many times the CPU's at which it flips"
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
