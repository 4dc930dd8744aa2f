"""How a run set looks on the shell: a row for each arm, and below what one must know to believe it."""

import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rich.console import Console
from rich.table import Table

from tune_policies.files.terminal import TextConsole, empty_table, line
from tune_policies.values.resources import PositiveCount, UsedBytes
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

from ..timing import spread
from .run_set import Arm, Phase, ProcessRun, RunSet


class Middle(Value):
    """A time over processes, in seconds.

    Attributes:
        median: The median of the processes' medians.
        half_iqr: Half their interquartile range; ``None``: there is one process only.
        num_processes: How many.
    """

    median: float
    half_iqr: float | None = None
    num_processes: PositiveCount


class ArmSummary(Value):
    """What was measured of an arm.

    Attributes:
        arm: Which.
        times_s: Of a step by phase, of the first epoch as a whole; phases without a time are left out.
        samples_per_s: With transfers; ``None``: the workload has no samples, or no such time.
        peak_host_bytes: The most host memory of a process; ``None``: not known.
        peak_gpu_bytes: The most GPU memory of a process; ``None``: not known, or none.
        energy_j: What a process used over all that it ran, the median; ``None``: not known.
    """

    arm: Arm
    times_s: dict[Phase, Middle]
    samples_per_s: float | None = None
    peak_host_bytes: UsedBytes | None = None
    peak_gpu_bytes: UsedBytes | None = None
    energy_j: float | None = None


def summarize(run_set: RunSet) -> tuple[ArmSummary, ...]:
    """Return a summary for each arm, by workload, size and device."""
    return tuple(_summarize(arm, run_set.of(arm)) for arm in run_set.sorted_arms)


def _summarize(arm: Arm, processes: tuple[ProcessRun, ...]) -> ArmSummary:
    times = {phase: middle for phase in Phase if (middle := _middle(run.times_s(phase) for run in processes))}
    samples = _most(run.samples_per_step for run in processes)
    with_transfers = times.get(Phase.TRANSFERS)
    energies = [run.energy_j for run in processes if run.energy_j is not None]
    return ArmSummary(
        arm=arm,
        times_s=times,
        samples_per_s=samples / with_transfers.median if samples and with_transfers else None,
        peak_host_bytes=_most(run.peak_host_bytes for run in processes),
        peak_gpu_bytes=_most(run.peak_gpu_bytes for run in processes),
        energy_j=statistics.median(energies) if energies else None,
    )


def _middle(times_s: Iterable[tuple[float, ...]]) -> Middle | None:
    medians = [statistics.median(each) for each in times_s if each]
    if not medians:
        return None
    over = spread(medians)
    return Middle(median=over.median, half_iqr=over.iqr / 2 if len(medians) > 1 else None, num_processes=len(medians))


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


_TITLE: Final = "Time of a step, and of the first epoch: median of the processes ± half the interquartile range"
_COLUMNS_IN_FILES: Final = 120
_UNITS: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def print_run_set(run_set: RunSet, console: Console | None = None) -> None:
    """Print the table, what is missing and why, how quiet it was, the machine, and the command.

    Args:
        run_set: What was measured.
        console: Where to; ``None``: stdout.
    """
    console = console or result_console()
    if run_set.runs:
        console.print(_TITLE, style="bold", soft_wrap=True)
        console.print(_table(run_set))
        console.print()
    for text in _lines(run_set):
        console.print(line(text), soft_wrap=True)


def result_console() -> Console:
    """Return stdout: as wide as the terminal, or as COLUMNS says. In a file, Rich would break tables at 80 columns."""
    console = TextConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else TextConsole(width=_COLUMNS_IN_FILES)


def format_time(time: Middle) -> str:
    """Return ``"8.25 ±0.14 ms"``, with three digits of the median, two of the spread."""
    shown = float(f"{time.median:.3g}")  # 0.9999 ms is 1 ms, not 1000 us
    factor, unit = next((each for each in _UNITS if shown >= each[0]), _UNITS[-1])
    spread = "" if time.half_iqr is None else f" ±{_digits(time.half_iqr / factor, 2)}"
    return f"{_digits(time.median / factor, 3)}{spread} {unit}"


def _digits(number: float, count: int) -> str:
    """Return the number with so many digits, in full above them."""
    if number >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{number:#.{count}g}" if number else "0"


def _table(run_set: RunSet) -> Table:
    summaries = summarize(run_set)
    columns = [column for column in _COLUMNS if any(column[1](each) for each in summaries)]
    table = empty_table(
        "",  # a title would be broken to the width of the table
        *("Workload", "Size", "Device"),
        *(heading for heading, _ in columns),
    )
    table.collapse_padding = True
    for column in (table.columns[1], *table.columns[3:]):
        column.justify = "right"
    before = None
    for each in summaries:
        arm = each.arm
        if before not in (None, (arm.workload, arm.size)):
            table.add_section()
        before = (arm.workload, arm.size)
        device = f"{arm.device}{' (control)' if arm.is_control else ''}"
        cells = (arm.workload, str(arm.size), device, *(cell(each) for _, cell in columns))
        table.add_row(*cells)
    for found in run_set.devices:
        if found.why_missing is not None:
            table.add_section()
            table.add_row("all", "", found.device, "not there")
    return table


def _time_of(phase: Phase) -> Callable[[ArmSummary], str]:
    return lambda summary: format_time(summary.times_s[phase]) if phase in summary.times_s else ""


def _bytes(amount: int | None) -> str:
    return format_bytes(amount) if amount else ""


_COLUMNS: Final[tuple[tuple[str, Callable[[ArmSummary], str]], ...]] = (
    ("Compute", _time_of(Phase.COMPUTE)),
    ("With transfers", _time_of(Phase.TRANSFERS)),
    ("First epoch", _time_of(Phase.FIRST_EPOCH)),
    ("Samples/s", lambda summary: _digits(summary.samples_per_s, 3) if summary.samples_per_s else ""),
    ("Host memory", lambda summary: _bytes(summary.peak_host_bytes)),
    ("GPU memory", lambda summary: _bytes(summary.peak_gpu_bytes)),
    ("Energy", lambda summary: "" if summary.energy_j is None else f"{_digits(summary.energy_j, 3)} J"),
)
"""Those of which nothing is known are left out."""


def _lines(run_set: RunSet) -> Iterator[str]:
    for problem in run_set.problems():
        yield f"- {problem}"
    yield from _warnings(run_set)
    rounds = len({run.round for run in run_set.runs})
    turns = "block by block" if run_set.is_interleaved else "process by process"
    yield f"{rounds} of {run_set.num_rounds} rounds, arms in turns {turns}, seed {run_set.seed}"
    if noise := ", ".join(_noise(run_set)):
        yield f"Noise: {noise}"
    yield f"Machine: {run_set.environment}"
    yield f"Measured from {run_set.created_at:%Y-%m-%d %H:%M %Z} by: {run_set.command}"


def _warnings(run_set: RunSet) -> Iterator[str]:
    """Yield what came up in processes that have times, each warning of an arm once."""
    alike: dict[tuple[Arm, str], list[str]] = {}
    for run in run_set.runs:
        for warning in run.warnings:
            alike.setdefault((run.arm, warning), []).append(str(run.round))
    for (arm, warning), rounds in alike.items():
        yield f"- {arm}, {'round' if len(rounds) == 1 else 'rounds'} {', '.join(rounds)}: {warning}"


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


def _range(values: list[float], digits: int = 2) -> str:
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"
