"""Tests of the resources that Ray counts on each node of a loaded cluster, and of the numbers of nodes."""

import pytest
import yaml

from tune_policies import InvalidResourcesError, Resources
from tune_policies.kuberay import NodeCatalog, NodeType
from tune_policies.kuberay.design.cluster_spec import WorkerGroup
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.kuberay.reading.ray_counts import device_type


def pod(selector=None, **limits):
    return {"spec": {"containers": [{"name": "ray", "resources": {"limits": limits}}], "nodeSelector": selector or {}}}


def manifest(workers=(), **changes):
    head = {"rayStartParams": {"num-cpus": "0"}, "template": pod(cpu="2", memory="8Gi")}
    groups = [{"groupName": "gpu", "template": pod(cpu="8"), **worker} for worker in workers]
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": groups, **changes}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "mine"}, "spec": spec}


@pytest.fixture
def load(tmp_path):
    def read(data, **options):
        path = tmp_path / "cluster.yaml"
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
        return load_cluster(path, **options)

    return read


@pytest.fixture
def load_group(load):
    def read(**worker):
        (group,) = load(manifest([worker])).groups
        return group

    return read


def test_a_manifest_is_read_with_the_resources_that_ray_counts(load):
    template = pod(**{"cpu": "7500m", "memory": "32Gi", "nvidia.com/gpu": 2})
    worker = {"minReplicas": 1, "maxReplicas": 3, "replicas": 2, "idleTimeoutSeconds": 30, "template": template}

    cluster = load(manifest([worker], autoscalerOptions={"idleTimeoutSeconds": 120}))

    assert (cluster.name, cluster.idle_timeout_s) == ("mine", 120)
    assert cluster.head.resources == Resources(memory_bytes=8 * 2**30)
    assert cluster.groups == (
        WorkerGroup(
            name="gpu",
            resources=Resources(cpus=8, gpus=2, memory_bytes=32 * 2**30),
            min_nodes=1,
            max_nodes=3,
            start_nodes=2,
            idle_timeout_s=30,
        ),
    )


@pytest.mark.parametrize(
    ("worker", "resources"),
    [
        pytest.param(
            {"resources": {"CPU": "4", "GPU": "1"}, "rayStartParams": {"num-cpus": "2", "num-gpus": "3"}},
            Resources(cpus=4, gpus=1),
            id="the group's resources come first",
        ),
        pytest.param(
            {"rayStartParams": {"num-cpus": "2"}}, Resources(cpus=2), id="otherwise the parameters of ray start"
        ),
        pytest.param(
            {"template": pod(**{"cpu": "8", "nvidia.com/gpu.shared": 4})},
            Resources(cpus=8),
            id="shared GPUs are not counted",
        ),
        pytest.param(
            {"resources": {"gpu": "1"}},
            Resources(cpus=8, custom={"gpu": 1}),
            id="gpu in lower case is a custom resource",
        ),
        pytest.param(
            {"rayStartParams": {"resources": '"{\\"mine\\": 2}"'}},
            Resources(cpus=8, custom={"mine": 2}),
            id="quoted JSON",
        ),
        pytest.param(
            {"template": pod(**{"cpu": "8", "habana.ai/gaudi": 8}), "resources": {"HPU": "8"}},
            Resources(cpus=8, custom={"HPU": 8}),
            id="other devices from the group",
        ),
    ],
)
def test_the_resources_of_a_node_follow_rays_precedence(load_group, worker, resources):
    assert load_group(**worker).resources == resources


@pytest.mark.parametrize(("version", "gpus"), [("2.50.1", 0), ("2.51.0", 1), ("2.60.0", 1), (None, 1), ("nightly", 1)])
def test_the_resources_of_a_group_are_used_from_ray_2_51_on(load, version, gpus):
    cluster = load(manifest([{"resources": {"GPU": "1"}}], rayVersion=version))

    assert cluster.groups[0].resources.gpus == gpus


@pytest.mark.parametrize(
    ("worker", "is_counted"),
    [
        ({"labels": {"ray.io/accelerator-type": "L4"}}, False),
        ({"resources": {"accelerator_type:L4": "1"}}, True),
        ({}, True),
    ],
    ids=["a label alone", "a resource", "no type"],
)
def test_the_autoscaler_recognizes_a_device_type_only_by_its_resource(load_group, worker, is_counted):
    assert load_group(**worker).is_type_counted == is_counted


@pytest.mark.parametrize(
    ("worker", "version", "expected"),
    [
        ({}, None, False),
        ({"rayStartParams": {"num-gpus": "1"}}, None, True),
        ({"rayStartParams": {"block": "true"}}, "2.60.0", False),
        ({}, "2.50.1", True),
    ],
    ids=["no amounts", "an amount", "another parameter", "an older Ray"],
)
def test_a_group_with_amounts_in_its_start_params_needs_them_for_further_amounts(load, worker, version, expected):
    cluster = load(manifest([worker], rayVersion=version))

    assert cluster.groups[0].needs_start_params == expected


TPU = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4"}


@pytest.mark.parametrize(
    ("changes", "env", "expected"),
    [
        pytest.param({}, [], 2, id="the default"),
        pytest.param({"rayVersion": "2.60.0"}, [], 2, id="the default of a version of Ray"),
        pytest.param({"rayVersion": "2.46.0"}, [], 1, id="the default of an older version of Ray"),
        pytest.param({"autoscalerOptions": {"version": "v1"}}, [], 1, id="version v1"),
        pytest.param({"autoscalerOptions": {"version": "v2"}, "rayVersion": "2.46.0"}, [], 2, id="version v2"),
        pytest.param({}, [{"name": "RAY_enable_autoscaler_v2", "value": "0"}], 1, id="a variable of the head"),
        pytest.param(
            {"rayVersion": "2.46.0"}, [{"name": "RAY_enable_autoscaler_v2", "value": "1"}], 2, id="a variable for v2"
        ),
    ],
)
def test_the_version_of_the_autoscaler_is_read_as_kuberay_and_ray_choose_it(load, changes, env, expected):
    data = manifest([], **changes)
    data["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"] = env

    assert load(data).capacity.autoscaler_version == expected


def test_each_replica_of_a_tpu_group_is_a_whole_slice(load_group):
    group = load_group(numOfHosts=4, replicas=1, maxReplicas=3, template=pod(TPU, **{"cpu": "24", "google.com/tpu": 4}))

    assert (group.num_hosts, group.start_nodes, group.max_nodes) == (4, 4, 12)
    assert (group.accelerator_type, group.topology) == ("TPU-V6E", "4x4")


@pytest.mark.parametrize(
    ("worker", "start"),
    [
        pytest.param({"replicas": 5, "maxReplicas": 3}, 3, id="at most maxReplicas"),
        pytest.param({"replicas": 0, "minReplicas": 2, "maxReplicas": 3}, 2, id="at least minReplicas"),
        pytest.param({"replicas": 2, "maxReplicas": 3, "suspend": True}, 0, id="none while suspended"),
    ],
)
def test_the_initial_number_of_nodes_is_limited_by_minimum_and_maximum(load_group, worker, start):
    assert load_group(**worker).start_nodes == start


def test_a_suspended_group_has_no_nodes_without_an_autoscaler(load_group):
    group = load_group(replicas=2, minReplicas=2, maxReplicas=3, suspend=True)

    assert group.nodes_at_start == 0
    assert group.model_copy(update={"start_nodes": None}).nodes_at_start == 2


@pytest.mark.parametrize(
    ("amounts", "labels", "selector", "expected"),
    [
        ({"accelerator_type:L4": 1}, {"ray.io/accelerator-type": "T4"}, {}, "L4"),
        ({}, {"ray.io/accelerator-type": "T4"}, {}, "T4"),
        ({}, {"ray.io/accelerator-type": "nonsense"}, {}, None),
        ({}, {}, {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, "A100"),
        ({}, {}, {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "H100"),
        ({}, {}, {"cloud.google.com/gke-accelerator": "nvidia-rtx-pro-6000"}, "RTX-PRO-6000"),
        ({}, {}, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "A100"),
        ({}, {}, {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "T4"),
        ({}, {}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}, "L40S"),
        ({}, {}, {"karpenter.k8s.aws/instance-gpu-name": "a10g"}, "A10G"),
        ({}, {}, {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}, "TPU-V5LITEPOD"),
        ({}, {}, {"disk": "ssd"}, None),
    ],
)
def test_the_device_type_is_read_from_resources_labels_and_selectors(amounts, labels, selector, expected):
    assert device_type(amounts, labels, selector) == expected


CLUSTER_YAML = """
cluster_name: mine
max_workers: 6
idle_timeout_minutes: 2
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, node_config: {}}
  gpu: {resources: {CPU: 8, GPU: 1, "accelerator_type:T4": 1}, min_workers: 1, max_workers: 9, node_config: {}}
"""


def test_a_cluster_yaml_is_read_with_the_resources_that_ray_counts(load):
    cluster = load(CLUSTER_YAML)

    assert (cluster.name, cluster.head.resources, cluster.max_nodes, cluster.idle_timeout_s) == (
        "mine",
        Resources(cpus=2),
        6,
        120,
    )
    assert cluster.groups == (
        WorkerGroup(
            name="gpu",
            resources=Resources(cpus=8, gpus=1),
            min_nodes=1,
            max_nodes=6,
            start_nodes=1,
            accelerator_type="T4",
        ),
    )


def test_without_an_autoscaler_nodes_have_the_detected_devices(load):
    template = pod(**{"cpu": "8", "nvidia.com/mig-1g.10gb": 1})
    worker = {"replicas": 2, "rayStartParams": {"resources": "'{\"mine\": 2}'"}, "template": template}

    cluster = load(manifest([worker], enableInTreeAutoscaling=None, rayVersion="2.40.0"))

    (group,) = cluster.groups
    assert (group.resources, group.start_nodes) == (Resources(cpus=8, gpus=1, custom={"mine": 2}), 2)
    assert [part.name for part in group.devices] == ["MIG 1g.10gb"]


ON_AWS = """
cluster_name: mine
provider: {type: aws, region: us-west-2}
max_workers: 6
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {InstanceType: m5.large}}
  gpu: {resources: {}, node_config: {InstanceType: g5.xlarge}}
"""
G5 = {"cpus": 4, "memory": 16 * 2**30, "gpus": 1, "accelerator_type": "A10G"}
BY_ITS_CONFIG = NodeType(name="small-gpu", node_config={"InstanceType": "g5.xlarge"}, **G5)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(BY_ITS_CONFIG, id="by its configuration"),
        pytest.param(NodeType(name="g5-xlarge", **G5), id="by its name"),
    ],
)
def test_the_catalog_provides_the_resources_of_an_instance_type(load, row):
    cluster = load(ON_AWS, catalog=NodeCatalog(nodes=(row,)))

    (group,) = cluster.groups
    assert (group.resources, group.accelerator_type, cluster.head.resources, cluster.assumptions) == (
        Resources(cpus=4, gpus=1, memory_bytes=int(16 * 2**30 * 0.7)),  # Ray reserves 30 % for its object store
        "A10G",
        Resources(),
        (),
    )


def test_resources_in_the_file_override_the_catalog(load):
    text = ON_AWS.replace("gpu: {resources: {}", "gpu: {resources: {GPU: 0, mine: 2}")

    (group,) = load(text, catalog=NodeCatalog(nodes=(BY_ITS_CONFIG,))).groups

    assert (group.resources.cpus, group.resources.gpus, group.resources.custom) == (4, 0, {"mine": 2})


UNKNOWN_HEAD = "the head counts as a node without CPUs because its resources are unknown"


def test_a_head_with_unknown_resources_runs_no_trials(load):
    machine = NodeCatalog(nodes=(BY_ITS_CONFIG,))
    on_aws = load(ON_AWS.replace("resources: {CPU: 0}", "resources: {}"), catalog=machine)
    started = manifest([{"replicas": 1}], enableInTreeAutoscaling=False)
    started["spec"]["headGroupSpec"] = {"template": pod(memory="8Gi")}
    without_autoscaler = load(started)

    for cluster in (on_aws, without_autoscaler):
        assert (cluster.head.resources, cluster.assumptions, len(cluster.groups)) == (Resources(), (UNKNOWN_HEAD,), 1)


def test_the_error_lists_all_node_types_with_unknown_resources(load):
    with pytest.raises(InvalidResourcesError, match=r"(?s)'gpu' has no resources.*'more' has no CPU in its resources"):
        load(f"{ON_AWS}  more: {{resources: {{mine: 1}}, node_config: {{InstanceType: p3.2xlarge}}}}\n")


def test_unknown_devices_that_aws_adds_are_reported_as_an_assumption(load):
    cluster = load(ON_AWS.replace("gpu: {resources: {}", "gpu: {resources: {CPU: 4}"))

    assert cluster.groups[0].resources == Resources(cpus=4)
    assert cluster.assumptions == (
        "Ray adds the devices of the instance type g5.xlarge to the resources of 'gpu', but the plan does not count "
        "them. Pass a catalog with this type as --nodes, or add them to resources",
    )


def test_a_default_number_of_workers_is_reported_as_an_assumption(load):
    text = ON_AWS.replace("max_workers: 6\nhead_node_type: head\n", "").replace("  head:", "  ray.head.default:")

    cluster = load(text.replace("gpu: {resources: {}", "gpu: {resources: {CPU: 4, GPU: 1}"))

    assert (cluster.max_nodes, [(group.name, group.max_nodes) for group in cluster.groups]) == (2, [("gpu", 2)])
    assert cluster.assumptions == ("the file has no max_workers, so Ray's default for aws is assumed: 2",)


def test_default_node_types_are_reported_as_an_assumption(load):
    cluster = load("cluster_name: mine\nmax_workers: 3\nprovider: {type: gcp, region: here}\n")

    assert (cluster.head.resources, [(group.name, group.max_nodes) for group in cluster.groups]) == (
        Resources(cpus=2),
        [("ray_worker_small", 3)],
    )
    assert cluster.assumptions == ("the file has no node types, so Ray's default types for gcp are assumed",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            ON_AWS,
            "'gpu' has no resources in the file. Ray looks them up for the instance type g5.xlarge. Pass a "
            "catalog with this type as --nodes, or add resources",
            id="the instance types of AWS",
        ),
        pytest.param(
            ON_AWS.replace("{}", "{CPU: 4}").replace("CPU: 0", "").replace("max_workers: 6", "max_workers: 0"),
            "'head' has no resources in the file. Ray looks them up for the instance type m5.large",
            id="a cluster with only a head",
        ),
        pytest.param(
            ON_AWS.replace("{InstanceType: g5.xlarge}", "{LaunchTemplate: {}}"),
            "'gpu' has no resources, and Ray cannot look them up without InstanceType",
            id="an AWS node without an instance type",
        ),
        pytest.param(
            ON_AWS.replace("type: aws", "type: gcp"),
            "'gpu' has no resources, and Ray looks them up only on AWS",
            id="an instance type of another cloud",
        ),
        pytest.param(
            "cluster_name: lab\nprovider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2]}\n",
            "because Ray detects them when each machine starts",
            id="existing machines",
        ),
        pytest.param(
            manifest([{"template": pod()}], enableInTreeAutoscaling=False),
            "group 'gpu': the number of CPUs of a node is missing",
            id="an invalid num-cpus",
        ),
        pytest.param(
            manifest([{"rayStartParams": {"num-gpus": "x"}}], enableInTreeAutoscaling=False),
            "num-gpus is 'x', but ray start requires a whole number",
            id="a num-gpus that is not a number",
        ),
        pytest.param(
            manifest([{"rayStartParams": {"resources": '{"mine": 1}'}}], enableInTreeAutoscaling=False),
            "Ray cannot read the rayStartParams resources",
            id="invalid resources of ray start",
        ),
        pytest.param(
            manifest([{"template": pod()}]), "group 'gpu': the number of CPUs of a node is missing", id="no CPUs"
        ),
        pytest.param(
            manifest([{"rayStartParams": {"num-gpus": "0.5"}}]),
            "num-gpus is '0.5', but ray start requires a whole number",
            id="half a GPU",
        ),
        pytest.param(
            manifest([{"rayStartParams": {"resources": "{a: 1}"}}]), "Ray cannot read the rayStartParams", id="not JSON"
        ),
        pytest.param(
            manifest([{"minReplicas": 3, "maxReplicas": 2}]), "'gpu': min_nodes=3 exceeds max_nodes=2", id="min"
        ),
        pytest.param(manifest([{}, {}]), "'gpu' is used twice", id="a duplicate name"),
        pytest.param(manifest([{"numOfHosts": 0}]), "num_hosts must be", id="no hosts"),
        pytest.param(manifest([{"resources": {"CPU": "1E"}}]), "cpus must be a finite number", id="too many CPUs"),
        pytest.param(
            manifest([{"resources": {"CPU": "x"}}]), "'x' is not a Kubernetes quantity", id="an invalid amount"
        ),
        pytest.param(manifest([{"minReplicas": -1}]), "min_nodes must be a whole number", id="a negative number"),
        pytest.param(CLUSTER_YAML.replace("max_workers: 6", ""), "max_workers is missing", id="no max_workers"),
        pytest.param(CLUSTER_YAML.replace(": head\n", ": hed\n"), "head_node_type must be one", id="no head"),
        pytest.param(CLUSTER_YAML.replace("CPU: 8", "CPU: 0.5"), "line 8: CPU must be a whole", id="half a CPU"),
        pytest.param(
            CLUSTER_YAML.replace('{CPU: 8, GPU: 1, "accelerator_type:T4": 1}', "{}"),
            "'gpu' has no resources",
            id="no resources",
        ),
    ],
)
def test_a_cluster_whose_resources_cannot_be_counted_is_rejected_with_the_reason(load, data, message):
    with pytest.raises(InvalidResourcesError, match=rf"(?s)cluster\.yaml.*{message}"):
        load(data)
