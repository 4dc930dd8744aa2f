"""The tables on the shell and in a report: their numbers, as texts."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tune_policies.plan.decision import Decision, DeviceTimes
from tune_policies.values.units import format_bytes

from ..record.packing_record import ThroughputRecord
from ..record.run_set import Environment, Phase, RunSet
from ..record.summary import (
    ArmSummary,
    StepTime,
    digits,
    in_words,
    ratio_text,
    ratio_with_bounds,
    summarize,
    time_text,
)


class Table(NamedTuple):
    """Rows of texts.

    Attributes:
        caption: What they are.
        columns: Their headings.
        rows: The texts.
        num_texts: How many columns from the left hold no numbers.
        is_folded: Whether it is long, and only for those who look for it.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_texts: int = 1
    is_folded: bool = False

    def without_columns(self, *names: str) -> "Table":
        """Return the table without these columns, and without those of which nothing is known."""
        known = [
            index
            for index, name in enumerate(self.columns)
            if name not in names and any(row[index] for row in self.rows)
        ]
        rows = tuple(tuple(row[index] for index in known) for row in self.rows)
        return self._replace(columns=tuple(self.columns[index] for index in known), rows=rows)


def with_spread(time: StepTime) -> str:
    """Return a time with half the interquartile range of its processes."""
    return time_text(time.median, time.half_iqr)


def with_interval(time: StepTime) -> str:
    """Return a time with the interval of its median."""
    return f"{time_text(time.median)} ({time_text(time.low)} to {time_text(time.high)})"


_OF_AN_ARM: Final[dict[str, Callable[[ArmSummary], str]]] = {
    "Samples/s": lambda each: digits(each.samples_per_s) if each.samples_per_s else "",
    "Host memory": lambda each: format_bytes(each.peak_host_bytes) if each.peak_host_bytes else "",
    "GPU memory": lambda each: format_bytes(each.peak_gpu_bytes) if each.peak_gpu_bytes else "",
    "Energy": lambda each: "" if each.energy_j is None else f"{digits(each.energy_j)} J",
}


def arms_table(caption: str, parts: Iterable[RunSet], written: Callable[[StepTime], str]) -> Table:
    """Return a row for each arm of each part of a run: its times, its throughput, and what it used."""
    rows = []
    for each in (summary for part in parts for summary in summarize(part)):
        device = f"{in_words(each.arm.device)}{' (control)' if each.arm.is_control else ''}"
        times = (written(each.times_s[phase]) if phase in each.times_s else "" for phase in Phase)
        used = (cell(each) for cell in _OF_AN_ARM.values())
        processes = str(max(time.num_processes for time in each.times_s.values())) if each.times_s else ""
        rows.append((each.arm.workload, device, str(each.arm.size), processes, *times, *used))
    columns = ("Workload", "Device", "Size", "Processes", "Compute", "With transfers", "First epoch", *_OF_AN_ARM)
    return Table(caption, columns, tuple(rows), num_texts=2).without_columns()


def decision_tables(decision: Decision) -> tuple[Table, ...]:
    """Return a row for each workload and size: what a trial takes on each device, and, with prices, what it costs."""
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
    if not any(size.cpu.cost_per_trial or size.gpu.cost_per_trial for _, size in of_each):
        return (times,)
    costs = Table(
        f"{decision.currency or 'Cost'} for 1,000 trials",
        ("Workload", "Cheaper", "Size", "On CPU", "On GPU", "Flips at a price ratio of"),
        tuple(
            (
                *(workload, size.cheapest or "", str(size.size), _cost(size.cpu), _cost(size.gpu)),
                "" if size.flips_at is None else ratio_text(size.flips_at),
            )
            for workload, size in of_each
        ),
        num_texts=2,
    )
    return times, costs


def _cost(times: DeviceTimes) -> str:
    return "" if times.cost_per_trial is None else digits(1000 * times.cost_per_trial)


def packing_table(record: ThroughputRecord) -> Table:
    """Return a row for each arm of a benchmark of throughput."""
    rows = []
    for workload in record.workloads:
        for (name, number), rate in record.arms(workload).items():
            speedup = record.speedup(workload, (name, number))
            ratio = "" if speedup is None else ratio_text(speedup)
            rows.append((workload, name, str(number), f"{digits(rate.median)} ±{digits(rate.iqr / 2)}", ratio))
    columns = ("Workload", "Arm", "Trials per GPU", "Trials per hour", "Against one at a time")
    caption = "Trials per hour on one GPU: median ± half the interquartile range"
    return Table(caption, columns, tuple(rows), num_texts=2)


def environment_table(environment: Environment) -> Table:
    """Return the machine and the versions, a line for each fact that is known."""
    one = environment
    facts = [
        ("CPU", one.cpu_model),
        ("Logical CPUs", str(one.num_cpus)),
        ("CPUs that may be used", "" if one.usable_cpus is None else f"{one.usable_cpus:g}"),
        ("Host memory", format_bytes(one.host_memory_bytes) if one.host_memory_bytes else ""),
        ("Host memory that may be used", format_bytes(one.cgroup_memory_bytes) if one.cgroup_memory_bytes else ""),
        *((f"GPU {number}", str(gpu)) for number, gpu in enumerate(one.gpus)),
        ("Operating system", one.platform),
        ("Python", one.python),
        *sorted(one.versions.items()),
        ("Commit", f"{one.commit}{', with changes' if one.has_changes else ''}" if one.commit else ""),
    ]
    return Table("Machine", ("What", "Which"), tuple(fact for fact in facts if fact[1]), num_texts=2)


def devices_table(run_set: RunSet) -> Table:
    """Return a row for each device that was asked for, found or not."""
    rows = tuple(
        (
            in_words(each.device),
            each.slot or f"not there: {each.why_missing or 'not found'}",
            each.accelerator_type or "",
            str(each.at_once) if each.slot else "",
        )
        for each in run_set.devices
    )
    return Table("Devices", ("Device", "A trial reserves", "Type", "Trials at once"), rows, num_texts=3)


def problems_table(run_set: RunSet) -> Table:
    """Return a row for each failure, the same one in several rounds once, and for each warning."""
    rows = tuple(
        (str(each.arm), each.kind, ", ".join(map(str, each.rounds)), each.message)
        for each in (*run_set.incidents("failure"), *run_set.incidents("warning"))
    )
    return Table("Failures and warnings", ("Arm", "Kind", "Rounds", "Message"), rows, num_texts=4)


def noise_table(run_set: RunSet) -> Table:
    """Return a row for each round: how quiet the machine was."""
    rows = tuple(
        (
            str(each.round),
            digits(each.load),
            "" if each.throttled_s is None else f"{digits(each.throttled_s)} s",
            ", ".join(each.gpu_throttled),
            "" if each.cpu_mhz is None else digits(each.cpu_mhz, 4),
        )
        for each in run_set.noise
    )
    columns = ("Round", "CPUs used by others", "Throttled by the cgroup", "GPU clock held down", "CPU MHz")
    return Table("Noise", columns, rows, num_texts=0)
