"""Tests of the slots of trials that keep their own request of several bundles."""

import pytest
from ray.tune import PlacementGroupFactory

from tests.clusters import GIB, gpu_node, nodes
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.placement.bundles import BundleGroup
from tune_policies.trainers.scheduling.own_slots import requested_plan, slot_of_bundles

CPUS = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=8), gpu_node("b", gpus=0, cpus=4, labels={"zone": "eu"}))
GPUS = ClusterCapacity.of(
    gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=80, accelerator_type="A100"),
    gpu_node("t", gpus=2, cpus=8, gpu_memory_gib=16, accelerator_type="T4"),
)
PAIR = [{"CPU": 1}, {"CPU": 2}]
WITH_GPU = [{"CPU": 1}, {"CPU": 1, "GPU": 1}]


def slot_on(capacity, policy, bundles=PAIR, **where):
    return slot_of_bundles(policy.plan(capacity), BundleGroup(bundles, **where), capacity)


def test_the_slot_has_the_resources_of_the_trainables_own_process_and_as_many_trials_as_fit():
    slot, group = slot_on(CPUS, CpuPolicy(cpus=1))

    assert slot.trial == Resources(cpus=1)
    assert slot.max_concurrent_trials == 4
    assert group.bundles == PAIR


def test_the_slot_has_no_train_workers_and_no_limit_of_gpu_memory():
    policy = GpuMemoryPolicy(gpu_memory="8GiB", cpus=1, num_workers=2)

    slot, _ = slot_on(GPUS, policy, WITH_GPU)

    assert (slot.num_workers, slot.max_workers, slot.per_worker) == (0, None, Resources())
    assert (slot.gpu_memory_bytes, slot.gpu_overhead_bytes) == (None, None)


@pytest.mark.parametrize(
    ("capacity", "policy", "bundles", "message"),
    [
        pytest.param(
            GPUS,
            CpuPolicy(cpus=1),
            [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}],
            r"plans trials without a GPU, but the trainable reserves 1 CPU \+ 2 × \(1 GPU\)\. Use a policy with GPUs,",
            id="only the trainable requests devices",
        ),
        pytest.param(
            GPUS,
            GpuPolicy(),
            PAIR,
            r"plans trials with a GPU, but the trainable reserves 1 CPU \+ 2 CPUs\. Use CpuPolicy, or",
            id="only the policy plans devices",
        ),
    ],
)
def test_bundles_that_contradict_the_policy_are_refused(capacity, policy, bundles, message):
    with pytest.raises(InvalidResourcesError, match=message):
        slot_on(capacity, policy, bundles)


@pytest.mark.parametrize(
    ("bundles", "short_of"),
    [([{"CPU": 16}, {"CPU": 1}], "CPU"), ([{"CPU": 1}, {"CPU": 16, "GPU": 1}], "GPU")],
)
def test_bundles_without_room_for_one_trial_are_infeasible(bundles, short_of):
    policy = GpuPolicy() if short_of == "GPU" else CpuPolicy(cpus=1)

    with pytest.raises(InfeasibleRequestError, match="the nodes do not have room for all of them") as caught:
        slot_on(GPUS, policy, bundles)

    assert caught.value.short_of == short_of


def test_bundles_with_devices_get_the_device_type_of_the_policy():
    _, group = slot_on(GPUS, GpuPolicy(cpus=1, accelerator_type="T4"), WITH_GPU)

    assert group.bundles == [{"CPU": 1}, {"CPU": 1, "GPU": 1, "accelerator_type:T4": 0.001}]


def test_bundles_get_the_label_selector_of_the_policy():
    policy = SelectingPolicy(CpuPolicy(cpus=1), label_selector={"zone": "eu"})

    slot, group = slot_on(CPUS, policy)
    _, both = slot_on(CPUS, policy, selectors=[{"ray.io/node-id": "b"}, {}])

    assert group.selectors == [{"zone": "eu"}] * 2
    assert both.selectors == [{"zone": "eu", "ray.io/node-id": "b"}, {"zone": "eu"}]
    assert slot.max_concurrent_trials == 1


def test_without_a_selector_of_the_policy_the_selectors_of_the_bundles_are_kept():
    _, group = slot_on(CPUS, CpuPolicy(cpus=1), selectors=[{"zone": "eu"}, {}])

    assert group.selectors == [{"zone": "eu"}, {}]


def test_resources_that_the_policy_reserves_for_others_stay_free():
    slot, _ = slot_on(CPUS, ReservingPolicy(CpuPolicy(cpus=1), cpus=6))

    assert slot.max_concurrent_trials == 2


@pytest.mark.parametrize(("most", "expected"), [(2, 2), (9, 4)])
def test_a_limit_of_the_policy_also_limits_trials_with_several_bundles(most, expected):
    slot, _ = slot_on(CPUS, CappedPolicy(CpuPolicy(cpus=1), max_concurrent_trials=most))

    assert slot.max_concurrent_trials == expected


def test_one_more_trial_is_requested_if_the_autoscaler_can_add_nodes():
    more = NodeTypeCapacity(name="cpu", resources=Resources(cpus=8, memory_bytes=GIB), max_nodes_to_add=1)
    capacity = CPUS.model_copy(update={"node_types": (more,)})

    slot, _ = slot_of_bundles(CpuPolicy(cpus=1).plan(CPUS), BundleGroup(PAIR), capacity)

    assert slot.max_concurrent_trials == 5


@pytest.mark.parametrize(
    ("bundles", "at_once", "trial"),
    [
        pytest.param([{"CPU": 2}], 4, Resources(cpus=2), id="one bundle"),
        pytest.param([{"CPU": 1, "GPU": 0.3}], 6, Resources(cpus=1, gpus=0.3), id="a fraction of a GPU"),
        pytest.param([{"CPU": 1, "GPU": 0.75}, {"GPU": 0.75}], 1, Resources(cpus=1, gpus=2), id="several fractions"),
        pytest.param([{}, {"CPU": 3}], 2, Resources(cpus=3), id="an empty bundle for the driver"),
        pytest.param([{"CPU": 16}], 1, Resources(cpus=16), id="a trial that needs another node"),
    ],
)
def test_without_a_policy_the_plan_has_the_requests_of_the_program(bundles, at_once, trial):
    plan = requested_plan(PlacementGroupFactory(bundles), nodes((8, 2)))

    assert (plan.max_concurrent_trials, plan.trial) == (at_once, trial)
