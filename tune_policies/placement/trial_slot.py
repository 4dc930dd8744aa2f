"""A slot: the resources that a trial reserves, in the formats of Tune, Train and the autoscaler.

Methods that return objects of Ray import Ray when they are called, so that planning works without Ray.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pydantic import Field, model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.labels import NODE_ID, format_selector, merged
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Bytes,
    Count,
    PositiveCount,
    Resources,
    Speed,
    UsedBytes,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

_FINEST: Final = 2**40
"""The denominator of exact amounts: float sums of multiples of 1 / 2**40 are exact up to 8,192."""

WorkerNodes = tuple[tuple[str, PositiveCount], ...]
"""The identifiers of nodes, and the number of a trial's Train workers on each node."""


class Bundle(NamedTuple):
    """The resources that Ray reserves on one node, by Ray's names, and the label selector for that node."""

    resources: dict[str, float]
    label_selector: dict[str, str]


class TrialSlot(Value):
    """A slot type in which trials can run, and the number of such slots.

    Attributes:
        trial: The resources that Tune reserves for the trainable: for the training itself if ``num_workers`` is 0,
            otherwise only for the Train driver.
        max_concurrent_trials: The number of slots of this type.
        num_workers: The number of Train workers in each trial (the minimum if the trial is elastic), or 0 if the trial
            itself trains.
        max_workers: The maximum number of workers of an elastic trial if all other trials have their minimum number.
        max_workers_alone: The maximum number of workers of an elastic trial if no other trial runs.
        per_worker: The resources that Train reserves for each worker.
        gpu_memory_bytes: The GPU memory that a worker may use on each of its devices, in bytes, or ``None`` if it is
            unknown.
        gpu_overhead_bytes: The part of ``gpu_memory_bytes`` that a worker's frameworks use outside of their allocators.
            ``None`` means that the worker determines this amount.
        has_simulated_gpus: Whether the GPUs of all nodes for this slot type are simulated.
        measured_with: The versions of Ray and the frameworks with which the GPU memory was measured, by package name.
        accelerator_type: Ray's name of the required device type, or ``None`` for any type.
        topology: The topology of the whole TPU slices that each trial reserves, or ``None``.
        label_selector: Ray's label selector for trials and workers.
        speed: The speed of a trial relative to other slots of the plan, in any unit, or ``None`` if it is unknown.
        worker_nodes: The nodes of a trial's Train workers and the number of workers on each node, in a plan with
            several slot types. If it is empty, Train chooses the nodes.
    """

    trial: Resources
    max_concurrent_trials: PositiveCount
    num_workers: Count = 0
    max_workers: Count | None = None
    max_workers_alone: Count | None = None
    per_worker: Resources = Field(default_factory=Resources)
    gpu_memory_bytes: Bytes | None = None
    gpu_overhead_bytes: UsedBytes | None = None
    has_simulated_gpus: bool = False
    measured_with: dict[str, str] = Field(default_factory=dict)
    accelerator_type: str | None = None
    topology: str | None = None
    label_selector: dict[str, str] = Field(default_factory=dict)
    speed: Speed | None = None
    worker_nodes: WorkerNodes = ()

    @model_validator(mode="after")
    def _workers_must_agree(self) -> Self:
        if (self.num_workers > 0) != bool(self.per_worker.ticks):
            raise InvalidResourcesError(
                f"num_workers={self.num_workers} contradicts per_worker={self.per_worker}. Set both or neither"
            )
        if self.max_workers is not None and not 0 < self.num_workers <= self.max_workers:
            raise InvalidResourcesError(
                f"max_workers={self.max_workers} is not valid with num_workers={self.num_workers}. Set num_workers "
                "above 0, and max_workers to at least num_workers"
            )
        return self

    @property
    def worker(self) -> Resources:
        """The resources of each process that trains (the trial itself, or a Train worker)."""
        if self.num_workers:
            return self.per_worker
        return self.trial

    @property
    def has_device(self) -> bool:
        """Whether the processes that train reserve a GPU or another accelerator."""
        return bool(DEVICE_RESOURCES & self.worker.ticks.keys())

    @property
    def is_elastic(self) -> bool:
        """Whether the number of Train workers of a trial may grow."""
        return self.max_workers is not None and self.max_workers > self.num_workers

    @property
    def has_gpu_fraction(self) -> bool:
        """Whether a worker reserves a GPU fraction, so that other workers can share its GPU."""
        return 0 < self.worker.gpus < 1

    @property
    def resources_per_trial(self) -> "dict[str, float] | PlacementGroupFactory":
        """The resources for Tune, as a dict, or as a ``PlacementGroupFactory`` if there is a label selector."""
        if self.label_selector:
            return self.placement_group_factory()
        return self.trial_amounts

    def placement_group_factory(self, *, node_id: str | None = None) -> "PlacementGroupFactory":
        """Return the request of a trial for Tune, with the label selector.

        Args:
            node_id: The node for the trial, or ``None`` for any node.
        """
        from ray.tune import PlacementGroupFactory

        selector = self.label_selector
        if node_id is not None:
            selector = merged(selector, {NODE_ID: node_id})
        if not selector:
            return PlacementGroupFactory([self._trial_bundle])
        # Tune has no other parameter for label selectors.
        return PlacementGroupFactory([self._trial_bundle], bundle_label_selector=[dict(selector)])

    @property
    def trial_amounts(self) -> dict[str, float]:
        """The resources that a trial reserves, without a node selector, by Tune's resource names."""
        lower_case = {"CPU": "cpu", "GPU": "gpu"}
        # Tune reserves a whole CPU for a trial with an empty request.
        return {"cpu": 0} | {lower_case.get(name, name): amount for name, amount in self._trial_bundle.items()}

    @property
    def _trial_bundle(self) -> dict[str, float]:
        amounts = _ray_amounts(self.trial)
        if self.num_workers:  # the workers reserve the devices
            return amounts
        return amounts | self._of_type

    def with_type(self, bundle: Mapping[str, float]) -> dict[str, float]:
        """Return a user's bundle, plus the resource of the device type if the bundle has a device."""
        if DEVICE_RESOURCES.isdisjoint(bundle):
            return dict(bundle)
        return {**bundle, **self._of_type}

    @property
    def _of_type(self) -> dict[str, float]:
        """The resource of the device type that each worker reserves, or an empty mapping for any type."""
        name = self.accelerator_type
        if name is None:
            return {}
        return {ACCELERATOR_TYPE_PREFIX + name: ACCELERATOR_TYPE_AMOUNT}

    def bundles(self) -> list[Bundle]:
        """Return the bundles of one trial for Ray's autoscaler, with the driver first.

        For TPU slices of several hosts, they include what Train itself requests to reserve each slice.
        """
        worker, driver = _summable_amounts(self.worker), _summable_amounts(self.trial)
        selector = dict(self.label_selector)  # Ray gets plain data
        workers = [Bundle(worker | self._of_type, selector)] * max(1, self.num_workers)
        if self.num_workers:
            return [Bundle(driver, selector), *self._slice_heads(), *workers]
        return workers

    def _slice_heads(self) -> list[Bundle]:
        if self.topology is None or self.accelerator_type is None:
            return []
        shape = SliceShape(self.topology, self.accelerator_type)
        if shape.has_one_host:
            return []
        # Train reserves whole slices, each through a bundle on its first host.
        num_slices = max(1, int(self.num_workers * self.per_worker.custom.get("TPU", 0)) // shape.chips)
        return [Bundle({shape.head_resource: 1}, shape.head_labels)] * num_slices

    @property
    def resources_per_worker(self) -> dict[str, float]:
        """The value of ``ScalingConfig(resources_per_worker=…)``. It is empty if ``num_workers`` is 0."""
        # Train reserves a whole CPU for a worker unless "CPU" is set.
        if self.num_workers:
            return {"CPU": 0} | _ray_amounts(self.per_worker)
        return {}

    @property
    def scaling_fields(self) -> dict[str, Any]:
        """The arguments of ``ScalingConfig`` for a trial's workers."""
        fields: dict[str, Any] = {
            "num_workers": self.num_workers,
            "use_gpu": self.worker.gpus > 0,
            "resources_per_worker": self.resources_per_worker,
        }
        if self.is_elastic:
            amounts = fields["resources_per_worker"]
            for name in amounts.keys() - {"memory"}:
                ticks = to_ticks(amounts[name])
                # If Ray rounded a small fraction down by a tick, one more worker would fit on a device.
                is_small = ticks < TICKS and TICKS // max(1, ticks - 1) > TICKS // max(1, ticks)
                if not is_small:
                    amounts[name] = _exactly_summable(ticks)
            fields["num_workers"] = (self.num_workers, self.max_workers)
        if self.accelerator_type is not None:
            fields["accelerator_type"] = self.accelerator_type
        if self.worker.custom.get("TPU", 0) > 0:
            fields["use_tpu"] = True
            if self.topology is not None:
                fields["topology"] = self.topology
        selectors = self._worker_selectors
        if selectors:
            is_common = all(selector == selectors[0] for selector in selectors)
            fields["label_selector"] = selectors[0] if is_common else selectors
        return fields

    @property
    def _worker_selectors(self) -> list[dict[str, str]]:
        """The label selectors: one for each worker, or a single one for all workers, or none."""
        on_nodes = [
            merged(self.label_selector, {NODE_ID: node_id})
            for node_id, count in self.worker_nodes
            for _ in range(count)
        ]
        if on_nodes or not self.label_selector:
            return on_nodes
        return [dict(self.label_selector)]

    def capped(self, max_concurrent_trials: int) -> "TrialSlot":
        """Return the slot type with at most ``max_concurrent_trials`` slots."""
        fewer = min(self.max_concurrent_trials, max_concurrent_trials)
        changes = {"max_concurrent_trials": fewer}
        if self.max_workers is not None and self.max_workers_alone is not None:
            # The workers of the trials that no longer run leave room for the elastic workers of the others.
            freed = (self.max_concurrent_trials - fewer) * self.num_workers
            changes["max_workers"] = min(self.max_workers_alone, self.max_workers + freed)
        return self.model_copy(update=changes)

    def with_more(self, reserved: Mapping[str, float]) -> "TrialSlot":
        """Return the slot of a trial that reserves more than planned, for example after an out-of-memory error.

        The trial must not have Train workers. ``reserved`` maps Ray's resource names to the trial's reserved amounts.
        """
        trial, gpu_memory_bytes = self.trial, self.gpu_memory_bytes
        for name in sorted({"memory", *trial.ticks} & reserved.keys()):
            had = trial.ticks.get(name, 0)
            has = int(reserved[name]) if name == "memory" else to_ticks(reserved[name])
            if has > had:
                trial = trial.with_ticks(name, has)
                if name in DEVICE_RESOURCES and gpu_memory_bytes is not None:
                    # The memory grows with the fraction, up to a whole device: several devices do not give more memory
                    # on each.
                    gpu_memory_bytes = gpu_memory_bytes * min(has, TICKS) // min(had, TICKS)
        if trial is self.trial:
            return self
        return self.model_copy(update={"trial": trial, "gpu_memory_bytes": gpu_memory_bytes})

    def of_fixed_size(self) -> "TrialSlot":
        """Return the same slot without elastic workers, so that each trial has its minimum number of workers."""
        return self.model_copy(update={"max_workers": None, "max_workers_alone": None})

    def on_nodes(self, label_selector: dict[str, str]) -> "TrialSlot":
        """Return the same slot on nodes that match both this selector and the selector of the slot."""
        return self.model_copy(update={"label_selector": merged(self.label_selector, label_selector)})

    def __str__(self) -> str:
        worker = str(self.worker)
        if self.accelerator_type:
            worker += f" on {self.accelerator_type}"
        if self.topology:
            worker += f" in whole {self.topology} slices"
        if self.label_selector:
            worker += f" on nodes with {format_selector(self.label_selector)}"
        if self.gpu_memory_bytes is not None:
            worker += f", {format_bytes(self.gpu_memory_bytes)} of GPU memory"
            if self.worker.gpus > 1:
                worker += " on each"
        if not self.num_workers:
            return worker
        if self.is_elastic:
            workers = f"{self.num_workers} to {self.max_workers} workers, each with"
        elif self.num_workers == 1:
            workers = "1 worker with"
        else:
            workers = f"{self.num_workers} workers, each with"
        return f"{workers} {worker}; the trial driver reserves {self.trial}"


def _ray_amounts(resources: Resources) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for name, ticks in resources.ticks.items():
        amounts[name] = ticks if name == "memory" else from_ticks(ticks)  # host memory is in bytes
    return amounts


def _summable_amounts(resources: Resources) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for name, ticks in resources.ticks.items():
        amounts[name] = ticks if name == "memory" else _exactly_summable(ticks)
    return amounts


def _exactly_summable(ticks: int) -> float:
    """Return a slightly smaller amount whose sums are exact in floats.

    To count elastic workers, Ray divides their total reservation by the reservation of one worker, in floats. It counts
    five workers of 0.2 as four, and waits indefinitely if the minimum is five. The autoscaler subtracts bundles from a
    node in floats, so it places only 19 of 20 bundles of 0.2 on 4 GPUs. Version 2 of the autoscaler launches nodes for
    all bundles or none, so it launches no node.
    """
    if ticks % TICKS == 0:
        return from_ticks(ticks)
    return ticks * _FINEST // TICKS / _FINEST
