"""Whether a machine is quiet enough to believe what is timed on it, by equal steps in pairs of processes."""

from typing import Any, Final

from tune_policies.files.terminal import TextConsole
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value

from ..record.run_set import NoiseReading
from .bootstrap import Times
from .judge import Comparison, Outcome, compare_arms
from .validity_checks import problems_of_readings

CHANGE: Final = 0.05
"""What should be told from nothing: a change of 5 %…"""
SAME_WITHIN: Final = 0.02
"""…where 2 % count as the same."""


class Check(Value):
    """How quiet a machine was for some seconds.

    Attributes:
        comparison: Of two equal arms: its interval holds 1 on a machine that does nothing else.
        noise: What was read in each round.
        step_s: How long a step took, the median.
        num_cpus: Of the machine.
        usable_cpus: What affinity and the cgroup's quota leave; ``None``: not known.
    """

    comparison: Comparison
    noise: tuple[NoiseReading, ...]
    step_s: float
    num_cpus: PositiveCount
    usable_cpus: float | None = None

    @classmethod
    def of(cls, first: Times, second: Times, **others: Any) -> "Check":
        """Return what follows from the seconds of equal steps, by round; ``others`` are the fields that are read."""
        steps = sorted(each for times in (first, second) for blocks in times.values() for each in blocks)
        comparison = compare_arms(first, second, same_within=SAME_WITHIN)
        return cls(comparison=comparison, step_s=steps[len(steps) // 2], **others)

    @property
    def smallest_change(self) -> float:
        """The smallest change that would surely be found by as many rounds, as a part.

        What is measured of a change lies about it by half the interval's width, and its interval reaches as far again.
        """
        return (1 + SAME_WITHIN) * self.comparison.high / self.comparison.low - 1

    @property
    def problems(self) -> tuple[str, ...]:
        """What speaks against timing anything now, a sentence each, with what to do."""
        found = list(problems_of_readings(self.noise, self.num_cpus))
        if self.comparison.outcome in (Outcome.FIRST, Outcome.SECOND):
            found.append(
                "equal steps seem to differ: something changes on this machine from process to process. Look for what"
                " else runs, and whether the clocks of its CPUs change"
            )
        if self.smallest_change > CHANGE:
            found.append(
                f"only a change of {self.smallest_change:.1%} would be found: end what else runs, or measure more"
                " rounds"
            )
        return tuple(found)

    @property
    def is_quiet(self) -> bool:
        """Whether a change of 5 % would be found."""
        return not self.problems


def print_check(check: Check) -> None:
    """Print what was read and measured, and what follows."""
    console = TextConsole(highlight=False, soft_wrap=True)
    loads = [each.load for each in check.noise]
    throttled = [each.throttled_s for each in check.noise if each.throttled_s is not None]
    clocks = [each.cpu_mhz for each in check.noise if each.cpu_mhz is not None]
    causes = sorted({cause for each in check.noise for cause in each.gpu_throttled})
    one = check.comparison
    usable = "not known" if check.usable_cpus is None else f"{check.usable_cpus:g}"
    mean = sum(loads) / max(1, len(loads))
    console.print(f"other processes use: {mean:.2f} CPUs (at most {max(loads, default=0):.2f})")
    console.print(f"CPUs for this process: {usable} of {check.num_cpus}")
    console.print(f"cgroup throttled: {f'{sum(throttled):.2f} s' if throttled else 'not known'}")
    console.print(f"CPU clock: {f'{min(clocks):.0f} to {max(clocks):.0f} MHz' if clocks else 'not known'}")
    console.print(f"GPU clocks held down: {', '.join(causes) or 'no'}")
    console.print(
        f"equal steps of {check.step_s * 1e3:.2f} ms in {one.num_rounds} pairs of processes: one takes {one.ratio:.3f}"
        f" ({one.low:.3f} to {one.high:.3f}) of the other"
    )
    console.print(f"smallest change that would surely be found: {check.smallest_change:.1%}")
    for problem in check.problems:
        console.print(f"* {problem}")
    told = f"a change of {CHANGE:.0%} in such a step can be told"
    console.print(f"quiet: {told}" if check.is_quiet else f"not quiet: not sure that {told}")
