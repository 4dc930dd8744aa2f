"""The decision of benchmarks: for each workload, the size from which a GPU is worth it."""

from datetime import datetime
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tune_policies.plan.slots_by_config import Device
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Bytes, Count, PositiveCount
from tune_policies.values.value import ShownValue, Value, suggest

Answer = Literal["GPU", "CPU", "same", "ambiguous"]

Objective = Literal["time", "cost"]
"""What to minimize: the time of a trial, or its cost."""


class DeviceTimes(Value):
    """Time and cost of trials of one size on one device.

    Attributes:
        device: Such as ``"cpu"``, ``"gpu"`` or ``"gpu@0.25"``.
        step_s: Median time of a step with its transfers, in seconds.
        start_s: Time of a trial until the end of its first step, in seconds.
        trial_s: Time of a whole trial, in seconds.
        at_once: How many trials the cluster runs at once on such devices.
        trials_per_hour: How many trials per hour all such devices run.
        cost_per_trial: Cost in the currency of the prices; ``None``: no prices.
        price_of: The priced item, such as a part of a machine; ``None``: unknown.
        peak_gpu_bytes: Peak GPU memory of a trial; ``None``: unknown, or none.
        num_threads: CPU threads of a trial, one for each of its CPUs; ``None``: unknown.
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
    """Compares one GPU with nodes without GPUs, for all trials of a run.

    Attributes:
        num_trials: The number of trials.
        node_cpus: CPUs of a node.
        trials_per_node: How many trials a node runs at once.
        gpu_s: The time in which one GPU finishes all trials, in seconds.
        gpu_cost: The cost of the GPU until then; ``None``: no prices.
        num_nodes: The fewest nodes that finish no later than the GPU; ``None``: no number of nodes does, because one
            trial on the CPU takes longer.
        low: ``num_nodes`` at the lower end of the speed-up's confidence interval.
        high: ``num_nodes`` at the upper end.
        nodes_s: The time in which ``num_nodes`` nodes finish all trials, in seconds.
        nodes_cost: The cost of these nodes until then.
        as_cheap_up_to: The most nodes that cost no more than the GPU; ``None``: one node costs more, or no prices.
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
    """The better device for trials of one size.

    Attributes:
        size: The size in the unit of the workload.
        answer: The faster device for a single trial.
        speedup: The time of a trial on the CPU divided by the time on the GPU.
        low: The lower end of the confidence interval of the speed-up.
        high: The upper end.
        cpu: Time and cost on the CPU.
        gpu: Time and cost on the GPU.
        cheapest: The device on which a trial costs less; ``None``: no prices.
        flips_at: The ratio of the GPU's to the CPU's price, for the fraction of a trial, at which both cost the same:
            the speed-up. ``None``: no prices.
        gpu_or_nodes: One GPU compared with CPU nodes; ``None``: the number of trials is unknown.
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
        """Return the device for trials of this size: the GPU if it is measurably better, else the CPU."""
        answer = self.answer if objective == "time" else self.cheapest
        return "GPU" if answer == "GPU" else "CPU"


class WorkloadDecision(Value):
    """The decision for one workload. The crossover is between ``crossover_above`` and ``crossover_at``.

    Attributes:
        workload: The name of the workload, or ``module:function``.
        sizes: The measured sizes, ascending.
        crossover_above: The largest measured size without the answer GPU; ``None``: no such size.
        crossover_at: The smallest measured size from which the answer is always GPU; ``None``: no such size.
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
            raise InvalidResourcesError(f"sizes must be ascending and different, got {sizes}")
        return self

    def at(self, size: float) -> SizeDecision:
        """Return the decision for the largest measured size up to ``size``, or else for the smallest."""
        up_to = [each for each in self.sizes if each.size <= size]
        return up_to[-1] if up_to else self.sizes[0]


class Decision(ShownValue):
    """The decision of benchmarks, with the hardware and the date of the measurement.

    Attributes:
        schema_version: The version of this format.
        measured_at: The start of the measurements.
        cpu_model: The model of the machine's CPU.
        accelerator_type: Ray's name of the GPU's type; ``None``: unknown.
        versions: The versions of packages that affect speed, by name.
        workloads: The decision for each workload.
        price_date: The date of the prices; ``None``: no prices.
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
        """Whether the decision contains the costs of trials."""
        return all(size.cheapest is not None for each in self.workloads for size in each.sizes)

    def of(self, workload: str | None = None) -> WorkloadDecision:
        """Return the decision for a workload; ``None``: for the only one.

        Raises:
            InvalidResourcesError: The workload is unknown, or it is ``None`` and there are several.
        """
        by_name = {each.workload: each for each in self.workloads}
        if workload is None and len(by_name) == 1:
            return self.workloads[0]
        if workload not in by_name:
            what = (
                "the decision has several workloads: set workload"
                if workload is None
                else f"the decision has no workload {workload!r}"
            )
            raise InvalidResourcesError(f"{what}{suggest(workload or '', by_name)} (available: {', '.join(by_name)})")
        return by_name[workload]

    def speeds(self, workload: str | None, size: float) -> tuple[float, float]:
        """Return the speeds of a trial of this size on GPU and CPU, for ``MixedPolicy(gpu, cpu, speeds=…)``.

        Raises:
            InvalidResourcesError: The decision lacks the workload.
        """
        return self.of(workload).at(size).speedup, 1.0
