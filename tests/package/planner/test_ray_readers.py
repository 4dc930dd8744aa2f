"""Tests that Ray's code reads a RayCluster and computes the nodes to launch without a running autoscaler."""

import pytest

from tests.autoscaler_v2 import nodes_launched
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

pytestmark = pytest.mark.ray_border


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
    [{}, {"spec": {"headGroupSpec": 1}}, [1], manifest(group(maxReplicas="3")), manifest(1)],
    ids=str,
)
def test_a_manifest_that_ray_cannot_read_raises_a_value_error(broken):
    with pytest.raises(ValueError, match=r"^\w+: "):
        read_ray_cluster(broken)
