"""What was measured, compared and decided, on the shell: tables, and below them what one must know to believe them."""

import os
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table as RichTable

from tune_policies.cli.terminal import TextConsole, empty_table, line
from tune_policies.plan.decision import Decision, DeviceTimes, WorkloadDecision
from tune_policies.values.sanitize import indented, one_line

from ..compare.verdicts import Verdict
from ..decide.crossover import describe
from ..record.packing_record import ThroughputRecord
from ..record.run_set import RunSet
from .tables import Table, arms_table, decision_tables, packing_table, with_spread

_COLUMNS_IN_FILES = 120
"""Rich would break tables at 80 there."""


def result_console() -> Console:
    """Return stdout: as wide as the terminal, or as COLUMNS says."""
    console = TextConsole(highlight=False)
    is_known = console.is_terminal or "COLUMNS" in os.environ
    return console if is_known else TextConsole(highlight=False, width=_COLUMNS_IN_FILES)


def _show(tables: Iterable[Table], lines: Iterable[str], console: Console | None = None) -> None:
    console = console or result_console()
    for table in tables:
        console.print(table.caption, style="bold", soft_wrap=True)  # as a title it would be as narrow as the table
        console.print(_in_rich(table))
        console.print()
    for text in lines:
        console.print(line(text), soft_wrap=True)


def _in_rich(table: Table) -> RichTable:
    shown = empty_table("", *table.columns)
    shown.collapse_padding = True
    for column in shown.columns[table.num_texts :]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*row)
    return shown


def print_run_set(run_set: RunSet, console: Console | None = None) -> None:
    """Print a row for each arm, what is missing and why, how quiet it was, the machine, and the command.

    Args:
        run_set: What was measured.
        console: Where to; ``None``: stdout.
    """
    caption = "Time of a step, and of the first epoch: median of the processes ± half the interquartile range"
    table = arms_table(caption, [run_set], with_spread).without_columns("Processes")
    missing = [each.device for each in run_set.devices if each.why_missing is not None]
    rest = ("",) * (len(table.columns) - 3)
    table = table._replace(rows=(*table.rows, *(("all", device, "not there", *rest) for device in missing)))
    _show([table] if run_set.runs else [], _lines(run_set), console)


def _lines(run_set: RunSet) -> Iterator[str]:
    for problem in (*run_set.problems(), *run_set.incidents("warning")):
        yield f"- {problem}"
    rounds = len({run.round for run in run_set.runs})
    turns = "block by block" if run_set.is_interleaved else "process by process"
    yield f"{rounds} of {run_set.num_rounds} rounds, arms in turns {turns}, seed {run_set.seed}"
    if noise := ", ".join(_noise(run_set)):
        yield f"Noise: {noise}"
    yield f"Machine: {run_set.environment}"
    yield f"Measured from {run_set.created_at:%Y-%m-%d %H:%M %Z} by: {run_set.command}"


def _noise(run_set: RunSet) -> Iterator[str]:
    readings = run_set.noise
    if not readings:
        return
    yield f"other processes used {_range([each.load for each in readings])} CPUs"
    if throttled := sum(each.throttled_s or 0 for each in readings):
        yield f"the cgroup held processes back for {throttled:.3g} s"
    for reason in sorted({reason for each in readings for reason in each.gpu_throttled}):
        yield f"a GPU's clock was held down: {reason}"
    if clocks := [each.cpu_mhz for each in readings if each.cpu_mhz is not None]:
        yield f"CPUs ran at {_range(clocks, digits=0)} MHz"


def _range(values: Sequence[float], digits: int = 2) -> str:
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Print a row for each pair of arms, and below the table why some are ambiguous."""
    texts, numbers = ("Workload", "Phase", "First", "Second", "Faster"), ("Size", "Times as fast", "Interval", "Rounds")
    rows, reasons = [], dict[str, list[str]]()
    for each in found:
        one = each.comparison
        words = (each.workload, each.phase, each.first, each.second, each.word)
        rows.append(
            (*words, str(each.size), f"{one.ratio:.3g}", f"{one.low:.3g} to {one.high:.3g}", str(one.num_rounds))
        )
        for reason in one.reasons:
            reasons.setdefault(reason, []).append(f"{each.workload}[{each.size}] {each.phase}")
    caption = "How many times as fast the second is, with its 95 % interval"
    where = {
        reason: ", ".join(dict.fromkeys(arms)) if len(arms) < len(found) else "all" for reason, arms in reasons.items()
    }
    _show(
        [Table(caption, (*texts, *numbers), tuple(rows), num_texts=len(texts))],
        (f"* {arms}: {reason}" for reason, arms in where.items()),
    )


def print_decision(decision: Decision, console: Console | None = None) -> None:
    """Print times and, where there are prices, costs of each workload and size, with what follows below."""
    lines = [text for decided in decision.workloads for text in _below(decided)]
    _show(decision_tables(decision), [*lines, *_where_it_holds(decision)], console)


def _below(decided: WorkloadDecision) -> Iterator[str]:
    answers = {size.size: size.answer for size in decided.sizes}
    yield f"{decided.workload}, in trials of {decided.steps_per_trial:,} steps: {describe(answers)}"
    on_cpu, on_gpu = [size.cpu for size in decided.sizes], [size.gpu for size in decided.sizes]
    by_cost = {size.size: size.cheapest for size in decided.sizes if size.cheapest is not None}
    if by_cost:
        yield f"{decided.workload}, by cost: {describe(by_cost, 'cheaper')}"
        yield f"a trial pays for {_paid_for(on_cpu)} or, on a GPU, for {_paid_for(on_gpu)}"
    yield f"trials at once: {_at_once(on_cpu)} on CPUs, {_at_once(on_gpu)} on GPUs"


def _at_once(times: Sequence[DeviceTimes]) -> str:
    return _range([each.at_once for each in times], digits=0)


def _paid_for(times: Sequence[DeviceTimes]) -> str:
    return ", ".join(dict.fromkeys(each.price_of or "what is not told" for each in times))


def _where_it_holds(decision: Decision) -> Iterator[str]:
    gpu = decision.accelerator_type or "a GPU of a type that is not known"
    yield f"measured on {decision.measured_at:%Y-%m-%d} on {decision.cpu_model} and {gpu}"
    if decision.price_date is not None:
        yield (
            f"prices of {decision.price_date}, from {decision.price_source}; a trial costs the same on both where the "
            "GPU's price is that many times the CPU's at which it flips"
        )


def print_throughput(record: ThroughputRecord) -> None:
    """Print the table, where it stops paying, the plans, and what it was measured on."""
    console = result_console()
    _show([packing_table(record)], _of_throughput(record), console)
    for workload, plan in record.plans.items():
        console.print(f"\n{one_line(f'The plan for {workload}:')}\n{indented(plan)}", soft_wrap=True)
    console.print(f"\n{one_line(f'{record.gpu}. {record.machine}')}", soft_wrap=True)
    print(one_line(f"command: {record.command}"))


def _of_throughput(record: ThroughputRecord) -> Iterator[str]:
    for workload in record.workloads:
        end = record.stops_paying_at(workload)
        where = "still paid at the most that was run" if end is None else f"stops paying at {end} trials a GPU"
        apart = record.largest_difference_of_losses(workload)
        yield f"{workload}: {where}; losses of trials differ by at most {apart:.2%}"
    for failure in record.failures:
        yield f"does not count: {failure}"
