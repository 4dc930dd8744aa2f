"""What PyTorch's timer says of a step, as a plain process tells it."""

from pydantic import Field

from tune_policies.benchmarks.record.run_set import NoiseReading
from tune_policies.values.value import Value


class TimedByTorch(Value):
    """A step, timed.

    Attributes:
        step_s: Its median time in seconds.
        noise: How quiet the machine was meanwhile.
    """

    step_s: float = Field(gt=0)
    noise: NoiseReading
