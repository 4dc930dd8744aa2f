"""Keeps the plan of a run up to date as nodes come and go, and says where its slots are."""

import logging
import time
from typing import Final

from ray.tune import PlacementGroupFactory

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.layout import Placement, place_slots
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.units import is_number
from tune_policies.values.value import Value

from .node_watch import NodeWatch
from .slot_assignment import SlotKinds

_logger = logging.getLogger(__name__)

_AVOID_LOST_NODE_S: Final = 60.0
"""How long a node that lost a trial gets no other. By then Ray counts the node as dead, or it answers again."""


class PlanChange(Value):
    """A plan that replaced another while trials ran.

    Attributes:
        at_s: When, in seconds since 1970.
        plan: The plan from then on; where no plan is possible, the last one that was.
        why: What changed, in a sentence.
    """

    at_s: float
    plan: TrialPlan
    why: str


class RunPlan:
    """The plan of a run, made anew as nodes come, go or change.

    Args:
        plan: The first plan.
        policy: Plans anew when nodes come, go or change; ``None``: the plan stays, on the nodes that there are.
        interval_s: How often the nodes are read, in seconds.
        wait_for_nodes_s: For how long there may be no plan, in seconds.

    Raises:
        InvalidResourcesError: The plan goes by configs.
    """

    def __init__(
        self, plan: TrialPlan, policy: ResourcePolicy | None, *, interval_s: float, wait_for_nodes_s: float
    ) -> None:
        self.plan = _check_plan(plan)
        self.kinds = SlotKinds(plan.slots)
        self.changes: list[PlanChange] = []
        self.factories: dict[tuple[int, str | None], PlacementGroupFactory] = {}
        self._placements: tuple[Placement, ...] | None = None
        self._policy = policy
        self._watch = NodeWatch(interval_s, probes=policy is not None)
        self._capacity: ClusterCapacity | None = None
        self._had_earlier_run = False
        self._is_for_other_nodes = False
        self._lost_nodes: dict[str, float] = {}
        self._wait_for_nodes_s = wait_for_nodes_s
        self._infeasible: InfeasibleRequestError | None = None
        self._infeasible_since_s = 0.0

    def begin(self) -> None:
        """Begin a run, and forget what an earlier run knew of the nodes."""
        self._had_earlier_run = self._capacity is not None
        self._placements = self._capacity = self._infeasible = None
        self._lost_nodes = {}

    @property
    def placements(self) -> list[Placement]:
        """Where the slots are, the better kinds first; without the nodes that have just lost a trial."""
        since_s = time.monotonic() - _AVOID_LOST_NODE_S
        lost = {node_id for node_id, at_s in self._lost_nodes.items() if at_s > since_s}
        return [placement for placement in self._placements or () if placement.node_id not in lost]

    @property
    def timeout_error(self) -> InfeasibleRequestError | None:
        """The error with which the run ends: no plan has been possible for too long; ``None``: the run goes on."""
        waited_s = time.monotonic() - self._infeasible_since_s
        return self._infeasible if waited_s > self._wait_for_nodes_s else None

    def avoid_node(self, node_id: str) -> None:
        """Give no trial to a node that just died: Ray takes seconds to count it as dead."""
        self._lost_nodes[node_id] = time.monotonic()

    def replan(self, plan: TrialPlan, why: str) -> None:
        """Use ``plan`` from now on.

        Raises:
            InvalidResourcesError: The plan goes by configs.
        """
        plan = _check_plan(plan)
        if plan != self.plan:
            _logger.info("%s: %s", why, plan.explain())
            self.plan = plan
            self.kinds = SlotKinds(plan.slots)
            self.changes.append(PlanChange(at_s=time.time(), plan=plan, why=why))
        self._infeasible = None
        self._placements = None

    def follow_nodes(self, *, is_resumed: bool) -> bool:
        """Bring the plan up to date with the nodes; return whether placements were made anew. Does not wait.

        Args:
            is_resumed: Whether Tune resumed the run. The policy may then have planned for other nodes.
        """
        if self._policy is not None or len(self.plan.slots) > 1:
            if self._capacity is None:
                self._capacity = self._watch.read_now() or ClusterCapacity()
                self._is_for_other_nodes = is_resumed or self._had_earlier_run
                if self._is_for_other_nodes:
                    self._watch.forget()
            elif (capacity := self._watch.changed()) is not None:
                self._plan_anew(capacity)
        if self._placements is not None:
            return False
        self._placements = (
            () if self._infeasible is not None else self._place_slots(self._capacity or ClusterCapacity())
        )
        self.factories = {
            (each.slot_type, each.node_id): self.plan.slots[each.slot_type].placement_group_factory(
                node_id=each.node_id
            )
            for each in self._placements
        }
        return True

    def _plan_anew(self, capacity: ClusterCapacity) -> None:
        why = "the run goes on" if self._is_for_other_nodes else _what_changed(self._capacity, capacity)
        self._capacity, self._is_for_other_nodes = capacity, False
        self._placements = None
        if self._policy is None:
            self._infeasible = None
            return
        try:
            self.replan(self._policy.plan(capacity), why)
        except InfeasibleRequestError as error:
            self._wait_for_nodes(error, why)
        except Exception:  # a policy is anybody's code, and must not end trials that have run for hours
            _logger.exception("%s: the plan stays as it was, as the policy failed", why)

    def _wait_for_nodes(self, error: InfeasibleRequestError, why: str) -> None:
        if self._infeasible is None:
            self._infeasible_since_s = time.monotonic()
            text = f"{why}: no plan is possible, and nothing starts until nodes come: {error}"
            _logger.warning("%s", text)
            self.changes.append(PlanChange(at_s=time.time(), plan=self.plan, why=text))
        self._infeasible = error

    def _place_slots(self, capacity: ClusterCapacity) -> tuple[Placement, ...]:
        slots = self.plan.slots
        if len(slots) == 1 or len(capacity.nodes) <= 1:
            return tuple(_anywhere(kind, slot.max_concurrent_trials) for kind, slot in enumerate(slots))
        layout = place_slots(slots, capacity)
        to_come = [slot.max_concurrent_trials - layout.count(kind) for kind, slot in enumerate(slots)]
        # The autoscaler adds nodes for what is requested.
        anywhere = [_anywhere(kind, count) for kind, count in enumerate(to_come) if count and self.plan.nodes_to_add]
        placements = tuple(sorted((*layout.places, *anywhere), key=lambda placement: placement.slot_type))
        if not placements:
            self._wait_for_nodes(_none_fits(self.plan), "nodes went")
        return placements


def _anywhere(kind: int, count: int) -> Placement:
    return Placement(slot_type=kind, node_id=None, count=count)


def _none_fits(plan: TrialPlan) -> InfeasibleRequestError:
    return InfeasibleRequestError(
        asked=" or ".join(map(str, plan.slots)),
        offered="no node that is left has room for it",
        short_of=plan.limited_by,
        suggestion="Add nodes, or give PolicyScheduler a policy= that has a plan for what is left, and resume the run.",
    )


def _what_changed(before: ClusterCapacity | None, after: ClusterCapacity) -> str:
    known = {node.node_id for node in before.nodes} if before else set()
    now = {node.node_id for node in after.nodes}
    parts = [
        f"{len(ids)} {'node' if len(ids) == 1 else 'nodes'} {verb}"
        for ids, verb in ((now - known, "came"), (known - now, "went"))
        if ids
    ]
    return " and ".join(parts) or "what a node has changed"


def _check_plan(plan: TrialPlan) -> TrialPlan:
    if plan.by_config is not None:
        raise InvalidResourcesError(
            "PolicyScheduler gives trials the slots of a plan, but this plan gives each trial what its config needs: "
            "pass with_plan(trainable, plan) to Tune without PolicyScheduler, or plan without a profile or a decision"
        )
    return plan


def check_seconds(seconds: float, name: str) -> float:
    """Return ``seconds`` if it is a number above 0, else raise ``InvalidResourcesError``."""
    if not is_number(seconds) or not seconds > 0:
        raise InvalidResourcesError(f"{name} must be above 0 seconds, got {seconds!r}")
    return float(seconds)
