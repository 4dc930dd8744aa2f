"""What every policy promises. A new policy is added to the list, and must pass."""

import json
import pickle

import pytest
from pydantic import TypeAdapter

import tune_policies
from tests.clusters import gpu_node
from tests.decisions import a_decision
from tune_policies import (
    AcceleratorPolicy,
    AutoPolicy,
    AutoscalingPolicy,
    BenchmarkedPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    FreeCapacityPolicy,
    GpuMemoryMeasurement,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    SelectingPolicy,
    TrialPlan,
    policies,
)
from tune_policies.policies.policy import build_policy

CAPACITY = ClusterCapacity.of(
    gpu_node("a", gpus=4, cpus=16, gpu_memory_gib=16, accelerator_type="T4", memory_gib=64),
    gpu_node("b", gpus=1, cpus=8, gpu_memory_gib=80, accelerator_type="A100", memory_gib=64),
    gpu_node("c", gpus=0, cpus=32, memory_gib=128, custom={"NPU": 4}),
)
PROFILE = GpuMemoryProfile(
    measurements=tuple(
        GpuMemoryMeasurement(config={"batch": batch, "net": "mlp"}, total_bytes=batch * 2**28) for batch in (4, 16, 40)
    )
)
POLICIES = [
    AcceleratorPolicy(resource="NPU", amount=0.3, memory="1GiB", num_workers=2),
    AutoPolicy(gpu_memory="6GiB"),
    AutoscalingPolicy(GpuPolicy(gpus=0.5), max_nodes_to_add=3),
    BenchmarkedPolicy(a_decision("T4"), gpu=GpuPolicy(accelerator_type="T4"), cpu=CpuPolicy(cpus=2)),
    CpuPolicy(cpus=2, memory="2GiB", num_workers=2),
    GpuPolicy(gpus=0.3, num_workers=2),
    GpuPolicy(gpus=0.3, num_workers=(2, 9)),
    GpuPolicy(gpus=0.3, memory="4GiB", accelerator_type=("H100", "A100", "T4"), min_trials=5),
    GpuMemoryPolicy(gpu_memory="6GiB"),
    GpuMemoryPolicy(profile=PROFILE, headroom=0.2),
    CappedPolicy(SelectingPolicy(GpuMemoryPolicy(profile=PROFILE), exclude_nodes=("b",)), 7),
    EvenSplitPolicy(num_trials=20, min_gpus=0.3, memory="1GiB"),
    FirstFeasiblePolicy(GpuPolicy(gpus=8), CpuPolicy()),
    FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(memory="1GiB"), min_trials=9),
    FreeCapacityPolicy(GpuPolicy(gpus=0.5)),
    CappedPolicy(GpuPolicy(), 2),
    MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2), CpuPolicy(cpus=500), speeds=(8, 1, 1)),
    ReservingPolicy(CpuPolicy(), cpus=4, gpus=1, memory="8GiB"),
    ReservingPolicy(GpuMemoryPolicy(gpu_memory="6GiB"), gpu_memory="2GiB"),
    SelectingPolicy(GpuPolicy(), exclude_nodes=("b",)),
]

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


def test_the_list_has_every_policy_that_is_public():
    public = {name for name in tune_policies.__all__ if name.endswith("Policy")} - {"ResourcePolicy"}

    assert public == set(policies.__all__) == {type(policy).__name__ for policy in POLICIES}


@every_policy
def test_it_gives_the_same_plan_for_the_same_capacity(policy):
    assert policy.plan(CAPACITY) == policy.plan(CAPACITY)


@every_policy
def test_its_plan_explains_itself(policy):
    plan = policy.plan(CAPACITY)

    assert plan.limited_by
    assert plan.reasons


@every_policy
def test_it_says_of_an_empty_cluster_what_is_missing(policy):
    with pytest.raises(InfeasibleRequestError, match="one trial needs"):
        policy.plan(ClusterCapacity.of())


@every_policy
def test_it_cannot_be_changed(policy):
    field = next(iter(type(policy).model_fields))

    with pytest.raises(ValueError, match="frozen"):
        setattr(policy, field, None)


@every_policy
def test_it_is_the_same_in_python_and_json(policy):
    data = json.loads(policy.to_json())

    assert data["kind"] == type(policy).__name__
    assert build_policy(data) == type(policy).from_json(policy.to_json()) == type(policy).from_dict(data) == policy


@every_policy
def test_it_may_be_a_field_of_a_users_own_settings(policy):
    """Pydantic then takes plain data, and of each check what it returns."""
    settings = TypeAdapter(dict[str, type(policy)])

    assert settings.validate_python({"policy": dict(policy)}) == {"policy": policy}


@every_policy
def test_it_is_not_made_from_another_kind(policy):
    other = {"kind": "CpuPolicy"} if not isinstance(policy, CpuPolicy) else {"kind": "GpuPolicy"}

    with pytest.raises(InvalidResourcesError, match=f"this is a {other['kind']}, not a {type(policy).__name__}"):
        type(policy).from_dict(other)
    with pytest.raises(InvalidResourcesError, match="this is not JSON"):
        type(policy).from_json("{")


@every_policy
def test_it_and_its_plan_can_be_pickled(policy):
    plan = policy.plan(CAPACITY)

    assert pickle.loads(pickle.dumps((policy, plan))) == (policy, plan)
    assert TrialPlan.from_json(plan.to_json()) == plan


@every_policy
def test_it_names_an_unknown_field_and_those_that_exist(policy):
    with pytest.raises(InvalidResourcesError, match=rf"unknown field 'flavour' \({type(policy).__name__} has "):
        build_policy({**json.loads(policy.to_json()), "flavour": 1})
