"""Tests whether a real Ray cluster schedules all trials of a plan concurrently, but no further trial.

A trial is represented by the placement groups that Tune and Train would request. The raylets are real, and their GPUs
are simulated.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import ray
from ray.cluster_utils import Cluster
from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from tune_policies import ClusterCapacity, NodeCapacity, TrialPlan, TrialSlot
from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.placement.layout import place_slots
from tune_policies.values.resources import TICKS

from .random_clusters import Strategy

_OBJECT_STORE_BYTES: Final = 80 * 2**20
_ATTEMPTS_TO_START: Final = 3
"""The number of attempts to start a cluster. On a busy machine, a node may exceed Ray's fixed timeout of 30 s."""


@contextmanager
def cluster_like(capacity: ClusterCapacity) -> Iterator[None]:
    """Start and connect to a cluster that has a raylet with the same node ID for each node of ``capacity``.

    Raises:
        RuntimeError: Ray does not start the nodes.
    """
    # Suppress Ray's warnings about each address that it writes and about NPUs that do not exist.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    cluster = _started(capacity, _ATTEMPTS_TO_START)
    try:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _started(capacity: ClusterCapacity, attempts: int) -> Cluster:
    cluster = Cluster()
    try:
        for node in capacity.nodes:
            cluster.add_node(wait=False, **_node_arguments(node))
        cluster.wait_for_nodes()
    except Exception as error:  # Ray does not raise a more specific error
        cluster.shutdown()
        if attempts == 1:
            raise RuntimeError(f"Ray did not start {len(capacity.nodes)} nodes: {error}") from error
        return _started(capacity, attempts - 1)
    return cluster


def _node_arguments(node: NodeCapacity) -> dict[str, Any]:
    has = node.resources
    typed = {ACCELERATOR_TYPE_PREFIX + node.accelerator_type: 1} if node.accelerator_type else {}
    return {
        "num_cpus": int(has.cpus),
        "num_gpus": int(has.gpus),
        "memory": has.memory_bytes,
        "resources": {**has.custom, **typed},
        "labels": dict(node.labels),
        # The IDs must be the same as in the capacity, because policies exclude nodes by ID.
        "env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": node.node_id},
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
        # The trials do not need the autoscaler and the log monitor.
        "no_monitor": True,
        "include_log_monitor": False,
    }


def nodes_that_differ(capacity: ClusterCapacity) -> list[str]:
    """Return a sentence for each node whose total resources or labels in Ray differ from ``capacity``."""
    seen = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    differ = []
    for node in capacity.nodes:
        expected = {
            name: amount if name == "memory" else amount / TICKS for name, amount in node.resources.ticks.items()
        }
        if node.accelerator_type:
            expected[ACCELERATOR_TYPE_PREFIX + node.accelerator_type] = 1
        found = seen.get(node.node_id, {"Resources": {}, "Labels": {}})
        # Ray adds the object store memory, and resources named after the node's address.
        totals = dict(found["Resources"])
        for name in found["Resources"]:
            if name == "object_store_memory" or name.startswith("node:"):
                del totals[name]
        if totals != expected or not node.ray_labels.items() <= found["Labels"].items():
            differ.append(f"{node.node_id}: {totals} instead of {expected}, labels {found['Labels']}")
    return differ


def disagreement(plan: TrialPlan, strategy: Strategy, *, fills: bool, timeout_s: float = 20) -> str | None:
    """Return a sentence about how Ray disagrees with a plan with one slot type, or ``None`` if Ray agrees.

    Args:
        plan: The plan.
        strategy: Train's placement strategy for the workers of a trial.
        fills: Whether no further trial fits according to the plan.
        timeout_s: The time to wait for Ray, in seconds. Ray usually takes 0.1 s and retries within a second.

    Raises:
        TimeoutError: Ray does not free the resources of the trials.
    """
    planned = [partial(trial_groups, plan, strategy)] * plan.max_concurrent_trials
    one_more = planned[:1] if fills else []
    return _disagreement(planned, one_more, timeout_s)


def disagreement_of_types(
    plan: TrialPlan, capacity: ClusterCapacity, strategy: Strategy, *, filled: Collection[int], timeout_s: float = 20
) -> str | None:
    """Return a sentence about how Ray disagrees with a plan with several slot types, or ``None`` if Ray agrees.

    As under ``PolicyScheduler``, each trial requests the node of its slot, and the nodes of its Train workers.
    ``filled`` contains the indices of the slot types for which no further trial fits. See also :func:`disagreement`.
    """
    layout = place_slots(plan.slots, capacity)
    planned = []
    for slot_type, slot in enumerate(plan.slots):
        if layout.count(slot_type) < slot.max_concurrent_trials:
            return f"only {layout.count(slot_type)} of {slot.max_concurrent_trials} slots have a node: {slot}"
    for place in layout.places:
        slot = plan.slots[place.slot_type]
        factory = slot.placement_group_factory(node_id=place.node_id)
        placed = slot.model_copy(update={"worker_nodes": place.worker_nodes or slot.worker_nodes})
        planned += [partial(_slot_groups, placed, factory, strategy)] * place.count
    one_more = [
        partial(_slot_groups, plan.slots[slot_type], plan.slots[slot_type].placement_group_factory(), strategy)
        for slot_type in sorted(filled)
    ]
    return _disagreement(planned, one_more, timeout_s)


def trial_groups(plan: TrialPlan, strategy: Strategy) -> Iterator[PlacementGroup]:
    """Reserve the placement groups of one trial, as Tune does without ``PolicyScheduler``."""
    per_trial = plan.resources_per_trial
    factory = per_trial if isinstance(per_trial, PlacementGroupFactory) else resource_dict_to_pg_factory(per_trial)
    yield from _slot_groups(plan.slots[0], factory, strategy)


def _slot_groups(slot: TrialSlot, factory: PlacementGroupFactory, strategy: Strategy) -> Iterator[PlacementGroup]:
    """Reserve the placement groups of one trial: one as Tune does, and one for the workers as Train does."""
    yield factory.to_placement_group()
    if slot.num_workers:
        bundle = {name: amount for name, amount in slot.resources_per_worker.items() if amount}
        if slot.accelerator_type:
            bundle[ACCELERATOR_TYPE_PREFIX + slot.accelerator_type] = ACCELERATOR_TYPE_AMOUNT
        # As in ScalingConfig: one selector for all workers, or one for each worker.
        selector = slot.scaling_fields.get("label_selector")
        selectors = [selector] * slot.num_workers if isinstance(selector, dict) else selector
        yield placement_group([bundle] * slot.num_workers, strategy=strategy, bundle_label_selector=selectors)


Reserve = Callable[[], Iterator[PlacementGroup]]
"""A function that reserves the placement groups of one trial and yields them."""


def _disagreement(planned: Sequence[Reserve], one_more: Sequence[Reserve], timeout_s: float) -> str | None:
    """Return a sentence about how Ray disagrees with the planned trials, or ``None`` if Ray agrees.

    Ray should schedule all trials of ``planned`` concurrently, and then none of ``one_more``.
    """
    with _reservations() as reserve:
        groups = [group for trial in planned for group in reserve(trial)]
        if not _becomes_true_within(timeout_s, lambda: all(map(_is_scheduled, groups))):
            waiting = [placement_group_table(group) for group in groups if not _is_scheduled(group)]
            counts = f"{len(waiting)} of {len(groups)} placement groups wait"
            return f"{len(planned)} trials are planned, but {counts}: {waiting[0]['bundles']}, {waiting[0]['stats']}"
        for trial in one_more:
            more = reserve(trial)
            if not _becomes_true_within(timeout_s, partial(_are_settled, more)):
                return (
                    f"Ray has not tried to schedule a further trial: {[placement_group_table(group) for group in more]}"
                )
            if all(map(_is_scheduled, more)):
                found = placement_group_table(more[-1])["bundles"]
                return f"{len(planned)} trials are planned, but Ray schedules a further trial: {found}"
        return None


@contextmanager
def _reservations() -> Iterator[Callable[[Reserve], list[PlacementGroup]]]:
    """Yield a function that reserves a trial. On exit, remove all groups and wait until their resources are free."""
    groups: list[PlacementGroup] = []
    before = _available()

    def reserve(trial: Reserve) -> list[PlacementGroup]:
        added = list(trial())
        groups.extend(added)
        return added

    try:
        yield reserve
    finally:
        for group in groups:
            remove_placement_group(group)
        if not _becomes_true_within(30, lambda: _available() == before):
            raise TimeoutError(f"Ray did not free the resources of the trials: {before} before, {_available()} after")


def _available() -> dict[str, float]:
    """Return the free resources without bundle resources. Ray 2.50 can leak 0.0001 of a bundle's resources."""
    # Round the amounts, because Ray adds up fractions as floats.
    return {name: round(amount, 4) for name, amount in ray.available_resources().items() if "_group_" not in name}


def _is_scheduled(group: PlacementGroup) -> bool:
    return bool(placement_group_table(group)["state"] == "CREATED")


def _are_settled(groups: Sequence[PlacementGroup]) -> bool:
    return all(map(_is_settled, groups))


def _is_settled(group: PlacementGroup) -> bool:
    """Return whether Ray has placed the group, or has tried to place it at least twice."""
    table = placement_group_table(group)
    stats = table["stats"]
    is_infeasible = stats["scheduling_state"] == "INFEASIBLE"  # Ray does not retry infeasible groups
    return bool(table["state"] == "CREATED" or stats["scheduling_attempt"] >= 2 or is_infeasible)


def _becomes_true_within(timeout_s: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
