"""Tests of Train runs that grow from a minimum up to a maximum number of workers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    Resources,
    TrialPlan,
)
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.plan.idle import idle
from tune_policies.policies.policy import build_policy
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.retries.oom_retry import larger_plan


def workers(plan):
    return plan.max_concurrent_trials, plan.num_workers, plan.common_slot.max_workers


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        pytest.param(4, (4, 2, 2), id="as many trials as fit, without room to grow"),
        pytest.param(3, (3, 2, 4), id="one trial fewer, so the others may use its CPUs"),
        pytest.param(1, (1, 2, 8), id="a single trial may use all CPUs"),
    ],
)
def test_a_trial_may_grow_into_the_resources_that_other_trials_leave_free(at_once, expected):
    plan = CappedPolicy(CpuPolicy(num_workers=(2, 9)), at_once).plan(nodes((8, 0)))

    assert workers(plan) == expected


@given(
    shapes=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 4)), min_size=1, max_size=4),
    gpus=st.sampled_from([0.1, 0.3, 0.5, 0.6, 1, 2]),
    least=st.integers(1, 5),
    more=st.integers(1, 20),
    cap=st.integers(1, 10),
)
def test_a_grown_trial_fits_next_to_other_trials_with_their_minimum_number_of_workers(shapes, gpus, least, more, cap):
    policy = CappedPolicy(GpuPolicy(gpus=gpus, cpus=0.1, num_workers=(least, least + more)), cap)
    capacity = nodes(*shapes)
    try:
        plan = policy.plan(capacity)
    except InfeasibleRequestError:
        return
    at_once, fewest, most = workers(plan)
    all_workers = most + (at_once - 1) * fewest

    held = GpuPolicy(gpus=plan.worker.gpus, cpus=0.1, num_workers=1).plan(capacity).max_concurrent_trials

    assert all_workers <= held
    assert all_workers == held or most == least + more


def test_each_memory_size_of_a_profile_has_its_own_maximum_number_of_workers():
    measured = [GpuMemoryMeasurement(config={"batch": each}, total_bytes=each * 2**30) for each in (4, 14)]
    policy = GpuMemoryPolicy(profile=GpuMemoryProfile(measurements=measured), cpus=1, num_workers=(1, 9))

    plan = CappedPolicy(policy, 1).plan(ClusterCapacity.of(gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=16)))

    assert [workers(plan.for_config({"batch": each})) for each in (4, 14)] == [(1, 1, 6), (1, 1, 2)]


@pytest.mark.parametrize(
    "capacity", [nodes((8, 0)), nodes((8, 0), (8, 0), (8, 0))], ids=["on one node", "on several nodes"]
)
def test_with_several_slot_types_trials_do_not_grow_and_the_plan_explains_it(capacity):
    """The other slot type uses the resources that trials could grow into."""
    plan = MixedPolicy(CappedPolicy(CpuPolicy(num_workers=(2, 9)), 1), CpuPolicy()).plan(capacity)

    assert len(plan.slots) == 2
    assert [slot.is_elastic for slot in plan.slots] == [False, False]
    assert "each trial keeps its minimum number of workers" in plan.explain()


def test_resources_reserved_for_growth_are_idle_for_this_reason():
    capacity = nodes((8, 0))
    plan = CappedPolicy(CpuPolicy(num_workers=(2, 5)), 2).plan(capacity)

    rows = [str(row) for row in idle(capacity, plan)]

    assert rows == [
        "3 of 8 CPUs: reserved for the growth of one trial",
        "1 of 8 CPUs: too little for one more trial",
    ]


def test_a_slot_with_max_workers_below_num_workers_is_rejected():
    with pytest.raises(InvalidResourcesError, match="max_workers=1 is not valid with num_workers="):
        TrialSlot(
            trial=Resources(memory_bytes=1),
            max_concurrent_trials=1,
            num_workers=2,
            max_workers=1,
            per_worker=Resources(cpus=1),
        )


@pytest.mark.parametrize(
    "policy",
    [
        CpuPolicy(num_workers=(2, 8)),
        GpuPolicy(gpus=0.5, num_workers=(2, 8)),
        GpuMemoryPolicy(gpu_memory="8GiB", num_workers=(2, 8)),
        AcceleratorPolicy(resource="NPU", num_workers=(2, 8)),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_every_policy_with_workers_accepts_a_minimum_and_a_maximum_in_python_and_json(policy):
    capacity = ClusterCapacity.of(gpu_node("a", gpus=4, cpus=32, gpu_memory_gib=16, custom={"NPU": 8}))

    plan = policy.plan(capacity)

    assert plan.capped(1, limited_by="test").common_slot.max_workers == 8
    assert json.loads(policy.to_json())["num_workers"] == [2, 8]
    assert build_policy(json.loads(policy.to_json())) == policy
    assert TrialPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("num_workers", "message"),
    [
        ((8, 2), r"num_workers must be \(minimum, maximum\), got \(8, 2\)"),
        ((0, 2), "each of num_workers must be a whole number, 1 or above, got 0"),
        ((1, 2, 3), "num_workers must be a whole number, or a minimum and a maximum"),
        ("2", "num_workers must be a whole number, 0 or above, got '2'"),
    ],
)
def test_an_invalid_minimum_or_maximum_number_of_workers_is_rejected(num_workers, message):
    with pytest.raises(InvalidResourcesError, match=message):
        CpuPolicy(num_workers=num_workers)


def test_after_an_oom_error_the_maximum_number_of_workers_is_lower():
    gpus = gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=16)
    plan = CappedPolicy(GpuPolicy(gpus=0.25, cpus=1, num_workers=(1, 8)), 1).plan(ClusterCapacity.of(gpus))

    after = larger_plan(plan, MemoryFloor(gpu_ticks=5000), [gpus])

    assert (workers(plan), workers(after)) == ((1, 1, 8), (1, 1, 4))
