"""Tests that a KubeRay manifest is read in the same way as Ray's autoscaler reads it."""

import pytest
import yaml

from tune_policies import InvalidResourcesError, NodeTypeCapacity, Resources
from tune_policies.probe.addable_nodes import addable_node_types, addable_nodes, load_cluster_config


def pod(**limits):
    return {"spec": {"containers": [{"name": "ray", "resources": {"limits": limits}}]}}


def manifest(**changes):
    worker = {"groupName": "gpu", "minReplicas": 0, "maxReplicas": 3, "numOfHosts": 2, "rayStartParams": {}}
    worker["template"] = pod(**{"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 2})
    head = {"rayStartParams": {}, "template": pod(cpu="2", memory="4Gi")}
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": [worker], **changes}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "mine"}, "spec": spec}


@pytest.fixture
def addable(tmp_path):
    def read(*documents):
        path = tmp_path / "raycluster.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        config = load_cluster_config(path)
        return addable_node_types(config, {"gpu": 1}, source=str(path)), addable_nodes(config, 1, source=str(path))

    return read


def test_a_worker_group_can_grow_to_its_max_replicas_times_its_hosts(addable):
    node_types, max_nodes_to_add = addable({"kind": "ConfigMap"}, manifest())

    resources = Resources(cpus=8, gpus=2, memory_bytes=32 * 2**30)
    assert node_types == (NodeTypeCapacity(name="gpu", resources=resources, max_nodes_to_add=5),)
    assert max_nodes_to_add == 5


def test_a_cluster_without_an_autoscaler_does_not_grow(addable):
    group = {"groupName": "gpu", "replicas": 2, "template": pod(memory="32Gi")}

    assert addable(manifest(enableInTreeAutoscaling=False, workerGroupSpecs=[group])) == ((), 0)


def test_omitted_fields_of_a_worker_group_have_kuberays_defaults(addable):
    """KubeRay's default for ``maxReplicas`` is 2,147,483,647. One node already exists."""
    worker = {"groupName": "gpu", "rayStartParams": {}, "template": pod(cpu="8")}

    ((row,), _) = addable(manifest(workerGroupSpecs=[worker]))

    assert row.max_nodes_to_add == 2147483647 - 1


@pytest.mark.parametrize(("kind", "key"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")])
def test_a_job_or_a_service_is_read_as_the_cluster_that_it_starts(addable, kind, key):
    cluster = manifest()
    starter = {**cluster, "kind": kind, "spec": {key: cluster["spec"]}}

    assert addable(starter) == addable(cluster)


def test_the_error_for_a_file_without_a_cluster_describes_its_content(addable):
    job_for_a_running_cluster = {
        **manifest(),
        "kind": "RayJob",
        "spec": {"clusterSelector": {"ray.io/cluster": "mine"}},
    }

    with pytest.raises(InvalidResourcesError, match=r"but defines none \(found: RayJob 'mine'\)"):
        addable(job_for_a_running_cluster)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"headGroupSpec": None}, r"raycluster.yaml, line \d+: headGroupSpec is missing"),
        ({"workerGroupSpecs": [{"groupName": "gpu"}]}, r"raycluster.yaml, line \d+: template is missing"),
        ({"headGroupSpec": {"template": pod()}}, r"raycluster.yaml: Ray's autoscaler cannot read this RayCluster"),
    ],
)
def test_the_error_for_an_invalid_manifest_contains_the_name_of_the_file(addable, broken, message):
    with pytest.raises(InvalidResourcesError, match=message):
        addable(manifest(**broken))
