"""The results of benchmarks: for each workload and trial size, whether a GPU or a CPU is better."""

from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from tune_policies.plan.slots_by_config import Device
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import ByName
from tune_policies.values.resources import Bytes, Count, PositiveCount
from tune_policies.values.value import ShownValue, Value
from tune_policies.values.wording import suggest

if TYPE_CHECKING:
    from rich.console import RenderableType

Answer = Literal["GPU", "CPU", "same", "ambiguous"]

Objective = Literal["time", "cost"]
"""The quantity to minimize: the time or the cost of a trial."""


class DeviceTimes(Value):
    """The time and cost of trials of one size on one device.

    Attributes:
        device: The device, such as ``"cpu"``, ``"gpu"`` or ``"gpu@0.25"``.
        step_s: The median time of a step including data transfers, in seconds.
        start_s: The time of a trial that its steps do not take, such as imports and compilation, in seconds.
        trial_s: The time of a whole trial, in seconds.
        at_once: The number of concurrent trials on all devices of this kind in the cluster.
        trials_per_hour: The number of trials that all devices of this kind finish per hour.
        cost_per_trial: The cost of a trial in the currency of the prices, or ``None`` without prices. If trials share a
            GPU, it is the lowest cost of the measured numbers of trials per GPU.
        price_of: The resources that the price covers, such as ``"1 A10G and 4 CPUs"``, or ``None`` if they are unknown.
            If trials share a GPU, the price covers the CPUs of all of them.
        peak_gpu_bytes: The peak GPU memory of a trial in bytes, or ``None`` if it is unknown or no GPU is used.
        num_threads: The number of CPU threads of a trial, one for each CPU, or ``None`` if it is unknown.
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
    """A comparison of one GPU with nodes without GPUs, for all trials of a run.

    Attributes:
        num_trials: The number of trials.
        node_cpus: The number of CPUs of a node.
        trials_per_node: The number of concurrent trials on a node.
        gpu_s: The time in which one GPU finishes all trials, in seconds. With prices, as many trials share the GPU as
            cost the least per trial.
        gpu_cost: The cost of the GPU for ``gpu_s``, or ``None`` without prices.
        num_nodes: The smallest number of nodes that finish no later than the GPU, or ``None`` if a single trial on the
            CPU takes longer than all trials on the GPU.
        low: The value of ``num_nodes`` for the lower end of the speed-up's confidence interval.
        high: The value of ``num_nodes`` for the upper end of the interval.
        nodes_s: The time in which ``num_nodes`` nodes finish all trials, in seconds.
        nodes_cost: The cost of ``num_nodes`` nodes for ``nodes_s``, or ``None`` without prices.
        as_cheap_up_to: The largest number of nodes that cost no more than the GPU, or ``None`` if one node costs more
            or there are no prices.
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
        answer: The faster device for a single trial, ``"same"`` if both are equally fast, or ``"ambiguous"`` if the
            measurements are too uncertain.
        speedup: The time of a trial on the CPU divided by the time on the GPU.
        low: The lower end of the confidence interval of the speed-up.
        high: The upper end of the confidence interval.
        cpu: The times and costs on the CPU.
        gpu: The times and costs on the GPU.
        cheapest: The device on which a trial costs less, or ``None`` without prices.
        flips_at: The ratio of the GPU price to the CPU price at which a trial costs the same on either device, or
            ``None`` without prices. The prices are for the part of a machine that a trial uses, or that all trials
            use that share the GPU.
        gpu_or_nodes: The comparison of one GPU with CPU nodes, or ``None`` if the number of trials is unknown.
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

    def answer_for(self, objective: Objective = "time") -> Answer | None:
        """Return the better device for the objective, or ``None`` if it is the cost and there are no prices."""
        return self.answer if objective == "time" else self.cheapest

    def device(self, objective: Objective = "time") -> Device:
        """Return the device for trials of this size: the GPU if it is measurably better, and otherwise the CPU."""
        if self.answer_for(objective) == "GPU":
            return "GPU"
        return "CPU"


class WorkloadDecision(Value):
    """The decision for one workload. The crossover is between ``crossover_above`` and ``crossover_at``.

    Attributes:
        workload: The name of the workload, or ``module:function``.
        sizes: The measured sizes in ascending order.
        crossover_above: The largest measured size whose answer is not GPU, or ``None`` if there is none.
        crossover_at: The smallest measured size for which the answer is GPU, as it is for all larger measured sizes, or
            ``None`` if there is none.
        steps_per_trial: The assumed number of steps of a trial.
    """

    workload: str
    sizes: tuple[SizeDecision, ...] = Field(min_length=1)
    crossover_above: PositiveCount | None = None
    crossover_at: PositiveCount | None = None
    steps_per_trial: PositiveCount

    @model_validator(mode="after")
    def _sizes_must_ascend(self) -> Self:
        sizes = [decided.size for decided in self.sizes]
        if sizes != sorted(set(sizes)):
            raise InvalidResourcesError(f"sizes must be in strictly ascending order, got {sizes}")
        return self

    def at(self, size: float) -> SizeDecision:
        """Return the decision for the largest measured size up to ``size``, or else for the smallest measured size."""
        up_to = [decided for decided in self.sizes if decided.size <= size]
        if up_to:
            return up_to[-1]
        return self.sizes[0]


class Decision(ShownValue):
    """The decisions for all measured workloads, with the hardware and the date of the measurement.

    Attributes:
        schema_version: The version of this format.
        measured_at: The time at which the measurements started.
        cpu_model: The model of the machine's CPU.
        accelerator_type: Ray's name of the GPU type, or ``None`` if it is unknown.
        versions: The versions of packages that affect speed, by package name.
        workloads: The decision for each workload.
        price_date: The date of the prices, or ``None`` without prices.
        currency: The currency of the prices.
        price_source: The source of the prices.
    """

    schema_version: Literal[1] = 1
    measured_at: datetime
    cpu_model: str
    accelerator_type: str | None = None
    versions: ByName[str] = Field(default_factory=dict)
    workloads: tuple[WorkloadDecision, ...] = Field(min_length=1)
    price_date: str | None = None
    currency: str | None = None
    price_source: str | None = None

    def __rich__(self) -> "RenderableType":
        from tune_policies.plan.plan_view import decision_view  # the view imports this module

        return decision_view(self)

    @property
    def has_prices(self) -> bool:
        """Whether the decision contains the costs of trials."""
        return all(size.cheapest is not None for workload in self.workloads for size in workload.sizes)

    def of(self, workload: str | None = None) -> WorkloadDecision:
        """Return the decision for a workload, or for the only workload if ``workload`` is ``None``.

        Raises:
            InvalidResourcesError: The workload is unknown, or it is ``None`` and the decision has several workloads.
        """
        by_name = {workload.workload: workload for workload in self.workloads}
        if workload is None and len(by_name) == 1:
            return self.workloads[0]
        if workload not in by_name:
            if workload is None:
                what = "workload is required, because the decision has several workloads"
            else:
                what = f"the decision has no workload {workload!r}"
            raise InvalidResourcesError(f"{what}{suggest(workload or '', by_name)} (available: {', '.join(by_name)})")
        return by_name[workload]

    def speeds(self, workload: str | None, size: float) -> tuple[float, float]:
        """Return the relative speeds of a trial of this size on the GPU and the CPU, for ``MixedPolicy(speeds=…)``.

        Raises:
            InvalidResourcesError: The workload is unknown, or it is ``None`` and the decision has several workloads.
        """
        return self.of(workload).at(size).speedup, 1.0
