"""Tests that Ray's own parsers read the planned values from a generated file."""

import copy

import pytest
import ray
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._private.accelerators.tpu import infer_tpu_pod_type_from_topology
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.unit.kuberay.designed_clusters import PARTS_OF_GPUS, a_design, cluster_plans, filled_in, gpu_type
from tune_policies import AutoscalingPolicy, ClusterCapacity, GpuPolicy, Resources
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, PodDevices
from tune_policies.kuberay.writing import WriteOptions, write_cluster
from tune_policies.probe.addable_nodes import addable_node_types, load_cluster_config

INSTALLED = WriteOptions(ray_version=ray.__version__)
OF_OLD_RAY = WriteOptions(ray_version="2.50.0")


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return a function that returns the configuration that Ray's autoscaler derives from a file."""
    path = tmp_path_factory.mktemp("written") / "cluster.yaml"

    def read(text):
        path.write_text(text)
        return load_cluster_config(path)

    return read


def amounts(node_type):
    """Return the resources that Ray counts on a node of a type."""
    found = {"CPU": node_type.cpus, "memory": node_type.memory, **node_type.custom}
    if node_type.gpus:
        found["GPU"] = node_type.gpus
    if node_type.accelerator_type:
        found[f"accelerator_type:{node_type.accelerator_type}"] = 1
    return found


def without_slice_heads(resources):
    """Return the resources without ``TPU-…-head``, which Ray's reader adds to every host instead of only the first."""
    return {name: amount for name, amount in resources.items() if not name.startswith("TPU-")}


def labels(node_type):
    typed = {"ray.io/accelerator-type": node_type.accelerator_type} if node_type.accelerator_type else {}
    if node_type.topology:
        pod_type = infer_tpu_pod_type_from_topology(node_type.topology, node_type.accelerator_type)
        typed |= {"ray.io/tpu-worker-id": "0", "ray.io/tpu-pod-type": pod_type}
    return typed | node_type.labels


def as_planned(plan):
    return {
        group.node_type.name: (amounts(group.node_type), group.min_nodes, group.max_nodes, labels(group.node_type))
        for group in plan.groups
    }


def as_read(config, *, head="headgroup"):
    return {
        name: (without_slice_heads(of["resources"]), of["min_workers"], of["max_workers"], of["labels"])
        for name, of in config["available_node_types"].items()
        if name != head
    }


def without_labels(groups):
    return {name: numbers for name, (*numbers, _) in groups.items()}


@given(cluster_plans(), st.none() | st.just("python train.py"), st.booleans())
@settings(max_examples=60)
def test_rays_autoscaler_reads_the_planned_values_from_a_manifest(read, plan, job, num_gpus):
    options = INSTALLED.model_copy(update={"job": job, "image": "me/tune:1", "num_gpus": num_gpus})
    config = read(write_cluster(plan, options))

    # Ray 2.50 reads labels in a field that KubeRay rejects.
    same = dict if INSTALLED.ray_reads_group_fields else without_labels
    assert same(as_read(config)) == same(as_planned(plan))
    assert config["idle_timeout_minutes"] == plan.idle_timeout_s / 60
    head = {"CPU": 0, "memory": plan.head.memory} if not plan.head.gpus else amounts(plan.head)
    assert config["available_node_types"]["headgroup"]["resources"] == head


@pytest.mark.rest
@given(cluster_plans())
@settings(max_examples=20)
def test_the_installed_ray_reads_a_manifest_for_an_old_ray_version(read, plan):
    config = read(write_cluster(plan, OF_OLD_RAY))

    assert without_labels(as_read(config)) == without_labels(as_planned(plan))


@pytest.mark.parametrize("name", ["größe", "node:10.0.0.1", "a/b.c"])
def test_start_parameters_can_contain_resource_names_in_any_script(read, name):
    config = read(write_cluster(a_design(gpu_type(custom={name: 2})), OF_OLD_RAY))

    assert config["available_node_types"]["l4"]["resources"][name] == 2


@given(cluster_plans(hosts=1))
@settings(max_examples=40)
def test_rays_launcher_reads_the_planned_values_from_a_cluster_yaml(read, plan):
    config = read(write_cluster(plan, WriteOptions(format="cluster-yaml")))

    validate_config(prepare_config(copy.deepcopy(config)))
    assert as_read(config, head=plan.head.name) == as_planned(plan)


def test_the_launcher_accepts_a_cluster_yaml_with_all_optional_fields(read):
    config = read(filled_in(write_cluster(a_design(), WriteOptions(format="cluster-yaml", image="me/ray:1"))))

    validate_config(prepare_config(copy.deepcopy(config)))
    assert config["file_mounts"] == {"~/code": "."}


@pytest.mark.parametrize("form", ["kuberay", "cluster-yaml"])
def test_a_plan_for_a_device_type_adds_nodes_of_this_type_from_the_file(read, form):
    """Trials for a device type request ``accelerator_type:…``, a resource that a node gets only when it starts."""
    plan = a_design(gpu_type(labels={"zone": "eu"}), gpu_type(name="h100", accelerator_type="H100"))

    rows = addable_node_types(
        read(write_cluster(plan, INSTALLED.model_copy(update={"format": form}))), {}, source="file"
    )

    policy = AutoscalingPolicy(inner=GpuPolicy(gpus=0.5, accelerator_type="L4"))
    head = Resources(memory_bytes=plan.head.memory)
    assert policy.plan(ClusterCapacity.of(head).model_copy(update={"node_types": rows})).nodes_to_add == {"l4": 3}


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "chips"),
    [("TPU-V4", "2x2x2", 4), ("TPU-V5P", "2x2x4", 4), ("TPU-V6E", "4x4", 4)],
)
def test_a_slice_can_be_reserved_by_its_first_host(read, accelerator_type, topology, chips):
    """Ray reads the pod type from the node selector, and Train requests the resource of the slice's first host."""
    tpu = gpu_type(gpus=0, custom={"TPU": chips}, accelerator_type=accelerator_type, topology=topology)
    shape = SliceShape(topology, accelerator_type)
    hosts = shape.chips // chips

    config = read(write_cluster(a_design(groups=(DesignedGroup(node_type=tpu, max_nodes=2 * hosts, num_hosts=hosts),))))

    node_type = config["available_node_types"]["l4"]
    assert node_type["resources"][shape.head_resource] == 1
    assert node_type["max_workers"] == 2 * hosts


KEYS = [plugin.key for plugin in DEVICE_PLUGINS if plugin.key] + PARTS_OF_GPUS + ["gpu.intel.com/xe", "amd.com/gpu"]


@pytest.mark.parametrize("key", dict.fromkeys(KEYS))
def test_ray_counts_devices_only_under_the_listed_kubernetes_resource_names(read, key):
    manifest = yaml.safe_load(write_cluster(a_design(gpu_type(gpus=0, accelerator_type=None)), INSTALLED))
    pod = manifest["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    pod["containers"][0]["resources"]["limits"][key] = "2"

    counted = read(yaml.safe_dump(manifest))["available_node_types"]["l4"]["resources"]

    resource = "TPU" if key == "google.com/tpu" else "GPU"
    assert (resource in counted) == PodDevices(resource, 2, key, DEVICE_PLUGINS[0]).is_detected_by_ray
