"""What benchmarks decided: for each workload, from which size on the GPU is worth it, and for how long that holds."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from tune_policies.resources import Bytes, Count, PositiveCount
from tune_policies.values import Value

Answer = Literal["GPU", "CPU", "same", "ambiguous"]


class DeviceTimes(Value):
    """What trials of one size cost on one device.

    Attributes:
        device: Such as ``"cpu"``, ``"gpu"`` or ``"gpu@0.25"``.
        step_s: Seconds of a step with its transfers, the median.
        start_s: Seconds of a trial before its first step is done, with start-up, data and compilation.
        trial_s: Seconds of a whole trial.
        at_once: How many trials the cluster runs at once on such devices, at the packing that fits.
        trials_per_hour: On all of them.
        cost_per_trial: In the currency of the prices; ``None``: no prices were given.
        peak_gpu_bytes: GPU memory of a trial; ``None``: not known, or none.
    """

    device: str
    step_s: float = Field(gt=0)
    start_s: float = Field(ge=0)
    trial_s: float = Field(gt=0)
    at_once: Count
    trials_per_hour: float = Field(ge=0)
    cost_per_trial: float | None = None
    peak_gpu_bytes: Bytes | None = None


class SizeDecision(Value):
    """Which device is the better one for trials of one size.

    Attributes:
        size: In the workload's unit.
        answer: The faster device for a single trial.
        speedup: How much sooner a trial ends on the GPU than on the CPU, as the ratio of their times.
        low: The lower end of its interval.
        high: Its upper end.
        cpu: What trials cost on the CPU.
        gpu: What they cost on the GPU.
        cheapest: The device on which a trial costs less; ``None``: no prices were given.
        flips_at: The ratio of the price of the GPU to that of the CPU, for what a trial takes of each, at which both
            cost the same; it is the speed-up. ``None``: no prices were given.
    """

    size: PositiveCount
    answer: Answer
    speedup: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    cpu: DeviceTimes
    gpu: DeviceTimes
    cheapest: Answer | None = None
    flips_at: float | None = None


class WorkloadDecision(Value):
    """What was decided for one workload.

    Attributes:
        workload: Its name, or ``module:function``.
        sizes: What was measured, by ascending size.
        crossover_above: The largest measured size for which the GPU is not the answer, below the smallest from which on
            it always is; ``None``: it is the answer for all.
        crossover_at: The smallest measured size from which on the GPU is always the answer; ``None``: for none. The
            crossover is between the two; nothing is said beyond the sizes that were measured.
        steps_per_trial: How many steps a trial was taken to have.
    """

    workload: str
    sizes: tuple[SizeDecision, ...] = Field(min_length=1)
    crossover_above: PositiveCount | None = None
    crossover_at: PositiveCount | None = None
    steps_per_trial: PositiveCount


class Decision(Value):
    """What benchmarks decided, where it holds, and since when.

    Attributes:
        schema_version: Of this format.
        measured_at: When its measurements began.
        cpu_model: Of the machine.
        accelerator_type: Ray's name of the GPU's type; ``None``: not known.
        versions: Of what decides how fast it is, by package.
        workloads: What was decided.
        price_date: Of which day the prices are; ``None``: there are none.
        currency: Of the prices.
        price_source: Where they are from.
    """

    schema_version: Literal[1] = 1
    measured_at: datetime
    cpu_model: str
    accelerator_type: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    workloads: tuple[WorkloadDecision, ...] = Field(min_length=1)
    price_date: str | None = None
    currency: str | None = None
    price_source: str | None = None
