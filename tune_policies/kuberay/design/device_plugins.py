"""Devices in Kubernetes: their resources, the taints of their nodes, and the labels of their types.

Ray's autoscaler counts a limit of a pod as GPUs if its key ends in ``gpu``, and as TPUs if its key is
``google.com/tpu`` (``ray.autoscaler._private.kuberay.autoscaling_config``, Ray 2.60). It ignores all other devices, so
their amounts must be written in another field.
"""

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from tune_policies.cluster.accelerators import FAMILIES, families_of, family_of_type
from tune_policies.cluster.tpu_slices import TOPOLOGIES, SliceShape
from tune_policies.kuberay.design.catalog_file import NodeType, Toleration
from tune_policies.values.errors import InvalidResourcesError

Platform = Literal["gke", "eks", "aks", "karpenter", "gpu-operator"]
"""The source of labels for device types: GKE, EKS managed node groups, AKS, Karpenter, or NVIDIA's GPU operator."""


class DevicePlugin(NamedTuple):
    """The plugin that registers the devices of one family with Kubernetes.

    Attributes:
        family: The vendor and the device, as in ``FAMILIES``.
        key: The Kubernetes resource that pods request; ``None`` if no resource is documented.
        other_keys: A pattern of other Kubernetes resources for these devices or parts of them.
        own_taint: The taint of nodes with these devices, if its key is not the resource that pods request.
    """

    family: str
    key: str | None
    other_keys: str = "(?!)"  # matches no key
    own_taint: str | None = None

    def taint(self, key: str) -> str:
        """Return the key of the taint of nodes whose pods request ``key``.

        By convention, it is the resource name of the devices, such as ``nvidia.com/gpu``.

        Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus,
        https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
        """
        return self.own_taint or key


TPU_KEY: Final = "google.com/tpu"
"""The Kubernetes resource of TPU chips."""

DEVICE_PLUGINS: Final = (
    # https://github.com/NVIDIA/k8s-device-plugin
    DevicePlugin("NVIDIA GPU", "nvidia.com/gpu", r"nvidia\.com/(gpu\.shared|mig-.+)", "nvidia.com/gpu"),
    # https://github.com/ROCm/k8s-device-plugin
    DevicePlugin("AMD GPU", "amd.com/gpu"),
    # https://intel.github.io/intel-device-plugins-for-kubernetes/cmd/gpu_plugin/README.html, for both kernel drivers
    DevicePlugin("Intel GPU", "gpu.intel.com/i915", r"gpu\.intel\.com/xe"),
    DevicePlugin("Apple GPU", None),  # Kubernetes has no nodes with macOS
    # From HAMi's documentation on MetaX devices: https://project-hami.io
    DevicePlugin("MetaX GPU", "metax-tech.com/gpu"),
    # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/kubernetes-getting-started.html
    DevicePlugin(
        "AWS Neuron", "aws.amazon.com/neuroncore", r"aws\.amazon\.com/neuron(device)?", "aws.amazon.com/neuron"
    ),
    # https://cloud.google.com/kubernetes-engine/docs/how-to/tpus
    DevicePlugin("Google TPU", TPU_KEY),
    # https://docs.habana.ai/en/latest/Orchestration/Gaudi_Kubernetes/Device_Plugin_for_Kubernetes.html
    DevicePlugin("Intel Gaudi", "habana.ai/gaudi"),
    # https://gitcode.com/Ascend/mind-cluster (Ascend Device Plugin). Huawei Cloud CCE has names such as ascend-1980.
    DevicePlugin("Huawei Ascend", "huawei.com/Ascend910", r"huawei\.com/(Ascend|ascend-|npu).*"),
    # https://docs.rbln.ai/latest/software/system_management/kubernetes/device_plugin.html (plugin 0.4 and later)
    DevicePlugin("Rebellions RBLN", "rebellions.ai/npu", r"rebellions\.ai/.+"),
    # https://developer.furiosa.ai/latest/en/cloud_native_toolkit/kubernetes/device_plugin.html
    DevicePlugin("FuriosaAI NPU", "furiosa.ai/rngd", r"furiosa\.ai/.+"),
    DevicePlugin("Mobilint NPU", None),
    # Pods request these devices with resource claims, not with an amount: https://docs.tenstorrent.com/tt-dra-driver
    DevicePlugin("Tenstorrent NPU", None),
)
"""The plugin of each device family, in the order of ``FAMILIES``."""

_PLUGIN_OF: Final = {plugin.family: plugin for plugin in DEVICE_PLUGINS}
_RESOURCE_OF: Final = {str(family): family.resource for family in FAMILIES}


@lru_cache(maxsize=1000)
def ray_resource(key: str) -> str | None:
    """Return Ray's resource for a Kubernetes resource, or ``None`` if ``key`` is not a resource of devices."""
    if key.endswith("gpu"):  # Ray counts every resource whose name ends in "gpu" as GPUs
        return "GPU"
    known = (plugin for plugin in DEVICE_PLUGINS if key == plugin.key or re.fullmatch(plugin.other_keys, key))
    return next((_RESOURCE_OF[plugin.family] for plugin in known), None)


GKE_TPU_TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
GKE_TPU_TYPE: Final = "cloud.google.com/gke-tpu-accelerator"
TPU_TYPES: Final = {
    "tpu-v4-podslice": "TPU-V4",
    "tpu-v5p-slice": "TPU-V5P",
    "tpu-v5-lite-device": "TPU-V5LITEPOD",
    "tpu-v5-lite-podslice": "TPU-V5LITEPOD",
    "tpu-v6e-slice": "TPU-V6E",
    "tpu7x": "TPU-V7X",
}
"""Ray's name of each TPU type, by GKE's name.

Source: ``gke_tpu_accelerator_to_generation`` in ``ray.autoscaler._private.kuberay.utils``
"""

_GKE_TPU_TYPES: Final = {device: name for name, device in TPU_TYPES.items()}

_TYPE_LABELS: Final[dict[Platform, tuple[str, dict[str, str]]]] = {
    # https://cloud.google.com/kubernetes-engine/docs/concepts/gpus; "A100" without a size is the 40 GB model.
    "gke": (
        "cloud.google.com/gke-accelerator",
        {
            "K80": "nvidia-tesla-k80",
            "P4": "nvidia-tesla-p4",
            "P100": "nvidia-tesla-p100",
            "V100": "nvidia-tesla-v100",
            "T4": "nvidia-tesla-t4",
            "L4": "nvidia-l4",
            "A100": "nvidia-tesla-a100",
            "A100-40G": "nvidia-tesla-a100",
            "A100-80G": "nvidia-a100-80gb",
            "H100": "nvidia-h100-80gb",
            "H200": "nvidia-h200-141gb",
            "B200": "nvidia-b200",
            "GB200": "nvidia-gb200",
            "RTX-PRO-6000": "nvidia-rtx-pro-6000",
        },
    ),
    # EKS sets no label for the type, so the user must set it. The Cluster Autoscaler finds GPUs by this label. The
    # values are from cluster-autoscaler/cloudprovider/aws/README.md and aws_cloud_provider.go of kubernetes/autoscaler.
    # Other types have similar values.
    "eks": (
        "k8s.amazonaws.com/accelerator",
        {name: f"nvidia-{name.lower()}" for name in ("A10G", "L4", "L40S", "A100-80G", "H100", "H200", "B200")}
        | {name: f"nvidia-tesla-{name.lower()}" for name in ("K80", "P100", "V100", "T4", "A100")}
        | {"A100-40G": "nvidia-tesla-a100"},
    ),
    # https://learn.microsoft.com/en-us/azure/aks/use-labels: AKS sets the same label on all nodes with NVIDIA GPUs.
    "aks": (
        "kubernetes.azure.com/accelerator",
        {name: "nvidia" for family in FAMILIES if family.vendor == "NVIDIA" for name in family.types},
    ),
    # https://karpenter.sh/docs/reference/instance-types
    "karpenter": (
        "karpenter.k8s.aws/instance-gpu-name",
        {name: name.lower() for name in ("K80", "V100", "T4", "A10G", "L4", "L40S", "A100", "H100", "H200", "B200")}
        | {"A100-40G": "a100", "A100-80G": "a100"},
    ),
    # https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery: The value is the model's name in
    # the driver. Types with several models are missing, because a selector can only contain one model.
    "gpu-operator": (
        "nvidia.com/gpu.product",
        {"T4": "Tesla-T4"}
        | {name: f"NVIDIA-{name}" for name in ("A10G", "L4", "L40S", "H20", "B200", "GB200", "GB300")},
    ),
}


AKS_GPU_TAINT: Final = Toleration(key="sku", operator="Equal", value="gpu")
"""A toleration of the taint that Azure recommends for node pools with GPUs.

Source: https://learn.microsoft.com/en-us/azure/aks/operator-best-practices-advanced-scheduler
"""

NODE_POOLS: Final[dict[Platform | None, str]] = {
    # https://cloud.google.com/kubernetes-engine/docs/how-to/cluster-autoscaler
    "gke": "create a node pool (gcloud container node-pools create POOL --enable-autoscaling --total-min-nodes 0 "
    "--total-max-nodes N …), or turn on node auto-provisioning",
    # https://docs.aws.amazon.com/eks/latest/eksctl/autoscaling.html
    "eks": "create a managed node group with minSize 0, maxSize N, the taint nvidia.com/gpu:NoSchedule and the labels "
    "of the group's nodeSelector. Add the taint and the labels as tags to its Auto Scaling group (propagateASGTags in "
    "eksctl), and run the Cluster Autoscaler",
    # https://learn.microsoft.com/en-us/azure/aks/cluster-autoscaler
    "aks": "create a node pool (az aks nodepool add --enable-cluster-autoscaler --min-count 0 --max-count N "
    "--node-taints sku=gpu:NoSchedule …)",
    # https://karpenter.sh/docs/concepts/nodepools/
    "karpenter": "create a NodePool that allows machines with these GPUs, and set its limits so that N machines fit",
    "gpu-operator": "provide N nodes, or an autoscaler that adds them",
    None: "provide N nodes, or an autoscaler that adds them",
}
"""Instructions to provide up to ``N`` nodes for a worker group on each platform."""


def gpu_node_label(platform: Platform) -> str:
    """Return the key of the label that only nodes with NVIDIA GPUs have."""
    if platform == "gpu-operator":
        return "nvidia.com/gpu.present"
    return _TYPE_LABELS[platform][0]


def label_values(platform: Platform) -> frozenset[str]:
    """Return the values of the label for the type of the devices that nodes of a platform can have."""
    return frozenset(_TYPE_LABELS[platform][1].values())


class PodDevices(NamedTuple):
    """Devices of one family in a pod, with Ray's ``resource`` and Kubernetes' ``key``."""

    resource: str
    amount: int
    key: str
    plugin: DevicePlugin

    @property
    def is_detected_by_ray(self) -> bool:
        """Whether Ray's autoscaler counts these devices by their key."""
        if self.resource == "GPU":
            return self.key.endswith("gpu")
        return self.resource == "TPU" and self.key == TPU_KEY


def devices_of(node_type: NodeType) -> PodDevices | None:
    """Return the devices of a pod that fills a node of this type, or ``None`` if it has none.

    GPUs are NVIDIA GPUs unless their type or their key belongs to another vendor.

    Raises:
        InvalidResourcesError: Kubernetes has no known key for the devices, or the key belongs to another family.
    """
    for resource, amount in node_type.devices.items():
        families, device_key = families_of(resource), node_type.device_key
        domain = (device_key or "").partition("/")[0]
        keyed = next(
            (plugin.family for plugin in DEVICE_PLUGINS if plugin.key and plugin.key.partition("/")[0] == domain), None
        )
        if node_type.accelerator_type is not None:
            of_type = family_of_type(node_type.accelerator_type)
            if of_type not in families:
                of_type = families[0]
            family = str(of_type)
        else:
            names = [str(family) for family in families]
            family = keyed if keyed in names else names[0]
        if keyed not in (None, family):
            raise InvalidResourcesError(
                f"node type {node_type.name!r} has devices of the family {family}, but its device_key {device_key!r} "
                f"is for the family {keyed}. Change device_key or the devices"
            )
        plugin = _PLUGIN_OF[family]
        key = device_key or plugin.key
        if key is None:
            raise InvalidResourcesError(
                f"node type {node_type.name!r} has devices of the family {plugin.family}, whose Kubernetes resource is "
                "not known. Set device_key to the resource that your cluster uses"
            )
        return PodDevices(resource, int(amount), key, plugin)
    return None


def type_selector(node_type: NodeType, platform: Platform | None) -> dict[str, str]:
    """Return the labels that select Kubernetes nodes with the devices of this type, or ``{}`` if no label is known.

    TPUs have GKE's labels on any platform.

    Raises:
        InvalidResourcesError: Ray on Kubernetes does not support TPUs of this type, or the topology is missing.
    """
    if node_type.custom.get("TPU"):
        return _tpu_selector(node_type)
    if platform is None or node_type.accelerator_type is None:
        return {}
    if platform == "gpu-operator" and node_type.device_key not in (None, "nvidia.com/gpu"):
        return {}  # the label of a partitioned GPU depends on the operator's strategy
    label, names = _TYPE_LABELS[platform]
    name = names.get(node_type.accelerator_type)
    if name is None:
        return {}
    return {label: name}


def _tpu_selector(node_type: NodeType) -> dict[str, str]:
    accelerator_type = node_type.accelerator_type or "any type"
    if accelerator_type not in _GKE_TPU_TYPES:
        raise InvalidResourcesError(
            f"node type {node_type.name!r} has TPUs of {accelerator_type}, but Ray on Kubernetes only supports "
            f"{', '.join(_GKE_TPU_TYPES)}: set accelerator_type to one of these"
        )
    chips = int(node_type.custom["TPU"])
    shapes = (SliceShape(topology, accelerator_type) for topology in sorted(TOPOLOGIES[accelerator_type]))
    of_one_host = (shape.topology for shape in shapes if shape.has_one_host and shape.chips == chips)
    topology = node_type.topology or next(of_one_host, None)
    if topology is None:
        raise InvalidResourcesError(
            f"node type {node_type.name!r} has {chips} chips per node, but {accelerator_type} has no single-host slice "
            f"with {chips} chips. Set the topology of the slices"
        )
    return {GKE_TPU_TYPE: _GKE_TPU_TYPES[accelerator_type], GKE_TPU_TOPOLOGY: topology}
