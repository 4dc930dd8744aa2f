"""What a report says, section by section, whatever it is written in: sentences, figures and tables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from matplotlib.figure import Figure

from tune_policies.plan.decision import Decision
from tune_policies.values.value import counted

from ..compare.verdicts import Verdict, verdicts
from ..packing.packing_record import ThroughputRecord
from ..record.run_set import Phase, RunSet
from .figures import (
    PHASE_TITLES,
    cost_figure,
    crossover_figure,
    distribution_figure,
    memory_figure,
    packing_figure,
    speedup_figure,
)
from .findings import Finding, doubts_of_all, find, summarise
from .statistics import by_workload, in_words, sentence
from .tables import (
    Table,
    arms_table,
    decision_table,
    devices_table,
    environment_table,
    noise_table,
    packing_table,
    problems_table,
)


class Picture(NamedTuple):
    """A figure.

    Attributes:
        name: Of its file, without a suffix; nothing of it is a user's.
        label: What it shows, for those who do not see it.
        figure: As drawn.
    """

    name: str
    label: str
    figure: Figure


Parts = Mapping[str, RunSet]
"""The run of each workload."""


class Section(NamedTuple):
    """A part of the report."""

    title: str
    texts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()


class Content(NamedTuple):
    """All of the report."""

    title: str
    summary: str
    details: str
    sections: tuple[Section, ...]


def build_content(
    run_set: RunSet, decision: Decision | None = None, packing: ThroughputRecord | None = None
) -> Content:
    """Return what a report on a run says; what was not measured is said, too."""
    parts = by_workload(run_set)
    compared = {phase: [each for part in parts.values() for each in verdicts(part, phase)] for phase in Phase}
    findings = find(run_set, compared, decision)
    other_run = tuple(_other_run(run_set, decision)) if decision else ()
    doubts = (sentence(f"For all that follows: {doubt}") for doubt in doubts_of_all(compared))
    sections = (
        Section("Verdict", (*_missing(run_set), *other_run, *doubts), findings=findings),
        *([_cost(decision, other_run)] if decision else []),
        _times(parts),
        _speedups([each for found in compared.values() for each in found]),
        *([_packing(packing)] if packing else []),
        _memory(parts),
        _samples(parts),
        _conditions(run_set),
        _again(run_set, packing),
    )
    gpus = ", ".join(dict.fromkeys(each.name for each in run_set.environment.gpus)) or "no GPU that NVML knows"
    details = (
        f"Measured on {run_set.created_at:%Y-%m-%d %H:%M %Z}: {run_set.environment.cpu_model}, {gpus}; "
        f"{counted(run_set.num_rounds, 'round')} of fresh processes in random order, seed {run_set.seed}."
    )
    return Content("GPU against CPU", summarise(run_set, findings), details, sections)


def _missing(run_set: RunSet) -> Iterator[str]:
    for each in run_set.devices:
        if each.slot is None:
            why = each.why_missing or "not found"
            yield sentence(f"{in_words(each.device)} is not there, so nothing is said of it: {why}")
    if not run_set.is_complete:
        yield "The run was ended before all was measured."


def _other_run(run_set: RunSet, decision: Decision) -> Iterator[str]:
    if decision.measured_at != run_set.created_at:
        gpu = decision.accelerator_type or "a GPU of a type that is not known"
        yield (
            f"The decision is from another run, of {decision.measured_at:%Y-%m-%d %H:%M %Z} on {decision.cpu_model} "
            f"and {gpu}: what is said of whole trials, and of their cost, is of that one."
        )


def _times(parts: Parts) -> Section:
    pictures = [
        (f"times-{number}-{phase}", f"{workload}: time by size, {PHASE_TITLES[phase]}", figure)
        for number, (workload, part) in enumerate(parts.items(), 1)
        for phase in (Phase.TRANSFERS, Phase.COMPUTE, Phase.FIRST_EPOCH)
        if (figure := crossover_figure(part, phase))
    ]
    if not pictures:
        return Section("Time by size", ("No time was measured.",))
    texts = (
        "Where the lines cross, the other device becomes the faster one. With transfers: from data in host memory. "
        "Compute only: on data that lie on the device. First epoch: with the start of the process and compilation. "
        "A bar is the interval in which the median over processes lies, 95 % sure from six processes on.",
    )
    return Section("Time by size", texts, pictures=_pictures(pictures))


def _speedups(compared: list[Verdict]) -> Section:
    by_arms: dict[tuple[str, str], list[Verdict]] = {}
    for each in compared:
        by_arms.setdefault((each.workload, each.second), []).append(each)
    pictures = [
        (f"speedup-{number}", f"{workload}: how many times as fast as {of_one[0].first} {device} is", figure)
        for number, ((workload, device), of_one) in enumerate(sorted(by_arms.items()), 1)
        if (figure := speedup_figure(of_one))
    ]
    if not pictures:
        return Section("Speed-up", ("There are no two devices to compare.",))
    texts = (
        "Above the grey band the device pays, below it does not. A bar is the 95 % interval over processes; "
        "where it reaches into the band, the verdict is ambiguous.",
    )
    return Section("Speed-up", texts, pictures=_pictures(pictures))


def _cost(decision: Decision, remarks: Iterable[str]) -> Section:
    pictures = [
        (f"cost-{number}", f"{each.workload}: cost of a trial against its time, by size", figure)
        for number, each in enumerate(decision.workloads, 1)
        if (figure := cost_figure(decision, [each.workload]))
    ]
    texts = [*remarks, "A trial has its start and all its steps; trials per hour are those of the whole cluster."]
    if decision.price_date or decision.price_source:
        texts.append(f"Prices of {decision.price_date or 'no date'}, from {decision.price_source or 'no source'}.")
    if not pictures:
        texts.append("No prices were given, so nothing is said of the cost.")
    return Section(
        "Time and cost of a trial", tuple(texts), pictures=_pictures(pictures), tables=(decision_table(decision),)
    )


def _packing(packing: ThroughputRecord) -> Section:
    pictures = [
        (f"packing-{number}", f"{workload}: trials per hour by trials per GPU", figure)
        for number, workload in enumerate(packing.workloads, 1)
        if (figure := packing_figure(packing, [workload]))
    ]
    texts = [f"Measured on {packing.gpu}; {packing.machine}." if packing.machine else f"Measured on {packing.gpu}."]
    for workload in packing.workloads:
        end = packing.stops_paying_at(workload)
        where = "still paid at the most that was run" if end is None else f"stop paying at {end} on a GPU"
        texts.append(f"{workload}: more trials {where}.")
    texts += [f"Does not count: {failure}" for failure in packing.failures]
    return Section("Trials per GPU", tuple(texts), pictures=_pictures(pictures), tables=(packing_table(packing),))


def _memory(parts: Parts) -> Section:
    pictures = [
        (f"memory-{number}", f"{workload}: peak host and GPU memory by size", figure)
        for number, (workload, part) in enumerate(parts.items(), 1)
        if (figure := memory_figure(part))
    ]
    texts = () if pictures else ("No peak of memory is known.",)
    return Section("Memory", texts, pictures=_pictures(pictures))


def _samples(parts: Parts) -> Section:
    pictures = []
    for number, (workload, part) in enumerate(parts.items(), 1):
        # A workload that cannot tell its transfers apart has no times of that phase.
        for phase in (Phase.TRANSFERS, Phase.COMPUTE, Phase.FIRST_EPOCH):
            if figure := distribution_figure(part, workload, phase):
                pictures.append((f"samples-{number}", f"{workload}: every sample of every arm, by process", figure))
                break
    if not pictures:
        return Section("All samples", ("No time was measured.",))
    texts = (
        "Each row is an arm, each line of points in it a process, each point a block of steps. "
        "The control is a second arm that equals the first: how far these two differ is the noise.",
    )
    return Section("All samples", texts, pictures=_pictures(pictures), tables=(arms_table(parts.values()),))


def _conditions(run_set: RunSet) -> Section:
    tables = [environment_table(run_set.environment), devices_table(run_set)]
    tables += [each for each in (problems_table(run_set), noise_table(run_set)) if each.rows]
    how = "took turns block by block" if run_set.is_interleaved else "took turns process by process, not block by block"
    return Section("Machine, devices and noise", (f"The arms of a round {how}.",), tables=tuple(tables))


def _again(run_set: RunSet, packing: ThroughputRecord | None) -> Section:
    commands = (run_set.command, *([packing.command] if packing and packing.command else []))
    return Section("Run it again", ("In the same working directory, with the versions above:",), commands=commands)


def _pictures(drawn: Iterable[tuple[str, str, Figure]]) -> tuple[Picture, ...]:
    return tuple(Picture(*each) for each in drawn)
