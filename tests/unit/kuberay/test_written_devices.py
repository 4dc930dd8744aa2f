"""Tests of devices in written manifests: amounts, labels, tolerations, slices, and the visibility of GPUs."""

import pytest

from tests.unit.kuberay.designed_clusters import GPU_HEAD, a_design, cpu_type, gpu_type, spec
from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.kuberay.design.catalog_file import Toleration
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, type_selector
from tune_policies.kuberay.writing import WriteOptions, about_unselected


def group(node_type, **options):
    return spec(a_design(node_type), **options)["workerGroupSpecs"][0]


def pod(node_type, **options):
    return group(node_type, **options)["template"]["spec"]


VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
INTEL = gpu_type(name="intel", accelerator_type="Intel-GPU-Max-1550")


@pytest.mark.parametrize(
    ("node_types", "variables"),
    [
        ([cpu_type(), gpu_type()], [VOID, VOID, None]),
        ([INTEL, gpu_type()], [VOID, VOID, None]),
        ([cpu_type(), INTEL], [None, None, None]),
        ([gpu_type(device_key="nvidia.com/mig-1g.10gb")], [VOID, None]),
    ],
    ids=["next to NVIDIA's GPUs", "of another vendor next to them", "without GPUs", "next to GPU parts"],
)
def test_nvidia_gpus_are_hidden_from_pods_without_gpus(node_types, variables):
    written = spec(a_design(*node_types))

    groups = [written["headGroupSpec"], *written["workerGroupSpecs"]]
    assert [each["template"]["spec"]["containers"][0].get("env") for each in groups] == variables


@pytest.mark.parametrize(
    ("platform", "label"),
    [
        ("gke", "cloud.google.com/gke-accelerator"),
        ("eks", "k8s.amazonaws.com/accelerator"),
        ("aks", "kubernetes.azure.com/accelerator"),
        ("karpenter", "karpenter.k8s.aws/instance-gpu-name"),
        ("gpu-operator", "nvidia.com/gpu.present"),
    ],
)
def test_pods_without_devices_do_not_run_on_nodes_with_gpus(platform, label):
    plan = a_design(cpu_type(), gpu_type(), cpu_type(name="mine", node_selector={"pool": "a"}))
    written = spec(plan, platform=platform)

    groups = [written["headGroupSpec"], *written["workerGroupSpecs"]]
    found = [each["template"]["spec"].get("affinity") for each in groups]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}]}
    off = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert found == [off, off, None, None]


@pytest.mark.parametrize(
    ("node_type", "platform"), [(cpu_type(), "gke"), (gpu_type(), None)], ids=["no GPUs", "labels that no node has"]
)
def test_without_known_gpu_nodes_the_head_runs_anywhere(node_type, platform):
    assert "affinity" not in spec(a_design(node_type), platform=platform)["headGroupSpec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("fields", "key", "expected"),
    [
        ({"gpus": 1}, "nvidia.com/gpu", None),
        ({"gpus": 2, "device_key": "nvidia.com/gpu.shared"}, "nvidia.com/gpu.shared", {"GPU": "2"}),
        ({"gpus": 2, "device_key": "amd.com/gpu"}, "amd.com/gpu", None),
        ({"gpus": 2, "device_key": "gpu.intel.com/xe"}, "gpu.intel.com/xe", {"GPU": "2"}),
        ({"gpus": 2, "device_key": "nvidia.com/mig-1g.10gb"}, "nvidia.com/mig-1g.10gb", {"GPU": "2"}),
        (
            {"gpus": 1, "accelerator_type": "AMD-Instinct-MI300X-OAM"},
            "amd.com/gpu",
            {"accelerator_type:AMD-Instinct-MI300X-OAM": "1"},
        ),
        (
            {"gpus": 1, "accelerator_type": "Intel-GPU-Max-1550"},
            "gpu.intel.com/i915",
            {"GPU": "1", "accelerator_type:Intel-GPU-Max-1550": "1"},
        ),
        ({"custom": {"HPU": 8}}, "habana.ai/gaudi", {"HPU": "8"}),
        ({"custom": {"neuron_cores": 2}}, "aws.amazon.com/neuroncore", {"neuron_cores": "2"}),
        ({"custom": {"NPU": 8, "license": 1}}, "huawei.com/Ascend910", {"NPU": "8", "license": "1"}),
        (
            {"custom": {"TPU": 4}, "accelerator_type": "TPU-V6E"},
            "google.com/tpu",
            {"accelerator_type:TPU-V6E": "1"},
        ),
    ],
    ids=[
        "NVIDIA",
        "time slices",
        "AMD by key",
        "Intel by key",
        "MIG",
        "AMD",
        "Intel",
        "Gaudi",
        "Neuron",
        "Ascend",
        "TPU",
    ],
)
def test_amounts_that_ray_ignores_in_limits_are_written_as_group_resources(fields, key, expected):
    written = group(cpu_type(**fields))
    resources = written["template"]["spec"]["containers"][0]["resources"]

    assert written.get("resources") == expected
    assert key in resources["limits"]
    assert resources["requests"] == resources["limits"] | {"ephemeral-storage": "10Gi"}


@pytest.mark.parametrize(
    ("fields", "taint"),
    [
        ({"gpus": 1, "device_key": "gpu.intel.com/xe"}, "gpu.intel.com/xe"),
        ({"gpus": 1, "device_key": "nvidia.com/mig-1g.10gb"}, "nvidia.com/gpu"),
        ({"custom": {"NPU": 1}, "device_key": "huawei.com/Ascend310P"}, "huawei.com/Ascend310P"),
        ({"custom": {"neuron_cores": 2}}, "aws.amazon.com/neuron"),
    ],
    ids=["Intel by key", "MIG", "Ascend by key", "Neuron"],
)
def test_a_pod_tolerates_the_taint_of_the_nodes_with_its_devices(fields, taint):
    tolerations = group(cpu_type(**fields))["template"]["spec"]["tolerations"]

    assert tolerations == [{"key": taint, "operator": "Exists", "effect": "NoSchedule"}]


def test_for_an_older_ray_version_amounts_are_written_as_start_parameters():
    """Ray 2.50 ignores the field ``resources``, and KubeRay rejects it if ``rayStartParams`` contains resources."""
    written = group(gpu_type(device_key="nvidia.com/mig-1g.10gb"), ray_version="2.50.1")

    assert written["rayStartParams"] == {"num-gpus": "1", "resources": "'{\"accelerator_type:L4\": 1}'"}
    assert "resources" not in written


def test_pods_with_gpus_tolerate_azures_recommended_taint_on_aks():
    tolerations = pod(gpu_type(), platform="aks")["tolerations"]

    assert tolerations[1:] == [{"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]
    assert "tolerations" not in pod(cpu_type(), platform="aks")


@pytest.mark.parametrize("ray_version", ["2.50.0", "2.60.0"])
def test_the_option_num_gpus_writes_gpus_as_a_start_parameter(ray_version):
    written = group(gpu_type(gpus=2), num_gpus=True, ray_version=ray_version)

    assert written["rayStartParams"] == {"num-gpus": "2", "resources": """'{"accelerator_type:L4": 1}'"""}
    assert "resources" not in written
    assert written["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_a_head_with_gpus_is_written_like_a_group_with_gpus():
    head = spec(a_design(head=GPU_HEAD))["headGroupSpec"]
    ray = head["template"]["spec"]["containers"][0]

    assert (head["rayStartParams"], head["resources"]) == ({}, {"accelerator_type:L4": "1"})
    assert head["labels"] == {"ray.io/accelerator-type": "L4", "zone": "eu"}
    assert (ray["image"], ray["resources"]["limits"]["nvidia.com/gpu"]) == ("rayproject/ray:2.60.0-py311-gpu", "2")
    assert "affinity" not in head["template"]["spec"]


def test_each_replica_of_a_tpu_group_is_a_slice():
    tpu = cpu_type(name="tpu", custom={"TPU": 4}, accelerator_type="TPU-V6E", topology="4x4")
    plan = a_design(groups=(DesignedGroup(node_type=tpu, min_nodes=4, max_nodes=16, num_hosts=4),))

    written = spec(plan)["workerGroupSpecs"][0]

    numbers = [written[field] for field in ("minReplicas", "replicas", "maxReplicas", "numOfHosts")]
    assert numbers == [1, 1, 4, 4]


def test_a_group_starts_with_its_minimum_number_of_nodes():
    plan = a_design(groups=(DesignedGroup(node_type=gpu_type(), min_nodes=2, max_nodes=3),))

    assert spec(plan)["workerGroupSpecs"][0]["replicas"] == 2


@pytest.mark.parametrize(
    ("platform", "fields", "selector"),
    [
        ("gke", {}, {"cloud.google.com/gke-accelerator": "nvidia-l4"}),
        ("eks", {}, {"k8s.amazonaws.com/accelerator": "nvidia-l4"}),
        ("aks", {}, {"kubernetes.azure.com/accelerator": "nvidia"}),
        ("karpenter", {}, {"karpenter.k8s.aws/instance-gpu-name": "l4"}),
        ("gpu-operator", {}, {"nvidia.com/gpu.product": "NVIDIA-L4"}),
        ("gpu-operator", {"device_key": "nvidia.com/gpu.shared"}, {}),
        ("gke", {"accelerator_type": None}, {}),
        (None, {}, {}),
        (
            None,
            {"gpus": 0, "custom": {"TPU": 8}, "accelerator_type": "TPU-V6E"},
            {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x4"},
        ),
    ],
    ids=[
        "GKE",
        "EKS",
        "AKS",
        "Karpenter",
        "GPU operator",
        "GPU parts",
        "any GPU type",
        "unknown platform",
        "TPUs exist only on GKE",
    ],
)
def test_nodes_are_selected_by_the_labels_of_their_platform(platform, fields, selector):
    assert type_selector(gpu_type(**fields), platform) == selector


def test_selectors_and_tolerations_of_the_user_are_added():
    spot = Toleration(key="spot", operator="Equal", value="yes", effect=None)

    written = pod(gpu_type(node_selector={"pool": "a"}, tolerations=(spot,)))

    assert written["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "a"}
    assert written["tolerations"][1:] == [{"key": "spot", "operator": "Equal", "value": "yes"}]


@pytest.mark.parametrize("memory", [2**30, 3 * 2**20, 5 * 2**20 + 2**10, 2**20 + 1])
def test_memory_is_written_to_the_byte(memory):
    written = pod(gpu_type(memory=memory))["containers"][0]["resources"]["limits"]["memory"]

    units = {"Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
    assert int(written.rstrip("GMKi")) * units.get(written[-2:], 1) == memory


def test_each_device_family_has_a_device_plugin():
    assert [plugin.family for plugin in DEVICE_PLUGINS] == [str(family) for family in FAMILIES]


@pytest.mark.parametrize(
    ("node_types", "expected"),
    [
        pytest.param(
            [gpu_type(name="l4"), gpu_type(name="l40s", accelerator_type="L40S")],
            ["no label selects the nodes of l40s, so its pods may run on nodes with L4. Set node_selector of l40s in "
             "the catalog"],
            id="the platform has no label for a type",
        ),
        pytest.param(
            [gpu_type(name="l4"), gpu_type(name="l40s", accelerator_type="L40S", node_selector={"gpu": "l40s"})],
            [],
            id="the catalog has one",
        ),
        pytest.param([gpu_type(name="l40s", accelerator_type="L40S")], [], id="the only type"),
        pytest.param([cpu_type(), gpu_type(name="l40s", accelerator_type="L40S")], [], id="beside nodes without GPUs"),
        pytest.param([gpu_type(name="l4"), gpu_type(name="any", accelerator_type=None)], [], id="no type is stated"),
        pytest.param(
            [gpu_type(name="l40s", accelerator_type="L40S"),
             gpu_type(name="mig", accelerator_type="H100", device_key="nvidia.com/mig-1g.10gb")],
            [],
            id="other devices have another key",
        ),
    ],
)  # fmt: skip
def test_a_design_warns_of_pods_that_may_get_another_device(node_types, expected):
    assert list(about_unselected(a_design(*node_types), WriteOptions())) == expected
