"""Updates the plan of a run and the placements of its slots when nodes are added or removed."""

import logging
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from ray.tune import PlacementGroupFactory

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.fill_nodes import Placement
from tune_policies.placement.layout import place_slots
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_observation import TrialObservation
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.capped import CappedPolicy
from tune_policies.policies.free_capacity import FreeCapacityPolicy, free_part
from tune_policies.policies.growing import GrowingPolicy
from tune_policies.policies.learning import LearningPolicy, with_learned
from tune_policies.policies.policy import ResourcePolicy, with_inner
from tune_policies.probe.probe_cluster import plan_with_capacity
from tune_policies.ray_compat.tune_request import group_of, with_group
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

from ..retries.memory_floor import MemoryFloor, limit_to_nodes
from ..watches.node_watch import NodeWatch, nodes_in_gcs
from .measured_versions import check_versions
from .own_slots import OwnSlot, slot_of_bundles
from .slot_board import SlotTypes

_logger = logging.getLogger(__name__)

_WITHOUT_DEVICE: Final = "without a device"
"""The key in ``RunPlan._own_slots`` for the slot of trials that cannot use their device."""

_AVOID_LOST_NODE_S: Final = 60.0
"""The time for which a node that lost a trial is avoided, in seconds. Ray detects a dead node within this time."""


class PlanChange(Value):
    """A change of the plan during a run.

    Attributes:
        at_s: The Unix timestamp of the change, in seconds.
        plan: The new plan, or the last feasible plan if no plan is feasible.
        why: The reason for the change.
    """

    at_s: float
    plan: TrialPlan
    why: str


class RunPlan:
    """The plan of a run, and the placements of its slots on the current nodes.

    A policy creates a new plan when nodes are added, removed or changed. A plan that is passed instead of a policy does
    not change, but its slots are placed on the current nodes. It is no longer feasible if nodes were removed, and no
    remaining node has room for a trial. If a policy is passed, the constructor creates a plan for the cluster and
    prints it. The nodes are read every ``interval_s`` seconds. The run ends if no plan is feasible for
    ``wait_for_nodes_s`` seconds.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: The plan depends on a measurement with other package versions.
        ProbeError: The cluster cannot be read.
    """

    def __init__(self, policy: ResourcePolicy | TrialPlan, *, interval_s: float, wait_for_nodes_s: float) -> None:
        if isinstance(policy, ResourcePolicy):
            self._policy: ResourcePolicy | None = policy
            self.plan, self._capacity = plan_with_capacity(policy)
        else:
            self._policy = None
            self.plan = policy
            self._capacity = nodes_in_gcs()
        # A decision of benchmarks holds only for the versions with which it was measured.
        if self.plan.by_config is not None:
            check_versions(self.plan.by_config.holds_for)
        self.slot_types = SlotTypes(self.plan.slots)
        self.common_factory = self.plan.common_slot.placement_group_factory()
        self.changes: list[PlanChange] = []
        self.factories: dict[Placement, PlacementGroupFactory] = {}
        self._placements: tuple[Placement, ...] | None = None
        # A policy needs the complete capacity to plan again. For a passed plan, the nodes in the GCS are enough.
        self._watch = NodeWatch(interval_s, probes=self._policy is not None, known=self._capacity)
        self._own_slots: dict[Hashable, OwnSlot] = {}
        self._fitting_memory: dict[tuple[MemoryFloor, PlacementGroupFactory], MemoryFloor] = {}
        self.have_nodes_changed = False
        self._plans_free_capacity = any(isinstance(policy, FreeCapacityPolicy) for policy in self._policies)
        # Read before the first trial starts, so that it contains only other programs.
        self._in_use = {node.node_id: node.in_use for node in self._capacity.nodes}
        self._lost_nodes: dict[str, float] = {}
        self._avoided: frozenset[str] = frozenset()
        self._wait_for_nodes_s = wait_for_nodes_s
        self._infeasible: InfeasibleRequestError | None = None
        self._infeasible_since_s = 0.0
        self._waits_for_trial = False
        self._had_room = False

    @property
    def is_feasible(self) -> bool:
        """Whether a plan is feasible on the current nodes."""
        return self._infeasible is None

    @property
    def starts_trials(self) -> bool:
        """Whether trials may start: a plan is feasible, or only trials with their own requests wait for nodes."""
        return self.is_feasible or self._waits_for_trial

    @property
    def placements(self) -> list[Placement]:
        """The placements of the slots, better types first, without placements on recently lost nodes."""
        return [placement for placement in self._placements or () if not self._avoided & placement.nodes]

    @property
    def timeout_error(self) -> InfeasibleRequestError | None:
        """The error that ends the run if no plan has been feasible for ``wait_for_nodes_s``, or ``None``."""
        # If a plan is feasible, ``_infeasible`` is ``None``, and so is the result.
        waited_s = time.monotonic() - self._infeasible_since_s
        if waited_s > self._wait_for_nodes_s:
            return self._infeasible
        return None

    def avoid_node(self, node_id: str) -> None:
        """Avoid a node that has just died, because Ray takes seconds to detect its death."""
        self._lost_nodes[node_id] = time.monotonic()

    @property
    def policy(self) -> ResourcePolicy | TrialPlan:
        """The policy, or the plan that was passed instead."""
        if self._policy is None:
            return self.plan
        return self._policy

    @property
    def _policies(self) -> Iterable[ResourcePolicy]:
        """The policy of the run and the policies inside it. A plan that was passed instead has none."""
        if self._policy is None:
            return ()
        return with_inner([self._policy])

    @property
    def learning(self) -> LearningPolicy | None:
        """The policy that learns, which is the policy of the run or inside it, or ``None``."""
        return next((policy for policy in self._policies if isinstance(policy, LearningPolicy)), None)

    @property
    def growing(self) -> GrowingPolicy | None:
        """The policy that lets the last trials grow, which is the policy of the run or inside it, or ``None``."""
        return next((policy for policy in self._policies if isinstance(policy, GrowingPolicy)), None)

    @property
    def capacity(self) -> ClusterCapacity:
        """The nodes of the plan, with the resources that other programs used at the start of the run."""
        return self._capacity

    def learn(self, observations: Sequence[TrialObservation]) -> str:
        """Let the policy learn, and plan again if it has learned something.

        Returns:
            What has changed, as a sentence, or ``""``.
        """
        before = self.learning
        if before is None or self._policy is None:
            return ""
        learned = before.learn(observations)
        # The policy keeps the observations even if they do not change its needs yet.
        self._policy = with_learned(self._policy, learned)
        if learned.needs == before.needs and learned.sizes == before.sizes:
            return ""
        try:
            plan = self._policy.plan(self._capacity)
            why = learned.describe(self._capacity, plan)
        except InfeasibleRequestError as error:
            _logger.warning("the plan does not change, although the policy has learned: %s", error)
            return ""
        self.replan(plan, why)
        return why

    def replan(self, plan: TrialPlan, why: str) -> None:
        """Use ``plan`` from now on, and record the reason for the change."""
        if plan != self.plan:
            _logger.info("%s: %s", why, plan.explain())
            self.plan = plan
            self.slot_types = SlotTypes(plan.slots)
            self.common_factory = plan.common_slot.placement_group_factory()
            self.changes.append(PlanChange(at_s=time.time(), plan=plan, why=why))
        self._infeasible = None
        self._placements = None

    def slot_by_config(self, config: Mapping[str, Any]) -> OwnSlot:
        """Return the slot of a trial with ``config`` under a plan that depends on configs.

        Raises:
            InfeasibleRequestError: The config needs more resources than any slot has.
        """
        slot = self.plan.slot_for(config)
        key = id(slot)  # a fast key, because each step of a run looks up the slots of all waiting trials
        if key not in self._own_slots:
            self._own_slots[key] = OwnSlot(slot, slot.placement_group_factory())
            why = None
            if self.plan.by_config is not None:
                why = self.plan.by_config.why_unknown(config)
            if why is not None:
                _logger.warning("%s: the trial gets %s", why, slot)
        return self._own_slots[key]

    def slot_of_bundles(self, own: PlacementGroupFactory) -> OwnSlot:
        """Return the slot of a trial that keeps its own request.

        Raises:
            InvalidResourcesError: The policy contradicts the trial's request.
            InfeasibleRequestError: The cluster does not have room for one such trial.
        """
        if own not in self._own_slots:
            try:
                slot, group = slot_of_bundles(self.plan, group_of(own), self._capacity)
            # If nodes were lost, the trial may only miss devices that they had, so it waits for nodes instead of
            # failing.
            except InvalidResourcesError as error:
                if not self.have_nodes_changed:
                    raise
                raise InfeasibleRequestError(
                    asked="the devices of its bundles",
                    offered="the remaining nodes have no such devices",
                    short_of="GPU",
                    suggestion="Add nodes, and resume the run.",
                ) from error
            self._own_slots[own] = OwnSlot(slot, with_group(own, group))
        return self._own_slots[own]

    def slot_without_device(self) -> OwnSlot:
        """Return the slot for a trial that cannot use its device.

        The slot is from the policy's first feasible choice without a device.

        Raises:
            InfeasibleRequestError: No choice without a device fits.
        """
        if _WITHOUT_DEVICE in self._own_slots:
            return self._own_slots[_WITHOUT_DEVICE]
        choices: Sequence[ResourcePolicy] = ()
        if self._policy is not None:
            choices = self._policy.choices
        last_error = None
        for choice in choices:
            try:
                slot = choice.plan(self._capacity).common_slot
            except InfeasibleRequestError as error:
                last_error = error
                continue
            if not slot.has_device:
                self._own_slots[_WITHOUT_DEVICE] = OwnSlot(slot, slot.placement_group_factory())
                return self._own_slots[_WITHOUT_DEVICE]
        raise InfeasibleRequestError(
            asked="a slot without a device",
            offered="the policy has no feasible choice without a device",
            short_of="CPU",
            suggestion="Add a choice without a device to the policy, such as | CpuPolicy().",
        ) from last_error

    def fitting_memory(
        self, needed: MemoryFloor, planned: PlacementGroupFactory, node_id: str | None = None
    ) -> MemoryFloor:
        """Return the part of ``needed`` that fits on the nodes of a request.

        Args:
            needed: The minimum memory of a trial.
            planned: The request, to which the memory is added.
            node_id: The only node to which the request is bound, or ``None``.
        """
        key = needed, planned
        if key not in self._fitting_memory:
            nodes = self._capacity.nodes
            if node_id is not None:  # the selector of the request would also find it, but in a large cluster slowly
                nodes = tuple(node for node in nodes if node.node_id == node_id)
            self._fitting_memory[key] = limit_to_nodes(needed, group_of(planned), nodes)
        return self._fitting_memory[key]

    def _used_as_at_start(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Return ``capacity`` with the resources in use at the start of the run instead of the resources in use now.

        The current use would include the run's own trials.
        """
        return capacity.with_nodes(
            node.model_copy(update={"in_use": self._in_use.get(node.node_id)}) for node in capacity.nodes
        )

    def follow_nodes(self, nodes: Sequence[NodeCapacity] | None) -> bool:
        """Update the plan if nodes changed, and return whether the placements changed.

        Args:
            nodes: The latest nodes in Ray's GCS, or ``None`` if they are not known.
        """
        before = self._placements
        # Also for a passed plan, because its placements and the slots of single trials depend on the nodes.
        capacity = self._watch.changed(nodes)
        if capacity is not None:
            self._replan_on(capacity)
        # The placements also change when a lost node is avoided, and when it is used again.
        since_s = time.monotonic() - _AVOID_LOST_NODE_S
        avoided = frozenset(node_id for node_id, at_s in self._lost_nodes.items() if at_s > since_s)
        avoids_others, self._avoided = avoided != self._avoided, avoided
        if self._placements is not None:
            return avoids_others
        self._own_slots.clear()  # the slots of single trials depend on the nodes, too
        self._fitting_memory.clear()
        # Without a feasible plan, a policy places nothing. A passed plan is placed to find out whether it has room
        # again.
        self._placements = ()
        if self.starts_trials or self._policy is None:
            self._placements = self._place_slots(self._capacity)
        # One factory per placement, because requests are compared by identity.
        self.factories = {
            place: self.plan.slots[place.slot_type].placement_group_factory(node_id=place.node_id)
            for place in self._placements
        }
        # A new plan of the policy may have other slots in the same placements.
        return avoids_others or self._policy is not None or self._placements != before

    def _replan_on(self, capacity: ClusterCapacity) -> None:
        before = self._capacity
        why = _describe_change(before, capacity)
        capacity = self._used_as_at_start(capacity)
        self._capacity = capacity
        self.have_nodes_changed = True
        self._placements = None
        if self._policy is None:  # the plan does not change, but its slots are placed again
            return
        try:
            plan = self._policy.plan(capacity)
        except InfeasibleRequestError as error:
            if not self._keeps_plan_on(before, capacity):
                self.wait_for_nodes(error, why)
            return
        except Exception:  # an error in a user's policy must not stop running trials
            _logger.exception("%s: the plan does not change because the policy failed", why)
            return
        # More nodes must not mean fewer trials at once.
        if plan.max_concurrent_trials < self.plan.max_concurrent_trials and self._keeps_plan_on(before, capacity):
            plan = self._with_slots_of_new_nodes(before, capacity)
        self.replan(plan, why)

    def _keeps_plan_on(self, before: ClusterCapacity, capacity: ClusterCapacity) -> bool:
        """Return whether the current plan is still valid, because nodes were only added."""
        if not self.starts_trials:
            return False
        nodes = {node.node_id: node.resources for node in capacity.nodes}
        return all(nodes.get(node.node_id) == node.resources for node in before.nodes)

    def _with_slots_of_new_nodes(self, before: ClusterCapacity, capacity: ClusterCapacity) -> TrialPlan:
        """Return the current plan plus the slots that the policy plans on the new nodes alone.

        A policy such as ``GpuPolicy() | CpuPolicy()`` would plan only the GPU of a new node, so that fewer trials could
        run at once than before.
        """
        assert self._policy is not None  # noqa: S101  # a plan without a policy does not change
        known = {node.node_id for node in before.nodes}
        new = capacity.with_nodes(node for node in capacity.nodes if node.node_id not in known)
        # A cap limits all nodes together, so more slots would exceed it. In a plan by config, each slot belongs to a
        # config.
        is_capped = any(isinstance(part, CappedPolicy) for part in with_inner([self._policy]))
        if is_capped or self.plan.by_config is not None:
            return self.plan
        try:
            return self.plan.with_more_slots(self._policy.plan(new).slots)
        except InfeasibleRequestError:
            return self.plan

    def wait_for_nodes(self, error: InfeasibleRequestError, why: str, *, for_trial: bool = False) -> None:
        """Start no trial until nodes are added, and end the run with ``error`` after ``wait_for_nodes_s`` seconds.

        Args:
            error: The error that ends the run.
            why: The reason for the wait.
            for_trial: Whether only trials with their own requests have no room, so that other trials may start.
        """
        self._waits_for_trial = for_trial
        if self._infeasible is None:
            # Further changes of the nodes must not extend the wait.
            self._infeasible_since_s = time.monotonic()
            text = f"{why}. No plan is feasible, so no trial starts until nodes are added: {error}"
            _logger.warning("%s", text)
            self.changes.append(PlanChange(at_s=time.time(), plan=self.plan, why=text))
        self._infeasible = error

    def stop_waiting_for_trial(self) -> None:
        """End a wait for trials with their own requests, because other trials can run."""
        if self._waits_for_trial:
            self._infeasible = None
            self._waits_for_trial = False

    def _place_slots(self, capacity: ClusterCapacity) -> tuple[Placement, ...]:
        slots = self.plan.slots
        if self._plans_free_capacity:
            capacity = free_part(capacity)
        # If all slots are equal, a slot cannot take the room of another type, whatever node Ray chooses.
        are_equal = len(slots) == 1 and not _could_block_devices(slots[0], capacity)
        has_lost_room = self._has_lost_room(capacity)
        if (are_equal or len(capacity.nodes) <= 1) and not has_lost_room:
            self._infeasible = None
            return tuple(_anywhere(slot_type, slot.max_concurrent_trials) for slot_type, slot in enumerate(slots))
        layout = place_slots(slots, capacity)
        to_come = [slot.max_concurrent_trials - layout.count(slot_type) for slot_type, slot in enumerate(slots)]
        # These requests make the autoscaler add nodes.
        anywhere = [
            _anywhere(slot_type, count) for slot_type, count in enumerate(to_come) if count and self.plan.nodes_to_add
        ]
        placements = tuple(sorted((*layout.places, *anywhere), key=lambda placement: placement.slot_type))
        if placements:
            self._infeasible = None
        else:
            error = InfeasibleRequestError(
                asked=" or ".join(map(str, slots)),
                offered="no remaining node has room for such a trial",
                short_of=self.plan.limited_by,
                suggestion="Add nodes or pass a policy instead of a plan to PolicyScheduler. Then resume the run.",
            )
            self.wait_for_nodes(error, "nodes were removed")
        return placements

    def _has_lost_room(self, capacity: ClusterCapacity) -> bool:
        """Return whether a passed plan had room on the nodes before, but no remaining node has room for a trial."""
        # Without nodes, the cluster could not be read. A policy plans again instead.
        if self._policy is not None or not capacity.nodes:
            return False
        has_room = bool(place_slots(self.plan.slots, capacity).places)
        # A plan that never had room may wait for its first nodes, for example from an autoscaler.
        self._had_room |= has_room
        return self._had_room and not has_room


def _could_block_devices(slot: TrialSlot, capacity: ClusterCapacity) -> bool:
    """Return whether trials without devices could run on nodes with devices while other nodes are free.

    Ray places such trials on any node. If their nodes are assigned, nodes without devices are filled first.
    """
    if slot.has_device or slot.num_workers:
        return False
    have_devices = {bool(DEVICE_RESOURCES & node.resources.ticks.keys()) for node in capacity.nodes}
    return len(have_devices) > 1


def _anywhere(slot_type: int, count: int) -> Placement:
    return Placement(slot_type=slot_type, node_id=None, count=count)


def _describe_change(before: ClusterCapacity, after: ClusterCapacity) -> str:
    known = {node.node_id for node in before.nodes}
    now = {node.node_id for node in after.nodes}
    changes = (("added", now - known), ("removed", known - now))
    parts = [f"{counted(len(ids), 'node')} {verb}" for verb, ids in changes if ids]
    return " and ".join(parts) or "the resources of a node changed"
