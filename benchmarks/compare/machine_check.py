"""Measures how much equal arms seem to differ on this machine: the same step of 0.3 ms, timed without Ray.

Two fresh processes take turns, block by block, in random order, as the arms of a run do. Then the next two follow.
"""

import os
import random
import select
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from tune_policies.files.child_python import child_python
from tune_policies.files.terminal import TextConsole
from tune_policies.probe.node_facts import read_usable_cpus
from tune_policies.values.errors import MeasurementError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value

from ..measuring.noise import noise_between, read_noise
from ..record.run_set import NoiseReading
from . import step_child
from .judge import FEWEST_ROUNDS, Comparison, Outcome, Times, compare_arms
from .verdicts import problems_of_readings

CHANGE: Final = 0.05
"""The relative change that a quiet machine shows, if differences up to ``SAME_WITHIN`` count as the same."""
SAME_WITHIN: Final = 0.02
STEP_S: Final = 0.3e-3
BLOCK_S: Final = 0.02
NUM_ROUNDS: Final = 16
_ANSWER_TIMEOUT_S: Final = 30


class Check(Value):
    """How quiet a machine was for some seconds.

    Attributes:
        comparison: Of two equal arms. On an idle machine its interval contains 1.
        noise: The readings of each round.
        step_s: The median time of a step, in seconds.
        usable_cpus: CPUs within the affinity and the cgroup's quota; ``None`` if unknown.
    """

    comparison: Comparison
    noise: tuple[NoiseReading, ...]
    step_s: float
    num_cpus: PositiveCount
    usable_cpus: float | None = None

    @classmethod
    def of(cls, first: Times, second: Times, **others: Any) -> "Check":
        """Return the check of two arms of equal steps; ``others`` are the remaining fields."""
        steps = [each for times in (first, second) for blocks in times.values() for each in blocks]
        return cls(comparison=compare_arms(first, second, same_within=SAME_WITHIN), step_s=median(steps), **others)

    @property
    def smallest_change(self) -> float:
        """The smallest relative change that as many rounds would surely find.

        A measured change deviates by up to half the interval's width, and its own interval reaches as far again.
        """
        return (1 + SAME_WITHIN) * self.comparison.high / self.comparison.low - 1

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons not to time anything now, a sentence each, with what to do."""
        found = list(problems_of_readings(self.noise, self.num_cpus))
        if self.comparison.outcome in (Outcome.FIRST, Outcome.SECOND):
            found.append(
                "equal steps seem to differ: something on this machine changes from process to process. Check what else"
                " runs, and whether the clocks of its CPUs change"
            )
        if self.smallest_change > CHANGE:
            found.append(
                f"no change below {self.smallest_change:.1%} would be found: end what else runs, or measure more rounds"
            )
        return tuple(found)

    @property
    def is_quiet(self) -> bool:
        """Whether a change of 5 % would be found."""
        return not self.problems


def print_check(check: Check) -> None:
    """Print the readings, the comparison and the conclusion."""
    console = TextConsole(highlight=False, soft_wrap=True)
    loads = [each.load for each in check.noise]
    throttled = [each.throttled_s for each in check.noise if each.throttled_s is not None]
    clocks = [each.cpu_mhz for each in check.noise if each.cpu_mhz is not None]
    causes = sorted({cause for each in check.noise for cause in each.gpu_throttled})
    one = check.comparison
    usable = "not known" if check.usable_cpus is None else f"{check.usable_cpus:g}"
    mean = sum(loads) / max(1, len(loads))
    told = f"a change of {CHANGE:.0%} in such a step can be told"
    for line in (
        f"other processes use: {mean:.2f} CPUs (at most {max(loads, default=0):.2f})",
        f"CPUs for this process: {usable} of {check.num_cpus}",
        f"cgroup throttled: {f'{sum(throttled):.2f} s' if throttled else 'not known'}",
        f"CPU clock: {f'{min(clocks):.0f} to {max(clocks):.0f} MHz' if clocks else 'not known'}",
        f"GPU clocks held down: {', '.join(causes) or 'no'}",
        f"equal steps of {check.step_s * 1e3:.2f} ms in {one.num_rounds} pairs of processes: one takes {one.ratio:.3f}"
        f" ({one.low:.3f} to {one.high:.3f}) of the other",
        f"smallest change that would surely be found: {check.smallest_change:.1%}",
        *(f"* {problem}" for problem in check.problems),
        f"quiet: {told}" if check.is_quiet else f"not quiet: not sure that {told}",
    ):
        console.print(line)


def measure_equal_steps(seconds: float) -> Check:
    """Time equal steps for about ``seconds``, on a busy machine for up to twice as long, and read what disturbs them.

    Raises:
        MeasurementError: A process ended or did not answer in time.
    """
    hashed_blocks = blocks_of_step()
    # Two processes, each with its blocks and one for warm-up.
    num_blocks = max(1, round(seconds / NUM_ROUNDS / BLOCK_S / 2) - 1)
    order = random.Random(0)  # noqa: S311
    last_start = time.monotonic() + 2 * seconds
    first: dict[int, tuple[float, ...]] = {}
    second: dict[int, tuple[float, ...]] = {}
    noise: list[NoiseReading] = []
    for number in range(NUM_ROUNDS):
        if number >= FEWEST_ROUNDS and time.monotonic() > last_start:
            break
        times, reading = _time_pair(number, hashed_blocks, num_blocks, order)
        first[number], second[number] = (tuple(each) for each in times)
        noise.append(reading)
    return Check.of(first, second, noise=tuple(noise), num_cpus=os.cpu_count() or 1, usable_cpus=read_usable_cpus())


def _time_pair(
    number: int, hashed_blocks: int, num_blocks: int, order: random.Random
) -> tuple[list[list[float]], NoiseReading]:
    num_steps = round(BLOCK_S / STEP_S)
    with ExitStack() as stack:
        pair = [stack.enter_context(StepProcess(hashed_blocks)) for _ in range(2)]
        for process in pair:
            process.seconds(num_steps)  # warm-up
        before = read_noise()
        times: list[list[float]] = [[], []]
        for _ in range(num_blocks):
            for index in order.sample(range(2), 2):
                times[index].append(pair[index].seconds(num_steps) / num_steps)
        return times, noise_between(number, [before], [read_noise()])


class StepProcess:
    """A fresh process that times steps of ``hashed_blocks`` blocks on request. As a context manager it ends itself."""

    def __init__(self, hashed_blocks: int) -> None:
        # Without the user's environment and site packages, so that nothing but the step is in the process.
        command = child_python("-I", "-S", str(Path(step_child.__file__)), str(hashed_blocks))
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self.pid = self._process.pid

    def __enter__(self) -> "StepProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes and waits for the process
            self._process.kill()

    def seconds(self, num_steps: int) -> float:
        """Return how many seconds ``num_steps`` steps took together.

        Raises:
            MeasurementError: The process ended or did not answer in time.
        """
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None and answers is not None  # noqa: S101, PT018  # both are pipes
        try:
            orders.write(b"%d\n" % num_steps)
            ready, _, _ = select.select([answers], [], [], _ANSWER_TIMEOUT_S)
            answer = answers.readline() if ready else b""
        except OSError:  # the process closed its end of the pipe
            answer = b""
        if not answer:
            raise MeasurementError(
                f"a process that times steps gave no answer within {_ANSWER_TIMEOUT_S} s: it was ended, or the machine"
                " is far too busy. Run it again when it is quiet"
            )
        return float(answer)


def blocks_of_step() -> int:
    """Return how many hashed blocks take ``STEP_S`` on this machine now."""
    blocks = 1000
    fastest = min(step_child.time_steps(blocks, 20) for _ in range(20)) / 20
    return max(1, round(blocks * STEP_S / fastest))
