"""A forecast contains the number of trials and the price of a cluster at its minimum and maximum size."""

import pytest

from tune_policies import (
    AcceleratorPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    Resources,
)
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, WorkerGroup
from tune_policies.kuberay.design.forecast import forecast_trials
from tune_policies.kuberay.design.policy_comparison import compare_policies

POLICY = GpuPolicy(gpus=0.25, cpus=2)


def group(name="gpu", **changes):
    node = {"resources": Resources(cpus=8, gpus=1), "max_nodes": 4}
    return WorkerGroup(name=name, **{**node, **changes})


def node_type(name, **changes):
    return NodeType(name=name, **{"cpus": 8, "memory": 2**30, "gpus": 1, **changes})


def cluster(*groups, **changes):
    return ClusterSpec(groups=groups or (group(),), **changes)


HEAD = NodeType(name="head", cpus=2, memory=2**30, price_per_hour=0.5)


def test_trials_run_on_permanent_and_on_added_nodes():
    forecast = forecast_trials(POLICY, cluster(group(min_nodes=1)))

    stages = [(stage.trials_at_once, stage.nodes) for stage in (forecast.at_minimum, forecast.at_maximum)]
    assert stages == [(4, {"gpu": 1}), (16, {"gpu": 4})]


def test_a_forecast_explains_why_no_trial_runs_on_the_minimum_number_of_nodes():
    minimum = forecast_trials(POLICY, cluster()).at_minimum

    assert (minimum.trials_at_once, minimum.nodes) == (0, {"gpu": 0})
    assert "one trial needs 2 CPUs, 0.25 GPU" in minimum.why_not


def test_a_cluster_without_an_autoscaler_keeps_its_initial_size():
    forecast = forecast_trials(POLICY, cluster(group(start_nodes=2), is_autoscaling=False))

    assert forecast.at_minimum == forecast.at_maximum
    assert (forecast.at_maximum.trials_at_once, forecast.at_maximum.nodes) == (8, {"gpu": 2})


def test_the_common_limit_of_all_groups_is_respected():
    forecast = forecast_trials(POLICY, cluster(group("a"), group("b"), max_nodes=5))

    assert (forecast.at_maximum.trials_at_once, sum(forecast.at_maximum.nodes.values())) == (20, 5)


def test_fewer_trials_need_fewer_nodes():
    forecast = forecast_trials(POLICY, cluster(), num_trials=6)

    assert (forecast.for_trials.trials_at_once, forecast.for_trials.nodes) == (6, {"gpu": 2})


@pytest.mark.parametrize("num_trials", [None, 0, 16, 99])
def test_a_forecast_has_no_stage_for_num_trials_if_all_nodes_or_none_are_needed(num_trials):
    assert forecast_trials(POLICY, cluster(), num_trials=num_trials).for_trials is None


def test_the_price_includes_the_head_and_the_needed_nodes():
    catalog = NodeCatalog(nodes=(node_type("gpu", price_per_hour=1.25),), head=HEAD, currency="EUR")

    forecast = forecast_trials(POLICY, cluster(), catalog=catalog, num_trials=6)

    stages = (forecast.at_minimum, forecast.for_trials, forecast.at_maximum)
    assert ([stage.price_per_hour for stage in stages], forecast.currency) == ([0.5, 3.0, 5.5], "EUR")


def test_without_a_catalog_there_is_no_price():
    assert forecast_trials(POLICY, cluster()).at_maximum.price_per_hour is None


@pytest.mark.parametrize(
    ("types", "price"),
    [
        pytest.param([node_type("gpu", gpus=0, price_per_hour=1)], 1, id="the same name has precedence"),
        pytest.param([node_type("l4", accelerator_type="L4", price_per_hour=2)], 2, id="the same devices"),
        pytest.param([node_type("t4", accelerator_type="T4", price_per_hour=2)], None, id="no other device type"),
        pytest.param([node_type("two", gpus=2, price_per_hour=2)], None, id="no other number of devices"),
        pytest.param([node_type("small", cpus=4, price_per_hour=2)], None, id="no fewer CPUs"),
        pytest.param(
            [node_type("big", cpus=64, price_per_hour=1), node_type("near", cpus=9, price_per_hour=3)],
            3,
            id="the smallest sufficient node type",
        ),
        pytest.param([node_type("gpu"), node_type("l4", price_per_hour=2)], None, id="a missing price"),
    ],
)
def test_a_group_has_the_price_of_the_most_similar_node_type(types, price):
    catalog = NodeCatalog(nodes=tuple(types), head=HEAD.model_copy(update={"price_per_hour": 0.0}))

    forecast = forecast_trials(POLICY, cluster(group(accelerator_type="L4", max_nodes=1)), catalog=catalog)

    assert forecast.at_maximum.price_per_hour == price
    assert any("no price for 'gpu'" in caution for caution in forecast.cautions) == (price is None)


def test_a_missing_price_of_the_head_is_reported_as_a_caution():
    catalog = NodeCatalog(nodes=(node_type("gpu", price_per_hour=1.25),))

    forecast = forecast_trials(POLICY, cluster(), catalog=catalog)

    assert (forecast.at_minimum.price_per_hour, forecast.at_maximum.price_per_hour) == (None, 5.0)
    assert forecast.cautions == ("the price does not include the head, because the catalog has no price for it",)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_device_type_that_the_autoscaler_cannot_find_is_reported_as_a_caution(is_counted):
    wanted = GpuPolicy(accelerator_type="L4")

    forecast = forecast_trials(wanted, cluster(group(accelerator_type="L4", is_type_counted=is_counted)))

    assert (
        any("the resources of group 'gpu' do not include it" in caution for caution in forecast.cautions) != is_counted
    )


@pytest.mark.parametrize(
    ("needs_start_params", "fix"),
    [
        (False, 'Write resources: {"accelerator_type:L4": "1"} in the group'),
        (True, "Write 1 as accelerator_type:L4 in the JSON of rayStartParams.resources of the group"),
    ],
)
def test_the_caution_about_a_device_type_names_the_field_that_the_group_can_use(needs_start_params, fix):
    of_l4 = group(accelerator_type="L4", is_type_counted=False, needs_start_params=needs_start_params)

    forecast = forecast_trials(GpuPolicy(accelerator_type="L4"), cluster(of_l4))

    assert any(caution.endswith(fix) for caution in forecast.cautions)


def test_only_whole_slices_are_added():
    host = Resources(cpus=24, custom={"TPU": 4})
    slices = group(
        "tpu", resources=host, accelerator_type="TPU-V6E", topology="4x4", num_hosts=4, max_nodes=8, start_nodes=8
    )

    forecast = forecast_trials(AcceleratorPolicy(resource="TPU", amount=4), cluster(slices), num_trials=3)

    stages = [(stage.trials_at_once, stage.nodes) for stage in (forecast.at_maximum, forecast.for_trials)]
    assert stages == [(8, {"tpu": 8}), (3, {"tpu": 4})]


def test_a_forecast_is_infeasible_if_no_trial_fits_at_the_maximum():
    with pytest.raises(InfeasibleRequestError, match="short of GPU"):
        forecast_trials(GpuPolicy(gpus=2), cluster())


def test_a_cluster_with_too_many_nodes_is_refused():
    with pytest.raises(InvalidResourcesError, match="at least 20000 nodes"):
        forecast_trials(CpuPolicy(), cluster(group(min_nodes=20_000, max_nodes=20_000)))


def test_a_group_without_a_limit_can_have_ten_thousand_nodes():
    forecast = forecast_trials(CpuPolicy(cpus=8), cluster(group(max_nodes=2147483647)))

    assert forecast.at_maximum.trials_at_once == 10_000


@pytest.mark.parametrize(
    ("num_trials", "expected"),
    [
        pytest.param(1, "1 trial at once needs only the nodes of the minimum", id="permanent nodes"),
        pytest.param(9, "9 trials at once need 3 gpu nodes", id="added nodes"),
    ],
)
def test_the_nodes_for_num_trials_are_explained(num_trials, expected):
    forecast = forecast_trials(POLICY, cluster(group(min_nodes=2)), num_trials=num_trials)

    assert expected in forecast.explain().splitlines()


def test_compared_policies_have_their_own_nodes_and_prices():
    catalog = NodeCatalog(nodes=(node_type("gpu", price_per_hour=2), node_type("cpu", gpus=0, price_per_hour=1)))
    both = cluster(group(), group("cpu", resources=Resources(cpus=8)))

    compared = compare_policies([("gpus", POLICY), ("cpus", CpuPolicy(cpus=8))], both, catalog=catalog, num_trials=20)

    columns = [
        (each.policy, each.trials_at_once, each.nodes, each.price_per_hour, each.price_of_trial_hour, each.num_rounds)
        for each in compared.policies
    ]
    assert columns == [
        ("gpus", 16, {"gpu": 4, "cpu": 0}, 8.0, 0.5, 2),
        ("cpus", 8, {"gpu": 4, "cpu": 4}, 12.0, 1.5, 3),
    ]
    assert [(part.amount, part.resource) for part in compared.policies[1].idle] == [(4, "GPU")]
    assert compared.cautions == ("the price does not include the head, because the catalog has no price for it",)


@pytest.mark.parametrize(
    ("policies", "is_feasible"), [((GpuPolicy(gpus=9), CpuPolicy()), True), ((GpuPolicy(gpus=9),), False)]
)
def test_a_comparison_has_the_reason_why_a_policy_is_infeasible(policies, is_feasible):
    listed = NodeCatalog(nodes=(node_type("node", count=2),))

    compared = compare_policies([(type(each).__name__, each) for each in policies], listed)

    assert compared.is_feasible is is_feasible
    assert compared.policies[0].why_not == (
        "one trial needs 9 GPUs, but the largest node has 8 CPUs, 1 GPU, 1 GiB of host memory: short of GPU"
    )


@pytest.mark.parametrize(
    ("labels", "version", "hint"),
    [
        ({}, 2, "add a label such as labels: {nodes: big} to the group"),
        ({"size": "big"}, 2, "use SelectingPolicy with label_selector: {size: big}"),
        ({"size": "big"}, 1, "set the maximum of the other groups to 0"),
    ],
)
def test_a_forecast_states_how_to_get_cheaper_nodes_than_ray_launches(labels, version, hint):
    big, small = (
        WorkerGroup(name=name, resources=Resources(cpus=cpus, memory_bytes=2**36), max_nodes=8, labels=of_group)
        for name, cpus, of_group in [("big", 64, labels), ("small", 8, {})]
    )
    catalog = NodeCatalog(
        nodes=(
            NodeType(name="big", cpus=64, memory="64GiB", price_per_hour=3.2),
            NodeType(name="small", cpus=8, memory="64GiB", price_per_hour=1.6),
        )
    )

    forecast = forecast_trials(
        CpuPolicy(cpus=8), cluster(big, small, autoscaler_version=version), catalog=catalog, num_trials=4
    )

    assert (forecast.for_trials.nodes, forecast.for_trials.price_per_hour) == ({"big": 0, "small": 4}, 6.4)
    assert any("1 big instead of 4 small would be cheaper (3.20 USD an hour)" in each for each in forecast.cautions)
    assert any(hint in each for each in forecast.cautions)
