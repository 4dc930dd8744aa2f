"""What a plan leaves idle, with the reason; and that used and idle add up to what there is."""

from collections import Counter

import pytest
from hypothesis import given

from tests.clusters import GIB, gpu_node, nodes
from tests.unit.strategies import clusters, wrapped
from tests.unit.test_plan_properties import plan_or_skip
from tune_policies import (
    AcceleratorPolicy,
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
from tune_policies.cluster.capacity import NodeTypeCapacity
from tune_policies.placement.idle import Why, idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot

TYPED = ClusterCapacity.of(
    gpu_node("a", gpus=2, cpus=8, accelerator_type="A100"), gpu_node("t", gpus=4, cpus=16, accelerator_type="T4")
)


def explained(capacity, policy):
    return [str(part) for part in idle(capacity, policy.plan(capacity))]


@pytest.mark.parametrize(
    ("capacity", "policy", "expected"),
    [
        (nodes((8, 2)), GpuPolicy(cpus=4), []),
        (nodes((4, 8)), GpuPolicy(cpus=2), ["6 of 8 GPUs: their nodes have no CPU left"]),
        (
            nodes((5, 8)),
            GpuPolicy(cpus=2),
            ["1 of 5 CPUs: less than one more trial needs", "6 of 8 GPUs: their nodes have too little CPU left"],
        ),
        (
            nodes((8, 1), (4, 0)),
            GpuPolicy(cpus=2),
            ["10 of 12 CPUs: their nodes have no GPU, or none left"],
        ),
        (
            nodes((8, 1)),
            GpuPolicy(gpus=0.3, cpus=1),
            ["5 of 8 CPUs: their nodes have no GPU left", f"0.0001 of 1 GPU: {Why.ROUNDING}"],
        ),
        (nodes((4, 3)), CpuPolicy(cpus=1), ["3 of 3 GPUs: no trial asks for GPU"]),
        (nodes((8, 3)), GpuPolicy(gpus=2, cpus=8), ["1 of 3 GPUs: less than one more trial needs"]),
        (
            TYPED,
            GpuPolicy(cpus=4, accelerator_type="A100"),
            ["16 of 24 CPUs: on nodes of another type than A100", "4 of 6 GPUs: on nodes of another type than A100"],
        ),
        (
            nodes((8, 0)),
            CappedPolicy(CpuPolicy(cpus=2), 3),
            ["2 of 8 CPUs: held back by the cap max_concurrent_trials"],
        ),
        (nodes((8, 0)), ReservingPolicy(CpuPolicy(cpus=2), cpus=2), ["2 of 8 CPUs: left free by the policy"]),
        (
            nodes((8, 1), (8, 1)),
            ReservingPolicy(GpuPolicy(gpus=0.25, cpus=1), cpus=8),
            ["8 of 16 CPUs: left free by the policy"],
        ),
        (
            nodes((8, 1), (8, 1)),
            ReservingPolicy(GpuPolicy(gpus=0.25, cpus=1), cpus=11),
            [
                "11 of 16 CPUs: left free by the policy",
                "0.75 of 2 GPUs: the policy leaves free what else more trials need",
            ],
        ),
        (
            nodes((8, 0)),
            ReservingPolicy(CpuPolicy(cpus=3), cpus=1),
            ["1 of 8 CPUs: left free by the policy", "1 of 8 CPUs: less than one more trial needs"],
        ),
        (
            nodes((8, 2), (8, 0)),
            ReservingPolicy(MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=4)), cpus=4),
            ["4 of 16 CPUs: left free by the policy", "2 of 16 CPUs: less than one more trial needs"],
        ),
        (
            nodes((16, 2)),
            GpuPolicy(gpus=0.3),
            [
                "4 of 16 CPUs: too few to give each trial one more, and their nodes have no GPU left",
                f"0.0002 of 2 GPUs: {Why.ROUNDING}",
            ],
        ),
        (nodes((7, 0)), CpuPolicy(cpus=1, num_workers=3), ["1 of 7 CPUs: less than one more trial needs"]),
        (nodes((5, 0), (5, 0), (5, 0)), CpuPolicy(cpus=2), ["3 of 15 CPUs: less than one more trial needs"]),
        (
            nodes((5, 0), (5, 0), (5, 0)),
            CpuPolicy(cpus=2, num_workers=4),
            [
                "4 of 15 CPUs: less than one more trial needs",
                "3 of 15 CPUs: less than one more worker needs",
            ],
        ),
        (
            ClusterCapacity.of(Resources(cpus=4, memory_bytes=8 * GIB + 3 * 2**20)),
            CpuPolicy(cpus=2, memory="4GiB", num_workers=1),
            ["1 MiB of 8 GiB of host memory: less than one more worker needs"],
        ),
        (
            ClusterCapacity.of(Resources(cpus=4, memory_bytes=10 * GIB)),
            CpuPolicy(cpus=2, memory="4GiB"),
            ["2 GiB of 10 GiB of host memory: less than one more trial needs"],
        ),
        (
            ClusterCapacity.of(Resources(cpus=2, custom={"TPU": 4})),
            CpuPolicy(cpus=1),
            ["4 of 4 TPUs: no trial asks for TPU"],
        ),
    ],
    ids=[
        "a full cluster has nothing idle",
        "GPUs without CPUs",
        "CPUs that are too few for one more",
        "CPUs beside full GPUs, and on nodes without any",
        "CPUs beside a GPU of which the shares leave next to nothing",
        "GPUs that no trial asks for",
        "fewer GPUs than a trial takes",
        "nodes of another type",
        "a cap",
        "what a policy leaves free",
        "what it leaves free that trials do not need",
        "devices beside what it leaves free",
        "more than it leaves free",
        "what it leaves free beside slots of several types",
        "CPUs that were divided, and rounded down",
        "fewer workers than a trial has",
        "what each of several nodes leaves",
        "what each of them leaves, and workers that are too few",
        "host memory beside drivers",
        "host memory where it is reserved",
        "a custom resource",
    ],
)
def test_what_is_idle_has_a_reason(capacity, policy, expected):
    assert explained(capacity, policy) == expected


def test_nodes_that_are_added_count_as_well():
    gpu_type = NodeTypeCapacity(name="gpu", resources=Resources(cpus=8, gpus=2), max_nodes_to_add=3)
    capacity = nodes((1, 0)).model_copy(update={"node_types": (gpu_type,)})
    slot = TrialSlot(trial=Resources(cpus=4, gpus=1), max_concurrent_trials=4)
    plan = TrialPlan(slots=(slot,), limited_by="GPU", nodes_to_add={"gpu": 2})

    assert [str(part) for part in idle(capacity, plan)] == ["1 of 17 CPUs: less than one more trial needs"]


@pytest.mark.parametrize("policy", [GpuPolicy(gpus=0.3), AcceleratorPolicy(resource="NPU", amount=0.3)])
def test_what_is_idle_is_not_read_from_the_reasons(policy):
    capacity = ClusterCapacity.of(Resources(cpus=16, gpus=2, custom={"NPU": 2}))
    plan = policy.plan(capacity)

    assert idle(capacity, plan.model_copy(update={"reasons": ()})) == idle(capacity, plan)
    assert "too few to give each trial one more" in str(idle(capacity, plan)[0])


def test_where_places_cannot_be_told_node_by_node_the_sum_is_idle():
    kinds = (
        TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=2),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1),
    )

    parts = idle(nodes((8, 2)), TrialPlan(slots=kinds, limited_by="CPU"))

    assert [str(part) for part in parts] == ["4 of 8 CPUs: less than one more trial needs"]


def test_a_plan_for_another_cluster_is_refused():
    plan = CpuPolicy(cpus=1).plan(nodes((8, 0)))

    with pytest.raises(InvalidResourcesError, match="uses more CPU than the cluster has"):
        idle(nodes((2, 0)), plan)


@given(clusters(), wrapped)
def test_used_and_idle_add_up_to_what_there_is(capacity, policy):
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


def test_nodes_that_the_plan_does_not_select_are_idle():
    capacity = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=3), gpu_node("b", gpus=0, cpus=5, labels={"zone": "eu"}))
    plan = SelectingPolicy(CpuPolicy(cpus=2), label_selector={"zone": "!eu"}).plan(capacity)

    assert [str(part) for part in idle(capacity, plan)] == [
        "5 of 8 CPUs: on nodes that the plan's label selector leaves out",
        "1 of 8 CPUs: less than one more trial needs",
    ]


def test_cpus_that_are_too_few_for_one_more_in_each_worker_are_told_as_such():
    """The 15 CPUs were divided by the eight workers of one trial."""
    assert explained(nodes((15, 8)), GpuPolicy(num_workers=8)) == [
        "7 of 15 CPUs: too few to give each worker one more, and their nodes have no GPU left"
    ]


def test_cpus_that_one_node_lacks_for_more_in_each_worker_are_told_as_such():
    """Without the CPU left free, each of the 16 workers would have 2."""
    assert explained(nodes((16, 4), (16, 4)), ReservingPolicy(GpuPolicy(gpus=0.5, num_workers=2), cpus=1)) == [
        "15 of 32 CPUs: not every node has enough to give each worker more, and their nodes have no GPU left",
        "1 of 32 CPUs: left free by the policy",
    ]


@pytest.mark.parametrize("cpus", [1, 2, 3])
def test_as_much_is_told_to_be_left_free_as_was_asked_for(cpus):
    """Some of it is less than a trial needs, and some would hold another trial."""
    capacity = nodes((8, 0), (3, 0))

    parts = idle(capacity, ReservingPolicy(CpuPolicy(cpus=2), cpus=cpus).plan(capacity))

    assert [part.amount for part in parts if part.reason == Why.LEFT_FREE] == [cpus]


def test_cpus_that_are_enough_for_one_more_in_each_trial_are_not_told_to_be_too_few():
    """The node with the fewest CPUs decides: on the other one, 12 are left over for the eight trials."""
    told = explained(nodes((16, 4), (4, 4)), GpuPolicy(same_for_all=True))

    assert [text.partition(":")[0] for text in told if "too few" not in text] == ["12 of 20 CPUs"]
