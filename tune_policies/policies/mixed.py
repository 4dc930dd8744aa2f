"""A policy whose plans have several slot types, for instance quarter GPUs and CPU slots, or A100s and L4s."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple, Self

from pydantic import model_validator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.lazy_nodes import ReducedNodes, original_nodes
from tune_policies.cluster.tpu_slices import SliceShape, find_slices
from tune_policies.placement.count_trials import with_rounded_memory
from tune_policies.placement.fill_nodes import FilledSlots, RemainingCapacity
from tune_policies.placement.request import Limit
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.plan_notes import about_the_nodes
from tune_policies.plan.trial_plan import NodeNote, TrialPlan
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy, decides_by_config, passed_policies, with_inner
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import MOST, Speed, fewest_workers
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, with_article

_SLOWEST: Final = sys.float_info.min
"""The minimum speed of a slot type."""


class MixedPolicy(ResourcePolicy):
    """Combines the slots of several policies. Each policy plans on the resources that earlier policies leave.

    A plan of ``MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2))`` has slots with a quarter of a GPU, and
    slots with 2 CPUs on the remaining CPUs. ``PolicyScheduler`` assigns free slots to trials. If no slot of a policy
    fits, the plan's reasons explain why. With several slot types, Train runs keep their minimum number of workers.

    Later policies may use the resources that an earlier policy leaves free. So put ``ReservingPolicy`` and
    ``FreeCapacityPolicy`` around the ``MixedPolicy``, not inside it.

    Attributes:
        policies: The policies, one for each slot type, in order of preference. Pass them as positional arguments, or as
            one list with ``policies=``. No policy may have a GPU memory profile.
        speeds: The speed of a trial in the slots of each policy, in any unit, or ``None`` if it is unknown. With
            speeds, ``PolicyScheduler`` leaves slow slots idle if faster slots finish all waiting trials sooner.

    Raises:
        InvalidResourcesError: A field is invalid, ``policies`` is empty, or ``speeds`` does not have one number for
            each policy.
    """

    policies: tuple[InnerPolicy, ...]
    speeds: tuple[Speed, ...] | None = None

    def __init__(
        self,
        *slot_policies: ResourcePolicy,
        policies: Sequence[ResourcePolicy] | None = None,
        speeds: Sequence[float] | None = None,
    ) -> None:
        Value.__init__(self, policies=passed_policies(type(self), slot_policies, policies), speeds=speeds)

    @model_validator(mode="after")
    def _must_have_policies(self) -> Self:
        if not self.policies:
            raise InvalidResourcesError("MixedPolicy requires at least one policy")
        if self.speeds is not None and len(self.speeds) != len(self.policies):
            raise InvalidResourcesError(
                f"speeds must have {counted(len(self.policies), 'number')}, one for each policy, got "
                f"{len(self.speeds)}. Omit speeds if they are unknown"
            )
        for inner in filter(decides_by_config, with_inner(self.policies)):
            if getattr(inner, "profile", None) is not None:
                raise InvalidResourcesError(
                    f"MixedPolicy cannot contain {with_article(type(inner).__name__)} with a profile, because each "
                    "slot of a MixedPolicy must fit any config. Set gpu_memory to the need of the largest config "
                    "instead"
                )
            raise InvalidResourcesError(
                f"MixedPolicy cannot contain {with_article(type(inner).__name__)}, because each slot of a MixedPolicy "
                "must fit any config. Use the policies inside it"
            )
        return self

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        inside = [*with_inner(self.policies)]
        if all(getattr(policy, "memory", None) is None for policy in inside):
            has_workers = any(fewest_workers(getattr(policy, "num_workers", 0)) for policy in inside)
            plan = self._plan(with_rounded_memory(capacity, memory=None, num_workers=int(has_workers)))
            # A policy that the user defines may request memory or workers without having a field for them.
            if all(slot.worker.memory_bytes is None and (has_workers or not slot.num_workers) for slot in plan.slots):
                return plan
        return self._plan(capacity)

    def _plan(self, capacity: ClusterCapacity) -> TrialPlan:
        found: list[_PolicySlots] = []
        errors: list[InfeasibleRequestError] = []
        notes: list[str] = []
        left = RemainingCapacity.all_of(capacity)
        # The order of the policies is their priority: each gets only what the earlier ones leave.
        for policy, speed in zip(self.policies, self.speeds or [None] * len(self.policies), strict=True):
            try:
                given = _next_slots(policy, left)
            except InfeasibleRequestError as error:
                errors.append(error)
                beside = " next to the slots of earlier policies" if found else ""
                notes.append(f"{type(policy).__name__} has no slots{beside}: {error.with_texts(fallback='')}")
                continue
            if speed is not None:
                given = given.with_speed(speed)
            found.append(given)
            left = given.filled.left()
            notes += given.without_place
        if not found:
            raise InfeasibleRequestError.of_each(errors)
        if len(found) == 1:
            # A single plan stays as it is. For example, its workers may grow, because no other slots use the resources.
            return found[0].alone().with_reasons(*notes)
        for given in found:
            of_plan = (reason for reason in given.plan.reasons if not isinstance(reason, NodeNote))
            notes += (f"{type(given.policy).__name__}: {reason}" for reason in of_plan)
        for given in found[:-1]:
            if given.plan.left_free.ticks:
                name = type(given.policy).__name__
                notes.append(
                    f"the slots of later policies may use the {given.plan.left_free} that {name} leaves free. To "
                    "leave them free, put ReservingPolicy or FreeCapacityPolicy around the MixedPolicy"
                )
        slots = [slot for given in found for slot in given.slots]
        notes += about_the_nodes(capacity)
        if any(slot.max_workers is not None for slot in slots):
            notes.append(
                "each trial keeps its minimum number of workers, because slots of other types use the resources for "
                "additional workers"
            )
        nodes_to_add: Counter[str] = Counter()
        for given in found:
            nodes_to_add.update(given.plan.nodes_to_add)
        return TrialPlan(
            slots=tuple(slot.of_fixed_size() for slot in slots),
            # The last policy plans on the rest, so its limit is what prevents one more trial.
            limited_by=found[-1].plan.limited_by,
            reasons=tuple(notes),
            nodes_to_add=dict(nodes_to_add),
            fewer_than_fit=any(given.plan.fewer_than_fit for given in found),
            left_free=found[-1].plan.left_free,
        )


class _PolicySlots(NamedTuple):
    """The slots of one policy, placed next to the slots of earlier policies.

    Attributes:
        policy: The policy.
        plan: The policy's plan on the remaining capacity.
        slots: The slot types of the plan that fit. At least one type fits.
        without_place: A sentence for each slot type of the plan that does not fit.
        filled: The placed slots of the last type.
    """

    policy: ResourcePolicy
    plan: TrialPlan
    slots: tuple[TrialSlot, ...]
    without_place: tuple[str, ...]
    filled: FilledSlots

    def with_speed(self, speed: float) -> Self:
        """Return a copy with this speed for the first slot type, and proportional speeds for the other types."""
        own = self.slots[0].speed or 1
        # In nested plans, proportions are multiplied, and the results must be valid speeds.
        speeds = [min(MOST, max(_SLOWEST, speed * ((slot.speed or own) / own))) for slot in self.slots]
        slots = zip(self.slots, speeds, strict=True)
        return self._replace(slots=tuple(slot.model_copy(update={"speed": faster}) for slot, faster in slots))

    def alone(self) -> TrialPlan:
        """Return the plan of this policy if no other policy has slots."""
        speed = self.slots[0].speed
        if speed is None:
            return self.plan
        return self.plan.model_copy(update={"slots": self._replace(slots=self.plan.slots).with_speed(speed).slots})


def _next_slots(policy: ResourcePolicy, left: RemainingCapacity) -> _PolicySlots:
    """Return the slots of ``policy`` on the remaining capacity.

    Raises:
        InfeasibleRequestError: Not even one trial fits the remaining capacity.
    """
    plan, found = policy.plan(left.capacity), []
    _check_slices(plan, left)
    with suppress(InfeasibleRequestError):
        found.append(_take(policy, plan, left))
        # All planned slots have a place, or no device is in use yet, so another plan could not be better.
        if found[0].slots == plan.slots or not left.in_use:
            return found[0]
    # Devices that earlier policies split into other fractions have no room for these slots, so plan without them.
    try:
        found.insert(0, _take(policy, policy.plan(left.without_devices_in_use), left))
    except InfeasibleRequestError as error:
        if not found:
            raise InfeasibleRequestError(
                error.asked,
                "earlier policies split the same GPUs into different fractions, and with unequal fractions a trial can "
                "stay pending indefinitely",
                error.short_of,
                "Request the same fraction, or restrict this policy to another device type or other nodes.",
            ) from error
    return max(found, key=lambda given: sum(slot.max_concurrent_trials for slot in given.slots))


def _take(policy: ResourcePolicy, plan: TrialPlan, left: RemainingCapacity) -> _PolicySlots:
    """Return the slots of the plan that fit the remaining capacity.

    Raises:
        InfeasibleRequestError: No slot fits.
    """
    if plan.nodes_to_add:
        left = left.grown(plan.nodes_to_add)
    filled: FilledSlots | None = None
    slots, missing = [], []
    for slot in plan.slots:
        filled = left.fill(slot)
        left = filled.left()
        if filled.num_trials:
            slots.append(slot.capped(filled.num_trials))
        else:
            missing.append(f"{type(policy).__name__} has no slots with {slot}, because none fits next to other slots")
    if filled is None or not slots:
        raise InfeasibleRequestError(
            " or ".join(str(slot) for slot in plan.slots),
            "none of these slots fits next to the slots of earlier policies",
            plan.limited_by,
            "Request fewer resources, or put this policy first.",
        )
    return _PolicySlots(policy, plan, tuple(slots), tuple(missing), filled)


def _check_slices(plan: TrialPlan, left: RemainingCapacity) -> None:
    """Check that earlier policies use no nodes of the slices that Ray Train might choose.

    Raises:
        InfeasibleRequestError: An earlier policy uses a node of such a slice.
    """
    by_shape = left.capacity.nodes_by_shape.values()
    for slot in plan.slots:
        if slot.topology is None:
            continue
        in_use = {node.node_id for nodes in by_shape if isinstance(nodes, ReducedNodes) for node in nodes.originals}
        # Search the original nodes, because Train chooses a slice by its first host even if chips are in use.
        hosts = chain.from_iterable(map(original_nodes, by_shape))
        slices = find_slices(hosts, SliceShape(slot.topology, slot.accelerator_type or "")).intact
        if any(host.node_id in in_use for tpu_slice in slices for host in tpu_slice.hosts):
            raise InfeasibleRequestError(
                str(slot),
                "Ray Train chooses the slices itself, and earlier policies use nodes of TPU slices",
                Limit.TPU_SLICES,
                "Put the policy for TPU slices first.",
            )
