"""Builds the content of a report: findings as sentences, and sections with figures and tables."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from matplotlib.figure import Figure

from tune_policies.files.html_page import Content, Finding, Picture, Section
from tune_policies.plan.benchmark_decision import Decision, WorkloadDecision
from tune_policies.values.wording import counted

from ..compare.compare_devices import Verdict, verdicts
from ..compare.time_ratio import Comparison, Outcome
from ..decide.crossover import describe
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Phase, RunSet
from ..record.summary import how_to_measure_a_gpu, in_words, ratio_with_bounds, rounds_text, sentence
from ..workloads.registry import describe_sizes
from .figures import PHASE_TITLES, cost_figure, crossover_figure, packing_figure, speedup_figure
from .tables import (
    configurations_table,
    decision_tables,
    machine_lines,
    packing_table,
    throughput_lines,
    turns,
)

_PHASES: Final = (Phase.TRANSFERS, Phase.COMPUTE, Phase.FIRST_EPOCH)
"""Phases in order of preference. Transfers come first, because the data of a trial are in host memory."""

_MOST_NAMED: Final = 4
"""The maximum number of findings that the summary lists. If there are more, the summary counts equal answers."""

_MOST_FIGURES: Final = 18
"""The maximum number of figures in a section, because each figure takes a tenth of a second to draw."""

_RANKS: Final = {Outcome.FIRST: 0, Outcome.SAME: 1, Outcome.SECOND: 2}
"""The order of outcomes, from the first device to the second. ``AMBIGUOUS`` has no rank."""

Verdicts = Mapping[Phase, Sequence[Verdict]]


class _Stretch(NamedTuple):
    """Neighboring sizes with the same outcome, and their comparisons by size."""

    outcome: Outcome
    compared: dict[int, Comparison]


def find(
    run_set: RunSet, verdicts: Verdicts, decision: Decision | None = None, *, file: Path | None = None
) -> tuple[Finding, ...]:
    """Return the findings for each workload, including workloads that failed.

    The findings are based on steps with transfers if these were measured. ``file`` contains the run set, for the
    command that measures on a GPU.
    """
    decided = {}
    if decision:
        decided = {of_workload.workload: of_workload for of_workload in decision.workloads}
    named_doubts = doubts_of_all(verdicts)
    found = []
    failed = {failure.configuration.workload for failure in run_set.failures}
    for workload in sorted({*run_set.workloads, *failed}):
        # There is one answer for each device that was compared with the first one.
        answers = list(_answers(workload, verdicts, named_doubts)) or [_not_compared(run_set, workload, file)]
        if decision and workload in decided:
            devices = [answer.device for answer in answers]
            gpu = decided[workload].sizes[0].gpu.device
            at = 0  # the decision can be based on another run, with another GPU
            if gpu in devices:
                at = devices.index(gpu)
            trials = tuple(_trial_sentences(decided[workload], decision))
            answers[at] = answers[at]._replace(sentences=answers[at].sentences + trials)
        # Only with several devices does the name of the workload not say which comparison is meant.
        if len(answers) > 1:
            answers = [answer._replace(workload=f"{workload}, {in_words(answer.device or '')}") for answer in answers]
        found += answers
    return tuple(found)


def doubts_of_all(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the reasons for doubt that all comparisons share. These reasons affect the whole run."""
    of_comparisons = []
    for found in verdicts.values():
        of_comparisons += [verdict.comparison.reasons for verdict in found]
    # The doubts of a single comparison stand next to its result.
    if len(of_comparisons) < 2:
        return ()
    first, *others = of_comparisons
    shared = set(first).intersection(*others)
    return tuple(reason for reason in first if reason in shared)


def _not_compared(run_set: RunSet, workload: str, file: Path | None) -> Finding:
    configurations = [of_any for of_any in run_set.configurations if of_any.workload == workload]
    devices = sorted({in_words(configuration.device) for configuration in configurations})
    failures: dict[str, None] = {}  # without repetitions, because a device often fails in each round
    for failure in run_set.failures:
        if failure.configuration.workload == workload:
            failures[sentence(f"On {in_words(failure.configuration.device)}: {failure.message}")] = None
    if not devices:
        return Finding(workload, "none", "not measured", (*failures,))
    if len(devices) == 1:
        why = f"Only {devices[0]} was measured, so there is nothing to compare it with."
        if run_set.measured_devices == ("cpu",):
            on_gpu = " ".join(how_to_measure_a_gpu(run_set, workload, file=file).splitlines())
            why = f"{why} {on_gpu}"
    else:
        why = f"{' and '.join(devices)} have no size in common, so nothing can be compared."
    return Finding(workload, "none", "not compared", (why, *failures))


def _answers(workload: str, verdicts: Verdicts, named_doubts: Collection[str]) -> Iterator[Finding]:
    by_device: dict[str, dict[Phase, list[Verdict]]] = {}
    for phase, found in verdicts.items():
        for verdict in found:
            if verdict.workload == workload:
                by_device.setdefault(verdict.second, {}).setdefault(phase, []).append(verdict)
    for by_phase in by_device.values():
        # Some workloads have no times of the preferred phase, so use the first phase that both devices have.
        for phase in _PHASES:
            if phase in by_phase:
                yield _answer(sorted(by_phase[phase], key=lambda verdict: verdict.size), phase, named_doubts)
                break


def _answer(verdicts: list[Verdict], phase: Phase, named_doubts: Collection[str]) -> Finding:
    first, second = in_words(verdicts[0].first), in_words(verdicts[0].second)
    stretches = [
        _Stretch(outcome, {verdict.size: verdict.comparison for verdict in group})
        for outcome, group in groupby(verdicts, key=lambda verdict: verdict.comparison.outcome)
    ]
    sentences = []
    # The notes at the top of the page contain these doubts already.
    named = set(named_doubts)
    # The largest sizes come first, because these are the sizes at which a GPU pays off, if at all.
    for stretch in reversed(stretches):
        sentences.append(_stretch_text(stretch, first, second))
        reasons = dict.fromkeys(chain.from_iterable(compared.reasons for compared in stretch.compared.values()))
        sentences += [sentence(reason) for reason in reasons if reason not in named]
        named |= reasons.keys()
    if phase is not Phase.TRANSFERS:
        sentences.append(f"No times with transfers were measured, so these are times of the phase {phase}.")
    kind, badge = _badge(stretches, first, second)
    return Finding(verdicts[0].workload, kind, badge, tuple(sentences), verdicts[0].second)


def _badge(
    stretches: list[_Stretch], first: str, second: str
) -> tuple[Literal["gain", "stay", "same", "ambiguous", "depends"], str]:
    ranks = [_RANKS[stretch.outcome] for stretch in stretches if stretch.outcome in _RANKS]
    # Without a change back, one sentence with the size of the change describes the result.
    changes_back = ranks not in (sorted(ranks), sorted(ranks, reverse=True))
    if changes_back:
        return "depends", f"{first} or {second}, depending on the size"
    where = ""
    if len(stretches) > 1:  # the badge is short, so it contains only the outcome of the largest sizes
        where = f" from {min(stretches[-1].compared)}"
    match stretches[-1].outcome:
        case Outcome.SECOND:
            return "gain", f"{second}{where}"
        case Outcome.FIRST:
            return "stay", f"{first}{where}"
        case Outcome.SAME:
            return "same", f"the same{where}"
        case Outcome.AMBIGUOUS:
            return "ambiguous", f"ambiguous{where}"


def _stretch_text(stretch: _Stretch, first: str, second: str) -> str:
    """Return a sentence with the sizes of a stretch, and the speed ratio at its smallest and largest size."""
    is_first = stretch.outcome is Outcome.FIRST
    faster, slower = second, first
    if is_first:
        faster, slower = first, second
    lowest, highest = min(stretch.compared), max(stretch.compared)
    factors = f"{_factor(stretch.compared[lowest], is_inverse=is_first)} as fast as {slower}"
    where = f"at size {lowest}"
    if lowest != highest:
        factors += f" at {lowest}, {_factor(stretch.compared[highest], is_inverse=is_first)} at {highest}"
        where = f"at sizes {lowest} to {highest}"
    if stretch.outcome is Outcome.SAME:
        within = max(comparison.same_within for comparison in stretch.compared.values())
        return f"The same within {within:.0%} {where}: {faster} is {factors}."
    if stretch.outcome is Outcome.AMBIGUOUS:
        return f"Ambiguous {where}: {faster} is {factors}."
    return f"{faster} {where}: {factors}."


def _factor(comparison: Comparison, *, is_inverse: bool) -> str:
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if is_inverse:
        # The inverse of the interval swaps its ends.
        return ratio_with_bounds(1 / ratio, 1 / high, 1 / low)
    return ratio_with_bounds(ratio, low, high)


def _trial_sentences(decided: WorkloadDecision, decision: Decision) -> Iterator[str]:
    answers = {size.size: size.answer for size in decided.sizes}
    yield f"Over a whole trial of {decided.steps_per_trial:,} steps: {describe(answers)}."
    cheapest = {size.size: size.cheapest for size in decided.sizes if size.cheapest}
    if cheapest:
        by = "By cost"
        if decision.price_date:
            by += f", at prices of {decision.price_date}"
        yield f"{by}: {describe(cheapest, 'cheaper')}."


def summarise(run_set: RunSet, findings: Sequence[Finding]) -> str:
    """Return one sentence that summarizes all findings."""
    if not run_set.workloads:
        if run_set.failures:
            return "Nothing was measured, because every process failed."
        return "Nothing was measured."
    if len(findings) <= _MOST_NAMED:
        parts = [f"{finding.workload}: {finding.badge}" for finding in findings]
    else:
        counts = Counter(finding.badge for finding in findings)
        parts = [f"{badge}: {count} of {len(findings)}" for badge, count in counts.most_common()]
    return f"{'; '.join(parts)}."


def build_content(
    run_set: RunSet,
    decision: Decision | None = None,
    packing: ThroughputRecord | None = None,
    *,
    file: Path | None = None,
) -> Content:
    """Return the content of the report on a run, including notes about missing measurements.

    ``file`` contains the run set, for the command that measures on a GPU.
    """
    compared = {phase: verdicts(run_set, phase) for phase in Phase}
    findings = find(run_set, compared, decision, file=file)
    notes = [*_missing(run_set)]
    if decision:
        notes += _other_run(run_set, decision)
    notes += [sentence(f"All results are affected: {doubt}") for doubt in doubts_of_all(compared)]
    # The answer comes first, then its reasons, and at the end what is needed to repeat the run.
    sections = [Section("Verdict", tuple(notes), findings=findings)]
    if decision:
        sections.append(_cost(decision))
    sections.append(_times(run_set))
    sections.append(_speedups([*chain.from_iterable(compared.values())]))
    if packing:
        sections.append(_packing(packing))
    sections.append(Section("All measurements", _texts_about_sizes(run_set), tables=(configurations_table(run_set),)))
    sections.append(_conditions(run_set))
    # A redacted record contains no command.
    if not run_set.is_redacted:
        commands = [run_set.command]
        if packing and packing.command:
            commands.append(packing.command)
        again = "Run these commands in the same working directory, with the versions above:"
        sections.append(Section("Run it again", (again,), commands=tuple(commands)))
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in run_set.environment.gpus)) or "no NVIDIA GPU"
    details = (
        f"Measured on {run_set.created_at:%Y-%m-%d %H:%M %Z}: {run_set.environment.cpu_model}, {gpus}; "
        f"{rounds_text(run_set)}, with fresh processes in random order, seed {run_set.seed}."
    )
    return Content("GPU against CPU", summarise(run_set, findings), details, tuple(sections))


def _texts_about_sizes(run_set: RunSet) -> tuple[str, ...]:
    if run_set.workloads:
        return (sentence(describe_sizes(sorted(run_set.workloads))),)
    return ()


def _missing(run_set: RunSet) -> Iterator[str]:
    for device in run_set.devices:
        if device.slot is None:
            why = device.why_missing or "not found"
            yield sentence(f"{in_words(device.device)} was not measured, so the report does not cover it: {why}")
    if not run_set.is_complete:
        yield "The run was interrupted before it was complete, so the intervals are wider than with all rounds."
    num_workloads = len(run_set.workloads)
    if num_workloads * len(_PHASES) > _MOST_FIGURES:
        yield f"Each section shows its first {_MOST_FIGURES} figures. The tables contain all {num_workloads} workloads."


def _other_run(run_set: RunSet, decision: Decision) -> Iterator[str]:
    if decision.measured_at != run_set.created_at:
        gpu = decision.accelerator_type or "a GPU of unknown type"
        yield (
            f"The decision is based on another run, measured at {decision.measured_at:%Y-%m-%d %H:%M %Z} "
            f"on {decision.cpu_model} and {gpu}. The times and costs of whole trials are also from that run."
        )


def _pictures(drawn: Iterable[tuple[str, str, Figure | None]]) -> tuple[Picture, ...]:
    """Return the pictures of at most ``_MOST_FIGURES`` figures. The other figures are not drawn."""
    # ``drawn`` is lazy, so the figures beyond the limit cost no time.
    first = islice(drawn, _MOST_FIGURES)
    return tuple(Picture(name, label, figure) for name, label, figure in first if figure is not None)


def _times(run_set: RunSet) -> Section:
    pictures = _pictures(_drawn_times(run_set))
    text = (
        "Where two lines cross, the faster device changes. With transfers, the data of a step are in host memory. With "
        "compute only, they are on the device. The first epoch includes the start of the process and compilation. "
        "A point is the median over processes, and its bar is the interquartile range."
    )
    if not pictures:
        text = "No time was measured."
    return Section("Time by size", (text,), pictures=pictures)


def _drawn_times(run_set: RunSet) -> Iterator[tuple[str, str, Figure | None]]:
    for number, workload in enumerate(sorted(run_set.workloads), 1):
        for phase in _PHASES:
            label = f"{workload}: time by size, {PHASE_TITLES[phase]}"
            yield f"times-{number}-{phase}", label, crossover_figure(run_set, [workload], phase)


def _speedups(compared: list[Verdict]) -> Section:
    by_pair: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in compared:
        by_pair.setdefault((verdict.workload, verdict.second), []).append(verdict)
    pictures = _pictures(
        (f"speedup-{at}", f"{workload}: speed of {other} relative to {found[0].first}, by size", speedup_figure(found))
        for at, ((workload, other), found) in enumerate(sorted(by_pair.items()), 1)
    )
    text = (
        "A device is faster if its points are above the gray band, and slower if they are below it. A bar is the 95 % "
        "interval over processes. If a bar is only partly inside the band, the verdict is ambiguous."
    )
    if not pictures:
        text = "The run has no times that can be compared between two devices."
    return Section("Speed-up", (text,), pictures=pictures)


def _cost(decision: Decision) -> Section:
    pictures = _pictures(
        (
            f"cost-{at}",
            f"{decided.workload}: cost of a trial against its time, by size",
            cost_figure(decided, decision.currency),
        )
        for at, decided in enumerate(decision.workloads, 1)
    )
    texts = ["The time of a trial includes its start and all its steps. Trials per hour are for the whole cluster."]
    if decision.price_date or decision.price_source:
        texts.append(f"Prices: {decision.price_date or 'unknown date'}, {decision.price_source or 'unknown source'}.")
    if not pictures:
        texts.append("No prices were given, so the report does not cover the cost.")
    return Section("Time and cost of a trial", tuple(texts), pictures=pictures, tables=decision_tables(decision))


def _packing(packing: ThroughputRecord) -> Section:
    pictures = _pictures(
        (f"packing-{number}", f"{workload}: trials per hour by trials per GPU", packing_figure(packing, workload))
        for number, workload in enumerate(packing.workloads, 1)
    )
    measured_on = f"Measured on {packing.gpu}"
    if packing.machine:
        measured_on += f"; {packing.machine}"
    texts = (f"{measured_on}.", *throughput_lines(packing))
    return Section("Trials per GPU", texts, pictures=pictures, tables=(packing_table(packing),))


def _conditions(run_set: RunSet) -> Section:
    texts = [turns(run_set), *machine_lines(run_set)]
    for device in run_set.devices:
        if device.slot:
            reserves = f"a trial on {in_words(device.device)} reserves {device.slot}"
            texts.append(f"{reserves}, and the cluster can run {counted(device.at_once, 'trial')} at once")
    texts += map(str, (*run_set.failed(), *run_set.warnings()))
    return Section("Machine, devices and problems", tuple(map(sentence, texts)))
