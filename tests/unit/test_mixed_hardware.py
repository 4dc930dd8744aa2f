"""Which devices and nodes are planned on, what Ray is told of them, and what of the cluster does not count."""

import pytest

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.accelerators import gpu_memory_of_type

MIXED = ClusterCapacity.of(
    gpu_node("a", gpus=4, gpu_memory_gib=80, accelerator_type="A100"),
    gpu_node("b", gpus=2, gpu_memory_gib=22, accelerator_type="L4"),
    gpu_node("c", gpus=2, gpu_memory_gib=80, accelerator_type="H100"),
    gpu_node("d", gpus=0, cpus=8),
)


def test_of_several_types_the_first_that_fits_is_taken():
    plan = GpuPolicy(gpus=4, accelerator_type=("H100", "A100", "L4")).plan(MIXED)

    assert plan.accelerator_type == "A100"
    assert "not GpuPolicy: one trial needs 4 GPUs on H100" in plan.reasons[0]


def test_several_types_are_choices_of_a_policy():
    policy = GpuPolicy(accelerator_type=("H100", "A100"))

    assert policy.choices == (GpuPolicy(accelerator_type="H100"), GpuPolicy(accelerator_type="A100"))
    assert FirstFeasiblePolicy(policy, CpuPolicy()).choices == (*policy.choices, CpuPolicy())


FEW_H100 = ClusterCapacity.of(
    gpu_node("a", gpus=1, accelerator_type="H100", gpu_memory_gib=80),
    gpu_node("b", gpus=2, accelerator_type="L4", gpu_memory_gib=22),
    gpu_node("c", gpus=8, accelerator_type="A100", gpu_memory_gib=80),
)
TYPES = ("H100", "L4", "A100")


@pytest.mark.parametrize(
    "policy", [GpuPolicy(accelerator_type=TYPES), GpuMemoryPolicy(gpu_memory="20GiB", accelerator_type=TYPES)], ids=str
)
def test_where_a_later_type_would_run_more_trials_the_plan_says_so_and_min_trials_goes_on_to_it(policy):
    few, more = policy.plan(FEW_H100), policy.model_copy(update={"min_trials": 6}).plan(FEW_H100)

    most = more.max_concurrent_trials
    assert (few.accelerator_type, more.accelerator_type) == ("H100", "A100")
    assert f"and A100 would run {most}: set min_trials= to pass over a type that runs too few" in few.reasons[0]
    assert not any("passed over" in reason for reason in more.reasons)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        pytest.param(
            GpuPolicy(accelerator_type=("H100", "A100"), min_trials=9),
            "on H100, 9 times at once: only 1 would run at once; .* on A100, 9 times at once: only 8 would run at once",
            id="several types",
        ),
        pytest.param(GpuPolicy(accelerator_type="L4", min_trials=9), "on L4, .* only 2 would", id="one type"),
        pytest.param(GpuPolicy(min_trials=12), "1 GPU, 12 times at once, but only 11 would run at once", id="any type"),
        pytest.param(
            FirstFeasiblePolicy(GpuPolicy(gpus=4), CpuPolicy(cpus=64), min_trials=9),
            "only 2 would run at once; for 64 CPUs, 9 times at once: only 3 would .* Ask for min_trials=3, or add",
            id="any policies",
        ),
    ],
)
def test_too_few_trials_at_once_are_an_error_that_says_how_many_each_choice_runs(policy, message):
    with pytest.raises(InfeasibleRequestError, match=message):
        policy.plan(FEW_H100)


def test_a_choice_that_runs_too_few_trials_is_passed_over():
    gpu, cpu = GpuPolicy(accelerator_type="H100"), CpuPolicy(cpus=64)

    plan = FirstFeasiblePolicy(gpu, cpu, min_trials=3).plan(FEW_H100)
    last = gpu.model_copy(update={"min_trials": 3}) | CpuPolicy(cpus=99)

    assert (plan.worker.cpus, plan.max_concurrent_trials) == (64, 3)
    assert "3 times at once, but only 1 would run at once" in plan.reasons[0]
    with pytest.raises(InfeasibleRequestError, match="Ask for at most 64 CPUs per worker"):
        last.plan(FEW_H100)


@pytest.mark.parametrize(
    ("capacity", "count", "accelerator_type", "label_selector"),
    [
        pytest.param(MIXED, 6, None, {"ray.io/node-id": "in(a,c)"}, id="nodes without the label of their type"),
        pytest.param(
            ClusterCapacity(
                nodes=tuple(
                    node.model_copy(update={"labels": {"ray.io/accelerator-type": node.accelerator_type or "none"}})
                    for node in MIXED.nodes
                )
            ),
            6,
            None,
            {"ray.io/accelerator-type": "in(A100,H100)"},
            id="several types, by Ray's label",
        ),
        pytest.param(ClusterCapacity(nodes=MIXED.nodes[:2]), 4, "A100", {}, id="one type of two"),
        pytest.param(ClusterCapacity(nodes=(MIXED.nodes[0], MIXED.nodes[3])), 4, None, {}, id="all GPUs are large"),
    ],
)
def test_any_gpu_with_enough_memory_is_told_to_ray_in_the_simplest_way(
    capacity, count, accelerator_type, label_selector
):
    plan = GpuPolicy(min_gpu_memory="24GiB").plan(capacity)

    assert plan.max_concurrent_trials == count
    assert (plan.accelerator_type, plan.label_selector) == (accelerator_type, label_selector)


def test_nodes_without_a_label_of_their_type_are_listed_also_where_all_others_have_one():
    large = gpu_node("large", gpu_memory_gib=80)
    small = gpu_node("small", gpu_memory_gib=16, accelerator_type="T4", labels={"ray.io/accelerator-type": "T4"})

    plan = GpuPolicy(min_gpu_memory="24GiB").plan(ClusterCapacity.of(large, small))

    assert plan.label_selector == {"ray.io/node-id": "large"}


def test_gpu_memory_that_was_not_read_comes_from_the_table_of_known_types_and_the_plan_says_so():
    plan = GpuPolicy(min_gpu_memory="20GiB", gpus=0.5).plan(ClusterCapacity.of(gpu_node("a", accelerator_type="L4")))

    assert plan.gpu_memory_bytes == gpu_memory_of_type("L4") // 2
    assert (
        "GPU memory was not read, so the plan assumes the smallest total that a driver has reported for the type: "
        "1 L4 (22.5 GiB)"
    ) in plan.reasons


def test_gpu_memory_that_nobody_knows_is_not_enough():
    with pytest.raises(InfeasibleRequestError, match=r"the cluster has only 1 M3-Max \(memory not read\)"):
        GpuPolicy(min_gpu_memory="1GiB").plan(ClusterCapacity.of(gpu_node("a", accelerator_type="M3-Max")))


def test_devices_large_enough_are_used_together_whatever_their_type():
    plan = GpuMemoryPolicy(gpu_memory="30GiB").plan(MIXED)

    assert plan.max_concurrent_trials == 12
    assert plan.label_selector == {"ray.io/node-id": "in(a,c)"}
    assert "left out as their memory is too small or not known: 2 L4 (22 GiB)" in plan.reasons


def test_excluded_nodes_do_not_count_and_ray_is_told():
    head = gpu_node("head", gpus=0).model_copy(update={"is_head": True})
    other = gpu_node("b", gpus=0, cpus=2).model_copy(update={"address": "10.0.0.2"})
    policy = SelectingPolicy(CpuPolicy(), exclude_head=True, exclude_nodes=("10.0.0.2",))

    plan = policy.plan(ClusterCapacity.of(head, other, gpu_node("c", gpus=0, cpus=3)))

    assert plan.max_concurrent_trials == 3
    assert plan.label_selector == {"ray.io/node-id": "!in(b,head)"}


def test_what_an_inner_policy_selects_and_what_an_outer_one_excludes_are_told_to_ray_together():
    plan = SelectingPolicy(GpuPolicy(min_gpu_memory="24GiB"), exclude_nodes=("c",)).plan(MIXED)
    narrower = SelectingPolicy(
        SelectingPolicy(CpuPolicy(), label_selector={"zone": "!eu"}), label_selector={"zone": "us"}
    )

    assert (plan.accelerator_type, plan.label_selector) == ("A100", {"ray.io/node-id": "!c"})
    assert narrower.plan(ClusterCapacity.of(gpu_node("a", labels={"zone": "us"}))).label_selector == {"zone": "us"}


def test_a_selection_without_nodes_says_what_labels_there_are():
    capacity = ClusterCapacity.of(gpu_node("a", labels={"zone": "eu"}), gpu_node("b"))

    with pytest.raises(InfeasibleRequestError, match=r"none of 2 nodes is left; zone is eu, not set: short of"):
        SelectingPolicy(CpuPolicy(), label_selector={"zone": "us"}, exclude_nodes=("b",)).plan(capacity)


def test_nodes_that_are_drained_do_not_count():
    capacity = ClusterCapacity(nodes=(gpu_node("a", cpus=2),), draining=(gpu_node("b"),))

    plan = CpuPolicy().plan(capacity)

    assert plan.max_concurrent_trials == 2
    assert "not counted: 1 node being drained" in plan.reasons


def test_cpus_that_ray_counts_and_the_quota_does_not_allow_are_told():
    node = gpu_node("a", cpus=64).model_copy(update={"usable_cpus": 7.5})

    plan = CpuPolicy().plan(ClusterCapacity.of(node))

    assert any("Ray counts 64 CPUs on 1 node where" in reason and "--num-cpus=7" in reason for reason in plan.reasons)


def test_custom_resources_are_planned():
    capacity = ClusterCapacity.of(Resources(cpus=8, custom={"license": 3}))

    licensed = CpuPolicy(custom={"license": 1}).plan(capacity)

    assert (licensed.max_concurrent_trials, licensed.limited_by) == (3, "license")
    assert licensed.resources_per_trial == {"cpu": 1, "license": 1}


def test_an_infeasible_wish_that_an_added_node_would_meet_says_so():
    types = (
        NodeTypeCapacity(name="gpu-worker", resources=Resources(cpus=8, gpus=1), max_nodes_to_add=2),
        NodeTypeCapacity(name="cpu-worker", resources=Resources(cpus=8), max_nodes_to_add=2),
    )
    plan = FirstFeasiblePolicy(GpuPolicy(), CpuPolicy()).plan(nodes((4, 0)).model_copy(update={"node_types": types}))

    assert plan.worker == Resources(cpus=1)
    assert plan.reasons[0].endswith(
        "The autoscaler could add gpu-worker: call plan_when_ready, or wrap the policy in AutoscalingPolicy."
    )


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"NPU": 0.3}, r"is a device, .* take AcceleratorPolicy\(resource='NPU'\)"),
        ({"gpu": 1}, "custom resource 'gpu' is Tune's name for GPU: use gpus"),
        ({"accelerator_type:T4": 0.001}, "use accelerator_type"),
    ],
)
def test_what_has_a_field_or_a_policy_of_its_own_is_no_custom_resource(custom, message):
    with pytest.raises(InvalidResourcesError, match=message):
        CpuPolicy(custom=custom)


def test_a_wished_type_is_told_to_ray_beside_the_least_memory():
    plan = GpuPolicy(accelerator_type="A100", min_gpu_memory="20GiB").plan(
        ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80, accelerator_type="A100"))
    )

    assert plan.accelerator_type == "A100"


@pytest.mark.parametrize(
    "inner", [GpuMemoryPolicy(gpu_memory="20GiB"), GpuPolicy(min_gpu_memory="24GiB")], ids=["by memory", "whole"]
)
def test_ray_is_kept_off_devices_that_are_left_free_and_too_small(inner):
    capacity = ClusterCapacity.of(
        gpu_node("a", cpus=8, gpu_memory_gib=15, accelerator_type="T4"),
        gpu_node("b", cpus=6, gpu_memory_gib=80, accelerator_type="A100"),
    )

    plan = ReservingPolicy(inner, gpus=1).plan(capacity)

    assert plan.label_selector == {"ray.io/node-id": "!a"}


def test_node_types_that_are_not_selected_are_not_counted():
    types = tuple(
        NodeTypeCapacity(
            name=name,
            resources=Resources(cpus=8, gpus=1),
            accelerator_type="A100",
            labels={"zone": name},
            max_nodes_to_add=2,
        )
        for name in ("eu", "us")
    )
    capacity = ClusterCapacity(nodes=(gpu_node("h", gpus=0, cpus=4, labels={"zone": "us"}),), node_types=types)
    outside = SelectingPolicy(AutoscalingPolicy(GpuPolicy()), label_selector={"zone": "eu"}).plan(capacity)
    inside = AutoscalingPolicy(SelectingPolicy(GpuPolicy(), label_selector={"zone": "eu"}), max_nodes_to_add=2)

    assert (outside.max_concurrent_trials, outside.nodes_to_add) == (2, {"eu": 2})
    assert inside.plan(capacity).nodes_to_add == {"eu": 2}
    assert CappedPolicy(inside, 1).plan(capacity).nodes_to_add == {"eu": 1}


def test_least_memory_is_told_by_type_where_nodes_are_still_to_come():
    types = tuple(
        NodeTypeCapacity(name=name, resources=Resources(cpus=8, gpus=1), accelerator_type=name, max_nodes_to_add=2)
        for name in ("T4", "A100")
    )
    capacity = ClusterCapacity(nodes=(gpu_node("h", gpus=0, cpus=4),), node_types=types)

    plan = AutoscalingPolicy(GpuPolicy(min_gpu_memory="24GiB")).plan(capacity)

    assert (plan.accelerator_type, plan.nodes_to_add) == ("A100", {"A100": 2})


def test_nodes_to_come_of_which_one_type_alone_can_be_told_to_ray_are_those_of_that_type():
    """Both types are large enough. But without labels, no selector tells both from the alive node."""
    types = tuple(
        NodeTypeCapacity(name=name, resources=Resources(cpus=8, gpus=1), accelerator_type=name, max_nodes_to_add=most)
        for name, most in (("L4", 1), ("A100", 2))
    )
    alive = ClusterCapacity.of(gpu_node("t", accelerator_type="T4")).model_copy(update={"node_types": types})

    plan = AutoscalingPolicy(GpuPolicy(min_gpu_memory="20GiB")).plan(alive)

    assert (plan.accelerator_type, plan.label_selector, plan.nodes_to_add) == ("A100", {}, {"A100": 2})


def test_a_limit_that_means_none_is_planned_with_all_the_same():
    worker = NodeTypeCapacity(name="worker", resources=Resources(cpus=8), max_nodes_to_add=2**31 - 1)

    plan = AutoscalingPolicy(CpuPolicy()).plan(ClusterCapacity(node_types=(worker,)))

    assert plan.nodes_to_add == {"worker": 10_000}


@pytest.mark.parametrize("name", ["0123456789abcdef" * 3 + "01234567", "01234567", "fe80:0::1"])
def test_a_node_is_excluded_by_its_id_or_the_beginning_of_it_or_its_address(name):
    node = gpu_node("0123456789abcdef" * 3 + "01234567", gpus=0).model_copy(update={"address": "fe80::1"})

    plan = SelectingPolicy(CpuPolicy(), exclude_nodes=(name,)).plan(ClusterCapacity.of(node, gpu_node("b", cpus=2)))

    assert plan.max_concurrent_trials == 2


def test_what_is_to_be_excluded_and_is_not_there_is_told():
    plan = SelectingPolicy(CpuPolicy(), exclude_nodes=("10.0.0.9",), exclude_head=True).plan(nodes((2, 0)))

    assert "nothing to exclude: no alive node is '10.0.0.9'" in plan.reasons
    assert "nothing to exclude: which node is the head is not known" in plan.reasons


def test_an_error_says_that_what_it_misses_is_being_drained():
    capacity = ClusterCapacity(nodes=(gpu_node("a", gpus=0),), draining=(gpu_node("b"),))

    with pytest.raises(InfeasibleRequestError, match="0 GPUs; not counted: 1 being drained"):
        GpuPolicy().plan(capacity)


def test_nodes_are_not_suggested_where_no_more_of_all_types_together_may_come():
    extra = NodeTypeCapacity(name="gpu-worker", resources=Resources(cpus=8, gpus=4), max_nodes_to_add=3)
    cluster = ClusterCapacity.of(Resources(cpus=8)).model_copy(update={"node_types": (extra,), "max_nodes_to_add": 0})

    with pytest.raises(InfeasibleRequestError) as caught:
        GpuPolicy().plan(cluster)

    assert "gpu-worker" not in caught.value.suggestion
