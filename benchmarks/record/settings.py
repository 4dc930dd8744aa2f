"""The settings of a run: what it measures."""

from pydantic import Field

from tune_policies.values.resources import Amount, Count, PositiveCount
from tune_policies.values.value import Value

from ..measuring.default_rounds import THOROUGH
from .obsolete_fields import OF_SETTINGS, ignoring


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

    _former = ignoring(OF_SETTINGS)
