"""The result of a policy: the resources of a trial, the number of concurrent trials, and the reasons.

The methods that return objects of Ray's public API import Ray when they are called, so that planning works without Ray.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.placement.request import Limit
from tune_policies.placement.trial_slot import Bundle, TrialSlot
from tune_policies.plan.remote_options import Reuse, remote_options_of
from tune_policies.plan.scaling_config import scaling_config_of
from tune_policies.plan.slots_by_config import SlotsByDecision, SlotsByNeed, SlotsByProfile, SlotsByValue
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import MOST_AT_ONCE, PositiveCount, Resources, check_count
from tune_policies.values.value import ShownValue
from tune_policies.values.wording import counted, shorten

if TYPE_CHECKING:
    from ray.train import ScalingConfig
    from ray.tune import PlacementGroupFactory
    from rich.console import RenderableType

    from tune_policies.cluster.capacity import ClusterCapacity
    from tune_policies.files.svg import Picture


class NodeNote(str):
    """A reason about the nodes that applies to every plan. A policy that combines plans adds such a note only once."""

    __slots__ = ()


def _keep_note(value: object, handler: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, NodeNote):
        return value
    return handler(value)


Reason = Annotated[str, WrapValidator(_keep_note)]
"""A sentence that explains a plan."""


class TrialPlan(ShownValue):
    """The result of a policy.

    A plan has one or more slot types. Properties such as ``trial`` and ``num_workers`` describe ``common_slot``.

    Attributes:
        slots: The slot types, in order of preference.
        limited_by: The limit that prevents one more trial, such as Ray's name of a resource, or a field of a policy.
        reasons: Sentences that explain the plan.
        nodes_to_add: The number of nodes of each type that the autoscaler must add before all trials can run.
        by_config: The slot types for different configs, or ``None`` if the slot does not depend on the config. If set,
            ``common_slot`` is large enough for every measured config, or has the most devices if configs need different
            resources.
        fewer_than_fit: Whether Ray would run more concurrent trials than the plan allows.
        left_free: The resources that the policy reserves for other programs, summed over all nodes.
        common: The slot of every trial in a run without ``PolicyScheduler``, if each node type has its own slots.
            ``None`` means the first of ``slots``.
        why_no_gpus: The reason why a fallback without GPUs was chosen although the cluster has GPUs, and what to do to
            use them, or an empty string.
    """

    slots: tuple[TrialSlot, ...] = Field(min_length=1)
    limited_by: Annotated[Limit | str, Field(union_mode="left_to_right")]
    reasons: tuple[Reason, ...] = ()
    nodes_to_add: dict[str, PositiveCount] = Field(default_factory=dict)
    by_config: SlotsByProfile | SlotsByNeed | SlotsByDecision | SlotsByValue | None = None
    fewer_than_fit: bool = False
    left_free: Resources = Resources()
    common: TrialSlot | None = None
    why_no_gpus: Reason = ""

    def __rich__(self) -> "RenderableType":
        from tune_policies.plan.plan_view import plan_view  # the view imports this module

        return plan_view(self)

    @model_validator(mode="before")
    @classmethod
    def _without_removed_fields(cls, data: Any) -> Any:
        """Ignore the field ``divides_cpus`` in files of older versions."""
        if isinstance(data, dict):
            return {name: data[name] for name in data if name != "divides_cpus"}
        return data

    @property
    def common_slot(self) -> TrialSlot:
        """The slot of a trial without an assigned slot, which is ``common``, or else the first of ``slots``."""
        if self.common is None or len(self.slots) == 1:
            return self.slots[0]
        return self.common

    @property
    def trial(self) -> Resources:
        """The resources that Tune reserves for the trainable."""
        return self.common_slot.trial

    @property
    def num_workers(self) -> int:
        """The number of Train workers in each trial (the minimum if trials grow), or 0 if the trial itself trains."""
        return self.common_slot.num_workers

    @property
    def most_workers(self) -> int:
        """The maximum number of Train workers in a trial, or 0 if the trial itself trains."""
        return max(self.num_workers, self.common_slot.max_workers or 0)

    @property
    def worker(self) -> Resources:
        """The resources of one process that trains (the trial, or each Train worker)."""
        return self.common_slot.worker

    @property
    def use_gpu(self) -> bool:
        """Whether a worker reserves a GPU or a GPU fraction."""
        return self.worker.gpus > 0

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The GPU memory that a worker may use on each of its devices in bytes, or ``None`` if it is unknown."""
        return self.common_slot.gpu_memory_bytes

    @property
    def accelerator_type(self) -> str | None:
        """Ray's name of the device type of the workers, or ``None`` for any type."""
        return self.common_slot.accelerator_type

    @property
    def label_selector(self) -> dict[str, str]:
        """Ray's label selector for trials and workers. An empty selector matches any node."""
        return self.common_slot.label_selector

    @property
    def reuse(self) -> Literal["process", "release"]:
        """The value of ``reuse`` in ``remote_options`` for tasks of this plan.

        Frameworks keep devices and their memory until the process ends, so the process of a task with devices should
        end after each call.
        """
        if DEVICE_RESOURCES & self.worker.ticks.keys():
            return "release"
        return "process"

    @property
    def max_concurrent_trials(self) -> int:
        """The number of concurrent trials in the slots of all types.

        With ``by_config``, it is the number for the smallest configs.
        """
        at_once = self._num_places
        if self.by_config is None:
            return at_once
        return max(at_once, self.by_config.max_concurrent_trials)

    @property
    def min_concurrent_trials(self) -> int:
        """The number of concurrent trials that fit for any combination of measured configs."""
        at_once = self._num_places
        if self.by_config is None:
            return at_once
        return self.by_config.min_concurrent_trials(at_once)

    @property
    def _num_places(self) -> int:
        return sum(slot.max_concurrent_trials for slot in self.slots)

    @property
    def resources_per_trial(self) -> "dict[str, float] | PlacementGroupFactory":
        """The value for ``tune.run(resources_per_trial=…)`` and ``tune.with_resources``.

        It is a dict, or a ``PlacementGroupFactory`` if nodes are selected by label. With ``by_config``, the request is
        large enough for every measured config.
        """
        return self.common_slot.resources_per_trial

    @property
    def resources_per_worker(self) -> dict[str, float]:
        """The value for ``ScalingConfig(resources_per_worker=…)``. It is empty if ``num_workers`` is 0."""
        return self.common_slot.resources_per_worker

    def scaling_config(self, **kwargs: Any) -> "ScalingConfig":
        """Return Ray Train's ``ScalingConfig`` for a trial's workers.

        Args:
            **kwargs: Further fields of ``ScalingConfig``, such as ``placement_strategy``.

        Raises:
            InvalidResourcesError: The plan has no Train workers, ``kwargs`` contains a field that the plan sets, or the
                installed Ray cannot express the plan.
        """
        return scaling_config_of(self.common_slot, kwargs)

    def tune_run_kwargs(self) -> dict[str, Any]:
        """Return ``resources_per_trial`` and ``max_concurrent_trials`` for ``tune.run`` without a ``PolicyScheduler``.

        Use it as ``tune.run(train_fn, **plan.tune_run_kwargs())``. This package does not set up the processes of such a
        run, so GPU memory is not limited, trials without a GPU see all GPUs, and all trials get ``common_slot``.
        """
        return {"resources_per_trial": self.resources_per_trial, "max_concurrent_trials": self.max_concurrent_trials}

    def remote_options(self, reuse: Reuse = "process") -> dict[str, Any]:
        """Return the options of ``@ray.remote(**options)`` or ``.options(**options)`` for one worker of the plan.

        If workers get the same amounts on several device types, Ray prefers the first type, and
        ``fallback_strategy`` lists the other ones. Versions of Ray without this option get the first type.

        Args:
            reuse: Whether the process of a task serves more than one call. ``"process"`` is Ray's default: the process
                of a task with GPUs ends after one call, and other processes are reused. Use this value for actors,
                which keep their process, and for ``.options``. ``"release"`` ends the process after one call
                (``max_calls=1``) to release the memory of its devices. ``"keep"`` also reuses the process of a task
                with GPUs (``max_calls=0``). Ray accepts ``"release"`` and ``"keep"`` only in the decorator of a task.

        Raises:
            InvalidResourcesError: ``reuse`` is none of these values.
        """
        same = [slot for slot in self.slots if slot.worker == self.worker]
        return remote_options_of([self.common_slot, *same], reuse)

    def num_rounds(self, num_trials: int) -> int:
        """Return how many rounds ``num_trials`` trials of equal length take."""
        num_trials = check_count(num_trials, least=0, name="num_trials")
        return -(-num_trials // self.max_concurrent_trials)

    def capped(self, max_concurrent_trials: int, *, limited_by: str, reasons: tuple[str, ...] = ()) -> "TrialPlan":
        """Return a plan with at most ``max_concurrent_trials`` concurrent trials, in the best slots."""
        if self.max_concurrent_trials <= max_concurrent_trials:
            return self
        # The slots are in order of preference, so the last ones are removed first.
        slots, left = [], max_concurrent_trials
        for slot in self.slots:
            if left:
                slots.append(slot.capped(left))
                left -= slots[-1].max_concurrent_trials
        if len(slots) == 1 < len(self.slots):
            # Ray now chooses the nodes, and may choose the nodes of removed slots.
            slots = [slots[0].model_copy(update={"gpu_memory_bytes": self._least_gpu_memory(slots[0])})]
        by_config = self.by_config and self.by_config.with_slots(lambda slot: slot.capped(max_concurrent_trials))
        common = self.common and self.common.capped(max_concurrent_trials)
        changes = {
            "slots": tuple(slots),
            "common": common,
            "limited_by": Limit.of(limited_by),
            "by_config": by_config,
            "fewer_than_fit": True,
        }
        return self.model_copy(update=changes | {"reasons": (*self.reasons, *reasons)})

    def _least_gpu_memory(self, slot: TrialSlot) -> int | None:
        """Return the smallest GPU memory of the slots that Ray may place on the same nodes as ``slot``, in bytes."""
        every = (*self.slots, *filter(None, [self.common]))
        alike = [other for other in every if _same_nodes(other, slot) and other.worker.gpus == slot.worker.gpus]
        known = [other.gpu_memory_bytes for other in alike if other.gpu_memory_bytes is not None]
        if len(known) < len(alike):
            return None
        return min(known)

    def on_nodes(self, label_selector: dict[str, str]) -> "TrialPlan":
        """Return a copy of the plan for nodes that match both this selector and the selector of the plan."""
        return self.with_slots(lambda slot: slot.on_nodes(label_selector))

    def with_slots(self, change: Callable[[TrialSlot], TrialSlot]) -> "TrialPlan":
        """Return a copy of the plan with each slot changed."""
        by_config, common = self.by_config and self.by_config.with_slots(change), self.common and change(self.common)
        changes = {"slots": tuple(map(change, self.slots)), "by_config": by_config, "common": common}
        return self.model_copy(update=changes)

    def with_more_slots(self, slots: Iterable[TrialSlot]) -> "TrialPlan":
        """Return a copy of the plan with additional slots. Slots of the same type are counted together."""
        merged = list(self.slots)
        for slot in slots:
            for index, other in enumerate(merged):
                count = other.max_concurrent_trials
                # Slots are of the same type if they differ only in their number.
                if slot == other.model_copy(update={"max_concurrent_trials": slot.max_concurrent_trials}):
                    together = {"max_concurrent_trials": count + slot.max_concurrent_trials}
                    merged[index] = other.model_copy(update=together)
                    break
            else:
                merged.append(slot)
        return self.model_copy(update={"slots": tuple(merged)})

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot of a trial with this config.

        Raises:
            InfeasibleRequestError: The config needs more GPU memory than any device has, or the policy has no slot for
                the value in the config.
        """
        if self.by_config is None:
            return self.common_slot
        return self.by_config.slot_for(config)

    def for_config(self, config: Mapping[str, Any]) -> "TrialPlan":
        """Return the plan for a trial with this config, for instance for a Train run that the trial starts.

        Raises:
            InfeasibleRequestError: The config needs more GPU memory than any device has, or the policy has no slot for
                the value in the config.
        """
        if self.by_config is None:
            return self
        return self.model_copy(update={"slots": (self.slot_for(config),), "by_config": None})

    def with_reasons(self, *reasons: str) -> "TrialPlan":
        """Return a copy of the plan with these reasons before its own reasons."""
        return self.model_copy(update={"reasons": (*reasons, *self.reasons)})

    def bundles(self, num_trials: int) -> list[Bundle]:
        """Return the bundles of ``num_trials`` trials, with drivers and workers, starting with the best slots.

        Trials that exceed the number of slots use ``common_slot``.

        Raises:
            InvalidResourcesError: The trials need more than 100,000 bundles.
        """
        # An upper bound, which is checked before the bundles exist.
        num_bundles = num_trials * (1 + max(slot.num_workers for slot in self.slots))
        if num_bundles > MOST_AT_ONCE:
            raise InvalidResourcesError(
                f"{counted(num_trials, 'trial')} may need {num_bundles:,} bundles, more than the {MOST_AT_ONCE:,} that "
                "can be requested at once. Pass a smaller num_trials"
            )
        bundles: list[Bundle] = []
        left = num_trials
        for slot in self.slots:
            number = min(left, slot.max_concurrent_trials)
            bundles += slot.bundles() * number
            left -= number
        return bundles + self.common_slot.bundles() * left

    def plot(self, capacity: "ClusterCapacity | None" = None) -> "Picture":
        """Return a picture of the plan's slots in the cluster, of idle resources, and of the limiting resource.

        A notebook displays the picture. To save it, call ``plan.plot(capacity).save("plan.svg")``.

        Args:
            capacity: Required. The cluster for which the plan was made.

        Raises:
            InvalidResourcesError: The capacity is missing, or the plan was made for another cluster.
        """
        from tune_policies.plan.plan_picture import draw_plan  # the view imports this module

        call = "plan.plot(capacity)"
        if isinstance(capacity, str | os.PathLike):  # where other libraries take a file
            call = f'plan.plot(capacity).save("{os.fspath(capacity)}")'
        return draw_plan(self, _checked_capacity(capacity, call))

    @property
    def headline(self) -> str:
        """The number of concurrent trials, the limit on this number, and why GPUs are not used, as text."""
        from tune_policies.plan.plan_text import headline  # the view imports this module

        return headline(self)

    @property
    def rows(self) -> dict[str, int]:
        """The text about the slots of each type, and their number. Slot types with the same text are added up."""
        from tune_policies.plan.plan_text import slot_rows  # the view imports this module

        return slot_rows(self)

    @property
    def about_nodes_to_add(self) -> str:
        """A sentence about the nodes that the autoscaler must add first, or an empty string."""
        from tune_policies.plan.plan_text import about_nodes_to_add  # the view imports this module

        return about_nodes_to_add(self)

    @property
    def all_reasons(self) -> tuple[str, ...]:
        """Sentences about the GPU memory that tensors can use, followed by the reasons of the plan."""
        from tune_policies.plan.plan_text import all_reasons  # the view imports this module

        return all_reasons(self)

    def __str__(self) -> str:
        """Return the text of :meth:`explain`."""
        return self.explain()

    def explain(self, capacity: "ClusterCapacity | None" = None) -> str:
        """Return the plan as text: the number of concurrent trials, their resources, the limit, and the reasons.

        For workers that share a GPU, the text includes the GPU memory that tensors can use.

        Args:
            capacity: The cluster for which the plan was made. If set, the text also lists idle resources, and a
                notebook shows the text as the table of the plan and the idle resources.

        Raises:
            InvalidResourcesError: The plan was made for another cluster, or ``capacity`` is not a capacity.
        """
        from tune_policies.plan.plan_text import plan_text  # the view imports this module

        if capacity is not None:
            capacity = _checked_capacity(capacity, "plan.explain(capacity)")
        return plan_text(self, capacity)


def _checked_capacity(capacity: object, call: str) -> "ClusterCapacity":
    """Return the capacity, or raise an ``InvalidResourcesError`` with the call to write."""
    from tune_policies.cluster.capacity import ClusterCapacity  # imported here, because only these calls need it

    if isinstance(capacity, ClusterCapacity):
        return capacity
    given = "" if capacity is None else f", got {shorten(capacity)}"
    raise InvalidResourcesError(
        f"a plan does not contain the nodes, so pass the capacity for which it was made{given}. Write {call}, with "
        "capacity = probe_cluster() for the running cluster"
    )


def _same_nodes(one: TrialSlot, other: TrialSlot) -> bool:
    """Return whether Ray may place both slots on the same nodes."""
    return (one.label_selector, one.accelerator_type) == (other.label_selector, other.accelerator_type)
