"""Tests of plans in which each trial gets the resources that its config needs."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tests.unit.strategies import clusters
from tune_policies import (
    AutoPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    InfeasibleRequestError,
    InvalidResourcesError,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
    TrialPlan,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement

GIB = 2**30
ONE_GPU = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80, cpus=64))


def measured(gib, ended_by="max_steps", **config):
    return GpuMemoryMeasurement(config=config, total_bytes=int(gib * GIB), ended_by=ended_by)


def profile_of(*measurements):
    return GpuMemoryProfile(measurements=measurements)


PROFILE = profile_of(measured(2, batch=8), measured(4, batch=16), measured(16, batch=64))


def gpus_for(plan, **config):
    return plan.slot_for(config).trial.gpus


def test_each_config_gets_the_gpu_fraction_that_it_needs():
    plan = GpuMemoryPolicy(profile=PROFILE).plan(ONE_GPU)

    # With 10 % of headroom, the configs need 2.2, 4.4, 8.8 and 17.6 GiB of the 80 GiB.
    shares = [gpus_for(plan, batch=batch) for batch in (8, 16, 32, 64)]
    assert shares[:2] == [0.0277, 0.0555]
    assert 0.11 <= shares[2] < 0.13
    assert shares[3] == 0.25


def test_many_memory_sizes_are_reduced_to_twelve_slot_sizes_with_enough_memory_for_all_configs():
    profile = profile_of(*(measured(batch, batch=batch) for batch in range(1, 31)))
    plan = GpuMemoryPolicy(profile=profile, headroom=0).plan(ONE_GPU)

    assert len(plan.by_config.slots) <= 12
    assert all(plan.slot_for({"batch": batch}).gpu_memory_bytes >= batch * GIB for batch in range(1, 31))
    assert gpus_for(plan, net="resnet") == 1
    assert plan.slot_for({"batch": 1}).gpu_memory_bytes == GIB
    assert plan.slot_for({"batch": 10}).gpu_memory_bytes <= 16 * GIB


def with_host_memory(*gib):
    """Return a profile whose configs need 2 GiB of GPU memory each, and the given amounts of host memory in GiB."""
    return profile_of(
        *(
            measured(2, batch=i).model_copy(update={"host_memory_bytes": each and each * GIB})
            for i, each in enumerate(gib)
        )
    )


@pytest.mark.parametrize(
    ("policy", "memory_gib", "at_once"),
    [
        pytest.param({}, 6, 10, id="the measured maximum plus headroom"),
        pytest.param({"headroom": 0.0}, 5, 12, id="without headroom"),
        pytest.param({"memory": "20GiB"}, 20, 3, id="the requested amount instead"),
        pytest.param({"profile": with_host_memory(5, 60)}, 64 - 2**-10, 1, id="at most the memory of a node"),
        pytest.param({"profile": with_host_memory(None, None)}, None, 33, id="none if none was measured"),
    ],
)
def test_each_trial_reserves_the_measured_host_memory(policy, memory_gib, at_once):
    node = gpu_node("a", gpu_memory_gib=80, cpus=64, memory_gib=64)
    fields = {"profile": with_host_memory(3, None, 5), "headroom": 0.2, **policy}

    plan = GpuMemoryPolicy(**fields).plan(ClusterCapacity.of(node))

    reserved = plan.slot_for({"batch": 0}).worker.memory_bytes
    assert reserved == (None if memory_gib is None else memory_gib * GIB)
    assert plan.max_concurrent_trials == at_once
    assert any("of host memory per trial" in reason for reason in plan.reasons) == (memory_gib is not None)


@pytest.mark.parametrize("policy", [GpuMemoryPolicy, AutoPolicy])
def test_only_nodes_with_the_measured_host_memory_have_slots(policy):
    capacity = ClusterCapacity.of(
        gpu_node("a", cpus=8, accelerator_type="H100", memory_gib=4),
        gpu_node("b", cpus=8, accelerator_type="H100", memory_gib=64),
    )

    plan = policy(profile=with_host_memory(32)).plan(capacity)

    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == (1, 1)


def test_the_number_of_concurrent_trials_depends_on_their_configs():
    plan = GpuMemoryPolicy(profile=PROFILE).plan(ONE_GPU)

    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == (4, 36)
    assert plan.explain().splitlines()[0] == "4 to 36 trials at once, depending on their configs, limited by GPU"


def test_the_plan_explains_the_measurements_the_formula_and_the_gpu_fraction_of_each_config():
    lines = GpuMemoryPolicy(profile=PROFILE, cpus=1).plan(ONE_GPU).explain().splitlines()

    assert "  at most 4 with 1 CPU, 0.25 GPU, 20 GiB of GPU memory" in lines
    assert (
        "  - 3 configs measured need 2 GiB to 16 GiB; each trial gets the memory that its config needs plus 10%"
        in lines
    )
    assert "  - {'batch': 16}: 4 GiB, so 0.0555 GPU" in lines
    assert any(line.startswith("  - GPU memory by config: 256 MiB x batch") for line in lines)


def test_workers_that_must_share_the_largest_gpu_get_equal_fractions():
    plan = GpuMemoryPolicy(profile=PROFILE, num_workers=2).plan(ONE_GPU)

    assert plan.slot_for({"net": "resnet"}).per_worker.gpus == 0.5
    assert (
        "a config without a measurement or formula gets 0.5 GPU per worker, the largest possible fraction"
        in plan.reasons
    )
    with pytest.raises(InfeasibleRequestError, match="each of its 2 workers gets at most 40 GiB of a GPU"):
        plan.slot_for({"batch": 200})


def test_a_config_that_needs_more_than_any_gpu_is_infeasible():
    plan = GpuMemoryPolicy(profile=PROFILE).plan(ONE_GPU)

    with pytest.raises(
        InfeasibleRequestError, match=r"256 GiB of GPU memory with the config \{'batch': 1024\}, but the"
    ):
        plan.slot_for({"batch": 1024})


def test_a_config_that_ran_out_of_memory_is_infeasible_and_other_configs_are_not():
    profile = profile_of(measured(2, batch=8), measured(80, "out_of_memory", batch=99))
    plan = GpuMemoryPolicy(profile=profile).plan(ONE_GPU)

    assert gpus_for(plan, batch=8) == 0.0277
    assert "the slot sizes do not depend on 1 config that ran out of memory on a GPU of 80 GiB" in plan.explain()
    with pytest.raises(InfeasibleRequestError, match="more than 80 GiB of GPU memory"):
        plan.slot_for({"batch": 99})


def test_small_configs_use_gpus_that_are_too_small_for_the_largest_config():
    mixed = ClusterCapacity.of(
        *(gpu_node(f"a{i}", gpus=4, gpu_memory_gib=8, accelerator_type="T4") for i in range(5)),
        gpu_node("b", gpus=1, gpu_memory_gib=80, accelerator_type="A100"),
    )

    plan = GpuMemoryPolicy(profile=profile_of(measured(6, batch=8), measured(30, batch=64))).plan(mixed)

    slots = [plan.slot_for({"batch": batch}) for batch in (8, 64)]
    # Each of the 21 GPUs has room for one small trial.
    assert [(slot.accelerator_type, slot.max_concurrent_trials) for slot in slots] == [(None, 21), ("A100", 2)]


@pytest.mark.parametrize("fields", [{}, {"gpu_memory": "6GiB", "profile": PROFILE}], ids=["neither", "both"])
def test_exactly_one_of_an_amount_and_a_profile_is_required(fields):
    with pytest.raises(InvalidResourcesError, match="GpuMemoryPolicy requires either gpu_memory"):
        GpuMemoryPolicy(**fields)


def test_a_plan_for_one_config_has_the_resources_of_its_train_workers():
    plan = GpuMemoryPolicy(profile=PROFILE, num_workers=2).plan(ONE_GPU)

    one = plan.for_config({"batch": 8})

    assert (one.worker.gpus, one.resources_per_worker["GPU"], one.by_config) == (0.0277, 0.0277, None)
    assert plan.resources_per_worker["GPU"] == 0.25


TWO_ZONES = ClusterCapacity.of(
    gpu_node("a", gpu_memory_gib=80, labels={"zone": "eu"}), gpu_node("b", gpu_memory_gib=80, labels={"zone": "us"})
)


@pytest.mark.parametrize(
    ("wrapped", "at_once", "selector"),
    [
        pytest.param(lambda inner: CappedPolicy(inner, 6), (6, 6), None, id="capped"),
        pytest.param(lambda inner: SelectingPolicy(inner, {"zone": "eu"}), (4, 36), {"zone": "eu"}, id="selected"),
        pytest.param(lambda inner: ReservingPolicy(inner, gpus=1), (4, 36), None, id="reserved"),
        pytest.param(lambda inner: FirstFeasiblePolicy(inner, CpuPolicy()), (8, 72), None, id="first choice"),
        pytest.param(lambda inner: AutoscalingPolicy(inner), (8, 72), None, id="autoscaling"),
    ],
)
def test_a_wrapping_policy_applies_to_slots_of_every_size(wrapped, at_once, selector):
    plan = wrapped(GpuMemoryPolicy(profile=PROFILE)).plan(TWO_ZONES)

    assert (plan.min_concurrent_trials, plan.max_concurrent_trials) == at_once
    assert all(slot.max_concurrent_trials <= at_once[1] for slot in plan.by_config.slots)
    assert plan.slot_for({"batch": 8}).label_selector == plan.label_selector == (selector or {})


def test_with_a_reservation_larger_slots_exclude_nodes_whose_gpus_are_too_small():
    capacity = ClusterCapacity.of(
        gpu_node("a", gpu_memory_gib=10, cpus=4), gpu_node("b", gpu_memory_gib=80, cpus=64, gpus=2)
    )
    plan = ReservingPolicy(GpuMemoryPolicy(profile=PROFILE, cpus=1), gpus=1).plan(capacity)

    slot = plan.slot_for({"batch": 64})
    assert (slot.label_selector, slot.trial.gpus) == ({"ray.io/node-id": "!a"}, 0.25)


GROWING = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=38, accelerator_type="A100")).model_copy(
    update={
        "node_types": (
            NodeTypeCapacity(
                name="gpu", resources=Resources(cpus=64, gpus=1), accelerator_type="A100", max_nodes_to_add=3
            ),
        )
    }
)


@pytest.mark.parametrize(
    ("policy", "nodes_to_add"),
    [
        pytest.param(AutoscalingPolicy(GpuMemoryPolicy(profile=PROFILE)), 3, id="all"),
        pytest.param(CappedPolicy(AutoscalingPolicy(GpuMemoryPolicy(profile=PROFILE)), 4), 1, id="capped"),
        pytest.param(AutoscalingPolicy(CappedPolicy(GpuMemoryPolicy(profile=PROFILE), 4)), 1, id="capped within"),
    ],
)
def test_enough_nodes_are_added_for_trials_of_the_largest_size(policy, nodes_to_add):
    plan = policy.plan(GROWING)

    asked = sum(bundle.resources["GPU"] for bundle in plan.bundles(plan.min_concurrent_trials))

    assert (plan.nodes_to_add, asked) == ({"gpu": nodes_to_add}, nodes_to_add + 1)


def test_a_plan_with_a_profile_round_trips_through_json_and_pickle():
    plan = GpuMemoryPolicy(profile=PROFILE).plan(ONE_GPU)

    assert TrialPlan.from_json(plan.to_json()) == plan == pickle.loads(pickle.dumps(plan))
    assert TrialPlan.from_json(plan.to_json()).slot_for({"batch": 16}) == plan.slot_for({"batch": 16})


@given(
    capacity=clusters(),
    needs=st.lists(st.tuples(st.integers(1, 99), st.floats(0.1, 60)), min_size=1, max_size=20),
    headroom=st.sampled_from([0, 0.1, 0.5]),
    num_workers=st.integers(0, 2),
)
def test_every_measured_config_gets_at_least_the_memory_it_needs(capacity, needs, headroom, num_workers):
    profile = profile_of(*(measured(gib, batch=batch) for batch, gib in needs))
    large_enough = ClusterCapacity.of(*capacity.nodes, gpu_node("large", gpus=2, gpu_memory_gib=80))
    plan = GpuMemoryPolicy(profile=profile, headroom=headroom, num_workers=num_workers).plan(large_enough)
    whole = plan.by_config.slots[-1].gpu_memory_bytes

    for batch, gib in needs:
        slot = plan.slot_for({"batch": batch})
        assert slot.gpu_memory_bytes >= min(int(gib * GIB) * (1 + headroom), max(whole, gib * GIB))
        assert slot.gpu_memory_bytes <= max(plan.gpu_memory_bytes, whole)
        assert slot.num_workers == num_workers
    assert plan.slots[0] in plan.by_config.slots
