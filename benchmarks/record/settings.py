"""The settings of a run: what it measures, and for how long by default."""

from typing import Final, NamedTuple

from pydantic import Field

from tune_policies.values.resources import Amount, Count, PositiveCount
from tune_policies.values.value import Value

from .obsolete_fields import ignoring_fields


class Effort(NamedTuple):
    """How much a run measures: its number of rounds, the blocks per process, and the time limit of a process."""

    num_rounds: int
    num_blocks: int
    process_timeout_s: float


THOROUGH: Final = Effort(num_rounds=5, num_blocks=10, process_timeout_s=60)
"""The default of a run."""

QUICK: Final = Effort(num_rounds=3, num_blocks=5, process_timeout_s=30)
"""The default of a run with ``--quick``. Fewer than 3 rounds do not show how much processes differ."""


class Settings(Value):
    """The requested measurements, and the time limit of a process.

    Attributes:
        sizes: The sizes of each workload, by its name or ``module:function``.
        devices: The distinct devices to measure, such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``.
        cpus: The number of CPUs of a trial, on every device.
        num_rounds: The number of rounds. Each round measures every configuration in a fresh process.
        num_blocks: The number of blocks of each phase in each process, without warm-ups.
        process_timeout_s: The maximum total time that the driver waits for a process, in seconds.
        seed: The seed of the random order.
        has_control: Whether to measure a second, equal configuration, to show how noisy the machine is.
    """

    sizes: dict[str, tuple[PositiveCount, ...]] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    cpus: Amount = 1.0
    num_rounds: PositiveCount = THOROUGH.num_rounds
    num_blocks: PositiveCount = THOROUGH.num_blocks
    process_timeout_s: float = Field(default=THOROUGH.process_timeout_s, gt=0)
    seed: Count = 0
    has_control: bool = True

    _former = ignoring_fields("max_steps", "max_seconds")
