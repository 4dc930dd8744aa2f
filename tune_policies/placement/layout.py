"""Places the slots of a plan on nodes, and computes the remaining capacity for further slots.

A plan with several slot types is only valid if every trial runs on the node for which it was planned. Otherwise, a CPU
trial could use the CPUs of a free GPU slot, and no GPU trial could start in that slot. So each slot is assigned to a
node, and the slots of a node fit on it in any order. Ray may spread device fractions over all devices of a node.
Therefore, if slots reserve fractions, no other slot type may use the devices of that node. Slots of several types can
share a node if they reserve whole devices.

Train could place all workers of a trial on one node, even if slots of other types need the resources of this node. So a
trial with Train workers is assigned a node for its driver and for each worker. A TPU slice cannot be assigned, because
Train reserves any free slice.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.count_trials import with_rounded_memory
from tune_policies.placement.fill_nodes import FilledSlots, Placement, RemainingCapacity
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.value import Value


class Layout(Value):
    """The placements of a plan's slots, in the order of the slot types."""

    places: tuple[Placement, ...]

    def count(self, slot_type: int) -> int:
        """Return the number of slots of a type."""
        return sum(place.count for place in self.places if place.slot_type == slot_type)


def place_slots(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> Layout:
    """Place the slots on nodes, and return the layout.

    On the capacity that was used for planning, all slots are placed. On another capacity, as many slots as fit are
    placed, in the order of the types. Slots that do not fit on the alive nodes are placed on nodes that can be added.
    """
    places: list[Placement] = []
    for slot_type, slots in enumerate(_fill_with_added(plan_slots, capacity)):
        places += slots.placements(slot_type)
    return Layout(places=tuple(places))


def with_places(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> tuple[TrialSlot, ...]:
    """Return the slots that fit a cluster, at most as many as planned."""
    filled = _fill_with_added(plan_slots, capacity)
    return tuple(slots.slot.capped(slots.num_trials) for slots in filled if slots.num_trials)


def _fill_with_added(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> list[FilledSlots]:
    filled = _fill(plan_slots, capacity)
    # In the worst case, each worker of a missing trial needs a node of its own.
    most = 0
    for slots in filled:
        missing = slots.slot.max_concurrent_trials - slots.num_trials
        most += missing * max(1, slots.slot.num_workers)
    if capacity.max_nodes_to_add is not None:
        most = min(most, capacity.max_nodes_to_add)
    to_add = {node_type.name: min(most, node_type.max_nodes_to_add) for node_type in capacity.node_types or ()}
    if any(to_add.values()):
        return _fill(plan_slots, capacity.with_nodes_added(to_add))
    return filled


def _fill(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> list[FilledSlots]:
    wanted = sum(slot.max_concurrent_trials for slot in plan_slots)
    best: list[FilledSlots] = []
    for seen in _possible_shapes(plan_slots, capacity):
        filled: list[FilledSlots] = []
        for slot in plan_slots:
            left = filled[-1].left() if filled else RemainingCapacity.all_of(seen)
            filled.append(left.fill(slot))
        best = max(best or filled, filled, key=_num_trials)  # returns the first of several equal results
        if _num_trials(best) == wanted:
            break
    return best


def _num_trials(filled: Iterable["FilledSlots"]) -> int:
    return sum(slots.num_trials for slots in filled)


def _possible_shapes(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> Iterator[ClusterCapacity]:
    """Yield the cluster with its host memory rounded so that few node shapes remain, and then with more shapes.

    Slots with a label selector fit only if the nodes are filled in the same order as in planning. That order may come
    from a policy that distinguishes more shapes, even if the policy has no slots in the plan.
    """
    if any(slot.worker.memory_bytes is not None for slot in plan_slots):
        yield capacity  # the exact host memory determines how many workers fit
        return
    most_workers = max((slot.num_workers for slot in plan_slots), default=0)
    rounded = with_rounded_memory(capacity, memory=None, num_workers=most_workers)
    yield rounded
    if not any(slot.label_selector for slot in plan_slots):
        return
    with_drivers = with_rounded_memory(capacity, memory=None, num_workers=1)
    if with_drivers is not rounded:
        yield with_drivers
    if with_drivers is not capacity:
        yield capacity


class NodeWorkers(NamedTuple):
    """A node and its number of workers of each slot type."""

    node: NodeCapacity
    workers: tuple[int, ...]


def workers_on_nodes(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> list[NodeWorkers]:
    """Return the number of workers of each slot type on each node, including expected nodes.

    If a plan has only one slot type, the result is one possible placement, because Ray may choose other nodes.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(plan_slots))
    for slot_type, filled in enumerate(_fill(plan_slots, capacity)):
        for run in filled.runs:
            for node in run.nodes:
                found[node.node_id][slot_type] += run.per_node
    none = (0,) * len(plan_slots)
    return [NodeWorkers(node, tuple(found.get(node.node_id, none))) for node in capacity.nodes]
