"""Tests of the node catalog: valid files, prices and numbers of nodes, and errors for invalid node types."""

import json
import re

import pytest

from tune_policies import GpuPolicy, InvalidResourcesError
from tune_policies.kuberay import NodeCatalog, NodeType, load_catalog
from tune_policies.kuberay.design.catalog_file import Toleration
from tune_policies.kuberay.design.cluster_spec import capacity_of


def node_type(**fields):
    return NodeType(**{"name": "node", "cpus": 8, "memory": "32GiB", **fields})


def test_a_catalog_is_read_from_yaml(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "date: 2026-11-21\nnodes:\n"
        "  - {name: l4, cpus: 4, memory: 16GiB, gpus: 1, accelerator_type: L4, price_per_hour: 0.7}\n"
        "  - {name: cpu, cpus: 16, memory: 64GiB, price_per_hour: }\n"
    )

    assert load_catalog(path) == NodeCatalog(
        date="2026-11-21",
        nodes=(
            node_type(name="l4", cpus=4, memory="16GiB", gpus=1, accelerator_type="L4", price_per_hour=0.7),
            node_type(name="cpu", cpus=16, memory="64GiB"),
        ),
    )


def test_a_catalog_round_trips_through_json(tmp_path):
    toleration = Toleration(key="spot", operator="Equal", value="yes")
    catalog = NodeCatalog(nodes=(node_type(tolerations=(toleration,), labels={"zone": "eu"}),))
    path = tmp_path / "nodes.json"
    path.write_text(catalog.to_json())

    assert load_catalog(path) == catalog


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"gpu": 1}, "did you mean 'gpus'?", id="a misspelled field"),
        pytest.param({"gpus": 1, "accelerator_type": "l4"}, "did you mean 'L4'?", id="a device type unknown to Ray"),
        pytest.param(
            {"gpus": 1, "accelerator_type": "TPU-V4"},
            "is not a type of resource 'GPU'",
            id="a device type of another vendor",
        ),
        pytest.param({"accelerator_type": "L4"}, "has accelerator_type='L4', but no devices", id="a type without GPUs"),
        pytest.param({"gpu_memory": "39GiB"}, "but no devices", id="GPU memory without GPUs"),
        pytest.param({"device_key": "nvidia.com/gpu.shared"}, "but no devices", id="a key without devices"),
        pytest.param(
            {"gpus": 1, "device_key": "cpu"}, "is not a Kubernetes resource of devices", id="a key without a domain"
        ),
        pytest.param({"gpus": 1, "device_key": "x y/gpu"}, "such as 'nvidia.com/gpu'", id="a key with a blank"),
        pytest.param({"node_selector": {"a b": "c"}}, "is not a label key", id="a selector with a blank in its key"),
        pytest.param(
            {"node_selector": {"a": "b c"}}, "cannot be the value of the label 'a'", id="a value with a blank"
        ),
        pytest.param({"gpus": 0.5}, "gpus must be a whole number", id="half a GPU"),
        pytest.param({"cpus": 0.5}, "cpus must be a whole number", id="half a CPU"),
        pytest.param(
            {"custom": {"license": 1.5}},
            "'license' must be a whole number, got 1.5",
            id="a fraction of a custom resource",
        ),
        pytest.param({"custom": {"TPU": 3}}, "Request 2 or 4", id="an invalid number of chips per host"),
        pytest.param({"custom": {"gpu": 1}}, "Use gpus", id="Tune's name for GPUs"),
        pytest.param(
            {"custom": {"accelerator_type:L4": 1}}, "use accelerator_type", id="Ray's resource for device types"
        ),
        pytest.param({"gpus": 1, "custom": {"TPU": 4}}, "several kinds (GPU, TPU)", id="two kinds of devices"),
        pytest.param({"topology": "4x4"}, "is only valid for TPU slices", id="a topology without TPUs"),
        pytest.param(
            {"topology": "4x5", "custom": {"TPU": 4}, "accelerator_type": "TPU-V6E"},
            "did you mean '4x8'?",
            id="an unknown topology",
        ),
        pytest.param(
            {"topology": "2x2", "custom": {"TPU": 1}, "accelerator_type": "TPU-V6E"},
            "has 4 chips, so TPU: 1 on each node is not valid. Use 4 chips on its only node",
            id="too few chips for a slice of one host",
        ),
        pytest.param(
            {"topology": "4x4", "custom": {"TPU": 4}, "accelerator_type": "TPU-V6E", "count": 3},
            "is not a whole number of 4x4 slices: use a multiple of 4",
            id="fewer hosts than one slice",
        ),
        pytest.param({"name": "L4_Spot"}, "such as 'l4-spot'", id="a name that is invalid in Kubernetes"),
        pytest.param({"name": "A100_8"}, "such as 'a100-8'", id="a name that is invalid and ends with a number"),
        pytest.param({"name": "head"}, "is used twice, once for the head", id="the head's name"),
        pytest.param({"labels": {"zone": "a b"}}, "cannot be the value of the label 'zone'", id="a label with a blank"),
        pytest.param({"price_per_hour": -1}, "price_per_hour", id="a negative price"),
        pytest.param({"memory": "lots"}, "memory must be a number of bytes above 0", id="an invalid memory amount"),
        pytest.param(
            {"tolerations": [{"key": "spot", "value": "yes"}]},
            "'Equal' requires a value, and 'Exists' does not allow a value",
            id="a value for nothing",
        ),
    ],
)
def test_the_error_for_an_invalid_node_type_contains_a_fix(tmp_path, fields, message):
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"nodes": [{"name": "node", "cpus": 8, "memory": "32GiB", **fields}]}))

    with pytest.raises(InvalidResourcesError) as raised:
        load_catalog(path)

    assert str(raised.value).startswith(f"{path} is not a valid catalog: ")
    assert message in str(raised.value)


def test_the_valid_fields_are_listed_once_for_several_wrong_nodes(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("- {cpus: 4, colour: red, taste: sweet}\n- {cpus: 4, colour: blue}\n")

    with pytest.raises(InvalidResourcesError) as raised:
        load_catalog(path)

    first, *others = str(raised.value).splitlines()
    assert "nodes.0: unknown field 'colour' (NodeType has count, min_nodes, name, cpus" in first
    assert others == ["nodes.0: unknown field 'taste'", "nodes.1: unknown field 'colour'"]


def test_the_name_of_a_node_type_may_be_a_name_of_the_launcher():
    catalog = NodeCatalog(nodes=(node_type(name="ray.worker.4090.standard"), node_type(name="ray_worker_small")))

    assert [each.name for each in catalog.nodes] == ["ray.worker.4090.standard", "ray_worker_small"]


def test_nodes_without_a_name_are_named_after_their_devices():
    catalog = NodeCatalog(
        nodes=(
            NodeType(cpus=8, gpus=4, accelerator_type="A100-80G"),
            NodeType(cpus=16, gpus=4, accelerator_type="A100-80G"),
            NodeType(cpus=16),
            NodeType(cpus=4, gpus=1),
            NodeType(cpus=2, name="gpu"),
        )
    )

    assert [each.name for each in catalog.nodes] == ["a100-80g-x4", "a100-80g-x4-2", "cpu-16", "gpu-2", "gpu"]


def test_the_capacity_of_a_catalog_has_the_number_of_nodes_in_count():
    listed = NodeCatalog(nodes=(NodeType(count=3, cpus=8, gpus=2, gpu_memory="39GiB"), NodeType(cpus=16)))

    by_shape = {group.node.resources.cpus: group for group in capacity_of(listed).groups}

    assert {cpus: group.num_nodes for cpus, group in by_shape.items()} == {8: 3, 16: 1}
    assert by_shape[8].node.smallest_gpu_memory_bytes == 39 * 2**30


def test_a_slice_type_without_a_count_counts_as_one_slice():
    tpu = NodeType(cpus=8, custom={"TPU": 4}, accelerator_type="TPU-V6E", topology="4x4")

    assert len(capacity_of(NodeCatalog(nodes=(tpu,))).nodes) == 4


def test_too_many_nodes_are_refused_before_they_are_created():
    listed = NodeCatalog(nodes=(NodeType(count=10**9, cpus=8),))

    with pytest.raises(InvalidResourcesError, match="reduce count to at most 10,000 in total"):
        capacity_of(listed)


@pytest.mark.parametrize(("price", "total"), [(12.0, 96.5), (None, None)])
def test_the_price_of_a_catalog_includes_all_nodes_and_the_head(price, total):
    head = NodeType(name="control", cpus=2, price_per_hour=0.5)

    listed = NodeCatalog(nodes=(NodeType(count=8, cpus=8, price_per_hour=price),), head=head)

    assert listed.price_per_hour == total


def test_an_empty_catalog_is_refused():
    with pytest.raises(InvalidResourcesError, match="list at least one node"):
        NodeCatalog(nodes=())


def test_a_catalog_with_too_many_node_types_is_refused():
    with pytest.raises(InvalidResourcesError, match="nodes may have at most 200 entries, got 201"):
        NodeCatalog(nodes=[node_type(name=f"a{number}") for number in range(201)])


SLICE = {"cpus": 24, "custom": {"TPU": 4}, "accelerator_type": "TPU-V6E", "topology": "4x4"}


@pytest.mark.parametrize("fields", [{"min_nodes": 1}, SLICE], ids=["a minimum", "several hosts"])
def test_a_head_of_several_nodes_is_refused(fields):
    with pytest.raises(InvalidResourcesError, match="the head is a single node"):
        NodeCatalog(nodes=(node_type(),), head=node_type(name="boss", **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 2, "min_nodes": 3}, "min_nodes=3 above count=2: raise count, or lower min_nodes"),
        ({**SLICE, "min_nodes": 6}, "min_nodes=6 .* whole number of 4x4 slices: use a multiple of 4"),
        ({"min_nodes": -1}, "min_nodes"),
    ],
    ids=["above the count", "a partial slice", "negative"],
)
def test_an_invalid_minimum_number_of_nodes_is_rejected(fields, message):
    with pytest.raises(InvalidResourcesError, match=message):
        node_type(**fields)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"accelerator_type": "A100", "gpu_memory": "40GiB"}, "only 39.6 GiB for A100. Write .* gpu_memory: 40536MiB"),
        ({"accelerator_type": "A100", "gpu_memory": "80GiB"}, "only 79.1 GiB for A100. Write .* gpu_memory: 80994MiB"),
        ({"accelerator_type": "RTX-3090", "gpu_memory": "24GiB"}, "only 22.8 GiB for RTX-3090"),
        ({"gpu_memory": "40GiB"}, "drivers report 1 to 8 % less. Write the total that nvidia-smi reports"),
    ],
    ids=["the usual size", "a larger variant", "a GeForce card", "an unknown type"],
)
def test_the_nominal_size_of_a_gpu_causes_a_caution(fields, advice):
    """A plan on the nominal size could promise two trials of 20 GiB to a GPU with 39.6 GiB."""
    (caution,) = NodeCatalog(nodes=(node_type(gpus=1, **fields),)).cautions

    assert re.search(advice, caution)


@pytest.mark.parametrize(
    "fields",
    [
        {"accelerator_type": "A100", "gpu_memory": "40536MiB"},
        {"accelerator_type": "A100"},
        {"gpu_memory": "39GiB"},
        {"device_key": "nvidia.com/mig-1g.10gb", "gpu_memory": "10GiB"},
    ],
    ids=["the total of nvidia-smi", "the memory of the type", "a smaller amount", "a MIG device"],
)
def test_other_sizes_of_a_gpu_cause_no_caution(fields):
    assert NodeCatalog(nodes=(node_type(gpus=1, **fields),)).cautions == ()


def test_a_plan_on_a_catalog_counts_the_devices_of_the_head():
    listed = NodeCatalog(nodes=(node_type(gpus=1),), head=node_type(name="boss", gpus=3))

    assert GpuPolicy().plan(capacity_of(listed)).max_concurrent_trials == 4


@pytest.mark.parametrize(
    ("topology", "chips", "hosts"), [("4x4", 4, 4), ("2x4", 8, 1), ("2x2", 4, 1), ("1x1", 1, 1), ("2x8", 4, 4)]
)
def test_a_slice_has_as_many_hosts_as_its_chips_need(topology, chips, hosts):
    tpu = node_type(custom={"TPU": chips}, accelerator_type="TPU-V6E", topology=topology)

    assert tpu.num_hosts == hosts


def test_a_node_has_its_own_labels_and_the_label_of_its_device_type():
    labels = node_type(gpus=1, accelerator_type="L4", labels={"zone": "eu"}).ray_labels

    assert labels == {"ray.io/accelerator-type": "L4", "zone": "eu"}


@pytest.mark.parametrize("cpus", ["3920m", 3.92])
def test_a_part_of_a_cpu_is_rejected_with_the_number_to_write(cpus):
    with pytest.raises(InvalidResourcesError, match=r"whole number of CPUs, got .* Write cpus: 3, because"):
        NodeType(cpus=cpus)
