"""A decision as text, for people."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_policies.decision import Decision, DeviceTimes, SizeDecision, WorkloadDecision

from .crossover import describe


def decision_view(decision: Decision) -> RenderableType:
    """Return a table for each workload, what follows below it, and for what all holds."""
    parts: list[RenderableType] = []
    for decided in decision.workloads:
        parts += [_table(decided, decision.currency), *map(Text, _below(decided))]
    return Group(*parts, *map(Text, _where_it_holds(decision)))


def _table(decided: WorkloadDecision, currency: str | None) -> Table:
    table = Table(title=f"{decided.workload}, trials of {decided.steps_per_trial} steps", title_justify="left")
    table.add_column("size", justify="right")
    table.add_column("better")
    table.add_column("GPU ends sooner", justify="right")
    for device in ("CPU", "GPU"):
        table.add_column(f"on {device}", justify="right")
        table.add_column("an hour", justify="right")
        if currency is not None:
            table.add_column(f"{currency} each", justify="right")
    if currency is not None:
        table.add_column("cheaper")
        table.add_column("flips at", justify="right")
    for size in decided.sizes:
        table.add_row(*_row(size, has_prices=currency is not None))
    return table


def _row(size: SizeDecision, *, has_prices: bool) -> Iterator[str]:
    yield str(size.size)
    yield size.answer
    yield f"{size.speedup:.3g}x ({size.low:.3g}-{size.high:.3g})"
    for times in (size.cpu, size.gpu):
        yield _duration(times.trial_s)
        yield f"{times.trials_per_hour:,.0f}" if times.trials_per_hour >= 10 else f"{times.trials_per_hour:.2g}"
        if has_prices:
            yield "-" if times.cost_per_trial is None else f"{times.cost_per_trial:.3g}"
    if has_prices:
        yield size.cheapest or "-"
        yield "-" if size.flips_at is None else f"{size.flips_at:.3g}x"


def _below(decided: WorkloadDecision) -> Iterator[str]:
    yield f"{decided.workload}: {describe({size.size: size.answer for size in decided.sizes})}"
    by_cost = {size.size: size.cheapest for size in decided.sizes if size.cheapest is not None}
    if by_cost:
        yield f"{decided.workload}, by cost: {describe(by_cost, 'cheaper')}"
    on_cpu, on_gpu = (_at_once(each) for each in zip(*((size.cpu, size.gpu) for size in decided.sizes), strict=True))
    yield f"trials at once: {on_cpu} on CPUs, {on_gpu} on GPUs"


def _at_once(times: tuple[DeviceTimes, ...]) -> str:
    numbers = sorted({each.at_once for each in times})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


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
