"""Whether the processes of a group are there together, so that they can take turns, and what each of them reserves."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tune_policies import ClusterCapacity, TrialPlan
from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import NODE_ID
from tune_policies.placement.layout import place_slots
from tune_policies.plan.trial_slot import TrialSlot

from ..record.run_set import Arm
from .interleaving import Group


class Seating(NamedTuple):
    """How the processes of a group share the cluster.

    Attributes:
        is_together: Whether all are there at once and take turns; else one comes after the other.
        shares_cpus_on: The node on which they have the same CPUs, used by the one whose turn it is; ``None``: each has
            its own.
    """

    is_together: bool
    shares_cpus_on: str | None = None

    def options(self, arm: Arm, plan: TrialPlan, group: Group) -> dict[str, Any]:
        """Return what Ray reserves for the process of an arm, as its options for an actor."""
        if self.shares_cpus_on is None:
            return plan.remote_options()
        own = {} if arm == _holder(group) else {"num_cpus": 0}
        return plan.on_nodes({NODE_ID: self.shares_cpus_on}).remote_options() | own


def seat(group: Group, plans: Mapping[str, TrialPlan], capacity: ClusterCapacity) -> Seating:
    """Return how the processes of a group share the cluster: the best way that fits, by arithmetic.

    They have all that they reserve at once; else, on one node, the same CPUs; else they come one after the other.

    Args:
        group: What is measured.
        plans: What a trial on each device reserves, by the device's name.
        capacity: The cluster.
    """
    if _holds([plans[arm.device].slots[0] for arm in group.arms], capacity):
        return Seating(is_together=True)
    slots = [plans[arm.device].slots[0] for arm in group.arms]
    cpus = max(slot.worker.cpus for slot in slots)
    sharing = [_without_cpus(slot) for slot in slots if _has_device(slot)]  # the others reserve nothing then
    for node in sorted(capacity.nodes, key=lambda node: node.node_id):
        if node.resources.cpus >= cpus and _holds(sharing, capacity.with_nodes([node])):
            return Seating(is_together=True, shares_cpus_on=node.node_id)
    return Seating(is_together=False)


def _holder(group: Group) -> Arm:
    """Return the arm whose process holds the CPUs that all share: the first that needs a device beside them."""
    return next((arm for arm in group.arms if arm.device != "cpu"), group.arms[0])


def _holds(slots: Iterable[TrialSlot], capacity: ClusterCapacity) -> bool:
    """Return whether the alive nodes hold all of these trials at once."""
    # Trials with devices first: those without could else be counted on the CPUs that they need.
    wanted = list(_counted(sorted(slots, key=lambda slot: not _has_device(slot))))
    layout = place_slots(wanted, capacity.model_copy(update={"node_types": ()}))
    return all(layout.count(slot_type) == slot.max_concurrent_trials for slot_type, slot in enumerate(wanted))


def _counted(slots: Iterable[TrialSlot]) -> Iterator[TrialSlot]:
    """Yield each kind of slot once, for as many trials as there are of it."""
    kinds: list[tuple[TrialSlot, int]] = []
    for slot in slots:
        number = next((index for index, (kind, _) in enumerate(kinds) if kind == slot), len(kinds))
        kinds[number:] = [(slot, kinds[number][1] + 1 if number < len(kinds) else 1), *kinds[number + 1 :]]
    for slot, count in kinds:
        yield slot.model_copy(update={"max_concurrent_trials": count})


def _has_device(slot: TrialSlot) -> bool:
    return bool(DEVICE_RESOURCES & slot.worker.ticks.keys())


def _without_cpus(slot: TrialSlot) -> TrialSlot:
    return slot.model_copy(update={"trial": slot.trial.replaced(cpus=0)})
