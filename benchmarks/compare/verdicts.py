"""Compares two devices, or two runs, for each workload, size and phase that was measured of both.

A doubt, such as other load, makes a verdict ambiguous rather than wrong. The limits of doubts, and what to do about
them, are here.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value, shorten, shorten_names, suggest

from ..record.run_set import Arm, Environment, NoiseReading, Phase, ProcessRun, RunSet
from ..record.run_set_file import read_run_set
from ..record.summary import in_words
from .judge import SURE, Comparison, Outcome, compare_apart, compare_arms, ratio_interval

MOST_LOAD: Final = 0.2
"""CPUs that other processes may use, mean over rounds. An idle machine uses a few hundredths…"""
MOST_PART_OF_CPUS: Final = 0.05
"""…or this part of all CPUs, if that is more: on a large machine, other processes run on other CPUs than the arms."""
MOST_THROTTLED_S: Final = 0.1
"""Seconds for which the cgroup may be throttled in all rounds together: one period of its quota."""
OF_THE_WORK: Final = {"dtype": "dtype", "samples_per_step": "samples a step", "num_threads": "CPU threads"}
"""The fields, with their names in messages, in which processes that do the same work agree."""


def noise_problems(run_set: RunSet) -> tuple[str, ...]:
    """Return what disturbed the run as a whole, such as other processes or throttled clocks."""
    return tuple(problems_of_readings(run_set.noise, run_set.environment.num_cpus))


def problems_of_readings(noise: tuple[NoiseReading, ...], num_cpus: int) -> Iterator[str]:
    """Yield what disturbed the rounds on a machine with ``num_cpus`` CPUs."""
    most_load = max(MOST_LOAD, MOST_PART_OF_CPUS * num_cpus)
    if noise and (load := fmean(each.load for each in noise)) > most_load:
        yield (
            f"other processes used {load:.2f} CPUs, more than {most_load:g}: end them, or run when the machine is quiet"
        )
    if (throttled_s := sum(each.throttled_s or 0 for each in noise)) > MOST_THROTTLED_S:
        yield f"the cgroup's quota stopped the processes for {throttled_s:.1f} s: use fewer CPUs, or raise the quota"
    if causes := sorted({cause for each in noise for cause in each.gpu_throttled}):
        yield f"a GPU's clock was held down ({', '.join(causes)}): cool it, or fix its clocks"


def control_problem(run_set: RunSet, arm: Arm, phase: Phase, same_within: float) -> str | None:
    """Return by how much an arm's control seems to differ from it, or ``None`` if it has none or they are close.

    The difference matters if it exceeds what counts as the same, or half of that if the difference is sure.
    """
    twin = arm.model_copy(update={"is_control": True})
    first, second = run_set.times_s(arm, phase), run_set.times_s(twin, phase)
    if arm.is_control or not first or not second:
        return None
    found = ratio_interval(first, second)
    surer = found.at_confidence(SURE)
    is_sure = surer.low > 1 or surer.high < 1
    apart = abs(log(found.ratio))
    if apart <= log(1 + same_within) * (0.5 if is_sure else 1):
        return None
    return (
        f"two equal arms on {arm.device} seem to differ by {exp(apart) - 1:.1%}"
        f" ({found.low:.3f} to {found.high:.3f}): run more rounds, or wait until the machine is quiet"
    )


def disagreement(run_set: RunSet, arm: Arm) -> str | None:
    """Return how the results of the arm's workload and size differ between devices, or ``None`` if they agree."""
    for each in run_set.failures:
        if each.kind == "disagreed" and (each.arm.workload, each.arm.size) == (arm.workload, arm.size):
            return f"the arms did not do the same work: {each.message}"
    return None


def other_work(first: Sequence[ProcessRun], second: Sequence[ProcessRun]) -> str | None:
    """Return how the work of two arms differs, as far as their processes describe it, or ``None``."""
    differ = []
    for field, name in OF_THE_WORK.items():
        one, other = (sorted({str(getattr(run, field)) for run in runs} - {"None"}) for runs in (first, second))
        if one and other and one != other:
            differ.append(f"{name} {' or '.join(one)} against {' or '.join(other)}")
    return f"the arms did not do the same work: {'; '.join(differ)}" if differ else None


class Verdict(Value):
    """Two arms of one workload and size, compared; ``first`` and ``second`` name the device, or the run and device."""

    workload: str
    size: PositiveCount
    phase: Phase
    first: str
    second: str
    comparison: Comparison

    @property
    def word(self) -> str:
        """The name of the faster arm (``"GPU"``, ``"CPU"``, ``"gpu@0.25"``), ``"same"`` or ``"ambiguous"``."""
        outcome = self.comparison.outcome
        faster = {Outcome.FIRST: self.first, Outcome.SECOND: self.second}.get(outcome)
        return outcome.value if faster is None else in_words(faster)

    def __str__(self) -> str:
        one = self.comparison
        times = f"{one.ratio:.3g} ({one.low:.3g} to {one.high:.3g})"
        return f"{self.workload}[{self.size}] {self.phase}: {self.word}, time of {self.first} / {self.second} {times}"


def verdicts(
    run_set: RunSet, phase: Phase, same_within: float = 0.05, *, between: tuple[str, str] | None = None
) -> tuple[Verdict, ...]:
    """Return which device is faster for each workload and size.

    ``between`` names two devices, or a device and its control, as tables do. By default, the CPU is compared with each
    other device, or the first device if there is no CPU.

    Raises:
        InvalidResourcesError: Nothing was measured on a device of ``between``, or ``same_within`` is not valid.
    """
    compared = run_set.measured_devices
    if between is not None:
        compared = _named(between, list(dict.fromkeys(arm.where for arm in run_set.sorted_arms)))
    doubts = noise_problems(run_set)
    return tuple(
        _between(run_set, first, second, phase, same_within, doubts)
        for first, second in _pairs(run_set, compared)
        if run_set.times_s(first, phase) and run_set.times_s(second, phase)
    )


def verdicts_across(
    first: RunSet,
    second: RunSet,
    phase: Phase,
    same_within: float = 0.05,
    *,
    names: tuple[str, str] = ("A", "B"),
    doubts: tuple[str, ...] = (),
) -> tuple[Verdict, ...]:
    """Return which of two runs, called ``names``, is faster for each arm that both have, given ``doubts`` about them.

    Their rounds are not paired.
    """
    runs = (first, second)
    found = []
    for arm in first.arms:
        times = [run_set.times_s(arm, phase) for run_set in runs]
        if arm.is_control or not all(times):
            continue
        known = [*doubts, *_doubts_across(runs, names, arm, phase, same_within)]
        comparison = compare_apart(*times, same_within=same_within, doubts=known)
        first_name, second_name = (f"{name} on {arm.device}" for name in names)
        found.append(_verdict(arm, phase, first_name, second_name, comparison))
    return tuple(found)


def _verdict(arm: Arm, phase: Phase, first: str, second: str, comparison: Comparison) -> Verdict:
    return Verdict(workload=arm.workload, size=arm.size, phase=phase, first=first, second=second, comparison=comparison)


def differences_of_hardware(first: Environment, second: Environment) -> tuple[str, ...]:
    """Return how the machines of two runs differ, so that their times cannot be compared."""

    def facts(environment: Environment) -> dict[str, object]:
        return {
            "CPU": environment.cpu_model,
            "CPUs": environment.num_cpus,
            "usable CPUs": environment.usable_cpus,
            "GPUs": [gpu.name for gpu in environment.gpus],
        }

    ones, others = facts(first), facts(second)
    return tuple(f"{name}: {one!r} against {others[name]!r}" for name, one in ones.items() if one != others[name])


def differences_of_software(first: Environment, second: Environment) -> tuple[str, ...]:
    """Return how the software of two runs differs, which may be what the user compares."""

    def facts(environment: Environment) -> dict[str, str]:
        drivers = ", ".join(sorted({gpu.driver or "" for gpu in environment.gpus}))
        versions = {name: environment.versions.get(name, "none") for name in packages}
        return {"Python": environment.python, "platform": environment.platform, "driver": drivers, **versions}

    packages = sorted(first.versions.keys() | second.versions.keys())
    ones, others = facts(first), facts(second)
    return tuple(f"{name} {one} against {others[name]}" for name, one in ones.items() if one != others[name])


def _pairs(run_set: RunSet, devices: Sequence[str]) -> Iterator[tuple[Arm, Arm]]:
    """Yield the arm of the first device with that of each other device, for each workload and size that has both."""
    arms = {(arm.workload, arm.size, arm.where): arm for arm in run_set.arms}
    for workload in run_set.workloads:
        for size in run_set.sizes(workload):
            for other in devices[1:]:
                first, second = arms.get((workload, size, devices[0])), arms.get((workload, size, other))
                if first is not None and second is not None:
                    yield first, second


def _between(
    run_set: RunSet, first: Arm, second: Arm, phase: Phase, same_within: float, doubts: tuple[str, ...]
) -> Verdict:
    # Only one device has a control. If it differs from its twin, the times of the others are no more certain.
    controlled = (arm for arm in run_set.arms if (arm.workload, arm.size) == (first.workload, first.size))
    found = [control_problem(run_set, arm, phase, same_within) for arm in controlled]
    found += [disagreement(run_set, first), other_work(run_set.of(first), run_set.of(second))]
    times = (run_set.times_s(arm, phase) for arm in (first, second))
    comparison = compare_arms(*times, same_within=same_within, doubts=[*doubts, *filter(None, found)])
    return _verdict(first, phase, first.where, second.where, comparison)


def _doubts_across(
    runs: tuple[RunSet, RunSet], names: tuple[str, str], arm: Arm, phase: Phase, same_within: float
) -> Iterator[str]:
    if differ := other_work(*(run_set.of(arm) for run_set in runs)):
        yield differ
    for name, run_set in zip(names, runs, strict=True):
        found = (control_problem(run_set, arm, phase, same_within), disagreement(run_set, arm))
        yield from (f"{name}: {doubt}" for doubt in (*noise_problems(run_set), *found) if doubt)


def _named(wanted: tuple[str, str], known: Sequence[str]) -> tuple[str, str]:
    """Return the run's own names of two arms, which may be given as a table or as a file shows them."""
    by_name = {**{in_words(name): name for name in known}, **{name: name for name in known}}
    for name in wanted:
        if name not in by_name:
            measured = ", ".join(known)
            raise InvalidResourcesError(
                f"nothing was measured on {shorten(name)}{suggest(name, known)} (measured: {measured})"
            )
    first, second = (by_name[name] for name in wanted)
    if first == second:
        raise InvalidResourcesError(f"{first!r} cannot be compared with itself: name two devices")
    return first, second


NOT_PAIRED = (
    "Two runs have no rounds in common: what changed on the machine between them counts as a difference of the arms."
    " Compare two runs of the same code, too, to see how much that is."
)


class Question(NamedTuple):
    """What to compare; for ``between`` and ``same_within`` see :func:`verdicts`.

    Attributes:
        any_machine: Whether two runs may be of different machines.
    """

    between: tuple[str, str] | None = None
    phases: tuple[Phase, ...] = tuple(Phase)
    same_within: float = 0.05
    any_machine: bool = False


class Answer(NamedTuple):
    """The verdicts, and notes on how far to trust them."""

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def compare_files(files: Sequence[Path], question: Question) -> Answer:
    """Compare the devices of one file, or the arms that two files have.

    Raises:
        InvalidResourcesError: A file is not a run set, there is nothing to compare, or the machines differ.
    """
    if len(files) not in (1, 2):
        raise InvalidResourcesError(f"compare takes one run or two, got {len(files)} files: compare them two by two")
    runs = [read_run_set(path) for path in files]
    if len(runs) == 1:
        return _within(runs[0], question)
    if question.between is not None:
        raise InvalidResourcesError("--between compares two devices of one run, got two runs: name one file")
    names = [path.stem for path in files]
    first, second = names if len(set(names)) == 2 else map(str, files)
    return _across(runs[0], runs[1], question, (first, second))


def surely_slower(found: Iterable[Verdict], limit: float) -> list[Verdict]:
    """Return the verdicts whose second arm surely takes more than ``limit`` times as long as the first."""
    return [each for each in found if each.comparison.outcome is Outcome.FIRST and each.comparison.high < 1 / limit]


def _within(run_set: RunSet, question: Question) -> Answer:
    found = tuple(
        verdict
        for phase in question.phases
        for verdict in verdicts(run_set, phase, question.same_within, between=question.between)
    )
    if not found:
        measured = ", ".join(run_set.measured_devices) or "no device"
        why = f"{measured} was measured, and two are needed"
        if len(run_set.measured_devices) > 1:
            why = f"no workload and size has times of {' or '.join(question.phases)} on two of its devices ({measured})"
        raise InvalidResourcesError(f"nothing to compare: {why}. {' '.join(run_set.problems())}".rstrip())
    return Answer(found, tuple(run_set.problems()))


def _across(first: RunSet, second: RunSet, question: Question, names: tuple[str, str]) -> Answer:
    hardware = differences_of_hardware(first.environment, second.environment)
    if hardware and not question.any_machine:
        raise InvalidResourcesError(
            f"the runs are of different machines ({'; '.join(hardware)}), so their times say nothing about the code:"
            " run both on one machine, or compare them with --any-machine"
        )
    doubts = (f"the machines differ ({'; '.join(hardware)})",) if hardware else ()
    found = tuple(
        verdict
        for phase in question.phases
        for verdict in verdicts_across(first, second, phase, question.same_within, names=names, doubts=doubts)
    )
    if not found and set(first.arms) & set(second.arms):
        raise InvalidResourcesError(
            f"nothing to compare: no arm has times of {' or '.join(question.phases)} in both runs"
        )
    if not found:
        of_each = [", ".join(map(str, run.arms)) or "nothing" for run in (first, second)]
        raise InvalidResourcesError(
            f"the runs have no arm in common: {names[0]} has {of_each[0]}; {names[1]} has {of_each[1]}."
            " Run the same workloads, sizes and devices"
        )
    software = differences_of_software(first.environment, second.environment)
    notes = [f"The runs differ: {'; '.join(software)}."] if software else []
    return Answer(found, (NOT_PAIRED, *notes, *_not_compared(first, second, names)))


def _not_compared(first: RunSet, second: RunSet, names: tuple[str, str]) -> Iterator[str]:
    """Yield what one run lacks, such as an arm that fails now: it has no verdict, so a reader could overlook it."""
    for name, run_set, other_name, other in ((names[0], first, names[1], second), (names[1], second, names[0], first)):
        for problem in run_set.problems():
            yield f"{name}: {problem}"
        if lacks := [str(arm) for arm in other.arms if not arm.is_control and arm not in run_set.arms]:
            yield f"{shorten_names(lacks)}: not compared, as {other_name} has times, but {name} has none."
