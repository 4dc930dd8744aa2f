"""The answer of a policy: what a trial reserves, how many run at once, and why.

A plan is a value; what Ray takes is computed from it. The two methods that return Ray's own classes hand over
to ``ray_adapter`` when they are called, so that planning needs no Ray.
"""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from tune_policies.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.errors import InvalidResourcesError
from tune_policies.labels import format_selector, merged
from tune_policies.resources import Bytes, Count, PositiveCount, Resources, check_count, from_ticks, to_ticks
from tune_policies.units import format_bytes
from tune_policies.values import Value

if TYPE_CHECKING:
    from ray.train import ScalingConfig
    from ray.tune import PlacementGroupFactory, TuneConfig


class TrialSlot(Value):
    """One kind of place in which a trial can run, and how many of them there are.

    Attributes:
        trial: Reserved by Tune for the trainable: all of it when ``num_workers`` is 0, else only what a
            waiting Train driver holds.
        max_concurrent_trials: How many trials of this kind run at once.
        num_workers: Train workers in each trial; 0: the trial itself trains.
        per_worker: Reserved by Train for each of its workers.
        gpu_memory_bytes: GPU memory that a worker may use on each of its devices; ``None``: not known.
        accelerator_type: Ray's name of the device type that workers are placed on; ``None``: any.
        topology: TPU slices of this topology are reserved as a whole for each trial; ``None``: no slices.
        label_selector: Ray's label selector, by which trials and workers are placed on some nodes only; empty: any.
    """

    trial: Resources
    max_concurrent_trials: PositiveCount
    num_workers: Count = 0
    per_worker: Resources = Field(default_factory=Resources)
    gpu_memory_bytes: Bytes | None = None
    accelerator_type: str | None = None
    topology: str | None = None
    label_selector: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _workers_must_agree(self) -> Self:
        if (self.num_workers > 0) != bool(self.per_worker.ticks):
            raise InvalidResourcesError(
                f"per_worker is what each Train worker reserves: num_workers={self.num_workers} "
                f"does not go with per_worker={self.per_worker}"
            )
        return self

    @property
    def worker(self) -> Resources:
        """What one process that trains has: the trial, or each Train worker."""
        return self.per_worker if self.num_workers else self.trial

    @property
    def shares_gpu(self) -> bool:
        """Whether a worker has neighbours on its GPU."""
        return 0 < self.worker.gpus < 1

    def __str__(self) -> str:
        each = str(self.worker)
        if self.accelerator_type:
            each += f" on {self.accelerator_type}"
        if self.topology:
            each += f" in whole {self.topology} slices"
        if self.label_selector:
            each += f" on nodes with {format_selector(self.label_selector)}"
        if self.gpu_memory_bytes is not None:
            each += f", {format_bytes(self.gpu_memory_bytes)} of GPU memory"
        if self.num_workers:
            noun = "worker" if self.num_workers == 1 else "workers"
            return f"{self.num_workers} {noun} with {each}; the driver holds {self.trial}"
        return each


class TrialPlan(Value):
    """What a policy decided.

    It has at least one kind of slot. Where a user asks for "the" trial, the first kind answers.

    Attributes:
        slots: The kinds of slots, the best first.
        limited_by: What stops one more trial: a resource by Ray's name, or the field of a policy.
        reasons: How the plan came about, a sentence each.
        nodes_to_add: Nodes that the autoscaler must add before all the trials can run, by the name of their type;
            empty: the alive nodes hold them.
    """

    slots: tuple[TrialSlot, ...] = Field(min_length=1)
    limited_by: str
    reasons: tuple[str, ...] = ()
    nodes_to_add: dict[str, PositiveCount] = Field(default_factory=dict)

    @property
    def trial(self) -> Resources:
        """Reserved by Tune for the trainable."""
        return self.slots[0].trial

    @property
    def num_workers(self) -> int:
        """Train workers in each trial; 0: the trial itself trains."""
        return self.slots[0].num_workers

    @property
    def per_worker(self) -> Resources:
        """Reserved by Train for each of its workers; nothing when ``num_workers`` is 0."""
        return self.slots[0].per_worker

    @property
    def worker(self) -> Resources:
        """What one process that trains has: the trial, or each Train worker."""
        return self.slots[0].worker

    @property
    def use_gpu(self) -> bool:
        """Whether a worker has a GPU, or a share of one."""
        return self.worker.gpus > 0

    @property
    def use_tpu(self) -> bool:
        """Whether a worker has TPUs."""
        return self.worker.custom.get("TPU", 0) > 0

    @property
    def shares_gpu(self) -> bool:
        """Whether a worker has neighbours on its GPU."""
        return self.slots[0].shares_gpu

    @property
    def gpu_memory_bytes(self) -> int | None:
        """GPU memory that a worker may use on each of its devices; ``None``: not known."""
        return self.slots[0].gpu_memory_bytes

    @property
    def accelerator_type(self) -> str | None:
        """Ray's name of the device type that workers are placed on; ``None``: any."""
        return self.slots[0].accelerator_type

    @property
    def topology(self) -> str | None:
        """The topology of the TPU slices that a trial takes as a whole; ``None``: no slices."""
        return self.slots[0].topology

    @property
    def label_selector(self) -> dict[str, str]:
        """Ray's label selector for trials and workers; empty: any node."""
        return self.slots[0].label_selector

    @property
    def reuse(self) -> Literal["process", "release"]:
        """What becomes of a Ray task's process after it, for ``remote_options``: it is used again, or it ends.

        Frameworks keep devices and their memory until the process ends, so a task with devices should release them.
        """
        return "release" if DEVICE_RESOURCES & self.worker.ticks.keys() else "process"

    @property
    def max_concurrent_trials(self) -> int:
        """How many trials run at once, over all kinds of slots."""
        return sum(slot.max_concurrent_trials for slot in self.slots)

    @property
    def resources_per_trial(self) -> "dict[str, float] | PlacementGroupFactory":
        """What ``tune.run(resources_per_trial=…)`` and ``tune.with_resources`` take.

        A dict, or where nodes are selected by label a ``PlacementGroupFactory``: Tune takes labels in no other form.
        """
        if self.label_selector:
            from tune_policies.ray_adapter import to_placement_group_factory

            return to_placement_group_factory(self)
        return self.trial_amounts

    @property
    def trial_amounts(self) -> dict[str, float]:
        """What Tune reserves for a trial, by Tune's names of the resources, wherever it is placed."""
        amounts = _ray_amounts(self.trial)
        if self.num_workers == 0 and self.accelerator_type:
            amounts[ACCELERATOR_TYPE_PREFIX + self.accelerator_type] = ACCELERATOR_TYPE_AMOUNT
        lower_case = {"CPU": "cpu", "GPU": "gpu"}
        # Tune gives a trial without "cpu" no CPU, but one that names nothing at all gets a whole CPU.
        return {"cpu": 0} | {lower_case.get(name, name): amount for name, amount in amounts.items()}

    @property
    def resources_per_worker(self) -> dict[str, float]:
        """What ``ScalingConfig(resources_per_worker=…)`` takes; empty when ``num_workers`` is 0."""
        # Train gives a worker a whole CPU unless "CPU" is named.
        return {"CPU": 0} | _ray_amounts(self.per_worker) if self.num_workers else {}

    def scaling_config(self, **kwargs: Any) -> "ScalingConfig":
        """Return Ray Train's ``ScalingConfig`` for a trial's workers.

        Args:
            **kwargs: Further fields of ``ScalingConfig``, such as ``placement_strategy``.

        Raises:
            InvalidResourcesError: The plan has no Train workers, or ``kwargs`` name what the plan sets.
        """
        from tune_policies.ray_adapter import to_scaling_config

        return to_scaling_config(self, **kwargs)

    def tune_config(self, **kwargs: Any) -> "TuneConfig":
        """Return Ray Tune's ``TuneConfig`` with the plan's ``max_concurrent_trials``.

        Args:
            **kwargs: Further fields of ``TuneConfig``; a smaller ``max_concurrent_trials`` is kept.

        Raises:
            InvalidResourcesError: ``kwargs`` ask for more trials at once than the plan has room for.
        """
        from tune_policies.ray_adapter import to_tune_config

        return to_tune_config(self, **kwargs)

    def remote_options(self, reuse: Literal["process", "release"] = "process") -> dict[str, Any]:
        """Return what ``@ray.remote(**options)`` and ``.options(**options)`` take, for one worker of the plan.

        Args:
            reuse: ``"process"`` for actors, which keep their data on the device, and for ``.options``.
                ``"release"`` for tasks that must give the device back: their process ends after one call
                (``max_calls=1``), which Ray takes in the decorator of a task only. ``plan.reuse`` says which is right
                for tasks of this plan. Of itself Ray ends the process after a task with GPUs, and after no other.

        Raises:
            InvalidResourcesError: ``reuse`` is neither.
        """
        if reuse not in ("process", "release"):
            raise InvalidResourcesError(f"reuse must be 'process' or 'release', got {reuse!r}")
        worker = self.worker
        options: dict[str, Any] = {
            "num_cpus": from_ticks(to_ticks(worker.cpus)),
            "num_gpus": from_ticks(to_ticks(worker.gpus)),
        }
        if worker.memory_bytes is not None:
            options["memory"] = worker.memory_bytes
        if worker.custom:
            options["resources"] = {name: from_ticks(to_ticks(amount)) for name, amount in worker.custom.items()}
        if self.accelerator_type is not None:
            options["accelerator_type"] = self.accelerator_type
        if self.label_selector:
            options["label_selector"] = dict(self.label_selector)
        return options | ({"max_calls": 1} if reuse == "release" else {})

    def num_waves(self, num_trials: int) -> int:
        """Return how many rounds ``num_trials`` trials take, if all last equally long."""
        num_trials = check_count(num_trials, least=0, name="num_trials")
        return -(-num_trials // self.max_concurrent_trials)

    def capped(self, max_concurrent_trials: int, *, limited_by: str, reasons: tuple[str, ...] = ()) -> "TrialPlan":
        """Return a plan with no more trials at once than that; the better kinds of slots are kept first."""
        if self.max_concurrent_trials <= max_concurrent_trials:
            return self
        slots, left = [], max_concurrent_trials
        for slot in self.slots:
            taken = min(left, slot.max_concurrent_trials)
            if taken:
                slots.append(slot.model_copy(update={"max_concurrent_trials": taken}))
                left -= taken
        changes = {"slots": tuple(slots), "limited_by": limited_by, "reasons": (*self.reasons, *reasons)}
        return self.model_copy(update=changes)

    def on_nodes(self, label_selector: dict[str, str]) -> "TrialPlan":
        """Return the same plan, placed only on nodes that the selector selects beside what it selected before."""
        slots = (
            slot.model_copy(update={"label_selector": merged(slot.label_selector, label_selector)})
            for slot in self.slots
        )
        return self.model_copy(update={"slots": tuple(slots)})

    def with_reasons(self, *reasons: str) -> "TrialPlan":
        """Return the same plan with further reasons in front of its own."""
        return self.model_copy(update={"reasons": (*reasons, *self.reasons)})

    def explain(self) -> str:
        """Return the plan as text: how many at once, what each gets, what limits it, and why."""
        count = self.max_concurrent_trials
        lines = [f"{count} {'trial' if count == 1 else 'trials'} at once, limited by {self.limited_by}"]
        for slot in self.slots:
            prefix = "each trial: " if len(self.slots) == 1 else f"{slot.max_concurrent_trials} with "
            lines.append(f"  {prefix}{slot}")
        if self.nodes_to_add:
            added = ", ".join(f"{count} {name}" for name, count in sorted(self.nodes_to_add.items()))
            lines.append(f"  nodes that the autoscaler must add first: {added}")
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.reasons)])


def _ray_amounts(resources: Resources) -> dict[str, float]:
    return {name: amount if name == "memory" else from_ticks(amount) for name, amount in resources.ticks.items()}
