"""What Ray's autoscaler counts on a node of a KubeRay group. Policies plan on these amounts.

By the precedence of ``ray.autoscaler._private.kuberay.autoscaling_config`` (Ray 2.60): the group's ``resources``, then
``rayStartParams``, then the limits of the pod's first container, then its requests. All amounts are whole.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from tune_policies.cluster.accelerator_families import FAMILIES
from tune_policies.cluster.accelerators import ACCELERATOR_TYPES
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.ray_totals import accelerator_type_of
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TOPOLOGY, GKE_TPU_TYPE
from tune_policies.kuberay.manifests.kuberay_models import HeadGroup, ray_amount
from tune_policies.kuberay.manifests.start_command import whole_param
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

TPU_TYPES: Final = {
    "tpu-v4-podslice": "TPU-V4",
    "tpu-v5-lite-device": "TPU-V5LITEPOD",
    "tpu-v5-lite-podslice": "TPU-V5LITEPOD",
    "tpu-v5p-slice": "TPU-V5P",
    "tpu-v6e-slice": "TPU-V6E",
    "tpu7x": "TPU-V7X",
}
"""Ray's device types by GKE's names (``gke_tpu_accelerator_to_generation`` in Ray)."""

_NOT_CUSTOM: Final = ("CPU", "GPU", "TPU", "memory")


def ray_counts(group: HeadGroup) -> dict[str, int]:
    """Return the amounts by Ray's resource; ``memory`` in bytes.

    Raises:
        InvalidResourcesError: Ray cannot tell, and its autoscaler would fail; the message says what to write.
    """
    custom = _custom(group)
    asked = group.template.spec.containers[0].resources
    # What is told of the container in which Ray runs, limits first.
    amounts = [(key, ray_amount(amount)) for each in (asked.limits, asked.requests) for key, amount in each.items()]

    def first(resource: str, param: str | None, is_it: Callable[[str, int], bool]) -> int | None:
        if resource in group.resources:
            return ray_amount(group.resources[resource])
        if param is not None and param in group.rayStartParams:
            return whole_param(group.rayStartParams, param)
        return next((amount for key, amount in amounts if is_it(key, amount)), None)

    found = {
        "CPU": first("CPU", "num-cpus", lambda key, _: key == "cpu"),
        "GPU": first("GPU", "num-gpus", lambda key, amount: key.endswith("gpu") and amount > 0),
        "TPU": custom.get("TPU", first("TPU", None, lambda key, amount: key == "google.com/tpu" and amount > 0)),
        "memory": first("memory", "memory", lambda key, _: key == "memory"),
    }
    if found["CPU"] is None:
        raise InvalidResourcesError(
            "Ray's autoscaler cannot tell how many CPUs a node has: give the first container limits.cpu, or "
            "rayStartParams num-cpus"
        )
    known = {name: amount for name, amount in found.items() if amount is not None}
    if "TPU" in known and (shape := slice_shape(group)) is not None:
        known[shape.head_resource] = 1  # by which Ray Train reserves a slice; the autoscaler counts it on every host
    return known | custom


def slice_shape(group: HeadGroup) -> SliceShape | None:
    """Return of what TPU slices a group's pods are hosts, by the labels of GKE; ``None``: of none that Ray knows."""
    selector = group.template.spec.nodeSelector
    topology, device = selector.get(GKE_TPU_TOPOLOGY), TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))
    if not topology or device is None:
        return None
    if not all(edge.isdecimal() for edge in topology.split("x")):
        raise InvalidResourcesError(f"{GKE_TPU_TOPOLOGY}: {shorten(topology)} is no topology: write one such as '4x4'")
    return SliceShape(topology, device)


def _custom(group: HeadGroup) -> dict[str, int]:
    if group.resources:
        return {name: ray_amount(amount) for name, amount in group.resources.items() if name not in _NOT_CUSTOM}
    if "resources" not in group.rayStartParams:
        return {}
    text = group.rayStartParams["resources"]
    try:
        # It is quoted once more, for the shell, and Ray takes the quotes and the backslashes off.
        found = parse_json(text[1:-1].replace("\\", ""))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(amount, int) for amount in found.values()):
        raise InvalidResourcesError(
            f"rayStartParams resources: {shorten(text)} is not what Ray's autoscaler reads: write JSON with whole "
            """numbers in quotes of its own, as "'{\\"mine\\": 1}'", or use the group's field resources"""
        )
    return {name: int(amount) for name, amount in found.items()}


_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",  # NVIDIA's GPU feature discovery
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
"""Labels of Kubernetes' nodes whose values name a model of NVIDIA's, such as ``NVIDIA-A100-SXM4-40GB``."""

_NVIDIA_TYPES: Final = sorted(
    {name for family in FAMILIES if family.vendor == "NVIDIA" for name in family.types},
    key=lambda name: (-len(name), name),
)


def device_type(amounts: Mapping[str, float], labels: Mapping[str, str], selector: Mapping[str, str]) -> str | None:
    """Return Ray's name of the device type; ``None``: the file does not say.

    Args:
        amounts: By Ray's resource, of which one may name the type.
        labels: Ray's node labels.
        selector: The node selector of the pods.
    """
    if (told := accelerator_type_of(amounts)) is not None:
        return told
    if labels.get(ACCELERATOR_TYPE) in ACCELERATOR_TYPES:
        return labels[ACCELERATOR_TYPE]
    if (tpu := TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))) is not None:
        return tpu
    return next((found for key in _GPU_LABELS if (found := _named_in(selector.get(key, "")))), None)


def _named_in(model: str) -> str | None:
    """Return the longest name of a type that stands in the name of a model as a word."""
    return next(
        (name for name in _NVIDIA_TYPES if re.search(rf"(^|-){re.escape(name)}(-|$)", model, re.IGNORECASE)), None
    )
