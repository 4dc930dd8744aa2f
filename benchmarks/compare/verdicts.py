"""Which of two devices, or of two runs, is faster: for each workload, size and phase that was measured of both."""

from collections.abc import Iterable, Iterator

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value, suggest

from ..record.environment import Environment
from ..record.run_set import Arm, Phase, RunSet
from .judge import Comparison, Outcome, compare_apart, compare_arms
from .validity_checks import control_problem, disagreement, noise_problems, other_work


class Verdict(Value):
    """Two arms, compared.

    Attributes:
        workload: Of both.
        size: Of both, in the workload's unit.
        phase: What was timed.
        first: Name of the first: its device, or its file and its device.
        second: Name of the second.
        comparison: How they compare: its ratio is the first's time divided by the second's.
    """

    workload: str
    size: PositiveCount
    phase: Phase
    first: str
    second: str
    comparison: Comparison

    @property
    def word(self) -> str:
        """The name of the faster one (``"GPU"``, ``"CPU"``, ``"gpu@0.25"``), ``"same"`` or ``"ambiguous"``."""
        match self.comparison.outcome:
            case Outcome.FIRST:
                return _in_words(self.first)
            case Outcome.SECOND:
                return _in_words(self.second)
            case other:
                return other.value

    def __str__(self) -> str:
        one = self.comparison
        times = f"{one.ratio:.3g} ({one.low:.3g} to {one.high:.3g})"
        return f"{self.workload}[{self.size}] {self.phase}: {self.word}, time of {self.first} / {self.second} {times}"


def verdicts(
    run_set: RunSet, phase: Phase, same_within: float = 0.05, *, between: tuple[str, str] | None = None
) -> tuple[Verdict, ...]:
    """Return which device is faster for each workload and size.

    Args:
        run_set: What was measured.
        phase: Of what the times are.
        same_within: By how much they may differ and still count as the same: 0.05 for 5 %.
        between: The two devices; ``None``: the CPU, or the first device where there is none, against each other one.

    Raises:
        InvalidResourcesError: Nothing was measured on a device of ``between``, or ``same_within`` makes no sense.
    """
    devices = list(dict.fromkeys(arm.device for arm in run_set.arms))
    if between is not None:
        _check_devices(between, devices)
    doubts = noise_problems(run_set)
    return tuple(
        _between(run_set, first, second, phase, same_within, doubts)
        for first, second in _pairs(run_set, between or _from_one(devices))
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
    """Return which of two runs is faster for each arm that both have. Their rounds have nothing in common.

    Args:
        first: One run.
        second: The other.
        phase: Of what the times are.
        same_within: By how much they may differ and still count as the same.
        names: What the runs are called in the verdicts.
        doubts: What is known against comparing them, a sentence each.
    """
    of_both = [arm for arm in first.arms if not arm.is_control and arm in second.arms]
    return tuple(
        Verdict(
            workload=arm.workload,
            size=arm.size,
            phase=phase,
            first=f"{names[0]} on {arm.device}",
            second=f"{names[1]} on {arm.device}",
            comparison=compare_apart(
                first.times_s(arm, phase),
                second.times_s(arm, phase),
                same_within=same_within,
                doubts=[*doubts, *_doubts_across(first, second, names, arm, phase, same_within)],
            ),
        )
        for arm in of_both
        if first.times_s(arm, phase) and second.times_s(arm, phase)
    )


def differences_of_hardware(first: Environment, second: Environment) -> tuple[str, ...]:
    """Return how the machines of two runs differ, so that their times cannot be compared."""
    return tuple(
        f"{name}: {one!r} against {other!r}"
        for name, one, other in (
            ("CPU", first.cpu_model, second.cpu_model),
            ("CPUs", first.num_cpus, second.num_cpus),
            ("usable CPUs", first.usable_cpus, second.usable_cpus),
            ("GPUs", [gpu.name for gpu in first.gpus], [gpu.name for gpu in second.gpus]),
        )
        if one != other
    )


def differences_of_software(first: Environment, second: Environment) -> tuple[str, ...]:
    """Return how the software of two runs differs, which may be what is compared."""
    versions = sorted(first.versions.keys() | second.versions.keys())
    drivers = [", ".join(sorted({gpu.driver or "" for gpu in each.gpus})) for each in (first, second)]
    facts = [("Python", first.python, second.python), ("platform", first.platform, second.platform)]
    facts.append(("driver", drivers[0], drivers[1]))
    facts += [(name, first.versions.get(name, "none"), second.versions.get(name, "none")) for name in versions]
    return tuple(f"{name} {one} against {other}" for name, one, other in facts if one != other)


def _from_one(devices: list[str]) -> tuple[str, ...]:
    base = "cpu" if "cpu" in devices else next(iter(devices), "")
    return (base, *(device for device in devices if device != base))


def _pairs(run_set: RunSet, devices: Iterable[str]) -> Iterator[tuple[Arm, Arm]]:
    """Yield the arm of the first device and that of each other one, for each workload and size that has both."""
    base, *others = devices
    arms = {(arm.workload, arm.size, arm.device): arm for arm in run_set.arms if not arm.is_control}
    for workload in run_set.workloads:
        for size in run_set.sizes(workload):
            for other in others:
                first, second = arms.get((workload, size, base)), arms.get((workload, size, other))
                if first is not None and second is not None:
                    yield first, second


def _between(
    run_set: RunSet, first: Arm, second: Arm, phase: Phase, same_within: float, doubts: tuple[str, ...]
) -> Verdict:
    # The control is that of one device only; where it differs from its twin, the others are no better known.
    controlled = (arm for arm in run_set.arms if (arm.workload, arm.size) == (first.workload, first.size))
    found = [control_problem(run_set, arm, phase, same_within) for arm in controlled]
    found += [disagreement(run_set, first, second), other_work(run_set.of(first), run_set.of(second))]
    comparison = compare_arms(
        run_set.times_s(first, phase),
        run_set.times_s(second, phase),
        same_within=same_within,
        doubts=[*doubts, *(each for each in found if each)],
    )
    return Verdict(
        workload=first.workload,
        size=first.size,
        phase=phase,
        first=first.device,
        second=second.device,
        comparison=comparison,
    )


def _doubts_across(
    first: RunSet, second: RunSet, names: tuple[str, str], arm: Arm, phase: Phase, same_within: float
) -> list[str]:
    differ = other_work(first.of(arm), second.of(arm))
    return ([differ] if differ else []) + [
        f"{name}: {doubt}"
        for name, run_set in zip(names, (first, second), strict=True)
        for doubt in (
            *noise_problems(run_set),
            control_problem(run_set, arm, phase, same_within),
            disagreement(run_set, arm),
        )
        if doubt
    ]


def _check_devices(wanted: tuple[str, str], known: list[str]) -> None:
    for device in wanted:
        if device not in known:
            measured = ", ".join(known) or "nothing"
            raise InvalidResourcesError(
                f"nothing was measured on {device!r}{suggest(device, known)} (measured: {measured})"
            )
    if wanted[0] == wanted[1]:
        raise InvalidResourcesError(f"{wanted[0]!r} cannot be compared with itself: name two devices")


def _in_words(device: str) -> str:
    return device.upper() if device in {"cpu", "gpu"} else device
