"""What a run of the benchmarks found, in sentences: for each workload and device, at which sizes it pays."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple

from tune_policies.plan.decision import Answer, Decision, WorkloadDecision
from tune_policies.values.value import counted

from ..compare.judge import Comparison, Outcome
from ..compare.verdicts import Verdict
from ..record.run_set import Phase, RunSet
from .statistics import in_words, measured_devices, ratio_with_bounds, sentence

Kind = Literal["gain", "stay", "same", "ambiguous", "depends", "none"]


_MOST_NAMED: Final = 4
"""So many workloads are named in the summary; of more it says how many."""

_RANKS: Final = {Outcome.FIRST: 0, Outcome.SAME: 1, Outcome.SECOND: 2}
"""From the first device to the second. What is ambiguous has no place: it speaks for neither."""


_ANSWERS: Final[dict[Answer, str]] = {"GPU": "GPU", "CPU": "CPU", "same": "the same", "ambiguous": "not clear"}


class Finding(NamedTuple):
    """The answer for one workload and one device.

    Attributes:
        workload: Its name, and that of the device where several are compared with the first.
        kind: What the badge says: the device pays, the first one stays the better, they are the same, it is not clear,
            it depends on the size, or nothing was compared.
        badge: In a few words.
        sentences: In full.
        device: What is compared with the first device; ``None``: nothing is.
    """

    workload: str
    kind: Kind
    badge: str
    sentences: tuple[str, ...]
    device: str | None = None


class _Stretch(NamedTuple):
    """Neighbouring sizes with one outcome."""

    outcome: Outcome
    compared: dict[int, Comparison]

    @property
    def sizes(self) -> list[int]:
        return [*self.compared]


Verdicts = Mapping[Phase, Sequence[Verdict]]


def find(run_set: RunSet, verdicts: Verdicts, decision: Decision | None = None) -> tuple[Finding, ...]:
    """Return the findings, workload by workload, from steps with their transfers; of what failed altogether, too."""
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
    """Return the reasons that every single comparison names: they concern the run."""
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
    """Return what went wrong with a workload, a sentence for each device and message."""
    of_it = [each for each in run_set.failures if each.arm.workload == workload]
    return tuple(dict.fromkeys(sentence(f"On {in_words(each.arm.device)}: {each.message}") for each in of_it))


def _answers(workload: str, verdicts: Verdicts, said: Collection[str]) -> Iterator[Finding]:
    others = dict.fromkeys(each.second for found in verdicts.values() for each in found if each.workload == workload)
    for other in others:
        # A workload that cannot tell its transfers apart has no times of that phase.
        for phase in dict.fromkeys((Phase.TRANSFERS, *Phase)):
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
        where = _where(each, is_last_of_several=each is last and len(stretches) > 1)
        sentences.append(_stretch_text(each, devices, where))
        reasons = dict.fromkeys(reason for one in each.compared.values() for reason in one.reasons)
        new = [reason for reason in reasons if reason not in named]
        named += new
        sentences += [sentence(reason) for reason in new]
    if phase is not Phase.TRANSFERS:
        sentences.append(f"It has no times with transfers; these are of the phase {phase}.")
    kind, badge = _badge(stretches, devices)
    return Finding(verdicts[0].workload, kind, badge, tuple(sentences), verdicts[0].second)


def _badge(stretches: list[_Stretch], devices: tuple[str, str]) -> tuple[Kind, str]:
    first, second = devices
    ranks = [_RANKS[each.outcome] for each in stretches if each.outcome in _RANKS]
    if ranks not in (sorted(ranks), sorted(ranks, reverse=True)):
        return "depends", f"{first} or {second}: by size"
    where = "" if len(stretches) == 1 else f" from {stretches[-1].sizes[0]}"
    match stretches[-1].outcome:
        case Outcome.SECOND:
            return "gain", f"{second}{where}"
        case Outcome.FIRST:
            return "stay", f"{first}{where}"
        case Outcome.SAME:
            return "same", f"the same{where}"
        case _:
            return "ambiguous", f"ambiguous{where}"


def _stretch_text(stretch: _Stretch, devices: tuple[str, str], where: str) -> str:
    towards = Outcome.FIRST if stretch.outcome is Outcome.FIRST else Outcome.SECOND
    faster, slower = devices if towards is Outcome.FIRST else devices[::-1]
    factors = _factors(stretch, towards, slower)
    match stretch.outcome:
        case Outcome.FIRST | Outcome.SECOND:
            return f"{faster} {where}: {factors}."
        case Outcome.SAME:
            within = max(each.same_within for each in stretch.compared.values())
            return f"The same within {within:.0%} {where}: {faster} is {factors}."
        case _:
            return f"Ambiguous {where}: {faster} is {factors}."


def _where(stretch: _Stretch, *, is_last_of_several: bool) -> str:
    lowest, highest = stretch.sizes[0], stretch.sizes[-1]
    if lowest == highest:
        return f"at size {lowest}"
    if is_last_of_several:
        return f"from size {lowest} on (measured up to {highest})"
    return f"at sizes {lowest} to {highest}"


def _factors(stretch: _Stretch, towards: Outcome, slower: str) -> str:
    """How many times as fast, with its interval, at the smallest and at the largest size."""
    lowest, highest = stretch.sizes[0], stretch.sizes[-1]
    first = f"{_factor(stretch.compared[lowest], towards)} as fast as {slower}"
    if lowest == highest:
        return first
    return f"{first} at {lowest}, {_factor(stretch.compared[highest], towards)} at {highest}"


def _factor(comparison: Comparison, towards: Outcome) -> str:
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if towards is Outcome.FIRST:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    return ratio_with_bounds(ratio, low, high)


def _trial_sentences(decided: WorkloadDecision, decision: Decision) -> Iterator[str]:
    trial = f"Over a whole trial of {decided.steps_per_trial:,} steps"
    largest = decided.sizes[-1].size
    if decided.crossover_at is None:
        answers = dict.fromkeys(each.answer for each in decided.sizes)
        yield f"{trial}, up to size {largest}: {' or '.join(_ANSWERS[each] for each in answers)}."
    else:
        above = "" if decided.crossover_above is None else f", not at {decided.crossover_above}"
        yield f"{trial}: GPU from size {decided.crossover_at} on{above}; measured up to {largest}."
    cheapest = [(each.size, each.cheapest) for each in decided.sizes if each.cheapest]
    if cheapest:
        changes = [cheapest[0], *(after for before, after in pairwise(cheapest) if before[1] != after[1])]
        dated = f" at prices of {decision.price_date}" if decision.price_date else ""
        yield (
            f"Cheapest{dated}: "
            + ", ".join(f"{_ANSWERS[answer]} from size {size} on" for size, answer in changes)
            + "."
        )


def summarise(run_set: RunSet, findings: Sequence[Finding]) -> str:
    """Return the whole in one sentence."""
    if not run_set.workloads:
        return "Nothing was measured: every process failed." if run_set.failures else "Nothing was measured."
    if len(findings) <= _MOST_NAMED:
        return f"{'; '.join(f'{each.workload}: {each.badge}' for each in findings)}."
    words: dict[Kind, str] = {
        "gain": "another device pays, at the largest sizes at least",
        "stay": f"{in_words(measured_devices(run_set)[0])} is the faster one",
        "same": "it makes no difference",
        "depends": "it changes with the size more than once",
        "ambiguous": "what was measured does not tell",
        "none": "there is nothing to compare",
    }
    counts = Counter(each.kind for each in findings)
    parts = (f"for {counts[kind]} {text}" for kind, text in words.items() if counts[kind])
    return f"Of {counted(len(findings), 'answer')}, {'; '.join(parts)}."
