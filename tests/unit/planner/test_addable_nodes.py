"""Tests of the nodes that an autoscaler may add according to its configuration."""

from collections import Counter

import pytest

from tune_policies import InvalidResourcesError, NodeTypeCapacity, Resources
from tune_policies.cluster.ray_totals import in_use, to_resources
from tune_policies.probe.addable_nodes import addable_node_types, addable_nodes, load_cluster_config

GPU_NODE = {"resources": {"CPU": 8, "GPU": 2, "memory": 400 * 2**30, "accelerator_type:A100": 1}, "max_workers": 3}


def config(**node_types):
    head = {"head": {"resources": {"CPU": 4}}}
    return {"max_workers": 5, "head_node_type": "head", "available_node_types": head | node_types}


def addable(config, **workers):
    return addable_node_types(config, Counter(workers), source="cluster.yaml")


def test_a_type_can_be_added_up_to_its_limit():
    assert addable(config(gpu={**GPU_NODE, "labels": {"zone": "a"}}), gpu=1, other=9) == (
        NodeTypeCapacity(
            name="gpu",
            resources=Resources(cpus=8, gpus=2, memory_bytes=400 * 2**30),
            max_nodes_to_add=2,
            accelerator_type="A100",
            labels={"zone": "a"},
        ),
    )


def test_a_type_at_its_limit_and_the_head_cannot_be_added():
    assert addable(config(gpu=GPU_NODE), gpu=3) == addable(config(gpu=GPU_NODE), gpu=4) == ()


def test_a_type_without_a_limit_has_the_limit_of_the_cluster():
    (row,) = addable(config(cpu={"resources": {"CPU": 2}}), cpu=1)

    assert row.max_nodes_to_add == 4


def test_the_device_type_is_read_only_from_the_resources_as_in_the_autoscaler():
    (row,) = addable(config(gpu={"resources": {"GPU": 1}, "labels": {"ray.io/accelerator-type": "L4"}}))

    assert (row.accelerator_type, row.labels) == (None, {"ray.io/accelerator-type": "L4"})


@pytest.mark.parametrize(("num_workers", "expected"), [(0, 5), (4, 1), (7, 0)])
def test_the_limit_of_the_cluster_applies_to_all_types_together(num_workers, expected):
    assert addable_nodes(config(), num_workers, source="cluster.yaml") == expected


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([], "cluster.yaml must be a mapping"),
        ({"available_node_types": {"a": {}}}, "cluster.yaml: max_workers is missing"),
        ({"max_workers": -1}, "cluster.yaml: max_workers must be a whole number"),
        ({"max_workers": 1}, "cluster.yaml: available_node_types must be a mapping, got None"),
        (config(gpu=3), r"cluster.yaml: available_node_types.gpu must be a mapping, got 3"),
        (config(gpu={}), r"available_node_types.gpu.resources must map Ray resources to amounts, got None. Write"),
        (config(gpu={"resources": {"CPU": "4"}}), r"available_node_types.gpu.resources.CPU must be a number, got '4'"),
        (config(gpu={"resources": {"GPU": 1.5}}), r"available_node_types.gpu: gpus above 1 must be whole"),
        (config(gpu={"resources": {"CPU": 1}, "max_workers": "2"}), r"gpu.max_workers must be a whole number"),
        (config(gpu={"resources": {"CPU": 1}, "labels": ["a"]}), r"gpu.labels must be a mapping"),
        (config(gpu={"resources": {"CPU": 1}, "labels": {"zone": 3}}), r"available_node_types.gpu: .*labels"),
    ],
)
def test_a_mistake_is_reported_with_its_file_and_key(broken, message):
    with pytest.raises(InvalidResourcesError, match=message):
        addable(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cluster.yaml, line 1: the text is not YAML"),
        ("[1, 2]", "or in a cluster YAML .* but defines none"),
        ("kind: Job", r"but defines none \(found: Job\)"),
        ("kind: RayJob", "cluster.yaml, line 1: apiVersion is missing"),
        ("available_node_types: {}\n---\navailable_node_types: {}", "contains 2 clusters"),
        (None, "cannot read .*cluster.yaml"),
    ],
)
def test_a_file_without_a_configuration_raises_an_error_with_its_path(tmp_path, text, message):
    path = tmp_path / "cluster.yaml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(InvalidResourcesError, match=message):
        load_cluster_config(path)


def test_a_cluster_yaml_is_returned_unchanged(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("max_workers: 2\navailable_node_types: {cpu: {resources: {CPU: 2}}}\n")

    assert addable(load_cluster_config(path))[0].resources == Resources(cpus=2)


GROUP = "0123456789abcdef0123456789abcdef0123"


def test_the_resources_of_a_placement_group_are_not_resources_of_the_node():
    totals = {"CPU": 4, f"CPU_group_0_{GROUP}": 1, f"bundle_group_{GROUP}": 1000, "node:10.0.0.1": 1, "TPU": 4}

    assert to_resources(totals) == Resources(cpus=4, custom={"TPU": 4})


def test_a_custom_resource_of_a_node_is_limited_to_the_maximum_of_a_request():
    """A custom resource may be the size of a disk in bytes. Such a large amount must not cause an error."""
    totals = {"CPU": 4, "memory": 2 * 2**40, "disk_bytes": 4e12}

    assert to_resources(totals) == Resources(cpus=4, memory_bytes=2 * 2**40, custom={"disk_bytes": 1e11})
    assert in_use(totals, {"CPU": 4, "memory": 2 * 2**40, "disk_bytes": 1e12}) == Resources(custom={"disk_bytes": 1e11})


@pytest.mark.parametrize(
    ("totals", "available", "expected"),
    [
        ({"CPU": 4, "GPU": 2}, {"CPU": 1.5, "GPU": 2}, Resources(cpus=2.5)),
        ({"CPU": 4, "GPU": 2}, {"CPU": 4}, Resources(gpus=2)),
        ({"CPU": 4, "GPU": 2}, {"CPU": 5, "GPU": 1.7}, Resources(gpus=0.3)),
        ({"GPU": 4}, {"GPU": 2.5}, Resources(gpus=2)),
        ({"memory": 8 * 2**30}, {"memory": 2**30}, Resources(memory_bytes=7 * 2**30)),
    ],
    ids=["partly free", "fully used", "more free than the total", "fractions of several GPUs", "host memory"],
)
def test_resources_that_are_not_free_are_in_use(totals, available, expected):
    assert in_use(totals, available) == expected
