"""Times the same step of 0.3 ms in pairs of fresh processes, without Ray: by how much do equal arms seem to differ?

Two processes take turns, block by block, in random order, as the arms of a run do; then come the next two.
"""

import os
import random
import select
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
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


STEP_S: Final = 0.3e-3
BLOCK_S: Final = 0.02
NUM_ROUNDS: Final = 16
_ANSWER_TIMEOUT_S: Final = 30
"""A block takes a fiftieth of a second; on a machine that takes a thousand times as long, nothing is worth timing."""


def measure_equal_steps(seconds: float) -> Check:
    """Time equal steps for about so many seconds, on a busy machine up to twice as long, and read what disturbs them.

    Raises:
        MeasurementError: A process ended, or gave no answer in time.
    """
    hashed_blocks = blocks_of_step()
    # Two processes, each with its blocks and one that does not count.
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
            process.seconds(num_steps)  # it warms up
        before = read_noise()
        times: list[list[float]] = [[], []]
        for _ in range(num_blocks):
            for index in order.sample(range(2), 2):
                times[index].append(pair[index].seconds(num_steps) / num_steps)
        return times, noise_between(number, [before], [read_noise()])


class StepProcess:
    """A fresh process that times steps when it is asked to; it ends with the block that it is the context of.

    Args:
        hashed_blocks: How many blocks a step hashes.
    """

    def __init__(self, hashed_blocks: int) -> None:
        # Without the user's environment and site packages: nothing but the step is in the process.
        command = child_python("-I", "-S", str(Path(step_child.__file__)), str(hashed_blocks))
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise MeasurementError("a process that times steps has no pipes")
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def __enter__(self) -> "StepProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipes, and waits for it
            self._process.kill()

    def seconds(self, num_steps: int) -> float:
        """Return how long so many steps took together.

        Raises:
            MeasurementError: The process ended, or gave no answer in time.
        """
        try:
            self._orders.write(b"%d\n" % num_steps)
            ready, _, _ = select.select([self._answers], [], [], _ANSWER_TIMEOUT_S)
            answer = self._answers.readline() if ready else b""
        except OSError:  # its end of the pipe is closed
            answer = b""
        if not answer:
            raise MeasurementError(
                f"a process that times steps gave no answer within {_ANSWER_TIMEOUT_S} s: it was ended, or the machine"
                " is far too busy. Run it again when it is quiet"
            )
        return float(answer)


def blocks_of_step() -> int:
    """Return how many hashed blocks take as long as a step should, on this machine as it is now."""
    blocks = 1000
    fastest = min(step_child.time_steps(blocks, 20) for _ in range(20)) / 20
    return max(1, round(blocks * STEP_S / fastest))
