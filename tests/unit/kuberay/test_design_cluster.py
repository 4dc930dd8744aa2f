"""Tests of worker groups for a policy and a catalog: the number and types of nodes, and the reasons."""

import pytest

from tests.decisions import a_decision
from tests.unit.kuberay.designed_clusters import FOUR_L4, L4, catalog, node_type
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    BenchmarkedPolicy,
    CappedPolicy,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
)
from tune_policies.kuberay import ClusterDesign, NodeCatalog, NodeType, design_cluster
from tune_policies.kuberay.design.catalog_file import HEAD
from tune_policies.kuberay.design.cheapest_nodes import NodePool
from tune_policies.kuberay.design.cluster_spec import head_of
from tune_policies.kuberay.design.offers import with_cheaper_nodes
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.policy import ResourcePolicy

A100 = node_type("a100", 12, 1, 3.7, accelerator_type="A100")
CPU = node_type("cpu", 16, 0, 0.6)
SLICE = node_type("v6e", 24, price=1.2, accelerator_type="TPU-V6E", custom={"TPU": 4}, topology="4x4")
ON_SLICES = AcceleratorPolicy(resource="TPU", amount=4, topology="4x4", accelerator_type="TPU-V6E", num_workers=4)


def groups(plan):
    return {group.node_type.name: group.max_nodes for group in plan.groups}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(CpuPolicy(cpus=2), {"cpu": 2}, id="CPUs of nodes without GPUs"),
        pytest.param(GpuPolicy(gpus=0.25, cpus=1), {"l4": 4}, id="cheaper small nodes with the same room"),
        pytest.param(GpuPolicy(gpus=0.25, cpus=2), {"l4-4": 1}, id="GPU nodes with enough CPUs"),
        pytest.param(GpuMemoryPolicy(gpu_memory="30GiB"), {"a100": 16}, id="GPUs with enough memory"),
        pytest.param(GpuPolicy(accelerator_type="A100"), {"a100": 16}, id="the requested GPU type"),
        pytest.param(GpuPolicy(gpus=4), {"l4-4": 16}, id="nodes with enough GPUs for one trial"),
        pytest.param(GpuPolicy(num_workers=4), {"l4": 64}, id="workers of a trial on several nodes"),
        pytest.param(CappedPolicy(GpuPolicy(), 5), {"l4": 5}, id="at most the number that the policy allows"),
        pytest.param(ReservingPolicy(CpuPolicy(), cpus=20), {"cpu": 3}, id="reserved resources are added"),
        pytest.param(ON_SLICES, {"v6e": 64}, id="whole TPU slices"),
        pytest.param(
            AutoscalingPolicy(GpuPolicy(), max_nodes_to_add=3), {"l4": 3}, id="at most the allowed number of nodes"
        ),
        pytest.param(
            EvenSplitPolicy(num_trials=20, min_cpus=2), {"cpu": 3}, id="room for the minimum number of workers"
        ),
        pytest.param(
            FirstFeasiblePolicy(GpuPolicy(accelerator_type="H100"), CpuPolicy(cpus=2)),
            {"cpu": 2},
            id="the first choice that fits",
        ),
        pytest.param(GpuPolicy(accelerator_type=("H100", "A100")), {"a100": 16}, id="the first available GPU type"),
    ],
)
def test_the_cheapest_groups_with_room_for_all_trials_are_chosen(policy, expected):
    plan = design_cluster(policy, catalog(L4, FOUR_L4, A100, CPU, SLICE), 16)

    assert groups(plan) == expected


def test_workers_get_many_small_nodes_if_they_cost_less_than_a_few_large_nodes():
    """One A100 node has room for all three trials, but costs more than six T4 nodes."""
    t4 = node_type("t4", 16, 1, 1.0, accelerator_type="T4")
    a100 = node_type("a100", 96, 8, 37.0, accelerator_type="A100")

    design = design_cluster(GpuMemoryPolicy(gpu_memory="12GiB", num_workers=2), catalog(t4, a100), 3)

    assert groups(design) == {"t4": 6}


def test_each_slot_type_gets_a_group_of_suitable_nodes():
    policy = MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2))

    plan = design_cluster(policy, catalog(L4, CPU), 64)

    assert groups(plan) == {"cpu": 4, "l4": 8}
    assert [slot.max_concurrent_trials for slot in plan.trials.slots] == [32, 32]


def test_no_nodes_are_added_for_trials_that_fit_better_slots():
    """One node has four GPUs, and the two trials need only two GPUs."""
    policy = MixedPolicy(GpuPolicy(), CpuPolicy(cpus=2))

    assert groups(design_cluster(policy, catalog(FOUR_L4, CPU), 2)) == {"l4-4": 1}


def test_slot_types_that_share_resources_get_no_more_nodes_than_the_trials_need():
    """The first slot type uses all CPUs, so no slot of the second type exists."""
    assert groups(design_cluster(MixedPolicy(CpuPolicy(), CpuPolicy()), catalog(CPU), 16)) == {"cpu": 1}


def test_trials_are_divided_among_slot_types_in_proportion_to_their_speeds():
    policy = MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2), speeds=(3, 1))

    assert groups(design_cluster(policy, catalog(L4, CPU), 64)) == {"cpu": 2, "l4": 12}


def test_trials_that_exceed_the_slots_of_one_type_use_another_type():
    policy = MixedPolicy(GpuPolicy(), CpuPolicy(cpus=2))
    scarce = L4.model_copy(update={"count": 4})

    assert groups(design_cluster(policy, catalog(scarce, CPU), 64)) == {"cpu": 8, "l4": 4}


def test_a_slot_type_without_nodes_is_omitted_with_a_reason():
    plan = design_cluster(MixedPolicy(GpuPolicy(), CpuPolicy(cpus=2)), catalog(CPU), 64)

    assert groups(plan) == {"cpu": 8}
    assert any(reason.startswith("the design has no nodes for GpuPolicy") for reason in plan.reasons)


def test_train_workers_next_to_other_slot_types_get_nodes_with_their_device():
    policy = MixedPolicy(GpuPolicy(num_workers=2), CpuPolicy(cpus=2))

    assert groups(design_cluster(policy, catalog(L4, CPU), 16)) == {"cpu": 1, "l4": 16}


def test_train_workers_of_several_slot_types_get_nodes_with_their_devices():
    policy = MixedPolicy(GpuPolicy(num_workers=2), CpuPolicy(num_workers=2))

    assert groups(design_cluster(policy, catalog(L4, CPU), 16)) == {"cpu": 1, "l4": 16}


def test_with_slots_by_config_each_slot_type_has_room_for_all_trials():
    policy = BenchmarkedPolicy(a_decision("L4"), gpu=GpuPolicy(gpus=0.25, cpus=1), cpu=CpuPolicy(cpus=2))

    plan = design_cluster(policy, catalog(L4, CPU), 64)

    assert groups(plan) == {"cpu": 8, "l4": 16}
    assert plan.trials.min_concurrent_trials == 64


@pytest.mark.parametrize(
    "policy",
    [
        MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2)),
        FirstFeasiblePolicy(CpuPolicy(cpus=2), GpuPolicy(gpus=0.25, cpus=1)),
    ],
    ids=["mixed kinds", "choices"],
)
@pytest.mark.parametrize(
    ("size", "expected"),
    [pytest.param(256, {"l4": 16}, id="large trials on GPUs"), pytest.param(16, {"cpu": 8}, id="small trials on CPUs")],
)
def test_a_decision_assigns_trials_to_the_cheapest_nodes(policy, size, expected):
    plan = design_cluster(policy, catalog(L4, CPU), 64, decision=a_decision("L4"), size=size)

    assert groups(plan) == expected


def test_a_decision_does_not_apply_to_gpus_of_other_types():
    """An L4 would be the cheapest GPU if it were as fast as the measured A100."""
    policy = FirstFeasiblePolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2))

    plan = design_cluster(policy, catalog(L4, A100, CPU), 64, decision=a_decision("A100"))

    assert groups(plan) == {"cpu": 8}
    assert "the design does not use l4, because the benchmark measured only A100" in plan.reasons


def test_without_prices_the_answer_of_the_decision_is_used():
    policy = FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=2))
    free = [each.model_copy(update={"price_per_hour": None}) for each in (L4, CPU)]

    plan = design_cluster(policy, catalog(*free), 8, decision=a_decision("L4"), size=16)

    assert groups(plan) == {"cpu": 1}


def test_with_a_decision_the_plan_has_the_cost_of_all_trials():
    decision = a_decision("L4")
    trial_s = decision.workloads[0].sizes[-1].gpu.trial_s

    plan = design_cluster(GpuPolicy(), catalog(L4), 64, decision=decision)

    assert plan.hours == pytest.approx(trial_s / 3600)
    assert plan.price == pytest.approx(64 * 0.7 * trial_s / 3600)


def test_an_unknown_workload_is_rejected():
    with pytest.raises(InvalidResourcesError, match="the decision has no workload 'mpl'; did you mean 'mlp'"):
        design_cluster(GpuPolicy(), catalog(L4), 64, decision=a_decision(), workload="mpl")


@pytest.mark.parametrize("size", [0, -3, float("nan"), float("inf")])
def test_an_invalid_size_is_rejected(size):
    with pytest.raises(InvalidResourcesError, match="size must be above 0"):
        design_cluster(GpuPolicy(), catalog(L4), 64, decision=a_decision(), size=size)


@pytest.mark.parametrize(
    ("policy", "node_types"),
    [
        pytest.param(GpuPolicy(), (L4, CPU), id="one slot type"),
        pytest.param(MixedPolicy(GpuPolicy(), CpuPolicy(cpus=4)), (A100, CPU), id="GPUs without measurements"),
    ],
)
def test_a_decision_without_effect_is_reported(policy, node_types):
    plan = design_cluster(policy, catalog(*node_types), 8, decision=a_decision("L4"))

    assert "the decision has no effect" in " ".join(plan.reasons)


def test_a_design_requires_the_memory_of_each_node_type():
    with pytest.raises(InvalidResourcesError, match="the memory of cpu-8 is missing"):
        design_cluster(CpuPolicy(), catalog(NodeType(cpus=8)), 4)


def test_without_prices_the_smallest_number_of_nodes_is_chosen():
    free = [each.model_copy(update={"price_per_hour": None}) for each in (L4, FOUR_L4)]

    plan = design_cluster(GpuPolicy(), catalog(*free), 64)

    assert groups(plan) == {"l4-4": 16}
    assert plan.price_per_hour is None


def test_nodes_without_a_price_are_used_last():
    unknown = FOUR_L4.model_copy(update={"price_per_hour": None})

    plan = design_cluster(GpuPolicy(), catalog(L4.model_copy(update={"count": 60}), unknown), 64)

    assert groups(plan) == {"l4": 60, "l4-4": 1}
    assert plan.price_per_hour is None


def test_the_price_includes_all_nodes_and_the_head():
    head = node_type("boss", 4, price=0.2)

    assert design_cluster(GpuPolicy(), catalog(L4, head=head), 10).price_per_hour == pytest.approx(7.2)


ON_A100 = NodeType(name="a100", cpus=12, gpus=1, memory="64GiB", accelerator_type="A100", price_per_hour=1.8)
ON_L40S = NodeType(name="l40s", cpus=16, gpus=1, memory="64GiB", accelerator_type="L40S", price_per_hour=1.9)


def test_a_design_states_near_the_top_that_slightly_smaller_trials_cost_less():
    policy, nodes = GpuMemoryPolicy(gpu_memory="20GiB"), NodeCatalog(nodes=(ON_A100, ON_L40S))

    design = with_cheaper_nodes(design_cluster(policy, nodes, 64), policy, nodes)

    saving = (
        "with gpu_memory: 20268MiB (1.0% less than 20 GiB), 32 a100 nodes would be enough, for 57.60 instead of 60.80 "
        "USD per hour"
    )
    assert design.cheaper == (saving,)
    assert design.explain().splitlines()[3:5] == [
        "at most 60.80 USD an hour, 0.95 USD per trial hour, without the head, whose price is unknown",
        f"cheaper: {saving}",
    ]
    followed = design_cluster(GpuMemoryPolicy(gpu_memory="20268MiB"), nodes, 64)
    assert (groups(followed), followed.price_per_hour) == ({"a100": 32}, pytest.approx(57.6))


def test_if_the_catalog_has_too_few_nodes_the_remaining_trials_wait():
    plan = design_cluster(GpuPolicy(), catalog(L4.model_copy(update={"count": 3})), 64)

    assert groups(plan) == {"l4": 3}
    assert plan.reasons[1:] == (
        "3 of 64 trials run at once because the catalog has no more of these nodes; the other trials wait",
        "all 64 trials at once would need 64 l4 nodes: raise count",
    )


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        (
            AutoscalingPolicy(GpuPolicy(gpus=0.5), max_nodes_to_add=2),
            (
                "4 of 12 trials run at once because max_nodes_to_add is 2; the other trials wait",
                "all 12 trials at once would need 6 l4 nodes: raise max_nodes_to_add",
            ),
        ),
        (
            CappedPolicy(GpuPolicy(gpus=0.5), 4),
            (
                "4 of 12 trials run at once because the policy or the available nodes do not allow more trials; the "
                "other trials wait",
            ),
        ),
    ],
    ids=["the limit of nodes", "the cap of the policy"],
)
def test_a_policy_that_limits_the_number_of_trials_is_reported_with_a_suggestion(policy, reasons):
    plan = design_cluster(policy, catalog(L4), 12)

    assert plan.reasons[1:] == reasons


def numbers(plan):
    return {group.node_type.name: (group.min_nodes, group.max_nodes) for group in plan.groups}


@pytest.mark.parametrize(
    ("policy", "node_types", "least", "expected"),
    [
        pytest.param(GpuPolicy(), (L4,), {"l4": 2}, {"l4": (2, 8)}, id="of the needed group"),
        pytest.param(GpuPolicy(), (L4,), {"l4": 10}, {"l4": (10, 10)}, id="more nodes than needed"),
        pytest.param(GpuPolicy(), (L4, A100), {"a100": 3}, {"a100": (3, 3), "l4": (0, 5)}, id="the group used first"),
        pytest.param(GpuPolicy(), (L4, CPU), {"cpu": 1}, {"cpu": (1, 1), "l4": (0, 8)}, id="of no use to any trial"),
        pytest.param(ON_SLICES, (SLICE,), {"v6e": 4}, {"v6e": (4, 32)}, id="a whole TPU slice"),
        pytest.param(
            MixedPolicy(GpuPolicy(), CpuPolicy(cpus=4)), (L4, CPU), {"l4": 6}, {"cpu": (0, 1), "l4": (6, 6)},
            id="of a policy with several slot types",
        ),
        pytest.param(
            AutoscalingPolicy(GpuPolicy(), max_nodes_to_add=3), (L4,), {"l4": 2}, {"l4": (2, 5)},
            id="a limit of added nodes includes the minimum",
        ),
    ],
)  # fmt: skip
def test_a_group_keeps_its_minimum_number_of_nodes(policy, node_types, least, expected):
    plan = design_cluster(policy, catalog(*node_types), 8, min_nodes=least)

    assert numbers(plan) == expected
    assert plan.trials.nodes_to_add == {name: most - few for name, (few, most) in expected.items() if most > few}


def test_min_nodes_of_the_call_overrides_min_nodes_of_the_catalog():
    nodes = catalog(L4.model_copy(update={"min_nodes": 2}))

    assert numbers(design_cluster(GpuPolicy(), nodes, 8)) == {"l4": (2, 8)}
    assert numbers(design_cluster(GpuPolicy(), nodes, 8, min_nodes={"l4": 1})) == {"l4": (1, 8)}
    assert "2 worker nodes at first" in design_cluster(GpuPolicy(), nodes, 8).explain()


def test_a_minimum_of_an_unknown_node_type_is_rejected():
    with pytest.raises(InvalidResourcesError, match=r"'l5', which is not a node type\. Node types: l4, cpu"):
        design_cluster(GpuPolicy(), catalog(L4, CPU), 8, min_nodes={"l5": 1})


@pytest.mark.parametrize(
    ("num_trials", "expected"), [(8, {"l4": 4}), (4, {})], ids=["trials for both", "trials for the head only"]
)
def test_trials_run_on_a_head_with_gpus(num_trials, expected):
    head = node_type("boss", 48, 4, price=4.0, accelerator_type="L4")

    plan = design_cluster(GpuPolicy(accelerator_type="L4"), catalog(L4, head=head), num_trials)

    assert (groups(plan), plan.trials.min_concurrent_trials) == (expected, num_trials)
    assert "boss, which also runs trials: 48 CPUs, 4 GPUs" in plan.explain()
    assert plan.price_per_hour == pytest.approx(4 + 0.7 * sum(expected.values()))


def test_trials_that_fit_only_the_head_run_on_the_head():
    head = node_type("boss", 48, 4, accelerator_type="L4")

    plan = design_cluster(GpuPolicy(gpus=4), catalog(L4, head=head), 3)

    assert (groups(plan), plan.trials.min_concurrent_trials) == ({}, 1)


def test_groups_of_slices_have_the_number_of_hosts_per_slice():
    (group,) = design_cluster(ON_SLICES, catalog(SLICE), 3).groups

    assert (group.num_hosts, group.max_nodes, group.trials_at_once) == (4, 12, 3)


def test_min_nodes_of_a_group_of_slices_count_as_alive_slices():
    spec = design_cluster(ON_SLICES, catalog(SLICE), 3).spec
    (group,) = spec.groups
    always = spec.model_copy(update={"groups": (group.model_copy(update={"min_nodes": 8}),)})

    assert ON_SLICES.plan(always.capacity).max_concurrent_trials == 2


def test_a_trial_that_fits_no_node_is_rejected_with_the_resources_of_the_nodes():
    with pytest.raises(InfeasibleRequestError, match="with all nodes of the catalog, the largest node has 16 CPUs"):
        design_cluster(CpuPolicy(cpus=32), catalog(CPU), 4)


def test_too_few_nodes_for_one_trial_are_rejected():
    policy = AutoscalingPolicy(GpuPolicy(num_workers=4), max_nodes_to_add=3)

    with pytest.raises(InfeasibleRequestError, match="Set max_nodes_to_add to 4 or more"):
        design_cluster(policy, catalog(L4), 4)


@pytest.mark.parametrize("num_trials", [0, -1, 1.5, True])
def test_a_number_of_trials_that_is_not_a_positive_integer_is_rejected(num_trials):
    with pytest.raises(InvalidResourcesError, match="num_trials must be a whole number"):
        design_cluster(CpuPolicy(), catalog(CPU), num_trials)


def test_more_trials_than_fit_a_cluster_are_rejected_with_the_limit():
    with pytest.raises(InvalidResourcesError, match="num_trials must be at most 100,000, got 1000000000"):
        design_cluster(CpuPolicy(), catalog(CPU), 10**9)


def test_no_more_nodes_are_suggested_than_a_cluster_may_have():
    few = catalog(CPU.model_copy(update={"count": 1}))

    assert "at once would need" in design_cluster(CpuPolicy(), few, 1000).explain()
    assert "at once would need" not in design_cluster(CpuPolicy(cpus=16), few, 100_000).explain()


def test_the_number_of_compared_nodes_is_limited_for_any_number_of_types():
    pool = NodePool({f"{number}": CPU.model_copy(update={"count": 10**9}) for number in range(50)}, head_of(HEAD))

    assert sum(pool.most.values()) == 100_000


@pytest.mark.parametrize("name", ["Mine", "1st", "a_b", "a" * 54, ""])
def test_a_name_that_is_invalid_in_kuberay_is_rejected(name):
    with pytest.raises(InvalidResourcesError, match="at most 53"):
        design_cluster(CpuPolicy(), catalog(CPU), 4, name=name)


def kind_of(policy):
    return f"{type(policy).__name__} {policy.model_dump_json(exclude_defaults=True)}"


SEVERAL = [
    CpuPolicy(cpus=2),
    CpuPolicy(cpus=3, memory="2GiB", num_workers=2),
    GpuPolicy(gpus=0.25),
    GpuPolicy(num_workers=3),
    GpuMemoryPolicy(gpu_memory="7GiB"),
    MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2)),
    FirstFeasiblePolicy(GpuPolicy(gpus=8), CpuPolicy()),
    ReservingPolicy(CpuPolicy(), cpus=9),
    EvenSplitPolicy(num_trials=10, min_gpus=0.5),
]


@pytest.mark.parametrize("policy", SEVERAL, ids=kind_of)
def test_the_trials_fit_the_designed_cluster(policy):
    plan = design_cluster(policy, catalog(L4, FOUR_L4, A100, CPU), 10)

    found = AutoscalingPolicy(CappedPolicy(policy, 10)).plan(plan.spec.capacity)

    assert found.slots == plan.trials.slots
    assert found.nodes_to_add == plan.trials.nodes_to_add


def at_once(policy, spec):
    try:
        return AutoscalingPolicy(policy).plan(spec.capacity).max_concurrent_trials
    except InfeasibleRequestError:
        return 0


@pytest.mark.parametrize("policy", [each for each in SEVERAL if not isinstance(each, MixedPolicy)], ids=kind_of)
def test_with_one_node_fewer_not_all_trials_fit(policy):
    spec = design_cluster(policy, catalog(L4, FOUR_L4, A100, CPU), 10).spec

    for group in spec.groups:
        fewer = group.model_copy(update={"max_nodes": group.max_nodes - 1})
        groups_left = tuple(fewer if each is group else each for each in spec.groups)
        assert at_once(policy, spec.model_copy(update={"groups": groups_left})) < 10


def test_the_order_of_the_catalog_does_not_affect_the_plan():
    policy = MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2))

    assert design_cluster(policy, catalog(L4, CPU, A100), 9) == design_cluster(policy, catalog(A100, CPU, L4), 9)


def test_a_design_round_trips_through_json():
    plan = design_cluster(GpuPolicy(gpus=0.25), catalog(L4, CPU), 9)

    assert ClusterDesign.from_json(plan.to_json()) == plan


def test_the_explanation_of_a_design_has_its_nodes_price_and_reasons():
    plan = design_cluster(GpuPolicy(gpus=0.25, cpus=1), catalog(L4, FOUR_L4), 64)

    assert plan.explain().splitlines()[:7] == [
        "room for 64 of 64 trials at once, no worker nodes at first",
        "  l4: 0 to 16 nodes with 4 CPUs, 1 GPU, 16 GiB of host memory (L4), for 64 trials",
        "  each trial: 1 CPU, 0.25 GPU, 5.6 GiB of GPU memory",
        "at most 11.20 USD an hour, 0.17 USD per trial hour, without the head, whose price is unknown",
        "  - 64 trials on 16 l4 nodes: the lowest price per hour with room for them",
        "  - the price of a slot per hour is 0.175 USD on l4, 0.25 USD on l4-4. "
        "A trial hour costs more if some slots are idle",
        "  - 5.6 GiB of GPU memory per trial, based on the smallest GPU that the plan uses",
    ]


class PolicyOfAUser(ResourcePolicy):
    def plan(self, capacity):
        return plan_first_feasible([CpuPolicy()], capacity)


def test_a_design_for_a_user_defined_policy_uses_the_catalog():
    assert groups(design_cluster(PolicyOfAUser(), catalog(CPU), 64)) == {"cpu": 4}


def test_a_design_says_why_no_trial_fits_on_a_cheaper_node_type():
    l4 = NodeType(name="l4", cpus=3, memory="30GiB", gpus=1, accelerator_type="L4", price_per_hour=0.8)
    a100 = NodeType(name="a100", cpus=12, memory="80GiB", gpus=1, accelerator_type="A100", price_per_hour=3.67)

    design = design_cluster(GpuMemoryPolicy(gpu_memory="20GiB", cpus=4), NodeCatalog(nodes=(l4, a100)), 4)

    assert design.reasons[-1] == (
        "no trial fits on l4: the largest node has 3 CPUs, 1 GPU (L4), 30 GiB of host memory. Request at most 3 CPUs "
        "per trial, or add a larger node."
    )
