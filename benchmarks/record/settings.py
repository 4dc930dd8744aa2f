"""What a run of the benchmarks was asked to measure."""

from pydantic import Field

from tune_policies.resources import Amount, Count, PositiveCount
from tune_policies.values import Value


class Settings(Value):
    """What is measured, and how long at the most.

    Attributes:
        sizes: The sizes of each workload, by its name or ``module:function``.
        devices: Such as ``"cpu"``, ``"gpu"``, ``"gpu@0.25"`` or ``"TPU"``; each once.
        cpus: CPUs of a trial, on whatever device.
        num_rounds: In each, every arm has a fresh process.
        num_blocks: How many blocks are timed of each phase in each process, beside warm-ups.
        max_steps: How many steps a process is timed for at the most, with the first epoch.
        max_seconds: How long a process works at the most, in seconds, from when it was asked for.
        seed: Of the random order.
        has_control: Whether a second arm equal to the first tells how noisy the machine is.
    """

    sizes: dict[str, tuple[PositiveCount, ...]] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    cpus: Amount = 1
    num_rounds: PositiveCount = 5
    num_blocks: PositiveCount = 10
    max_steps: PositiveCount = 1_000_000
    max_seconds: float = Field(default=60, gt=0)
    seed: Count = 0
    has_control: bool = True
