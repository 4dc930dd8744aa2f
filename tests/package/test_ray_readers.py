"""Ray's autoscaler code, without a running autoscaler: how it reads a RayCluster, and which nodes it launches."""

import pytest

from tests.autoscaler_v2 import nodes_launched
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

pytestmark = pytest.mark.ray_border


def node_type(max_workers, min_workers=0, labels=None, **resources):
    return {"resources": resources, "min_workers": min_workers, "max_workers": max_workers, "labels": labels or {}}


def config(max_workers=None, head_cpus=0, **types):
    return {
        "head_node_type": "head",
        "max_workers": sum(each["max_workers"] for each in types.values()) if max_workers is None else max_workers,
        "available_node_types": {"head": node_type(0, CPU=head_cpus), **types},
    }


GPU_NODE = node_type(3, GPU=2, CPU=16)


@pytest.mark.parametrize(
    ("config", "bundles", "launched"),
    [
        pytest.param(config(gpu=GPU_NODE), [{"GPU": 1}] * 5, {"gpu": 3}, id="the fewest nodes that fit the bundles"),
        pytest.param(config(gpu=GPU_NODE), [{"GPU": 1}] * 7, {}, id="none if not all bundles fit"),
        pytest.param(config(gpu=GPU_NODE, max_workers=2), [{"GPU": 1}] * 5, {}, id="none beyond max_workers"),
        pytest.param(config(gpu=GPU_NODE, max_workers=2), [{"GPU": 1}] * 4, {"gpu": 2}, id="exactly max_workers"),
        pytest.param(config(gpu=GPU_NODE), [], {}, id="none without bundles"),
        pytest.param(config(gpu=GPU_NODE, head_cpus=4), [{"CPU": 1}] * 4, {}, id="none if the bundles fit the head"),
        pytest.param(config(gpu=node_type(3, 1, GPU=2)), [], {"gpu": 1}, id="the minimum of a type"),
        pytest.param(config(gpu=node_type(3, 1, GPU=2)), [{"GPU": 1}] * 3, {"gpu": 2}, id="including the minimum"),
        pytest.param(
            config(gpu=GPU_NODE, cpu=node_type(9, CPU=8)),
            [{"CPU": 1}] * 9,
            {"cpu": 2},
            id="no GPU node for CPUs",
        ),
        pytest.param(
            config(gpu=GPU_NODE),
            [{"GPU": 0.6}] * 6,
            {"gpu": 2},
            id="added fractions, although 2 bundles stay pending",
        ),
    ],
)
def test_autoscaler_v2_launches_nodes_for_a_request(config, bundles, launched):
    assert nodes_launched(config, bundles) == launched


@pytest.mark.parametrize(
    ("condition", "launched"),
    [
        ("eu", {"there": 1}),
        ("in(eu,asia)", {"there": 1}),
        ("!eu", {"here": 1}),
        ("!in(us,asia)", {"there": 1}),
        ("asia", {}),
    ],
)
def test_only_nodes_that_a_label_selector_selects_are_launched(condition, launched):
    types = config(here=node_type(2, CPU=8, labels={"zone": "us"}), there=node_type(2, CPU=8, labels={"zone": "eu"}))

    assert nodes_launched(types, [{"CPU": 4}] * 2, [{"zone": condition}] * 2) == launched


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"available_node_types": {"gpu": {}}, "max_workers": 1},
        config(gpu=node_type(1, 2, GPU=1)),
        config(gpu={"resources": {"GPU": "many"}, "max_workers": 1}),
        {**config(gpu=GPU_NODE), "max_workers": "many"},
        {**config(gpu=GPU_NODE), "available_node_types": [1]},
    ],
    ids=["empty", "no head", "maximum below minimum", "a text as an amount", "a text as a limit", "a list"],
)
def test_a_configuration_that_ray_cannot_read_is_a_value_error(broken):
    with pytest.raises(ValueError, match=r"^\w+: "):
        nodes_launched(broken, [{"GPU": 1}])


def group(**changes):
    container = {"name": "ray", "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 2}}}
    template = {"spec": {"containers": [container]}}
    return {"groupName": "gpu", "maxReplicas": 3, "rayStartParams": {}, "template": template, **changes}


def manifest(*groups):
    head = {"rayStartParams": {"num-cpus": "0", "num-gpus": "0"}, "template": group()["template"]}
    return {"metadata": {"name": "mine"}, "spec": {"headGroupSpec": head, "workerGroupSpecs": list(groups)}}


def test_a_manifest_is_read_with_the_defaults_of_kuberay():
    read = read_ray_cluster(manifest(group(numOfHosts=2)))

    assert read["available_node_types"]["gpu"]["resources"] == {"CPU": 8, "GPU": 2, "memory": 32 * 2**30}
    assert read["max_workers"] == 6
    assert nodes_launched(read, [{"GPU": 1}] * 6) == {"gpu": 3}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"spec": None},
        {"spec": {"headGroupSpec": 1}},
        [1],
        manifest({"groupName": "gpu"}),
        manifest(group(maxReplicas="3")),
        manifest(group(rayStartParams={"num-gpus": "0.5"})),
        manifest(1),
    ],
    ids=str,
)
def test_a_manifest_that_ray_cannot_read_is_a_value_error(broken):
    with pytest.raises(ValueError, match=r"^\w+: "):
        read_ray_cluster(broken)
