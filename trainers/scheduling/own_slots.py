"""Slots of trials whose resources depend on their config, and of trials that keep their own requests.

RLlib, and trainables that start their own actors, reserve several bundles and place their actors by bundle index.
Therefore, this module never reorders or merges bundles.
"""

import math
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple

from ray.tune import PlacementGroupFactory

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import merged
from tune_policies.cluster.ray_totals import to_resources
from tune_policies.placement.bundles import BundleGroup, count_groups
from tune_policies.placement.request import Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.reserving import rests
from tune_policies.ray_compat.tune_request import group_of
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import Resources


class OwnSlot(NamedTuple):
    """The slot of a trial whose resources depend on its config or on its own request.

    Attributes:
        slot: The slot, with the number of such trials that may run concurrently.
        factory: The resource request that is passed to Ray.
    """

    slot: TrialSlot
    factory: PlacementGroupFactory


_MOST_GROUPS: Final = 1000
"""The maximum number of concurrent trials with several bundles."""


def slot_of_bundles(plan: TrialPlan, group: BundleGroup, capacity: ClusterCapacity) -> tuple[TrialSlot, BundleGroup]:
    """Return the slot of a trial that keeps its own request, and the bundles to reserve.

    The slot contains the resources of the trial's own process and the number of such trials that run concurrently.
    The amounts in the bundles do not change. The plan determines the nodes and the device type of the bundles.

    Args:
        plan: The plan of the policy.
        group: The trial's request, with the bundle of its own process first.
        capacity: The nodes of the cluster.

    Raises:
        InvalidResourcesError: The plan has devices and the bundles have none, or vice versa.
        InfeasibleRequestError: The nodes do not have room for one such trial.
    """
    asked = _text_of(group)
    devices = {name for bundle in group.bundles for name in bundle if name in DEVICE_RESOURCES}
    # A plan may contain slots with and without devices, such as GPUs and the remaining CPUs.
    fitting = [slot for slot in plan.slots if slot.has_device == bool(devices)]
    if not fitting:
        planned, instead = "with", "CpuPolicy"
        if devices:
            planned, instead = "without", "a policy with GPUs"
        raise InvalidResourcesError(
            f"the policy plans trials {planned} a GPU, but the trainable reserves {asked}. Use {instead}, or change "
            "the trainable's request"
        )
    slot = fitting[0]
    if slot.label_selector:
        # The nodes that the policy has chosen apply to each bundle, in addition to the trainable's own labels.
        selectors = group.selectors or [{}] * len(group.bundles)
        group = group._replace(selectors=[merged(dict(selector), slot.label_selector) for selector in selectors])
    group = group.with_bundles([slot.with_type(bundle) for bundle in group.bundles])
    if plan.left_free.ticks:
        # What the policy leaves free for others is left out before the trials are counted.
        capacity = next(rests(capacity, plan.left_free))
    at_once = count_groups(group, capacity.nodes, _MOST_GROUPS)
    if plan.fewer_than_fit and not plan.left_free.ticks:  # the policy limits the number of trials
        at_once = min(at_once, plan.max_concurrent_trials)
    if capacity.node_types != ():  # one more request makes the autoscaler add nodes
        at_once += 1
    if not at_once:
        raise InfeasibleRequestError(
            asked=f"bundles of {asked}",
            offered="the nodes do not have room for all of them",
            short_of=next(iter(devices), "CPU"),
            suggestion="Reserve less, or add nodes.",
        )
    slot = slot.model_copy(
        update={
            "trial": to_resources(group.bundles[0]),
            "max_concurrent_trials": at_once,
            # The trainable's bundles include its workers. The memory limit follows from the GPU fraction in its own
            # bundle, not from the plan.
            "num_workers": 0,
            "max_workers": None,
            "per_worker": Resources(),
            "gpu_memory_bytes": None,
            "gpu_overhead_bytes": None,
        }
    )
    return slot, group


def _text_of(group: BundleGroup) -> str:
    """Return the bundles as text, such as ``1 CPU + 4 × (1 CPU, 1 GPU)``."""
    parts = []
    for text, count in Counter(str(to_resources(bundle)) for bundle in group.bundles).items():
        if count > 1:
            text = f"{count} × ({text})"
        parts.append(text)
    return " + ".join(parts)


def requested_plan(request: PlacementGroupFactory, capacity: ClusterCapacity) -> TrialPlan:
    """Return the plan of a run without a policy, in which each trial gets the resources of ``request``."""
    reason = "there is no policy, so each trial gets what the program requests"
    group = group_of(request)
    amounts = dict(request.required_resources)
    # Ray requests a device type as 0.001 of a custom resource (``accelerator_type:A100``), which is no amount.
    types = [name.removeprefix(ACCELERATOR_TYPE_PREFIX) for name in amounts if name.startswith(ACCELERATOR_TYPE_PREFIX)]
    accelerator_type = types[0] if len(types) == 1 else None
    amounts = {name: amount for name, amount in amounts.items() if not name.startswith(ACCELERATOR_TYPE_PREFIX)}
    if len(group.bundles) == 1:
        with suppress(InfeasibleRequestError):  # the autoscaler may add nodes
            worker = to_resources(amounts)
            return build_plan(capacity, Request(worker=worker, accelerator_type=accelerator_type), [reason])
    if amounts.get("GPU", 0) > 1:
        amounts["GPU"] = math.ceil(amounts["GPU"])  # the sum of several fractions
    # At least 1, because plain Tune runs even if no node has room yet.
    at_once = max(1, count_groups(group, capacity.nodes, _MOST_GROUPS))
    slot = TrialSlot(trial=to_resources(amounts), accelerator_type=accelerator_type, max_concurrent_trials=at_once)
    return TrialPlan(slots=(slot,), limited_by=max(amounts, default="CPU"), reasons=(reason,))
