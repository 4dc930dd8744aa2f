"""The table and the plot of a benchmark of throughput."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .packing_record import ThroughputRecord


def print_throughput(record: ThroughputRecord) -> None:
    """Print the table, where it stops paying, the plans, and what it was measured on."""
    console = Console(width=110)
    table = Table(title="Trials per hour on one GPU: median ± half the interquartile range")
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
        console.print(f"{workload}: {where}; losses of one seed differ by at most {apart:.2%}", soft_wrap=True)
    for failure in record.failures:
        console.print(f"does not count: {failure}", soft_wrap=True, markup=False)
    for workload, plan in record.plans.items():
        console.print(f"\nThe plan for {workload}:\n{plan}", soft_wrap=True, markup=False)
    console.print(f"\n{record.gpu}. {record.machine}", soft_wrap=True)
    print(f"command: {record.command}")


def draw_throughput(record: ThroughputRecord, path: Path) -> None:
    """Draw throughput against trials per GPU, a panel for each workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    workloads = record.workloads
    figure, panels = plt.subplots(
        1, len(workloads), figsize=(3.6 * len(workloads), 3.8), layout="constrained", squeeze=False
    )
    for axes, workload in zip(panels[0], workloads, strict=True):
        arms = record.arms(workload)
        for mps in sorted({"mps" in name for name, _ in arms}):
            names = ("packed with mps",) if mps else ("alone", "packed")
            points = [(number, rate) for (name, number), rate in arms.items() if name in names]
            axes.errorbar(
                [number for number, _ in points],
                [rate.median for _, rate in points],
                yerr=[rate.iqr / 2 for _, rate in points],
                label="with MPS" if mps else "time-sliced",
                marker="o",
                markersize=4,
                capsize=3,
            )
        for (name, number), rate in arms.items():
            if name.startswith("plan"):
                color = "C3" if name == "plan" else "C4"
                axes.plot(number, rate.median, marker="*", markersize=14, linestyle="", color=color, label=name)
        if end := record.stops_paying_at(workload):
            axes.axvline(end, linestyle=":", color="grey", label="stops paying")
        numbers = sorted({number for _, number in arms})
        axes.set(xscale="log", title=workload, xlabel="trials per GPU", ylim=(0, None))
        axes.set_xticks(numbers, labels=[str(number) for number in numbers])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower right")
    panels[0][0].set_ylabel("trials per hour")
    figure.savefig(path)
    plt.close(figure)
