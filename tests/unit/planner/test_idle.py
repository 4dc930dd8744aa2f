"""Tests of the idle resources of a plan and their reasons. The used and the idle amounts add up to the total."""

from collections import Counter

import pytest
from hypothesis import given

from tests.clusters import GIB, gpu_node, nodes
from tests.unit.strategies import clusters, plan_or_skip, wrapped
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.idle import Why, idle, idle_to_show
from tune_policies.plan.trial_plan import TrialPlan

TYPED = ClusterCapacity.of(
    gpu_node("a", gpus=2, cpus=8, accelerator_type="A100"), gpu_node("t", gpus=4, cpus=16, accelerator_type="T4")
)


def explained(capacity, policy):
    return [str(part) for part in idle(capacity, policy.plan(capacity))]


IDLE = {
    "nothing in a full cluster": (nodes((8, 2)), GpuPolicy(cpus=4), []),
    "GPUs without CPUs": (nodes((4, 8)), GpuPolicy(cpus=2), ["6 of 8 GPUs: no CPU is left on their nodes"]),
    "too few CPUs": (
        nodes((5, 8)),
        GpuPolicy(cpus=2),
        ["1 of 5 CPUs: too little for one more trial", "6 of 8 GPUs: too little CPU is left on their nodes"],
    ),
    "CPUs of nodes without GPUs": (
        nodes((8, 1), (4, 0)),
        GpuPolicy(cpus=2),
        ["10 of 12 CPUs: no GPU is left on their nodes"],
    ),
    "resources that fractions leave": (
        nodes((8, 1)),
        GpuPolicy(gpus=0.3, cpus=1),
        ["5 of 8 CPUs: no GPU is left on their nodes", f"0.0001 of 1 GPU: {Why.ROUNDING}"],
    ),
    "resources that no trial requests": (nodes((4, 3)), CpuPolicy(cpus=1), ["3 of 3 GPUs: no trial requests GPU"]),
    "nodes of another type": (
        TYPED,
        GpuPolicy(cpus=4, accelerator_type="A100"),
        ["16 of 24 CPUs: on nodes of a type other than A100", "4 of 6 GPUs: on nodes of a type other than A100"],
    ),
    "nodes excluded by a selector": (
        TYPED,
        SelectingPolicy(GpuPolicy(cpus=4), label_selector={"ray.io/node-id": "a"}),
        [
            "16 of 24 CPUs: on nodes that the plan's label selector excludes",
            "4 of 6 GPUs: on nodes that the plan's label selector excludes",
        ],
    ),
    "a cap": (
        nodes((8, 0)),
        CappedPolicy(CpuPolicy(cpus=2), 3),
        ["2 of 8 CPUs: not needed, because max_concurrent_trials limits the number of trials"],
    ),
    "reserved resources": (
        nodes((8, 0)),
        ReservingPolicy(CpuPolicy(cpus=2), cpus=2),
        ["2 of 8 CPUs: reserved for others by the policy"],
    ),
    "devices next to reserved resources": (
        nodes((8, 1), (8, 1)),
        ReservingPolicy(GpuPolicy(gpus=0.25, cpus=1), cpus=11),
        [
            "11 of 16 CPUs: reserved for others by the policy",
            "0.75 of 2 GPUs: more trials would need resources that the policy reserves for others",
        ],
    ),
    "more than the reserved resources": (
        nodes((8, 0)),
        ReservingPolicy(CpuPolicy(cpus=3), cpus=1),
        ["1 of 8 CPUs: reserved for others by the policy", "1 of 8 CPUs: too little for one more trial"],
    ),
    "reserved resources with several slot types": (
        nodes((8, 2), (8, 0)),
        ReservingPolicy(MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=4)), cpus=4),
        ["4 of 16 CPUs: reserved for others by the policy", "2 of 16 CPUs: too little for one more trial"],
    ),
    "remaining resources, and too few workers": (
        nodes((5, 0), (5, 0), (5, 0)),
        CpuPolicy(cpus=2, num_workers=4),
        ["4 of 15 CPUs: too little for one more trial", "3 of 15 CPUs: too little for one more worker"],
    ),
    "nodes that differ only in their host memory": (
        ClusterCapacity.of(*(Resources(cpus=4, memory_bytes=8 * GIB + more) for more in (0, 2**20, 2 * GIB, 8 * GIB))),
        CpuPolicy(cpus=1, memory="4GiB"),
        [
            "4 of 16 CPUs: no memory is left on their nodes",
            "2 of 16 CPUs: too little memory is left on their nodes",
            "2 GiB of 42 GiB of host memory: too little for one more trial",
        ],
    ),
    "host memory next to drivers": (
        ClusterCapacity.of(Resources(cpus=4, memory_bytes=8 * GIB + 3 * 2**20)),
        CpuPolicy(cpus=2, memory="4GiB", num_workers=1),
        ["1 MiB of 8 GiB of host memory: too little for one more worker"],
    ),
}


@pytest.mark.parametrize(("capacity", "policy", "expected"), IDLE.values(), ids=IDLE)
def test_idle_resources_have_a_reason(capacity, policy, expected):
    assert explained(capacity, policy) == expected


def test_amounts_that_come_from_rounding_are_not_shown():
    capacity = nodes((2, 0))
    plan = TrialPlan(slots=(TrialSlot(trial=Resources(cpus=0.6666), max_concurrent_trials=3),), limited_by="CPU")

    assert [part.amount for part in idle(capacity, plan)] == [0.0002]
    assert idle_to_show(capacity, plan) == ()


def test_less_memory_than_a_request_can_contain_is_not_shown():
    capacity = ClusterCapacity.of(Resources(cpus=2, memory_bytes=2 * GIB + 7))

    plan = CpuPolicy(cpus=1, memory="1GiB").plan(capacity)

    assert [(part.resource, part.amount) for part in idle(capacity, plan)] == [("memory", 7)]
    assert idle_to_show(capacity, plan) == ()
    assert plan.explain(capacity).endswith("nothing stays idle")


def test_resources_of_added_nodes_are_included():
    gpu_type = NodeTypeCapacity(name="gpu", resources=Resources(cpus=8, gpus=2), max_nodes_to_add=3)
    capacity = nodes((1, 0)).model_copy(update={"node_types": (gpu_type,)})
    slot = TrialSlot(trial=Resources(cpus=4, gpus=1), max_concurrent_trials=4)
    plan = TrialPlan(slots=(slot,), limited_by="GPU", nodes_to_add={"gpu": 2})

    assert [str(part) for part in idle(capacity, plan)] == ["1 of 17 CPUs: too little for one more trial"]


def test_idle_amounts_are_computed_from_the_totals_if_the_nodes_of_trials_are_unknown():
    kinds = (
        TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=2),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1),
    )

    parts = idle(nodes((8, 2)), TrialPlan(slots=kinds, limited_by="CPU"))

    assert [str(part) for part in parts] == ["4 of 8 CPUs: too little for one more trial"]


def test_a_plan_for_another_cluster_is_rejected():
    plan = CpuPolicy(cpus=1).plan(nodes((8, 0)))

    with pytest.raises(InvalidResourcesError, match="uses more CPU than the cluster has"):
        idle(nodes((2, 0)), plan)


@given(clusters(), wrapped)
def test_used_and_idle_amounts_add_up_to_the_total(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    parts = idle(capacity, plan)

    unused = Counter()
    for part in parts:
        unused[part.resource] += part.amount
    total = {name: sum(getattr(node.resources, name) for node in capacity.nodes) for name in ("cpus", "gpus")}
    for name, field in (("CPU", "cpus"), ("GPU", "gpus")):
        used = sum(
            slot.max_concurrent_trials * (getattr(slot.trial, field) + slot.num_workers * getattr(slot.worker, field))
            for slot in plan.slots
        )
        assert used + unused[name] == pytest.approx(total[field], abs=5e-5)
    if unused["memory"]:
        has = sum(node.resources.memory_bytes for node in capacity.nodes)
        used = sum(
            slot.max_concurrent_trials
            * ((slot.trial.memory_bytes or 0) + slot.num_workers * (slot.worker.memory_bytes or 0))
            for slot in plan.slots
        )
        assert used + unused["memory"] == has
    assert all(part.amount > 0 for part in parts)


@pytest.mark.parametrize("cpus", [1, 2, 3])
def test_the_reported_reservation_is_the_requested_amount(cpus):
    """The reservation does not include CPUs that are idle because they are too few for another trial."""
    capacity = nodes((8, 0), (3, 0))

    parts = idle(capacity, ReservingPolicy(CpuPolicy(cpus=2), cpus=cpus).plan(capacity))

    assert [part.amount for part in parts if part.reason == Why.LEFT_FREE] == [cpus]
