"""The table and the plot of a benchmark of throughput."""

from pathlib import Path

from tune_policies.errors import InvalidResourcesError
from tune_policies.terminal import TextConsole, TextTable, line
from tune_policies.text_out import indented, one_line

from .packing_record import ThroughputRecord


def print_throughput(record: ThroughputRecord) -> None:
    """Print the table, where it stops paying, the plans, and what it was measured on."""
    console = TextConsole(width=110)
    table = TextTable(title="Trials per hour on one GPU: median ± half the interquartile range")
    for heading in ("Workload", "Arm"):
        table.add_column(heading)
    for heading in ("Trials per GPU", "Trials per hour", "Against one at a time"):
        table.add_column(heading, justify="right")
    for workload in record.workloads:
        for arm, rate in record.arms(workload).items():
            ratio = record.speedup(workload, arm)
            table.add_row(workload, arm[0], str(arm[1]), str(rate), "" if ratio is None else f"{ratio:.2f}x")
        table.add_section()
    console.print(table)
    for workload in record.workloads:
        end = record.stops_paying_at(workload)
        where = "still paid at the most that was run" if end is None else f"stops paying at {end} trials a GPU"
        apart = record.largest_difference_of_losses(workload)
        console.print(line(f"{workload}: {where}; losses of one seed differ by at most {apart:.2%}"), soft_wrap=True)
    for failure in record.failures:
        console.print(line(f"does not count: {failure}"), soft_wrap=True)
    for workload, plan in record.plans.items():
        console.print(f"\n{one_line(f'The plan for {workload}:')}\n{indented(plan)}", soft_wrap=True)
    console.print(f"\n{one_line(f'{record.gpu}. {record.machine}')}", soft_wrap=True)
    print(one_line(f"command: {record.command}"))


def draw_throughput(record: ThroughputRecord, path: Path, *, force: bool = False) -> None:
    """Draw throughput against trials per GPU, a panel for each workload.

    Raises:
        InvalidResourcesError: There is nothing to draw, or ``path`` is in the way and not to be replaced by
            ``force``, or cannot be written.
    """
    from ..report.figures import packing_figure
    from ..report.images import save_figure

    figure = packing_figure(record)
    if figure is None:
        raise InvalidResourcesError("no run of the record counts, so there is nothing to draw")
    save_figure(figure, path, force=force)
