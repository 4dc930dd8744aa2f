"""What benchmarks decided: for each workload, from which size on the GPU is worth it, and for how long that holds."""

from datetime import datetime
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tune_policies.plan.slots_by_config import Device
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Bytes, Count, PositiveCount
from tune_policies.values.value import ShownValue, Value, suggest

Answer = Literal["GPU", "CPU", "same", "ambiguous"]

Objective = Literal["time", "cost"]
"""What a device is better at: a trial ends sooner there, or costs less."""


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
        price_of: For what that is paid, such as a part of a machine; ``None``: not told.
        peak_gpu_bytes: GPU memory of a trial; ``None``: not known, or none.
        num_threads: CPU threads of a trial, as many as it has CPUs; ``None``: not known.
    """

    device: str
    step_s: float = Field(ge=1e-12, le=1e12)
    start_s: float = Field(ge=0, le=1e12)
    trial_s: float = Field(ge=1e-12, le=1e12)
    at_once: Count
    trials_per_hour: float = Field(ge=0)
    cost_per_trial: float | None = None
    price_of: str | None = None
    peak_gpu_bytes: Bytes | None = None
    num_threads: PositiveCount | None = None


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

    def device(self, objective: Objective = "time") -> Device:
        """Return where trials of this size are to run: on the GPU where it is surely better, else on the CPU.

        A trial that gains nothing from a GPU leaves it to those that do.
        """
        answer = self.answer if objective == "time" else self.cheapest
        return "GPU" if answer == "GPU" else "CPU"


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

    @model_validator(mode="after")
    def _sizes_must_ascend(self) -> Self:
        sizes = [each.size for each in self.sizes]
        if sizes != sorted(set(sizes)):
            raise InvalidResourcesError(f"sizes must ascend, each once, got {sizes}")
        return self

    def at(self, size: float) -> SizeDecision:
        """Return what was decided for the largest measured size up to ``size``; below all, for the smallest."""
        up_to = [each for each in self.sizes if each.size <= size]
        return up_to[-1] if up_to else self.sizes[0]


class Decision(ShownValue):
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

    _view: ClassVar = "tune_policies.views.tables:decision_view"

    schema_version: Literal[1] = 1
    measured_at: datetime
    cpu_model: str
    accelerator_type: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    workloads: tuple[WorkloadDecision, ...] = Field(min_length=1)
    price_date: str | None = None
    currency: str | None = None
    price_source: str | None = None

    @property
    def has_prices(self) -> bool:
        """Whether it says what trials cost."""
        return all(size.cheapest is not None for each in self.workloads for size in each.sizes)

    def of(self, workload: str | None = None) -> WorkloadDecision:
        """Return what was decided for a workload; ``None``: for the only one.

        Raises:
            InvalidResourcesError: Nothing was decided for it, or there are several and none is named.
        """
        by_name = {each.workload: each for each in self.workloads}
        if workload is None and len(by_name) == 1:
            return self.workloads[0]
        if workload not in by_name:
            what = (
                "several workloads were decided, so name one as workload"
                if workload is None
                else f"nothing was decided for {workload!r}"
            )
            raise InvalidResourcesError(f"{what}{suggest(workload or '', by_name)} (decided: {', '.join(by_name)})")
        return by_name[workload]

    def speeds(self, workload: str | None, size: float) -> tuple[float, float]:
        """Return how fast a trial of this size is on the GPU and on the CPU: ``MixedPolicy(gpu, cpu, speeds=…)``.

        It is that of the largest measured size up to this one; below all, of the smallest.

        Raises:
            InvalidResourcesError: Nothing was decided for the workload.
        """
        return self.of(workload).at(size).speedup, 1.0
