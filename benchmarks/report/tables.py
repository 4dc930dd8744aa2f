"""Builds the tables of the commands and reports, and prints tables with notes."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table as RichTable

from tune_policies.files.html_page import Table
from tune_policies.files.terminal import TextConsole, empty_table, line
from tune_policies.plan.benchmark_decision import Decision, DeviceTimes, GpuOrNodes, WorkloadDecision
from tune_policies.values.sanitize import indented, one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted

from ..compare.compare_devices import Verdict, problems_of_readings
from ..decide.crossover import describe
from ..measuring.device_plans import parse_device
from ..record.missing_measurements import problems_of
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Phase, RunSet
from ..record.summary import (
    ConfigurationSummary,
    Spread,
    digits,
    in_words,
    ratio_text,
    ratio_with_bounds,
    rounds_text,
    summarize,
    time_text,
)
from ..workloads.registry import describe_sizes

_MEASURED: Final[dict[str, Callable[[ConfigurationSummary], str]]] = {
    "Samples/s": lambda summary: _cell(digits, summary.samples_per_s or None),
    "Host memory": lambda summary: _cell(format_bytes, summary.peak_host_bytes or None),
    "GPU memory": lambda summary: _cell(format_bytes, summary.peak_gpu_bytes or None),
}


def _cell(write: Callable[[Any], str], amount: Any | None) -> str:
    """Return an amount as text, or an empty cell if the amount is unknown."""
    if amount is None:
        return ""
    return write(amount)


def _time_with_spread(time: Spread) -> str:
    return time_text(time.median, time.iqr / 2)


def configurations_table(run_set: RunSet) -> Table:
    """Return the table of configurations with their times and memory. Missing devices also have a row."""
    columns = ("Workload", "Device", "Size", "Compute", "With transfers", "First epoch", *_MEASURED)
    rows = []
    for summary in summarize(run_set):
        device = in_words(summary.configuration.device)
        if summary.configuration.is_control:
            device += " (control)"
        times = []
        for phase in Phase:
            time = summary.times_s.get(phase)
            times.append(_cell(_time_with_spread, time))
        used = (cell(summary) for cell in _MEASURED.values())
        rows.append((summary.configuration.workload, device, str(summary.configuration.size), *times, *used))
    # A missing device has no workload and no times, but must not be overlooked.
    empty = [""] * (len(columns) - 3)
    rows += [("all", found.device, "missing", *empty) for found in run_set.devices if found.why_missing is not None]
    caption = "Time of a step, and of the first epoch: median of the processes ± half the interquartile range"
    return Table(caption, columns, tuple(rows), num_texts=2).without_columns()


def decision_tables(decision: Decision) -> tuple[Table, ...]:
    """Return tables of the time of a trial and, if there are prices, of its cost, by workload and size.

    If the number of trials is known, another table compares one GPU with CPU nodes.
    """
    of_each = [(decided.workload, size) for decided in decision.workloads for size in decided.sizes]
    times = Table(
        "Trials",
        (
            *("Workload", "Faster", "Size", "Speed-up of a trial"),
            *("Trial on CPU", "Trial on GPU", "Trials per hour, CPUs", "Trials per hour, GPUs"),
        ),
        tuple(
            (
                *(workload, size.answer, str(size.size), ratio_with_bounds(size.speedup, size.low, size.high)),
                *(time_text(size.cpu.trial_s), time_text(size.gpu.trial_s)),
                *(digits(size.cpu.trials_per_hour), digits(size.gpu.trials_per_hour)),
            )
            for workload, size in of_each
        ),
        num_texts=2,
    )
    # Without prices, the table of costs would be empty.
    if not any(size.cpu.cost_per_trial or size.gpu.cost_per_trial for _, size in of_each):
        return times, *_nodes_tables(decision)
    rows = []
    for workload, size in of_each:
        equal_at = _cell(ratio_text, size.flips_at)
        rows.append((workload, size.cheapest or "", str(size.size), _cost(size.cpu), _cost(size.gpu), equal_at))
    costs = Table(
        f"{decision.currency or 'Cost'} for 1,000 trials",
        ("Workload", "Cheaper", "Size", "On CPU", "On GPU", "Equal cost at a price ratio of"),
        tuple(rows),
        num_texts=2,
    )
    return times, costs, *_nodes_tables(decision)


def _nodes_tables(decision: Decision) -> Iterator[Table]:
    """Yield the table that compares one GPU with CPU nodes, if the number of trials is known."""
    of_each = []
    for decided in decision.workloads:
        for size in decided.sizes:
            compared = size.gpu_or_nodes
            if compared is not None:
                of_each.append((decided.workload, size, compared))
    if not of_each:
        return
    _, size, first = of_each[0]
    # A fraction such as ``gpu@0.25`` still needs one GPU.
    num_gpus = max(1, int(parse_device(size.gpu.device).amount))
    money = decision.currency or "cost"
    rows = []
    for workload, size, compared in of_each:
        times = (time_text(compared.gpu_s), _num_nodes(compared), _cell(time_text, compared.nodes_s))
        costs = (_cell(digits, compared.gpu_cost), _cell(digits, compared.nodes_cost))
        as_cheap_up_to = ""
        if compared.gpu_cost is not None:
            as_cheap_up_to = str(compared.as_cheap_up_to or "none")
        rows.append((workload, str(size.size), *times, *costs, as_cheap_up_to))
    yield Table(
        f"{counted(first.num_trials, 'trial')} on {counted(num_gpus, 'GPU')}, or on the minimum number of "
        f"{first.node_cpus}-CPU nodes that finish at least as early",
        (
            *("Workload", "Size", "Time on GPU", "CPU nodes", "Time on nodes"),
            *(f"GPU, {money}", f"Nodes, {money}", "Maximum number of nodes for the same cost as the GPU"),
        ),
        tuple(rows),
        num_texts=1,
    ).without_columns()


def _num_nodes(found: GpuOrNodes) -> str:
    """Return the smallest number of nodes and its interval as text. "none" means that no number is enough."""
    number, low, high = (str(nodes or "none") for nodes in (found.num_nodes, found.low, found.high))
    if number == low == high:
        return number
    return f"{number} ({low} to {high})"


def _cost(times: DeviceTimes) -> str:
    return _cell(lambda cost: digits(1000 * cost), times.cost_per_trial)


def packing_table(record: ThroughputRecord) -> Table:
    """Return the table of trials per hour, by workload, mode and number of trials per GPU."""
    rows = []
    for workload in record.workloads:
        for (mode, number), rate in record.rates(workload).items():
            ratio = _cell(ratio_text, record.speedup(workload, mode, number))
            rows.append((workload, mode, str(number), f"{digits(rate.median)} ±{digits(rate.iqr / 2)}", ratio))
    columns = ("Workload", "Mode", "Trials per GPU", "Trials per hour", "Speedup over one trial")
    caption = "Trials per hour on one GPU: median ± half the interquartile range"
    return Table(caption, columns, tuple(rows), num_texts=2)


_COLUMNS_IN_FILES: Final = 120
"""The width of tables if stdout is not a terminal. Rich's default is 80 columns."""


def result_console() -> Console:
    """Return a console for stdout with the width of the terminal, of ``COLUMNS``, or of ``_COLUMNS_IN_FILES``."""
    console = TextConsole(highlight=False)
    is_known = console.is_terminal or "COLUMNS" in os.environ
    if is_known:
        return console
    return TextConsole(highlight=False, width=_COLUMNS_IN_FILES)


def _show(tables: Iterable[Table], lines: Iterable[str], console: Console | None = None) -> None:
    console = console or result_console()
    for table in tables:
        # As a Rich title, the caption would wrap at the table's width.
        console.print(table.caption, style="bold", soft_wrap=True)
        console.print(_in_rich(table))
        console.print()
    for text in lines:
        console.print(line(text), soft_wrap=True)


def _in_rich(table: Table) -> RichTable:
    shown = empty_table("", *table.columns)
    shown.collapse_padding = True
    # The first columns contain names. Numbers are easier to compare if their last digits are below each other.
    for column in shown.columns[table.num_texts :]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*row)
    return shown


def print_run_set(run_set: RunSet, console: Console | None = None, *, file: Path | None = None) -> None:
    """Print the table of configurations, missing measurements, the noise, the machine, and the command.

    ``file`` contains the run set.
    """
    tables = []
    if run_set.runs:
        tables.append(configurations_table(run_set))
    _show(tables, _lines(run_set, file), console)


def _lines(run_set: RunSet, file: Path | None) -> Iterator[str]:
    if run_set.runs:
        yield describe_sizes(sorted(run_set.workloads))
    for problem in (*problems_of(run_set, file), *run_set.warnings()):
        yield f"- {problem}"
    yield f"{rounds_text(run_set)}, {turns(run_set)}, seed {run_set.seed}"
    yield from machine_lines(run_set)
    yield f"Measured on {run_set.created_at:%Y-%m-%d %H:%M %Z} with: {run_set.command}"


def turns(run_set: RunSet) -> str:
    """Return a string that states how the configurations of a round were interleaved."""
    if run_set.is_interleaved:
        return "configurations interleaved by block"
    return "configurations interleaved by process"


def machine_lines(run_set: RunSet) -> Iterator[str]:
    """Yield sentences about the machine, the load of other processes, and the disturbances of the run."""
    yield f"Machine: {run_set.environment}"
    if run_set.noise:
        yield f"Noise: other processes used {_range([reading.load for reading in run_set.noise])} CPUs"
        yield from problems_of_readings(run_set.noise, run_set.environment.num_cpus)


def _range(values: Sequence[float], digits: int = 2) -> str:
    least, most = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    if least == most:
        return least
    return f"{least} to {most}"


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Print the table of compared configurations, and below it the reasons for ambiguous or doubtful verdicts."""
    texts, numbers = ("Workload", "Phase", "First", "Second", "Faster"), ("Size", "Times as fast", "Interval", "Rounds")
    rows, reasons = [], defaultdict[str, list[str]](list)
    for verdict in found:
        comparison = verdict.comparison
        words = (verdict.workload, verdict.phase, verdict.first, verdict.second, verdict.word, str(verdict.size))
        interval = f"{comparison.low:.3g} to {comparison.high:.3g}"
        rows.append((*words, f"{comparison.ratio:.3g}", interval, str(comparison.num_rounds)))
        for reason in comparison.reasons:
            reasons[reason].append(f"{verdict.workload}[{verdict.size}] {verdict.phase}")
    notes = [describe_sizes(dict.fromkeys(verdict.workload for verdict in found))]
    # Many comparisons have the same reason, so it is printed once, with all of them.
    for reason, configurations in reasons.items():
        where = "all"
        if len(configurations) < len(found):
            where = ", ".join(dict.fromkeys(configurations))
        notes.append(f"* {where}: {reason}")
    caption = "Speed of the second device relative to the first, with its 95 % interval"
    _show([Table(caption, (*texts, *numbers), tuple(rows), num_texts=len(texts))], notes)


def print_decision(decision: Decision, console: Console | None = None) -> None:
    """Print the times of trials, their costs if there are prices, and the conclusions."""
    lines = [describe_sizes(decided.workload for decided in decision.workloads)]
    for decided in decision.workloads:
        lines += _below(decided)
    _show(decision_tables(decision), [*lines, *_source_lines(decision)], console)


def _below(decided: WorkloadDecision) -> Iterator[str]:
    answers = {size.size: size.answer for size in decided.sizes}
    yield f"{decided.workload}, in trials of {decided.steps_per_trial:,} steps: {describe(answers)}"
    on_cpu, on_gpu = [size.cpu for size in decided.sizes], [size.gpu for size in decided.sizes]
    by_cost = {size.size: size.cheapest for size in decided.sizes if size.cheapest is not None}
    if by_cost:
        yield f"{decided.workload}, by cost: {describe(by_cost, 'cheaper')}"
        yield f"a trial is charged for {_priced_resources(on_cpu)} on CPUs, or {_priced_resources(on_gpu)} on a GPU"
    yield f"concurrent trials: {_at_once(on_cpu)} on CPUs, {_at_once(on_gpu)} on GPUs"


def _at_once(times: Sequence[DeviceTimes]) -> str:
    return _range([of_size.at_once for of_size in times], digits=0)


def _priced_resources(times: Sequence[DeviceTimes]) -> str:
    return ", ".join(dict.fromkeys(of_size.price_of or "an unknown price" for of_size in times))


def _source_lines(decision: Decision) -> Iterator[str]:
    gpu = decision.accelerator_type or "a GPU of unknown type"
    yield f"measured on {decision.measured_at:%Y-%m-%d} with {decision.cpu_model} and {gpu}"
    if decision.price_date is not None:
        yield (
            f"prices of {decision.price_date}, from {decision.price_source}. A trial costs the same on both devices if "
            "the GPU price divided by the CPU price equals the price ratio in the table"
        )


def print_throughput(record: ThroughputRecord) -> None:
    """Print the table of trials per hour, the number of trials per GPU that pay off, the plans, and the machine."""
    console = result_console()
    _show([packing_table(record)], throughput_lines(record), console)
    for workload, plan in record.plans.items():
        console.print(f"\n{one_line(f'The plan for {workload}:')}\n{indented(plan)}", soft_wrap=True)
    console.print(f"\n{one_line(f'{record.gpu}. {record.machine}')}", soft_wrap=True)
    print(one_line(f"command: {record.command}"))


def throughput_lines(record: ThroughputRecord) -> Iterator[str]:
    """Yield a sentence for each workload about the number of trials per GPU that pay off, and for each omitted run."""
    for workload in record.workloads:
        end = record.stops_paying_at(workload)
        # A plan does not start MPS, so only the times without it show what pays off.
        numbers = {number for mode, number in record.rates(workload) if not mode.uses_mps}
        if len(numbers) < 2:
            where = "it is not known whether more trials per GPU pay off, because only one number was measured"
        elif end is None:
            where = "up to the largest measured number, more trials per GPU paid off"
        else:
            where = f"more than {end} trials per GPU do not pay off"
        apart = record.largest_difference_of_losses(workload)
        yield f"{workload}: {where}, and losses of trials with the same seed differ by at most {apart:.2%}"
    for failure in record.failures:
        yield f"omitted run: {failure}"
