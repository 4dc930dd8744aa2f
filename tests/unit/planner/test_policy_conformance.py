"""Tests that every policy passes ``check_policy``, and that ``check_policy`` detects faulty policies.

Add each new policy to ``POLICIES``.
"""

import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

import tune_policies
from tests.clusters import gpu_node
from tests.decisions import a_decision
from tests.unit.strategies import by_config, growing, with_kinds
from tune_policies import (
    AcceleratorPolicy,
    AutoPolicy,
    AutoscalingPolicy,
    BenchmarkedPolicy,
    ByConfigPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    GrowingPolicy,
    InfeasibleRequestError,
    LearningPolicy,
    MixedPolicy,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    ResourcePolicy,
    Resources,
    SelectingPolicy,
    policies,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.testing import PolicyCheckError, Promise, check_policy
from tune_policies.testing.clusters import draw_cluster

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
OBSERVED = [
    TrialObservation(
        trial_id=f"trial {batch}",
        config={"batch": batch},
        used=TrialNeed(cpus=0.3, host_memory_bytes=2**31, gpu_memory_bytes=batch * 2**27, gpu_utilization=0.1),
        num_steps=2,
    )
    for batch in (4, 8, 16, 32, 40)
]
SLICES = {"resource": "TPU", "amount": 4, "accelerator_type": "TPU-V4", "topology": "2x2x2", "num_workers": 2}
POLICIES = [
    AcceleratorPolicy(resource="NPU", amount=0.3, memory="1GiB", num_workers=2),
    AcceleratorPolicy(**SLICES),
    AutoPolicy(gpu_memory="6GiB"),
    AutoscalingPolicy(GpuPolicy(gpus=0.5), max_nodes_to_add=3),
    AutoscalingPolicy(ReservingPolicy(GpuPolicy(), gpu_memory="2GiB")),
    BenchmarkedPolicy(a_decision("T4"), gpu=GpuPolicy(accelerator_type="T4"), cpu=CpuPolicy(cpus=2)),
    ByConfigPolicy("algo", {"SAC": GpuPolicy(cpus=1), "PPO": GpuPolicy(gpus=0.25)}, default=CpuPolicy()),
    ByConfigPolicy(
        "size", {1: CpuPolicy(num_workers=(2, 4)), 2: GpuPolicy(gpus=0.3, num_workers=2) | CpuPolicy(cpus=2)}
    ),
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
    CappedPolicy(GpuPolicy(gpus=0.25), 2),
    GrowingPolicy(CpuPolicy(), up_to=4),
    LearningPolicy(),
    LearningPolicy().learn(OBSERVED),
    CappedPolicy(LearningPolicy(CpuPolicy()).learn(OBSERVED[:3]), 3),
    MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2), CpuPolicy(cpus=500), speeds=(8, 1, 1)),
    ReservingPolicy(CpuPolicy(), cpus=4, gpus=1, memory="8GiB"),
    ReservingPolicy(GpuMemoryPolicy(gpu_memory="6GiB"), gpu_memory="2GiB"),
    SelectingPolicy(GpuPolicy(), exclude_nodes=("b",)),
]


def addable(name, *, cpus, gpus, accelerator_type=None):
    has = Resources(cpus=cpus, gpus=gpus)
    return NodeTypeCapacity(name=name, resources=has, max_nodes_to_add=1, accelerator_type=accelerator_type)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_each_policy_passes_the_conformance_checks(policy):
    check_policy(policy, num_clusters=25, clusters=[CAPACITY])


@pytest.mark.parametrize(
    ("policy", "accelerator_type"),
    [
        pytest.param(GpuPolicy(), None, id="GPUs of unknown memory"),
        pytest.param(GpuPolicy(gpus=0.5), "T4", id="different CPUs per fraction"),
    ],
)
def test_each_trial_of_a_plan_with_several_slots_is_checked_on_the_node_that_has_to_be_added_for_it(
    policy, accelerator_type
):
    types = (
        addable("type-0", cpus=1, gpus=4, accelerator_type=accelerator_type),
        addable("type-1", cpus=3, gpus=3, accelerator_type="T4"),
    )
    capacity = ClusterCapacity(node_types=types)
    assert len(AutoscalingPolicy(policy).plan(capacity).slots) == 2

    check_policy(AutoscalingPolicy(policy), num_clusters=0, clusters=[capacity])


def test_a_policy_for_nodes_without_devices_passes_the_conformance_checks():
    without = ClusterCapacity.of(NodeCapacity(node_id="cpu", resources=Resources(cpus=8)))

    check_policy(CpuPolicy(cpus=2, exclude_gpu_nodes=True), num_clusters=25, clusters=[without])


@given(with_kinds | growing | by_config, st.integers(0, 10**6))
def test_nested_policies_keep_every_promise_but_may_be_infeasible_on_every_cluster(policy, seed):
    plans = [CAPACITY] if isinstance(policy, CpuPolicy) else []
    try:
        check_policy(policy, num_clusters=3, seed=seed, clusters=plans)
    except PolicyCheckError as error:
        if error.promise is not Promise.PLANS_SOMEWHERE:
            raise


def test_the_tested_policies_include_every_public_policy():
    public = {name for name in tune_policies.__all__ if name.endswith("Policy")} - {"ResourcePolicy"}

    assert public == set(policies.__all__) == {type(policy).__name__ for policy in POLICIES}


def test_a_policy_can_be_a_field_of_a_pydantic_model():
    """Pydantic validates plain data and uses the result of each validator."""
    policy = CappedPolicy(GpuPolicy(), 2)

    assert TypeAdapter(dict[str, CappedPolicy]).validate_python({"policy": dict(policy)}) == {"policy": policy}


class FaultyPolicy(ResourcePolicy):
    """A policy whose plan comes from a function in ``FAULTS``."""

    fault: str

    def plan(self, capacity):
        plan, _ = FAULTS[self.fault]
        return plan(capacity)


class ForgetfulPolicy(CpuPolicy):
    """A policy with a field that is not serialized."""

    note: str = Field(default="", exclude=True)


class ListPolicy(CpuPolicy):
    """A policy with a list, which can be changed."""

    names: list[str] = Field(default_factory=list)


class MutablePolicy(CpuPolicy, frozen=False):
    """A policy whose fields can be set."""


CPU, GPU, GROWING = CpuPolicy(), GpuPolicy(gpus=0.25), CpuPolicy(num_workers=(1, 4))


def changed(policy, capacity, **changes):
    """Return the plan of a policy with changed slots. ``changes`` maps each field to a function of its old value."""
    plan = policy.plan(capacity)
    slots = [
        slot.model_copy(update={name: change(getattr(slot, name)) for name, change in changes.items()})
        for slot in plan.slots
    ]
    return plan.model_copy(update={"slots": tuple(slots)})


def changes_the_capacity(capacity):
    plan = CPU.plan(capacity)
    capacity.nodes[0].__dict__["labels"] = {"seen": "yes"}
    return plan


def reads_a_file(capacity):
    Path(__file__).read_bytes()
    return CPU.plan(capacity)


def refuses_large_clusters(capacity):
    if len(capacity.nodes) > 4:
        raise InfeasibleRequestError("few nodes", "there are many", "patience", "Remove some.")
    return CPU.plan(capacity)


FAULTS = {
    "returns no plan": (lambda capacity: None, Promise.RAISES_INFEASIBLE_ALONE),
    "raises another error": (lambda capacity: {}["GPU"], Promise.RAISES_INFEASIBLE_ALONE),
    "plans without nodes": (
        lambda capacity: CPU.plan(capacity if capacity.nodes else CAPACITY),
        Promise.RAISES_INFEASIBLE_ALONE,
    ),
    "draws at random": (lambda capacity: CPU.plan(capacity).with_reasons(str(random.random())), Promise.IS_PURE),
    "reads the clock": (lambda capacity: CPU.plan(capacity).with_reasons(str(time.time_ns())), Promise.IS_PURE),
    "reads a file": (reads_a_file, Promise.IS_PURE),
    "changes the capacity": (changes_the_capacity, Promise.IS_PURE),
    "considers only the first node": (
        lambda capacity: CappedPolicy(CPU, 1).plan(capacity.with_nodes(capacity.nodes[:1])),
        Promise.IGNORES_ORDER,
    ),
    "has no limiting resource": (
        lambda capacity: CPU.plan(capacity).model_copy(update={"limited_by": ""}),
        Promise.PLAN_IS_A_VALUE,
    ),
    "counts a trial twice": (
        lambda capacity: changed(CPU, capacity, max_concurrent_trials=lambda n: 2 * n),
        Promise.FITS,
    ),
    "ignores labels": (lambda capacity: changed(CPU, capacity, label_selector=lambda _: {"zone": "eu"}), Promise.FITS),
    "forgets a trial": (
        lambda capacity: changed(CPU, capacity, max_concurrent_trials=lambda n: max(1, n - 1)),
        Promise.IS_FULL,
    ),
    "grows beyond the free resources": (
        lambda capacity: changed(GROWING, capacity, max_workers=lambda n: n + 1000),
        Promise.GROWS,
    ),
    "uses unequal fractions": (
        lambda capacity: changed(
            GpuPolicy(gpus=0.5), capacity, trial=lambda each: each.with_ticks("GPU", 3500)
        ).model_copy(update={"fewer_than_fit": True}),
        Promise.SHARES_ARE_EQUAL,
    ),
    "overstates the GPU memory": (
        lambda capacity: changed(GPU, capacity, gpu_memory_bytes=lambda each: each and 2 * each),
        Promise.GPU_MEMORY_FITS,
    ),
    "adds unknown nodes": (
        lambda capacity: AutoscalingPolicy(CPU).plan(
            capacity.model_copy(
                update={"node_types": tuple(each.model_copy(update={"max_nodes_to_add": 9}) for each in types)}
            )
            if (types := capacity.node_types)
            else capacity
        ),
        Promise.ADDS_KNOWN_NODES,
    ),
    "rejects large clusters": (refuses_large_clusters, Promise.MORE_NODES_ARE_ENOUGH),
    "needs resources that no cluster has": (SelectingPolicy(CPU, {"rack": "7"}).plan, Promise.PLANS_SOMEWHERE),
}


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        *(pytest.param(FaultyPolicy(fault=name), promise, id=name) for name, (_, promise) in FAULTS.items()),
        pytest.param(ForgetfulPolicy(note="7"), Promise.IS_A_VALUE, id="does not write a field"),
        pytest.param(ListPolicy(), Promise.IS_A_VALUE, id="has no hash"),
        pytest.param(MutablePolicy(), Promise.IS_A_VALUE, id="can be changed"),
    ],
)
def test_a_broken_promise_is_detected(policy, promise):
    with pytest.raises(PolicyCheckError) as caught:
        check_policy(policy)

    assert caught.value.promise is promise


def test_every_promise_has_a_policy_that_breaks_it():
    broken = {promise for _, promise in FAULTS.values()}

    assert broken | {Promise.IS_A_VALUE} == set(Promise)


def test_the_error_contains_the_smallest_cluster_that_reproduces_the_mistake():
    with pytest.raises(PolicyCheckError) as caught:
        check_policy(FaultyPolicy(fault="counts a trial twice"))

    (node,) = caught.value.capacity.nodes
    assert node.shape == gpu_node("a", gpus=0, cpus=1).shape
    assert "smallest cluster found: ClusterCapacity.from_dict({'nodes': ({'node_id'" in str(caught.value)


def test_the_random_clusters_include_all_kinds_of_clusters():
    rng = random.Random(0)
    clusters = [draw_cluster(rng) for _ in range(200)]

    for kind in (
        lambda capacity: not capacity.nodes,
        lambda capacity: capacity.nodes and not list(capacity.gpu_nodes()),
        lambda capacity: len({node.accelerator_type for node in capacity.nodes if node.resources.gpus}) > 2,
        lambda capacity: any(node.resources.gpus and node.devices is None for node in capacity.nodes),
        lambda capacity: any("ray.io/tpu-slice-name" in node.labels for node in capacity.nodes),
        lambda capacity: any(node.in_use for node in capacity.nodes),
        lambda capacity: capacity.draining,
        lambda capacity: capacity.node_types,
        lambda capacity: capacity.node_types is None,
        lambda capacity: any(node.resources.cpus == 0 for node in capacity.nodes),
    ):
        assert sum(bool(kind(capacity)) for capacity in clusters) >= 5
