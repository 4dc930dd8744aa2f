"""What benchmarks decided: for each workload, the size from which on the GPU is worth it, and when it was measured."""

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
        step_s: Median time of a step with its transfers, in seconds.
        start_s: Time of a trial until its first step is done, in seconds.
        trial_s: Time of a whole trial, in seconds.
        at_once: How many trials the cluster runs at once on such devices.
        trials_per_hour: How many trials per hour all such devices run.
        cost_per_trial: In the currency of the prices; ``None``: no prices were given.
        price_of: What the price is for, such as a part of a machine; ``None``: not known.
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


class GpuOrNodes(Value):
    """One GPU against nodes without GPUs, for the trials of a whole run.

    Attributes:
        num_trials: The number of trials.
        node_cpus: CPUs of a node.
        trials_per_node: How many trials a node runs at once.
        gpu_s: The time in which one GPU finishes all trials, in seconds.
        gpu_cost: The cost of the GPU until then; ``None``: no prices were given.
        num_nodes: The fewest nodes that finish no later than the GPU; ``None``: no number of nodes does, because one
            trial on the CPU takes longer.
        low: The same at the lower end of the speed-up's confidence interval; ``None``: no number does.
        high: The same at the upper end.
        nodes_s: The time in which ``num_nodes`` nodes finish all trials, in seconds.
        nodes_cost: The cost of these nodes until then.
        as_cheap_up_to: The most nodes that cost no more than the GPU; ``None``: one node costs more, or no prices were
            given.
    """

    num_trials: PositiveCount
    node_cpus: PositiveCount
    trials_per_node: PositiveCount
    gpu_s: float = Field(gt=0)
    gpu_cost: float | None = None
    num_nodes: PositiveCount | None = None
    low: PositiveCount | None = None
    high: PositiveCount | None = None
    nodes_s: float | None = None
    nodes_cost: float | None = None
    as_cheap_up_to: PositiveCount | None = None


class SizeDecision(Value):
    """Which device is the better one for trials of one size.

    Attributes:
        size: In the workload's unit.
        answer: The faster device for a single trial.
        speedup: The time of a trial on the CPU divided by that on the GPU.
        low: The lower end of the confidence interval of the speed-up.
        high: The upper end.
        cpu: What trials cost on the CPU.
        gpu: What trials cost on the GPU.
        cheapest: The device on which a trial costs less; ``None``: no prices were given.
        flips_at: The ratio of the GPU's price to the CPU's, for a trial's fraction, at which both cost the same. It
            is the speed-up. ``None``: no prices were given.
        gpu_or_nodes: One GPU against more CPU nodes; ``None``: no number of trials was given.
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
    gpu_or_nodes: GpuOrNodes | None = None

    def device(self, objective: Objective = "time") -> Device:
        """Return the device for trials of this size: the GPU if it is surely better, else the CPU."""
        answer = self.answer if objective == "time" else self.cheapest
        return "GPU" if answer == "GPU" else "CPU"


class WorkloadDecision(Value):
    """What was decided for one workload. The crossover is between ``crossover_above`` and ``crossover_at``.

    Attributes:
        workload: Its name, or ``module:function``.
        sizes: What was measured, by ascending size.
        crossover_above: The largest measured size for which the GPU is not the answer; ``None``: there is none.
        crossover_at: The smallest measured size from which on the GPU is always the answer; ``None``: there is none.
        steps_per_trial: The assumed number of steps of a trial.
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
        """Return the decision for the largest measured size up to ``size``; below all sizes, for the smallest."""
        up_to = [each for each in self.sizes if each.size <= size]
        return up_to[-1] if up_to else self.sizes[0]


class Decision(ShownValue):
    """What benchmarks decided, on which hardware and when.

    Attributes:
        schema_version: The version of this format.
        measured_at: When the measurements began.
        cpu_model: The model of the machine's CPU.
        accelerator_type: Ray's name of the GPU's type; ``None``: not known.
        versions: The versions of the packages that decide the speed, by name.
        workloads: The decision for each workload.
        price_date: The day of the prices; ``None``: there are none.
        currency: The currency of the prices.
        price_source: The source of the prices.
    """

    _view: ClassVar = "tune_policies.plan.plan_view:decision_view"

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
        """Whether there are costs of trials."""
        return all(size.cheapest is not None for each in self.workloads for size in each.sizes)

    def of(self, workload: str | None = None) -> WorkloadDecision:
        """Return the decision for a workload; ``None``: for the only one.

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

        Raises:
            InvalidResourcesError: Nothing was decided for the workload.
        """
        return self.of(workload).at(size).speedup, 1.0
