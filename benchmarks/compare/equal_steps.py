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
from typing import Final

from tune_policies.files.child_python import child_python
from tune_policies.probe.node_facts import read_usable_cpus
from tune_policies.values.errors import MeasurementError

from ..measuring.noise import noise_between, read_noise
from ..record.run_set import NoiseReading
from . import step_child
from .bootstrap import FEWEST_ROUNDS
from .machine_check import Check

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
