"""What Ray's autoscaler counts on a node of a KubeRay group. Policies plan on these amounts.

By the precedence of ``ray.autoscaler._private.kuberay.autoscaling_config`` (Ray 2.60): the group's ``resources``, then
``rayStartParams``, then the limits of the pod's first container, then its requests. All amounts are whole.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, FAMILIES
from tune_policies.cluster.capacity import accelerator_type_of
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TOPOLOGY, GKE_TPU_TYPE
from tune_policies.kuberay.manifests.kuberay_models import HeadGroup
from tune_policies.kuberay.manifests.quantities import ray_amount
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
    found = {"CPU": _cpus(group)}
    if (gpus := _gpus(group)) is not None:
        found["GPU"] = gpus
    if (tpus := _tpus(group, custom)) is not None:
        found["TPU"] = tpus
        found |= dict.fromkeys(_slice_heads(group), 1)
    if (memory := _first(group, "memory", "memory", "memory")) is not None:
        found["memory"] = memory
    return found | custom


def slice_shape(group: HeadGroup) -> SliceShape | None:
    """Return of what TPU slices a group's pods are hosts, by the labels of GKE; ``None``: of none that Ray knows."""
    selector = group.template.spec.nodeSelector
    topology, device = selector.get(GKE_TPU_TOPOLOGY), TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))
    if not topology or device is None:
        return None
    if not all(edge.isdecimal() for edge in topology.split("x")):
        raise InvalidResourcesError(f"{GKE_TPU_TOPOLOGY}: {shorten(topology)} is no topology: write one such as '4x4'")
    return SliceShape(topology, device)


def _cpus(group: HeadGroup) -> int:
    found = _first(group, "CPU", "num-cpus", "cpu")
    if found is None:
        raise InvalidResourcesError(
            "Ray's autoscaler cannot tell how many CPUs a node has: give the first container limits.cpu, or "
            "rayStartParams num-cpus"
        )
    return found


def _first(group: HeadGroup, resource: str, param: str, key: str) -> int | None:
    if resource in group.resources:
        return ray_amount(group.resources[resource])
    if param in group.rayStartParams:
        return _as_int(group.rayStartParams[param], param)
    return next((amount for name, amount in _container_amounts(group) if name == key), None)


def _as_int(text: str, param: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidResourcesError(
            f"rayStartParams {param}: {shorten(text)} is no whole number, which Ray's autoscaler needs"
        ) from error


def _container_amounts(group: HeadGroup) -> Iterator[tuple[str, int]]:
    """Yield what is told of the container in which Ray runs, limits first."""
    resources = group.template.spec.containers[0].resources
    for amounts in (resources.limits, resources.requests):
        for name, amount in amounts.items():
            yield name, ray_amount(amount)


def _gpus(group: HeadGroup) -> int | None:
    if "GPU" in group.resources:
        return ray_amount(group.resources["GPU"])
    if "num-gpus" in group.rayStartParams:
        return _as_int(group.rayStartParams["num-gpus"], "num-gpus")
    return next((amount for name, amount in _container_amounts(group) if name.endswith("gpu") and amount > 0), None)


def _tpus(group: HeadGroup, custom: Mapping[str, int]) -> int | None:
    if "TPU" in group.resources:
        return ray_amount(group.resources["TPU"])
    if "TPU" in custom:
        return custom["TPU"]
    return next((amount for name, amount in _container_amounts(group) if name == "google.com/tpu" and amount > 0), None)


def _slice_heads(group: HeadGroup) -> list[str]:
    """Return the resource by which Ray Train reserves a slice, which the autoscaler counts on every host."""
    shape = slice_shape(group)
    return [] if shape is None else [shape.head_resource]


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
