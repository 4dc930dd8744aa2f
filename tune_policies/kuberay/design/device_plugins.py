"""How Kubernetes counts devices: under which key, on which tainted nodes, and by which labels it tells their types.

Ray's reader of RayClusters counts a limit as GPUs where its key ends in ``gpu``, and as TPUs under ``google.com/tpu``;
all other keys it passes over (``ray.autoscaler._private.kuberay.autoscaling_config``, Ray 2.60), so that the amount
must be told to it in another place. The sources of the keys are in the rows.
"""

import re
from typing import Final, Literal, NamedTuple

from tune_policies.cluster.accelerators import FAMILIES, families_of
from tune_policies.cluster.tpu_slices import TOPOLOGIES, SliceShape
from tune_policies.kuberay.design.catalog import NodeType
from tune_policies.values.errors import InvalidResourcesError

Platform = Literal["gke", "karpenter", "gpu-operator"]
"""Who labels the nodes by device type: Google's GKE, Karpenter on AWS, or NVIDIA's GPU operator."""


class DevicePlugin(NamedTuple):
    """What makes the devices of one family known to Kubernetes.

    Attributes:
        family: Vendor and device, as the family calls itself.
        key: The resource of pods; ``None``: no plugin counts them under a documented key.
        source: Where the key is documented.
        other_keys: A pattern of further keys of such devices, as of parts of them.
        own_taint: Of nodes with such devices, where it has another name than the key.
    """

    family: str
    key: str | None
    source: str
    other_keys: str = "(?!)"  # which no key matches
    own_taint: str | None = None

    @property
    def taint(self) -> str | None:
        """The taint of nodes with such devices: by custom it is named after the devices, as on GKE.

        Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
        """
        return self.own_taint or self.key


_NEURON: Final = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/kubernetes-getting-started.html"
_GAUDI: Final = "https://docs.habana.ai/en/latest/Orchestration/Gaudi_Kubernetes/Device_Plugin_for_Kubernetes.html"
_INTEL: Final = "https://intel.github.io/intel-device-plugins-for-kubernetes/cmd/gpu_plugin/README.html"
_METAX: Final = "MetaX's device plugin, as HAMi's documentation on MetaX devices names it (https://project-hami.io)"
_RBLN: Final = "https://docs.rbln.ai/latest/software/system_management/kubernetes/device_plugin.html"
_FURIOSA: Final = "https://developer.furiosa.ai/latest/en/cloud_native_toolkit/kubernetes/device_plugin.html"
_TT: Final = "https://docs.tenstorrent.com/tt-dra-driver: given out by resource claims, not by an amount"
_NVIDIA_PLUGIN: Final = "https://github.com/NVIDIA/k8s-device-plugin"

DEVICE_PLUGINS: Final = (
    DevicePlugin("NVIDIA GPU", "nvidia.com/gpu", _NVIDIA_PLUGIN, r"nvidia\.com/(gpu\.shared|mig-.+)"),
    DevicePlugin("AMD GPU", "amd.com/gpu", "https://github.com/ROCm/k8s-device-plugin"),
    DevicePlugin("Intel GPU", "gpu.intel.com/i915", _INTEL, r"gpu\.intel\.com/xe"),  # the other is the kernel's driver
    DevicePlugin("Apple GPU", None, "no plugin: Kubernetes has no nodes with macOS"),
    DevicePlugin("MetaX GPU", "metax-tech.com/gpu", _METAX),
    DevicePlugin(
        "AWS Neuron",
        "aws.amazon.com/neuroncore",
        _NEURON,
        r"aws\.amazon\.com/neuron(device)?",
        own_taint="aws.amazon.com/neuron",
    ),
    DevicePlugin("Google TPU", "google.com/tpu", "https://cloud.google.com/kubernetes-engine/docs/how-to/tpus"),
    DevicePlugin("Intel Gaudi", "habana.ai/gaudi", _GAUDI),
    DevicePlugin(
        "Huawei Ascend",
        "huawei.com/Ascend910",
        "https://gitcode.com/Ascend/mind-cluster (Ascend Device Plugin)",
        r"huawei\.com/(Ascend|npu).*",
    ),
    DevicePlugin("Rebellions RBLN", "rebellions.ai/npu", _RBLN, r"rebellions\.ai/.+"),  # ATOM before plugin 0.4
    DevicePlugin("FuriosaAI NPU", "furiosa.ai/rngd", _FURIOSA, r"furiosa\.ai/.+"),
    DevicePlugin("Mobilint NPU", None, "no key is documented"),
    DevicePlugin("Tenstorrent NPU", None, _TT),
)
"""A row for each family, in the order of the families."""

_PLUGIN_OF: Final = {plugin.family: plugin for plugin in DEVICE_PLUGINS}
_RESOURCE_OF: Final = {str(family): family.resource for family in FAMILIES}


def ray_resource(key: str) -> str | None:
    """Return Ray's resource of devices that Kubernetes counts as ``key``; ``None``: they are no known devices."""
    if key.endswith("gpu"):  # as Ray's reader has it, whoever makes them
        return "GPU"
    known = (each for each in DEVICE_PLUGINS if key == each.key or re.fullmatch(each.other_keys, key))
    return next((_RESOURCE_OF[each.family] for each in known), None)


GKE_TPU_TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
GKE_TPU_TYPE: Final = "cloud.google.com/gke-tpu-accelerator"
_GKE_TPU_TYPES: Final = {
    "TPU-V4": "tpu-v4-podslice",
    "TPU-V5P": "tpu-v5p-slice",
    "TPU-V5LITEPOD": "tpu-v5-lite-podslice",
    "TPU-V6E": "tpu-v6e-slice",
    "TPU-V7X": "tpu7x",
}
"""What Ray on Kubernetes knows (``ray.autoscaler._private.kuberay.utils``): TPUs are on GKE alone."""

_TYPE_LABELS: Final[dict[Platform, tuple[str, dict[str, str]]]] = {
    # https://cloud.google.com/kubernetes-engine/docs/concepts/gpus; "A100" alone is the smaller.
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
    # https://karpenter.sh/docs/reference/instance-types
    "karpenter": (
        "karpenter.k8s.aws/instance-gpu-name",
        {name: name.lower() for name in ("K80", "V100", "T4", "A10G", "L4", "L40S", "A100", "H100", "H200", "B200")}
        | {"A100-40G": "a100", "A100-80G": "a100"},
    ),
    # https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery: the driver's name of the model.
    # Left out are types with several models, as a selector names one.
    "gpu-operator": (
        "nvidia.com/gpu.product",
        {"T4": "Tesla-T4"}
        | {name: f"NVIDIA-{name}" for name in ("A10G", "L4", "L40S", "H20", "B200", "GB200", "GB300")},
    ),
}


def gpu_node_label(platform: Platform) -> str:
    """Return the label that every node with NVIDIA's GPUs has, and no other."""
    return "nvidia.com/gpu.present" if platform == "gpu-operator" else _TYPE_LABELS[platform][0]


class PodDevices(NamedTuple):
    """Devices of one family in a pod.

    Attributes:
        resource: Ray's name.
        amount: How many.
        key: Kubernetes' name.
        plugin: What makes them known to it.
    """

    resource: str
    amount: int
    key: str
    plugin: DevicePlugin

    @property
    def is_seen_by_ray(self) -> bool:
        """Whether Ray's reader counts them by their key alone."""
        if self.resource == "GPU":
            return self.key.endswith("gpu")
        return self.resource == "TPU" and self.key == "google.com/tpu"


def devices_of(node_type: NodeType) -> PodDevices | None:
    """Return the devices of a pod that fills a node of this type; ``None``: it has none.

    GPUs whose family neither type nor key tells are NVIDIA's.

    Raises:
        InvalidResourcesError: There is no known key for them, or the key is that of others.
    """
    for resource, amount in node_type.devices.items():
        families, device_key = families_of(resource), node_type.device_key
        domain = (device_key or "").partition("/")[0]
        keyed = next(
            (each.family for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == domain), None
        )
        if node_type.accelerator_type is not None:
            family = str(next(each for each in families if node_type.accelerator_type in each.types))
        else:
            family = next((name for name in map(str, families) if name == keyed), str(families[0]))
        if keyed not in (None, family):
            raise InvalidResourcesError(
                f"node type {node_type.name!r} has devices of {family}, but its device_key {device_key!r} "
                f"counts those of {keyed}"
            )
        plugin = _PLUGIN_OF[family]
        key = device_key or plugin.key
        if key is None:
            raise InvalidResourcesError(
                f"node type {node_type.name!r}: Kubernetes has no known key for devices of {plugin.family} "
                f"({plugin.source}); name the key of your cluster as device_key"
            )
        return PodDevices(resource, int(amount), key, plugin)
    return None


def type_selector(node_type: NodeType, platform: Platform | None) -> dict[str, str]:
    """Return the labels of Kubernetes' nodes that have the devices of this type; empty: no label is known.

    Args:
        node_type: Of the node.
        platform: Who labels the nodes; ``None``: nobody. TPUs are told by GKE's labels in any case.

    Raises:
        InvalidResourcesError: It has TPUs of a type or an amount that GKE does not have.
    """
    if node_type.custom.get("TPU"):
        return _tpu_selector(node_type)
    if platform is None or node_type.accelerator_type is None:
        return {}
    if platform == "gpu-operator" and node_type.device_key not in (None, "nvidia.com/gpu"):
        return {}  # the label of a GPU in parts says so, in a way that depends on the operator's strategy
    label, names = _TYPE_LABELS[platform]
    name = names.get(node_type.accelerator_type)
    return {} if name is None else {label: name}


def _tpu_selector(node_type: NodeType) -> dict[str, str]:
    accelerator_type = node_type.accelerator_type or "any type"
    if accelerator_type not in _GKE_TPU_TYPES:
        raise InvalidResourcesError(
            f"node type {node_type.name!r} has TPUs of {accelerator_type}, but Ray on Kubernetes knows "
            f"{', '.join(_GKE_TPU_TYPES)} only: name one of these as accelerator_type"
        )
    chips = int(node_type.custom["TPU"])
    shapes = (SliceShape(each, accelerator_type) for each in sorted(TOPOLOGIES[accelerator_type]))
    of_one_host = (shape.topology for shape in shapes if shape.has_one_host and shape.chips == chips)
    if (topology := node_type.topology or next(of_one_host, None)) is None:
        raise InvalidResourcesError(
            f"node type {node_type.name!r}: no slice of {accelerator_type} is one host with {chips} chips; name the "
            "topology of the slices"
        )
    return {GKE_TPU_TYPE: _GKE_TPU_TYPES[accelerator_type], GKE_TPU_TOPOLOGY: topology}
