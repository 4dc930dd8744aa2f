"""A policy that runs small trials on CPUs and large trials on GPUs, based on benchmarks."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Final

from pydantic import Field, model_validator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.benchmark_decision import Decision, Objective, SizeDecision, WorkloadDecision
from tune_policies.plan.slots_by_config import Device, SlotsByDecision, total_resources
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.mixed import MixedPolicy
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy, decides_by_config, with_inner
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import amount_of
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten_names

_AGAIN: Final = (
    "Measure on this cluster with `tune-policies bench run WORKLOAD --device cpu --device gpu --output RUN` and "
    "`tune-policies bench decide RUN --steps-per-trial STEPS --output FILE`"
)


_IS_BETTER: Final[dict[Objective, str]] = {"time": "is measurably faster", "cost": "measurably costs less"}
_IS_NOT_BETTER: Final[dict[Objective, str]] = {
    "time": "is not measurably faster",
    "cost": "does not measurably cost less",
}

_GPU: Final = GpuPolicy()
_CPU: Final = CpuPolicy()


class BenchmarkedPolicy(ResourcePolicy):
    """Runs each trial on the device that was better for its size in benchmarks: CPU or GPU.

    The size of a trial is a number in its config. The policy uses the measurement of the largest size that does not
    exceed the size of the trial, or of the smallest size if all are larger. A trial runs on the GPU if the whole
    confidence interval favors the GPU, and otherwise on the CPU. A trial whose config lacks the number runs on the GPU.
    If the cluster has slots on only one of the two devices, all trials run on that device.

    Attributes:
        decision: The result of ``tune-policies bench decide``. You may pass it as a positional argument.
        workload: The name of the workload in the decision. Defaults to the only workload of the decision.
        size: The name of the number in the config, such as ``"batch_size"``, or ``"model/batch_size"`` in a nested
            mapping.
        gpu: The policy for trials on the GPU.
        cpu: The policy for trials on the CPU. If trials get a different number of CPUs than in the measurement, the
            decision may be wrong.
        objective: Whether to minimize the ``"time"`` or the ``"cost"`` of a trial.
        max_age_days: The maximum age of the measurement in days when the cluster is read, or ``None`` for no limit.
        accept_other_hardware: Whether to accept a decision that was measured on other GPU or CPU models.
        accept_other_versions: Whether to accept a decision that was measured with other package versions.

    Raises:
        InvalidResourcesError: A field is invalid, the decision lacks the workload, or ``objective`` is ``"cost"`` and
            the decision has no prices.
    """

    decision: Decision
    workload: str | None = None
    size: str = "batch_size"
    gpu: InnerPolicy = _GPU
    cpu: InnerPolicy = _CPU
    objective: Objective = "time"
    max_age_days: Annotated[float, Field(gt=0, le=36_500)] | None = 90
    accept_other_hardware: bool = False
    accept_other_versions: bool = False

    def __init__(
        self,
        decision: Decision,
        *,
        workload: str | None = None,
        size: str = "batch_size",
        gpu: ResourcePolicy = _GPU,
        cpu: ResourcePolicy = _CPU,
        objective: Objective = "time",
        max_age_days: float | None = 90,
        accept_other_hardware: bool = False,
        accept_other_versions: bool = False,
    ) -> None:
        Value.__init__(
            self,
            decision=decision,
            workload=workload,
            size=size,
            gpu=gpu,
            cpu=cpu,
            objective=objective,
            max_age_days=max_age_days,
            accept_other_hardware=accept_other_hardware,
            accept_other_versions=accept_other_versions,
        )

    @model_validator(mode="after")
    def _must_be_decided(self) -> "BenchmarkedPolicy":
        self.decision.of(self.workload)
        if self.objective == "cost" and not self.decision.has_prices:
            raise InvalidResourcesError(
                "objective='cost' requires a decision with prices. Create it with `tune-policies bench decide RUN "
                "--steps-per-trial STEPS --prices PRICES --output FILE`, or use objective='time'"
            )
        check_same_for_all((self.gpu, self.cpu), "gpu and cpu", type(self).__name__)
        return self

    @property
    def depends_on_config(self) -> bool:
        """Always true, because the size of a trial determines its device."""
        return True

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        try:
            gpu = self.gpu.plan(capacity)
        except InfeasibleRequestError as error:
            return self._on_one(capacity, "CPU", error)
        try:
            cpu = self.cpu.plan(capacity)
        except InfeasibleRequestError as error:
            return self._on_one(capacity, "GPU", error)
        notes = [*self._about_age(capacity.read_at), *self._about_hardware(capacity, gpu.common_slot, cpu.common_slot)]
        decided = self.decision.of(self.workload)
        by_config = SlotsByDecision(
            slots=(cpu.common_slot, gpu.common_slot),
            size=self.size,
            devices=tuple((measured.size, measured.device(self.objective)) for measured in decided.sizes),
            total=total_resources(capacity),
            holds_for={} if self.accept_other_versions else self.decision.versions,
        )
        reasons = (
            *_describe_decision(decided, self.size, self.objective),
            *notes,
            *_about_amounts(decided, gpu.common_slot, cpu.common_slot),
            *(f"on the GPU: {reason}" for reason in gpu.reasons),
            *(f"on the CPU: {reason}" for reason in cpu.reasons),
        )
        # Trials on CPUs run beside the trials on GPUs, so both kinds of slots must fit at once.
        both = MixedPolicy(self.gpu, self.cpu).plan(capacity)
        return both.model_copy(update={"limited_by": gpu.limited_by, "reasons": reasons, "by_config": by_config})

    def _on_one(self, capacity: ClusterCapacity, device: Device, error: InfeasibleRequestError) -> TrialPlan:
        """Return the plan for a cluster that has slots only on ``device``.

        Raises:
            InfeasibleRequestError: The cluster has no slots on either device.
        """
        plan = plan_first_feasible((self.gpu, self.cpu), capacity)
        if device == "CPU":  # the plan already explains why there is no GPU slot
            return plan.with_reasons(
                "all trials run on the CPU, regardless of the decision, because there is no GPU slot"
            )
        return plan.with_reasons(
            f"all trials run on the GPU, regardless of the decision, because there is no CPU slot: {error}"
        )

    def _about_age(self, read_at: datetime | None) -> Iterator[str]:
        """Yield a note with the date of the measurement.

        Raises:
            InfeasibleRequestError: The decision is too old.
        """
        made = self.decision.measured_at
        if read_at is None:
            yield f"the decision was measured on {made:%Y-%m-%d}; its age is unknown, because the capacity has no date"
            return
        age = _in_utc(read_at) - _in_utc(made)
        if self.max_age_days is not None and age > timedelta(days=self.max_age_days):
            raise InfeasibleRequestError(
                f"a decision that is at most {self.max_age_days:g} days old",
                f"the policy's decision was measured on {made:%Y-%m-%d}, {age.days} days before the cluster was read",
                "a recent decision",
                f"{_AGAIN}, or increase max_age_days.",
            )
        yield f"the decision was measured on {made:%Y-%m-%d}"

    def _about_hardware(self, capacity: ClusterCapacity, gpu: TrialSlot, cpu: TrialSlot) -> Iterator[str]:
        """Yield notes about differences between the measured hardware and the hardware of the cluster.

        Raises:
            InfeasibleRequestError: The decision was measured on other devices, and ``accept_other_hardware`` is false.
        """
        gpu_nodes = list(_nodes_for(gpu, capacity))
        gpus = {node.accelerator_type for node in gpu_nodes}
        if gpu.accelerator_type:
            gpus = {gpu.accelerator_type}
        # Trials with a GPU also compute on the CPUs of their node.
        cpu_models = {node.cpu_model for node in (*_nodes_for(cpu, capacity), *gpu_nodes)}
        for what, measured, found in (
            ("GPU", self.decision.accelerator_type, gpus),
            ("CPU", self.decision.cpu_model, cpu_models),
        ):
            others = sorted(name for name in found if name not in (None, measured))
            # ``None`` stands for nodes whose model is unknown. They do not contradict the decision.
            if measured is None or found <= {None}:
                yield f"it is unknown whether the {what}s are the same as in the measurement"
            elif others and self.accept_other_hardware:
                yield (
                    f"the decision was measured on {measured}, and is used on {shorten_names(others)} because "
                    "accept_other_hardware is set"
                )
            elif others:
                raise InfeasibleRequestError(
                    f"a decision that was measured on {shorten_names(others)}",
                    f"the policy's decision was measured on {measured}",
                    f"a decision for this {what}",
                    f"{_AGAIN}, restrict trials to nodes with {measured}, or set accept_other_hardware=True.",
                )


def check_same_for_all(policies: Iterable[ResourcePolicy], what: str, outer: str) -> None:
    """Check that each policy gives all of its trials the same resources on the alive nodes.

    Args:
        policies: The policies inside a policy of the class ``outer``.
        what: The names of the fields with these policies.
        outer: The name of the class.

    Raises:
        InvalidResourcesError: A policy has several slot types, depends on the config, or adds nodes.
    """
    for inner in with_inner(policies):
        name = type(inner).__name__
        if decides_by_config(inner) or isinstance(inner, MixedPolicy):
            article = "an" if name.startswith("A") else "a"
            profile = " with a profile" if getattr(inner, "profile", None) is not None else ""
            raise InvalidResourcesError(
                f"{what} must be policies that give every trial the same resources, but {article} {name}{profile} does "
                "not. Use another policy, such as GpuPolicy"
            )
        if isinstance(inner, AutoscalingPolicy):
            raise InvalidResourcesError(
                f"{what} cannot contain an AutoscalingPolicy. Wrap the {outer} in the AutoscalingPolicy instead"
            )


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is not None:
        return time
    # Python cannot subtract a date without a time zone from one with a time zone.
    return time.replace(tzinfo=UTC)


def _nodes_for(slot: TrialSlot, capacity: ClusterCapacity) -> Iterator[NodeCapacity]:
    """Yield the nodes on which Ray may place a worker of the slot."""
    is_selected = matcher(slot.label_selector)
    nodes = capacity.gpu_nodes(slot.accelerator_type) if slot.worker.gpus else capacity.nodes
    yield from (node for node in nodes if is_selected(node.ray_labels))


def _describe_decision(decided: WorkloadDecision, size: str, objective: Objective) -> Iterator[str]:
    """Yield sentences with the device for each range of trial sizes, and with the range of measured sizes."""
    by_device = groupby(decided.sizes, lambda measured: measured.device(objective))
    runs = [(device, list(sizes)) for device, sizes in by_device]
    for at, (device, sizes) in enumerate(runs):
        bounds = []
        if at > 0:
            bounds.append(f"from {size} {sizes[0].size} on")
        if at < len(runs) - 1:
            _, next_sizes = runs[at + 1]
            bounds.append(f"below {size} {next_sizes[0].size}")
        where = " and ".join(bounds) or f"with any {size}"
        why = _why(sizes, objective)
        yield f"trials of {decided.workload} {where} run on the {device}, because a trial {why}"
    smallest, largest = decided.sizes[0].size, decided.sizes[-1].size
    yield f"{size} was measured from {smallest} to {largest}; smaller and larger values use the nearest measured value"


def _why(sizes: Iterable[SizeDecision], objective: Objective) -> str:
    """Return why trials of these sizes, which have the same device, run on it."""
    answers = {measured.answer_for(objective) for measured in sizes}
    if answers == {"GPU"}:
        return f"{_IS_BETTER[objective]} on a GPU"
    if answers == {"CPU"}:
        return f"{_IS_BETTER[objective]} on a CPU"
    return f"{_IS_NOT_BETTER[objective]} on a GPU"


def _about_amounts(decided: WorkloadDecision, gpu: TrialSlot, cpu: TrialSlot) -> Iterator[str]:
    """Yield sentences about devices on which trials get different amounts of resources than in the measurement."""
    for device, slot, times in (
        ("CPU", cpu, [measured.cpu for measured in decided.sizes]),
        ("GPU", gpu, [measured.gpu for measured in decided.sizes]),
    ):
        # A process uses at least one thread, also if the trial reserves less than one CPU.
        measured = {time.num_threads for time in times if time.num_threads is not None}
        if measured and measured != {max(1, int(slot.worker.cpus))}:
            yield (
                f"the {device} was measured with {', '.join(map(str, sorted(measured)))} threads, but a trial reserves "
                f"{amount_of(slot.worker.cpus, 'CPU')}, so trials may be slower or faster than measured"
            )
    if gpu.worker.gpus < 1 and "gpu" in {measured.gpu.device for measured in decided.sizes}:
        yield (
            "the decision was measured with a whole GPU per trial, but trials now get GPU fractions, so trials on the "
            "same GPU may slow each other down"
        )
