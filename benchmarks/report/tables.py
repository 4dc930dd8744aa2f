"""The tables of a report: all its numbers, as texts."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tune_policies.plan.decision import Decision, DeviceTimes
from tune_policies.values.units import format_bytes

from ..record.packing_record import ThroughputRecord
from ..record.run_set import Arm, Environment, GpuFacts, Phase, RunSet
from .statistics import Middle, digits, in_words, middle, ratio_text, ratio_with_bounds, step_time, time_text


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


def arms_table(parts: Iterable[RunSet]) -> Table:
    """Return a row for each arm of each part of a run: its times, its throughput, and what it used."""
    times = ("With transfers", "Compute only", "First epoch")
    return Table(
        "The median over processes of each arm, with its interval",
        ("Workload", "Device", "Size", "Processes", *times, "Samples per s", "Host memory", "GPU memory", "Energy"),
        tuple(_arm_row(part, arm) for part in parts for arm in sorted(part.arms, key=_place)),
        num_texts=2,
        is_folded=True,
    )


def _place(arm: Arm) -> tuple[str, str, int, bool]:
    # A run's own order is random.
    return arm.workload, arm.device, arm.size, arm.is_control


def _arm_row(run_set: RunSet, arm: Arm) -> tuple[str, ...]:
    runs = run_set.of(arm)
    times = {phase: step_time(run_set, arm, phase) for phase in Phase}
    samples = next((run.samples_per_step for run in runs if run.samples_per_step), None)
    step = times[Phase.TRANSFERS] or times[Phase.COMPUTE]
    host = max((run.peak_host_bytes for run in runs if run.peak_host_bytes), default=0)
    gpu = max((run.peak_gpu_bytes for run in runs if run.peak_gpu_bytes), default=0)
    joules = [run.energy_j for run in runs if run.energy_j is not None]
    return (
        arm.workload,
        f"{in_words(arm.device)}{' (control)' if arm.is_control else ''}",
        str(arm.size),
        str(len(runs)),
        *(_time_cell(times[phase]) for phase in (Phase.TRANSFERS, Phase.COMPUTE, Phase.FIRST_EPOCH)),
        digits(samples / step.median) if samples and step else "",
        format_bytes(host) if host else "",
        format_bytes(gpu) if gpu else "",
        f"{digits(middle(joules).median)} J" if joules else "",
    )


def _time_cell(time: Middle | None) -> str:
    return f"{time_text(time.median)} ({time_text(time.low)} to {time_text(time.high)})" if time else ""


def decision_table(decision: Decision) -> Table:
    """Return a row for each workload and size, with what a trial takes on each device."""
    has_prices = any(_has_cost(each.cpu) or _has_cost(each.gpu) for one in decision.workloads for each in one.sizes)
    times = ("Speed-up of a trial", "Trial on CPU", "Trial on GPU", "Trials per hour, CPUs", "Trials per hour, GPUs")
    money = f", {decision.currency}" if decision.currency else ""
    costs = (f"Cost on CPU{money}", f"Cost on GPU{money}", "Cheaper", "Flips at a price ratio of")
    columns = ("Workload", "Faster", "Size", *times, *(costs if has_prices else ()))
    return Table("What was decided", columns, tuple(_decision_rows(decision, has_prices=has_prices)), num_texts=2)


def _decision_rows(decision: Decision, *, has_prices: bool) -> Iterator[tuple[str, ...]]:
    for decided in decision.workloads:
        for each in decided.sizes:
            row = (
                decided.workload,
                each.answer,
                str(each.size),
                ratio_with_bounds(each.speedup, each.low, each.high),
                time_text(each.cpu.trial_s),
                time_text(each.gpu.trial_s),
                digits(each.cpu.trials_per_hour),
                digits(each.gpu.trials_per_hour),
            )
            costs = (_cost_cell(each.cpu), _cost_cell(each.gpu), each.cheapest or "")
            flips = "" if each.flips_at is None else digits(each.flips_at)
            yield (*row, *costs, flips) if has_prices else row


def _has_cost(times: DeviceTimes) -> bool:
    return times.cost_per_trial is not None


def _cost_cell(times: DeviceTimes) -> str:
    return "" if times.cost_per_trial is None else digits(times.cost_per_trial)


def packing_table(record: ThroughputRecord) -> Table:
    """Return a row for each arm of a benchmark of throughput."""
    rows = []
    for workload in record.workloads:
        for (name, number), rate in record.arms(workload).items():
            speedup = record.speedup(workload, (name, number))
            ratio = "" if speedup is None else ratio_text(speedup)
            rows.append((workload, name, str(number), digits(rate.median), digits(rate.iqr / 2), ratio))
    columns = ("Workload", "Arm", "Trials per GPU", "Trials per hour", "Half the interquartile range")
    return Table("Throughput", (*columns, "Against one at a time"), tuple(rows), num_texts=2)


def environment_table(environment: Environment) -> Table:
    """Return the machine and the versions, a line for each fact that is known."""
    one = environment
    facts = [
        ("CPU", one.cpu_model),
        ("Logical CPUs", str(one.num_cpus)),
        ("CPUs that may be used", "" if one.usable_cpus is None else f"{one.usable_cpus:g}"),
        ("Host memory", format_bytes(one.host_memory_bytes) if one.host_memory_bytes else ""),
        ("Host memory that may be used", format_bytes(one.cgroup_memory_bytes) if one.cgroup_memory_bytes else ""),
        *((f"GPU {number}", _gpu_text(gpu)) for number, gpu in enumerate(one.gpus)),
        ("Operating system", one.platform),
        ("Python", one.python),
        *sorted(one.versions.items()),
        ("Commit", f"{one.commit}{', with changes' if one.has_changes else ''}" if one.commit else ""),
    ]
    return Table("Machine", ("What", "Which"), tuple(fact for fact in facts if fact[1]), num_texts=2)


def _gpu_text(gpu: GpuFacts) -> str:
    facts = (
        gpu.name,
        format_bytes(gpu.memory_bytes) if gpu.memory_bytes else "",
        f"driver {gpu.driver}" if gpu.driver else "",
        f"up to {gpu.max_clock_mhz} MHz" if gpu.max_clock_mhz else "",
        f"up to {gpu.power_limit_w:g} W" if gpu.power_limit_w else "",
    )
    return ", ".join(fact for fact in facts if fact)


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
    rounds: dict[tuple[str, str, str], list[int]] = {}
    for failure in run_set.failures:
        kind = failure.kind.replace("_", " ")
        rounds.setdefault((str(failure.arm), kind, failure.message), []).append(failure.round)
    for run in run_set.runs:
        for warning in run.warnings:
            rounds.setdefault((str(run.arm), "warning", warning), []).append(run.round)
    rows = tuple((*key[:2], ", ".join(map(str, numbers)), key[2]) for key, numbers in rounds.items())
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
