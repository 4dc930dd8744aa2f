"""Tests that clusters are found in every kind of KubeRay manifest, and that invalid fields are reported with paths."""

import math

import pytest
import yaml

from tune_policies.files.yaml_documents import read_documents
from tune_policies.kuberay.reading.documents import clusters_in, manifests_in


def pod(**limits):
    return {"spec": {"containers": [{"name": "ray", "resources": {"limits": limits}}]}}


def spec(**worker):
    group = {"groupName": "gpu", "minReplicas": 0, "maxReplicas": 2, "template": pod(cpu="8"), **worker}
    return {"headGroupSpec": {"template": pod(cpu="2")}, "workerGroupSpecs": [group]}


def manifest(kind="RayCluster", **changes):
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "mine"}, "spec": spec(), **changes}


def read(data):
    (document,) = read_documents(data if isinstance(data, str) else yaml.safe_dump(data), "cluster.yaml")
    return clusters_in(document)


def problems(data):
    return {each.path: each.message for each in read(data)[1]}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        pytest.param(manifest(), ("spec",), id="RayCluster"),
        pytest.param(manifest("RayJob", spec={"rayClusterSpec": spec()}), ("spec", "rayClusterSpec"), id="RayJob"),
        pytest.param(
            manifest("RayService", spec={"rayClusterConfig": spec()}), ("spec", "rayClusterConfig"), id="RayService"
        ),
        pytest.param(
            manifest("RayCronJob", spec={"jobTemplate": {"rayClusterSpec": spec()}}),
            ("spec", "jobTemplate", "rayClusterSpec"),
            id="RayCronJob",
        ),
    ],
)
def test_the_cluster_is_found_in_each_kind_of_manifest(data, path):
    ((cluster,), wrong) = read(data)

    place = (*cluster.path, "workerGroupSpecs", 0, "groupName")
    assert (wrong, place) == ([], (*path, "workerGroupSpecs", 0, "groupName"))


def test_the_manifests_of_a_list_are_read_one_by_one():
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [None, manifest()]})
    (document,) = read_documents(text, "cluster.yaml")

    ((top, inside),) = manifests_in(document)

    assert (top, inside.data, inside.line(())) == (("items", 1), manifest(), document.line(top))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}, id="another kind"),
        pytest.param({"apiVersion": "apps/v1", "kind": "RayClutser"}, id="a kind of another API group"),
        pytest.param(manifest("RayJob", spec={"clusterSelector": {"ray.io/cluster": "mine"}}), id="a running cluster"),
        pytest.param({"key": "value"}, id="any other YAML"),
        pytest.param({"available_node_types": {"cpu": {"resources": {"CPU": 2}}}}, id="a cluster YAML"),
        pytest.param({"scheduler": {}, "worker": {"replicas": 3}}, id="values of another chart"),
    ],
)
def test_documents_without_a_kuberay_cluster_are_ignored(data):
    assert read(data) == ([], [])


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        pytest.param({"minReplicas": "2"}, ("minReplicas",), "remove the quotes", id="a count in quotes"),
        pytest.param(
            {"maxReplicas": 1.5}, ("maxReplicas",), "must be a whole number, got 1.5", id="a fractional count"
        ),
        pytest.param({"rayStartParams": ["a"]}, ("rayStartParams",), "must be a mapping", id="a list"),
        pytest.param(
            {"template": pod(cpu="8 cores")}, ("cpu",), "'8 cores' is not a Kubernetes quantity", id="an invalid amount"
        ),
        pytest.param({"template": pod(memory="8GB")}, ("memory",), "write '8G'", id="GB"),
        pytest.param({"template": pod(cpu=math.inf)}, ("cpu",), "must be a quantity", id="infinity"),
        pytest.param({"template": pod(cpu=math.nan)}, ("cpu",), "must be a quantity", id="not a number"),
        pytest.param({"template": pod(cpu=True)}, ("cpu",), "is not a Kubernetes quantity", id="a boolean"),
        pytest.param({"template": {"spec": {"containers": []}}}, ("containers",), "at least one", id="no container"),
        pytest.param({"template": {"metadata": {}}}, ("spec",), "spec is missing", id="no pod"),
        pytest.param({"groupName": ["a"]}, ("groupName",), "must be a string", id="a name that is a list"),
    ],
)
def test_a_wrong_field_is_reported_with_its_path_and_a_fix(changes, path, message):
    clusters, (problem,) = read(manifest(spec=spec(**changes)))

    assert (clusters, problem.path[-1:]) == ([], path)
    assert message in problem.message


def test_a_number_instead_of_a_string_is_reported_and_read_as_a_string():
    ((cluster,), wrong) = read(manifest(spec=spec(rayStartParams={"num-cpus": 0, "block": True})))

    place = ("spec", "workerGroupSpecs", 0, "rayStartParams")
    assert {each.path: each.message for each in wrong} == {
        (*place, "num-cpus"): 'num-cpus must be a string, got the number 0: write "0", in quotes',
        (*place, "block"): 'block must be a string, got the truth value True: write "true", in quotes',
    }
    assert cluster.spec.workerGroupSpecs[0].rayStartParams == {"num-cpus": "0", "block": "true"}


def test_a_fraction_without_quotes_is_reported_and_read_as_a_string():
    ((cluster,), (problem,)) = read(manifest(spec=spec(template=pod(cpu=0.5))))

    assert problem.message == 'cpu must be a whole number or a string, got 0.5: write "0.5", in quotes'
    assert cluster.spec.workerGroupSpecs[0].template.spec.containers[0].resources.limits == {"cpu": "0.5"}


def test_null_means_the_default():
    ((cluster,), wrong) = read(manifest(spec=spec(rayStartParams=None, replicas=None)))

    assert (wrong, cluster.spec.workerGroupSpecs[0].rayStartParams) == ([], {})


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        pytest.param([1], (), "must be a mapping", id="a list"),
        pytest.param(manifest("RayClutser"), ("kind",), "did you mean 'RayCluster'", id="a misspelled kind"),
        pytest.param(manifest("Pod"), ("kind",), "kinds: RayCluster, RayJob", id="a kind of another group"),
        pytest.param(manifest(apiVersion="ray.io/v2"), ("apiVersion",), "use 'ray.io/v1'", id="an unknown API version"),
        pytest.param(
            manifest("RayJob", spec={}), ("spec", "rayClusterSpec"), "is missing", id="a job without a cluster"
        ),
        pytest.param(manifest(spec=None), ("spec",), "is missing", id="no spec"),
        pytest.param(manifest("RayJob", spec=3), ("spec",), "must be a mapping", id="a spec that is a number"),
        pytest.param(manifest(metadata={"labels": {"a": 1}}), ("metadata", "labels", "a"), "in quotes", id="a label"),
        pytest.param({"available_node_types": {}}, ("available_node_types",), "at least one", id="no node types"),
    ],
)
def test_a_wrong_document_is_reported_with_its_path(data, path, message):
    assert message in problems(data)[path]
