"""Builds the content of a report for HTML and Markdown: the findings in sentences, and sections with figures."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple

from matplotlib.figure import Figure

from tune_policies.files.html_page import Content, Finding, Picture, Section
from tune_policies.plan.decision import Decision, WorkloadDecision
from tune_policies.values.value import counted

from ..compare.judge import Comparison, Outcome
from ..compare.verdicts import Verdict, verdicts
from ..decide.decide import describe
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Phase, RunSet
from ..record.summary import in_words, ratio_with_bounds, sentence
from .figures import (
    PHASE_TITLES,
    cost_figure,
    crossover_figure,
    distribution_figure,
    memory_figure,
    packing_figure,
    speedup_figure,
)
from .tables import (
    arms_table,
    decision_tables,
    devices_table,
    environment_table,
    noise_table,
    packing_table,
    problems_table,
    with_interval,
)

_PHASES: Final = (Phase.TRANSFERS, Phase.COMPUTE, Phase.FIRST_EPOCH)
"""In order of preference, because a trial's data start in host memory."""

_MOST_NAMED: Final = 4
"""The most findings that the summary names. Of more, it has the number."""

_RANKS: Final = {Outcome.FIRST: 0, Outcome.SAME: 1, Outcome.SECOND: 2}
"""Outcomes from the first device to the second. Ambiguous ones support neither."""


class _Stretch(NamedTuple):
    """Neighbouring sizes with one outcome."""

    outcome: Outcome
    compared: dict[int, Comparison]


Verdicts = Mapping[Phase, Sequence[Verdict]]


def find(run_set: RunSet, verdicts: Verdicts, decision: Decision | None = None) -> tuple[Finding, ...]:
    """Return the findings for each workload, preferably from steps with transfers, also for workloads that failed."""
    decided = {each.workload: each for each in decision.workloads} if decision else {}
    said = doubts_of_all(verdicts)
    found = []
    for workload in sorted(run_set.workloads):
        answers = list(_answers(workload, verdicts, said)) or [_not_compared(run_set, workload)]
        if decision and workload in decided:
            devices = [each.device for each in answers]
            gpu = decided[workload].sizes[0].gpu.device
            at = devices.index(gpu) if gpu in devices else 0
            trials = tuple(_trial_sentences(decided[workload], decision))
            answers[at] = answers[at]._replace(sentences=answers[at].sentences + trials)
        if len(answers) > 1:
            answers = [each._replace(workload=f"{workload}, {in_words(each.device or '')}") for each in answers]
        found += answers
    failed = dict.fromkeys(failure.arm.workload for failure in run_set.failures)
    for workload in failed:
        if workload not in run_set.workloads:
            found.append(Finding(workload, "none", "not measured", _failures(run_set, workload)))
    return tuple(found)


def doubts_of_all(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the reasons that all comparisons share, and which therefore concern the whole run."""
    named = [each.comparison.reasons for found in verdicts.values() for each in found]
    if len(named) < 2:
        return ()
    return tuple(reason for reason in named[0] if all(reason in each for each in named))


def _not_compared(run_set: RunSet, workload: str) -> Finding:
    devices = sorted({in_words(arm.device) for arm in run_set.arms if arm.workload == workload})
    if len(devices) == 1:
        why = f"Only {devices[0]} was measured, so there is nothing to compare it with."
    else:
        why = f"{' and '.join(devices)} have no size in common, so nothing can be compared."
    return Finding(workload, "none", "not compared", (why, *_failures(run_set, workload)))


def _failures(run_set: RunSet, workload: str) -> tuple[str, ...]:
    """Return the failures of a workload, a sentence for each device and message."""
    of_it = [each for each in run_set.failures if each.arm.workload == workload]
    return tuple(dict.fromkeys(sentence(f"On {in_words(each.arm.device)}: {each.message}") for each in of_it))


def _answers(workload: str, verdicts: Verdicts, said: Collection[str]) -> Iterator[Finding]:
    others = dict.fromkeys(each.second for found in verdicts.values() for each in found if each.workload == workload)
    for other in others:
        # A workload without separate transfers has no times of that phase.
        for phase in _PHASES:
            of_both = [each for each in verdicts.get(phase, ()) if (each.workload, each.second) == (workload, other)]
            if of_both:
                yield _answer(sorted(of_both, key=lambda each: each.size), phase, said)
                break


def _answer(verdicts: list[Verdict], phase: Phase, said: Collection[str]) -> Finding:
    devices = (in_words(verdicts[0].first), in_words(verdicts[0].second))
    stretches = [
        _Stretch(outcome, {each.size: each.comparison for each in group})
        for outcome, group in groupby(verdicts, key=lambda each: each.comparison.outcome)
    ]
    last = stretches[-1]
    sentences, named = [], list(said)
    for each in reversed(stretches):
        sentences.append(_stretch_text(each, devices, is_last_of_several=each is last and len(stretches) > 1))
        reasons = dict.fromkeys(reason for one in each.compared.values() for reason in one.reasons)
        new = [reason for reason in reasons if reason not in named]
        named += new
        sentences += [sentence(reason) for reason in new]
    if phase is not Phase.TRANSFERS:
        sentences.append(f"It has no times with transfers; these are of the phase {phase}.")
    return _finding(stretches, verdicts[0], tuple(sentences))


def _finding(stretches: list[_Stretch], one: Verdict, sentences: tuple[str, ...]) -> Finding:
    first, second = in_words(one.first), in_words(one.second)
    ranks = [_RANKS[each.outcome] for each in stretches if each.outcome in _RANKS]
    if ranks not in (sorted(ranks), sorted(ranks, reverse=True)):
        return Finding(one.workload, "depends", f"{first} or {second}: by size", sentences, one.second)
    where = "" if len(stretches) == 1 else f" from {min(stretches[-1].compared)}"
    match stretches[-1].outcome:
        case Outcome.SECOND:
            return Finding(one.workload, "gain", f"{second}{where}", sentences, one.second)
        case Outcome.FIRST:
            return Finding(one.workload, "stay", f"{first}{where}", sentences, one.second)
        case Outcome.SAME:
            return Finding(one.workload, "same", f"the same{where}", sentences, one.second)
        case _:
            return Finding(one.workload, "ambiguous", f"ambiguous{where}", sentences, one.second)


def _stretch_text(stretch: _Stretch, devices: tuple[str, str], *, is_last_of_several: bool) -> str:
    """Return the sizes of a stretch, and how many times as fast a device is at the smallest and largest of them."""
    is_first = stretch.outcome is Outcome.FIRST
    faster, slower = devices if is_first else devices[::-1]
    lowest, highest = min(stretch.compared), max(stretch.compared)
    factors = f"{_factor(stretch.compared[lowest], is_inverse=is_first)} as fast as {slower}"
    if lowest == highest:
        where = f"at size {lowest}"
    else:
        factors += f" at {lowest}, {_factor(stretch.compared[highest], is_inverse=is_first)} at {highest}"
        where = f"at sizes {lowest} to {highest}"
        if is_last_of_several:
            where = f"from size {lowest} on (measured up to {highest})"
    if stretch.outcome is Outcome.SAME:
        within = max(each.same_within for each in stretch.compared.values())
        return f"The same within {within:.0%} {where}: {faster} is {factors}."
    if stretch.outcome is Outcome.AMBIGUOUS:
        return f"Ambiguous {where}: {faster} is {factors}."
    return f"{faster} {where}: {factors}."


def _factor(comparison: Comparison, *, is_inverse: bool) -> str:
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    return ratio_with_bounds(1 / ratio, 1 / high, 1 / low) if is_inverse else ratio_with_bounds(ratio, low, high)


def _trial_sentences(decided: WorkloadDecision, decision: Decision) -> Iterator[str]:
    answers = {each.size: each.answer for each in decided.sizes}
    yield f"Over a whole trial of {decided.steps_per_trial:,} steps: {describe(answers)}."
    if cheapest := {each.size: each.cheapest for each in decided.sizes if each.cheapest}:
        dated = f", at prices of {decision.price_date}" if decision.price_date else ""
        yield f"By cost{dated}: {describe(cheapest, 'cheaper')}."


def summarise(run_set: RunSet, findings: Sequence[Finding]) -> str:
    """Return all findings in one sentence."""
    if not run_set.workloads:
        return "Nothing was measured: every process failed." if run_set.failures else "Nothing was measured."
    if len(findings) <= _MOST_NAMED:
        return f"{'; '.join(f'{each.workload}: {each.badge}' for each in findings)}."
    words = {
        "gain": "another device pays, at least for the largest sizes",
        "stay": f"{in_words(run_set.measured_devices[0])} is the faster one",
        "same": "it makes no difference",
        "depends": "the answer changes with the size more than once",
        "ambiguous": "the measurement does not tell",
        "none": "there is nothing to compare",
    }
    counts = Counter[str](each.kind for each in findings)
    parts = (f"for {counts[kind]} {text}" for kind, text in words.items() if counts[kind])
    return f"Of {counted(len(findings), 'answer')}, {'; '.join(parts)}."


_Parts = Mapping[str, RunSet]
"""The run of each workload."""


def build_content(
    run_set: RunSet, decision: Decision | None = None, packing: ThroughputRecord | None = None
) -> Content:
    """Return the content of the report on a run, including what was not measured."""
    parts = run_set.by_workload()
    compared = {phase: [each for part in parts.values() for each in verdicts(part, phase)] for phase in Phase}
    findings = find(run_set, compared, decision)
    other_run = tuple(_other_run(run_set, decision)) if decision else ()
    doubts = (sentence(f"For all that follows: {doubt}") for doubt in doubts_of_all(compared))
    commands = (run_set.command, *([packing.command] if packing and packing.command else []))
    sections = (
        Section("Verdict", (*_missing(run_set), *other_run, *doubts), findings=findings),
        *([_cost(decision, other_run)] if decision else []),
        _times(parts),
        _speedups([each for found in compared.values() for each in found]),
        *([_packing(packing)] if packing else []),
        _memory(parts),
        _samples(parts),
        _conditions(run_set),
        *([] if run_set.is_redacted else [Section("Run it again", (_AGAIN,), commands=commands)]),
    )
    gpus = ", ".join(dict.fromkeys(each.name for each in run_set.environment.gpus)) or "no GPU that NVML knows"
    details = (
        f"Measured on {run_set.created_at:%Y-%m-%d %H:%M %Z}: {run_set.environment.cpu_model}, {gpus}; "
        f"{counted(run_set.num_rounds, 'round')} of fresh processes in random order, seed {run_set.seed}."
    )
    return Content("GPU against CPU", summarise(run_set, findings), details, sections)


_AGAIN: Final = "In the same working directory, with the versions above:"


def _missing(run_set: RunSet) -> Iterator[str]:
    for each in run_set.devices:
        if each.slot is None:
            why = each.why_missing or "not found"
            yield sentence(f"{in_words(each.device)} is not there, so the report says nothing about it: {why}")
    if not run_set.is_complete:
        yield "The run was ended before all was measured."
    num_workloads = len(run_set.by_workload())
    if num_workloads * len(_PHASES) > _MOST_FIGURES:
        yield f"Each section shows its first {_MOST_FIGURES} figures. The tables have all {num_workloads} workloads."


def _other_run(run_set: RunSet, decision: Decision) -> Iterator[str]:
    if decision.measured_at != run_set.created_at:
        gpu = decision.accelerator_type or "a GPU of a type that is not known"
        yield (
            f"The decision is from another run, of {decision.measured_at:%Y-%m-%d %H:%M %Z} on {decision.cpu_model} "
            f"and {gpu}: whole trials and their cost are from that run."
        )


_MOST_FIGURES: Final = 18
"""The most figures of a section: each takes a tenth of a second to draw."""


def _pictures(drawn: Iterable[tuple[str, str, Figure | None]]) -> tuple[Picture, ...]:
    first = islice(drawn, _MOST_FIGURES)
    return tuple(Picture(name, label, figure) for name, label, figure in first if figure is not None)


def _times(parts: _Parts) -> Section:
    pictures = _pictures(
        (f"times-{number}-{phase}", f"{workload}: time by size, {PHASE_TITLES[phase]}", crossover_figure(part, phase))
        for number, (workload, part) in enumerate(parts.items(), 1)
        for phase in _PHASES
    )
    text = (
        "Where the lines cross, the other device becomes the faster one. With transfers: from data in host memory. "
        "Compute only: on data that lie on the device. First epoch: with the start of the process and compilation. "
        "A bar is the interval in which the median over processes lies, 95 % sure from six processes on."
    )
    return Section("Time by size", (text if pictures else "No time was measured.",), pictures=pictures)


def _speedups(compared: list[Verdict]) -> Section:
    by_arms: dict[tuple[str, str], list[Verdict]] = {}
    for each in compared:
        by_arms.setdefault((each.workload, each.second), []).append(each)
    pictures = _pictures(
        (f"speedup-{at}", f"{workload}: how many times as fast as {found[0].first} {other} is", speedup_figure(found))
        for at, ((workload, other), found) in enumerate(sorted(by_arms.items()), 1)
    )
    text = (
        "Above the grey band the device pays, below it does not. A bar is the 95 % interval over processes; "
        "where it reaches into the band, the verdict is ambiguous."
    )
    return Section("Speed-up", (text if pictures else "There are no two devices to compare.",), pictures=pictures)


def _cost(decision: Decision, remarks: Iterable[str]) -> Section:
    pictures = _pictures(
        (
            f"cost-{at}",
            f"{each.workload}: cost of a trial against its time, by size",
            cost_figure(each, decision.currency),
        )
        for at, each in enumerate(decision.workloads, 1)
    )
    texts = [*remarks, "A trial has its start and all its steps; trials per hour are those of the whole cluster."]
    if decision.price_date or decision.price_source:
        texts.append(f"Prices of {decision.price_date or 'no date'}, from {decision.price_source or 'no source'}.")
    if not pictures:
        texts.append("No prices were given, so the report says nothing about the cost.")
    return Section("Time and cost of a trial", tuple(texts), pictures=pictures, tables=decision_tables(decision))


def _packing(packing: ThroughputRecord) -> Section:
    pictures = _pictures(
        (f"packing-{number}", f"{workload}: trials per hour by trials per GPU", packing_figure(packing, [workload]))
        for number, workload in enumerate(packing.workloads, 1)
    )
    texts = [f"Measured on {packing.gpu}; {packing.machine}." if packing.machine else f"Measured on {packing.gpu}."]
    for workload in packing.workloads:
        end = packing.stops_paying_at(workload)
        where = "paid up to the most that ran" if end is None else f"stop paying at {end} per GPU"
        texts.append(f"{workload}: more trials {where}.")
    texts += [f"Does not count: {failure}" for failure in packing.failures]
    return Section("Trials per GPU", tuple(texts), pictures=pictures, tables=(packing_table(packing),))


def _memory(parts: _Parts) -> Section:
    pictures = _pictures(
        (f"memory-{number}", f"{workload}: peak host and GPU memory by size", memory_figure(part, workload))
        for number, (workload, part) in enumerate(parts.items(), 1)
    )
    return Section("Memory", () if pictures else ("No peak of memory is known.",), pictures=pictures)


def _samples(parts: _Parts) -> Section:
    # The first phase with times: a workload whose timing failed has a first epoch at most.
    drawn = (
        next(filter(None, (distribution_figure(part, workload, phase) for phase in _PHASES)), None)
        for workload, part in parts.items()
    )
    pictures = _pictures(
        (f"samples-{number}", f"{workload}: every sample of every arm, by process", figure)
        for number, (workload, figure) in enumerate(zip(parts, drawn, strict=True), 1)
    )
    if not pictures:
        return Section("All samples", ("No time was measured.",))
    text = (
        "Each row is an arm, each line of points in it a process, each point a block of steps. "
        "The control is a second arm that equals the first: how far these two differ is the noise."
    )
    caption = "The median over processes of each arm, with its interval"
    table = arms_table(caption, parts.values(), with_interval)._replace(is_folded=True)
    return Section("All samples", (text,), pictures=pictures, tables=(table,))


def _conditions(run_set: RunSet) -> Section:
    tables = [environment_table(run_set.environment), devices_table(run_set)]
    tables += [each for each in (problems_table(run_set), noise_table(run_set)) if each.rows]
    how = "took turns block by block" if run_set.is_interleaved else "took turns process by process, not block by block"
    return Section("Machine, devices and noise", (f"The arms of a round {how}.",), tables=tuple(tables))
