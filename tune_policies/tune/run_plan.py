"""The plan of a run: where its slots are, and what takes its place as nodes come and go."""

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
from .slot_assignment import Kinds

_logger = logging.getLogger(__name__)

_LOST_S: Final = 60.0
"""For how long a node with which a trial was lost gets none: by then Ray counts it as dead, or it answers again."""


class PlanChange(Value):
    """A plan that took the place of another while trials ran.

    Attributes:
        at_s: When, in seconds since 1970.
        plan: What holds from then on; where no plan is possible, the last one that was.
        why: What changed, in a sentence.
    """

    at_s: float
    plan: TrialPlan
    why: str


class RunPlan:
    """The plan of a run, which follows the nodes.

    Args:
        plan: The first.
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
        self.kinds = Kinds(plan.slots)
        self.changes: list[PlanChange] = []
        self.factories: dict[tuple[int, str | None], PlacementGroupFactory] = {}
        self._places: tuple[Placement, ...] | None = None
        self._policy = policy
        self._watch = NodeWatch(interval_s, probes=policy is not None)
        self._capacity: ClusterCapacity | None = None
        self._had_a_run = False
        self._is_for_others = False
        self._lost_nodes: dict[str, float] = {}
        self._wait_for_nodes_s = wait_for_nodes_s
        self._impossible: InfeasibleRequestError | None = None
        self._impossible_since_s = 0.0

    def begin(self) -> None:
        """Begin with a run; what an earlier one knew of the nodes may not be so any more."""
        self._had_a_run = self._capacity is not None
        self._places = self._capacity = self._impossible = None
        self._lost_nodes = {}

    @property
    def places(self) -> list[Placement]:
        """Where the slots are, those of the better kinds first; none on nodes with which trials were just lost."""
        since_s = time.monotonic() - _LOST_S
        lost = {node_id for node_id, at_s in self._lost_nodes.items() if at_s > since_s}
        return [place for place in self._places or () if place.node_id not in lost]

    @property
    def overdue(self) -> InfeasibleRequestError | None:
        """Why there is no plan, once that has been so for too long; ``None``: there is one, or one may still come."""
        waited_s = time.monotonic() - self._impossible_since_s
        return self._impossible if waited_s > self._wait_for_nodes_s else None

    def lost(self, node_id: str) -> None:
        """Take note that a node died, before Ray itself counts it as dead."""
        self._lost_nodes[node_id] = time.monotonic()

    def replan(self, plan: TrialPlan, why: str) -> None:
        """Take ``plan`` from now on.

        Raises:
            InvalidResourcesError: The plan goes by configs.
        """
        plan = _check_plan(plan)
        if plan != self.plan:
            _logger.info("%s: %s", why, plan.explain())
            self.plan = plan
            self.kinds = Kinds(plan.slots)
            self.changes.append(PlanChange(at_s=time.time(), plan=plan, why=why))
        self._impossible = None
        self._places = None

    def follow_nodes(self, *, is_resumed: bool) -> bool:
        """Bring the plan up to date with the nodes; whether the places are others than they were. Does not wait.

        Args:
            is_resumed: Whether the run is one that goes on, for whose nodes the policy has not planned perhaps.
        """
        if self._policy is not None or len(self.plan.slots) > 1:
            if self._capacity is None:
                self._capacity = self._watch.read_now() or ClusterCapacity()
                self._is_for_others = is_resumed or self._had_a_run
                if self._is_for_others:
                    self._watch.forget()
            elif (capacity := self._watch.changed()) is not None:
                self._plan_anew(capacity)
        if self._places is not None:
            return False
        self._places = () if self._impossible is not None else self._lay_out(self._capacity or ClusterCapacity())
        self.factories = {
            (place.kind, place.node_id): self.plan.slots[place.kind].placement_group_factory(node_id=place.node_id)
            for place in self._places
        }
        return True

    def _plan_anew(self, capacity: ClusterCapacity) -> None:
        why = "the run goes on" if self._is_for_others else _what_changed(self._capacity, capacity)
        self._capacity, self._is_for_others = capacity, False
        self._places = None
        if self._policy is None:
            self._impossible = None
            return
        try:
            self.replan(self._policy.plan(capacity), why)
        except InfeasibleRequestError as error:
            self._wait_for_nodes(error, why)
        except Exception:  # a policy is anybody's code, and must not end trials that have run for hours
            _logger.exception("%s: the plan stays as it was, as the policy failed", why)

    def _wait_for_nodes(self, error: InfeasibleRequestError, why: str) -> None:
        if self._impossible is None:
            self._impossible_since_s = time.monotonic()
            text = f"{why}: no plan is possible, and nothing starts until nodes come: {error}"
            _logger.warning("%s", text)
            self.changes.append(PlanChange(at_s=time.time(), plan=self.plan, why=text))
        self._impossible = error

    def _lay_out(self, capacity: ClusterCapacity) -> tuple[Placement, ...]:
        slots = self.plan.slots
        if len(slots) == 1 or len(capacity.nodes) <= 1:
            return tuple(_anywhere(kind, slot.max_concurrent_trials) for kind, slot in enumerate(slots))
        layout = place_slots(slots, capacity)
        to_come = [slot.max_concurrent_trials - layout.count(kind) for kind, slot in enumerate(slots)]
        # The autoscaler adds nodes for what is requested.
        anywhere = [_anywhere(kind, count) for kind, count in enumerate(to_come) if count and self.plan.nodes_to_add]
        places = tuple(sorted((*layout.places, *anywhere), key=lambda place: place.kind))
        if not places:
            self._wait_for_nodes(_none_fits(self.plan), "nodes went")
        return places


def _anywhere(kind: int, count: int) -> Placement:
    return Placement(kind=kind, node_id=None, count=count)


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
