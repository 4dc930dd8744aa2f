"""The resource amounts that Ray counts on a node of a KubeRay group, with and without an autoscaler.

With an autoscaler, this module follows ``ray.autoscaler._private.kuberay.autoscaling_config`` (Ray 2.60). The group's
``resources`` take precedence, followed by ``rayStartParams``, the limits of the pod's first container, and its
requests.

Without an autoscaler, a node also has the devices that KubeRay or Ray finds among the limits of the first container
(``generateRayStartCommand`` in ray-operator/controllers/ray/common/pod.go).

Names in a written file must be safe in all shells between the file and Ray. Quoting alone is not enough:

* KubeRay joins ``rayStartParams`` without quotes to a command for ``bash -c``. It encloses the amounts of a group's
  ``resources`` in single quotes without escaping them (``convertParamMap``, ``updateRayStartParamsResources`` in
  https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/common/pod.go).
* Kubernetes replaces ``$(NAME)`` in this command with the value of a variable, even inside quotes.
* Ray's autoscaler removes the first and the last character of the parameter ``resources``, and each backslash in it.
* Ray's launcher passes amounts to ``docker exec`` in an unquoted variable, and an unquoted image to ``docker pull``.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from tune_policies.cluster.accelerators import FAMILIES, family_of_type, type_of_product
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.ray_totals import accelerator_type_of
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TOPOLOGY, GKE_TPU_TYPE, TPU_KEY, TPU_TYPES, ray_resource
from tune_policies.kuberay.reading.kuberay_models import HeadGroup
from tune_policies.kuberay.reading.kubernetes_quantities import ray_amount
from tune_policies.kuberay.reading.shared_gpu_memory import kai_gpus
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

_NOT_CUSTOM: Final = ("CPU", "GPU", "TPU", "memory")


def ray_counts(group: HeadGroup) -> dict[str, int]:
    """Return the amounts that Ray's autoscaler counts, keyed by Ray's resource names, with memory in bytes.

    Raises:
        InvalidResourcesError: An amount is missing or wrong, so the autoscaler would fail.
    """
    custom = _custom(group)
    asked = group.template.spec.containers[0].resources
    listed = chain(asked.limits.items(), asked.requests.items())
    amounts = [(key, ray_amount(amount)) for key, amount in listed]

    def first(resource: str, param: str | None, is_it: Callable[[str, int], bool]) -> int | None:
        if resource in group.resources:
            return ray_amount(group.resources[resource])
        if param is not None and param in group.rayStartParams:
            return _whole_param(group.rayStartParams, param)
        return next((amount for key, amount in amounts if is_it(key, amount)), None)

    found = {
        "CPU": first("CPU", "num-cpus", lambda key, _: key == "cpu"),
        # Ray's autoscaler tests the end of the key: amd.com/gpu counts, nvidia.com/gpu.shared and MIG devices do not.
        "GPU": first("GPU", "num-gpus", lambda key, amount: key.endswith("gpu") and amount > 0),
        "TPU": custom.get("TPU", first("TPU", None, lambda key, amount: key == TPU_KEY and amount > 0)),
        "memory": first("memory", "memory", lambda key, _: key == "memory"),
    }
    if found["CPU"] is None:
        raise InvalidResourcesError(
            "the number of CPUs of a node is missing: set limits.cpu of the first container, or rayStartParams num-cpus"
        )
    known = {name: amount for name, amount in found.items() if amount is not None}
    shape = slice_shape(group) if "TPU" in known else None
    if shape is not None:
        known[shape.head_resource] = 1  # Ray Train reserves slices with it. The autoscaler counts it on every host
    return known | custom


def _whole_param(params: Mapping[str, str], param: str) -> int:
    """Return a parameter of ``ray start``, or raise :class:`InvalidResourcesError` if it is not a whole number."""
    try:
        return int(params[param])
    except ValueError as error:
        raise InvalidResourcesError(
            f"rayStartParams {param} is {shorten(params[param])}, but ray start requires a whole number"
        ) from error


def slice_shape(group: HeadGroup) -> SliceShape | None:
    """Return the shape of a group's TPU slices from its node selector, or ``None`` if GKE's labels are missing."""
    selector = group.template.spec.nodeSelector
    topology, device = selector.get(GKE_TPU_TOPOLOGY), TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))
    if not topology or device is None:
        return None
    if not all(edge.isdecimal() for edge in topology.split("x")):
        raise InvalidResourcesError(f"{GKE_TPU_TOPOLOGY} is {shorten(topology)}, but must be a topology such as '4x4'")
    return SliceShape(topology, device)


def _custom(group: HeadGroup) -> dict[str, int]:
    # The field replaces the parameter completely, as in Ray's ``_get_custom_resources``.
    if group.resources:
        return {name: ray_amount(amount) for name, amount in group.resources.items() if name not in _NOT_CUSTOM}
    if "resources" not in group.rayStartParams:
        return {}
    text = group.rayStartParams["resources"]
    try:
        # Ray removes the first and the last character, which are usually quotes for the shell, and all backslashes.
        found = parse_json(text[1:-1].replace("\\", ""))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(amount, int) for amount in found.values()):
        raise InvalidResourcesError(
            f"Ray cannot read the rayStartParams resources {shorten(text)}. Write JSON with whole numbers in two pairs "
            """of quotes, such as "'{\\"mine\\": 1}'", or use the group's field resources"""
        )
    return {name: int(amount) for name, amount in found.items()}


_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",  # NVIDIA's GPU feature discovery
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
"""The keys of the Kubernetes node labels whose value is the NVIDIA model name, such as ``NVIDIA-A100-SXM4-40GB``."""

_NVIDIA_TYPES: Final = sorted(
    {name for family in FAMILIES if family.vendor == "NVIDIA" for name in family.types},
    key=lambda name: (-len(name), name),
)


def device_type(amounts: Mapping[str, float], labels: Mapping[str, str], selector: Mapping[str, str]) -> str | None:
    """Return Ray's name of a node's device type, or ``None`` if the file does not contain it.

    Args:
        amounts: The node's amounts by Ray's resource name.
        labels: Ray's node labels.
        selector: The node selector of the pods.
    """
    stated = accelerator_type_of(amounts)
    if stated is not None:
        return stated
    label = labels.get(ACCELERATOR_TYPE)
    if label is not None and family_of_type(label) is not None:
        return label
    tpu = TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))
    if tpu is not None:
        return tpu
    types = (_type_of_model(selector[key]) for key in _GPU_LABELS if key in selector)
    return next((name for name in types if name is not None), None)


_BRANDS: Final = ("NVIDIA-", "Tesla-", "Quadro-", "GeForce-", "TITAN-", "GRID-")
"""The first words of product names. Other labels, such as those of GKE, contain other names."""


def _type_of_model(model: str) -> str | None:
    """Return Ray's name for the value of a node label, such as ``nvidia-tesla-t4`` or ``Tesla-T4-SHARED``."""
    product = re.sub(r"(-MIG-.*)?(-SHARED)?\Z", "", model)
    if product.startswith(_BRANDS):
        # GPU feature discovery replaces the spaces of the product name with dashes.
        return type_of_product(product.replace("-", " "))
    # Choose the longest type name that is enclosed by dashes in the model name.
    of_constants = (name for name in _NVIDIA_TYPES if re.search(rf"(^|-){re.escape(name)}(-|$)", model, re.IGNORECASE))
    return next(of_constants, None)


_RESOURCE_NAME: Final = re.compile(r"[\w.:/@+-]+")

_IS_MIG: Final = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb").fullmatch

NEURON_CHIPS: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice")
"""Kubernetes resources that count chips, while Ray counts cores
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/kubernetes-getting-started.html)."""

_CORES_OF_A_CHIP: Final = 2
"""The minimum number of cores of a Neuron chip: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch."""


def quoted_amounts(amounts: Mapping[str, int]) -> str:
    """Return amounts by Ray's resource name as JSON for ``ray start --resources``, quoted for a shell."""
    # Non-ASCII letters are not escaped, because the autoscaler removes the backslash of "\u00e9".
    return shlex.quote(json.dumps(amounts, ensure_ascii=False))


def check_resource_name(name: str) -> None:
    """Raise :class:`InvalidResourcesError` unless a resource name is safe in all shells between the file and Ray."""
    if not _RESOURCE_NAME.fullmatch(name):
        raise InvalidResourcesError(
            f"the resource name {shorten(name)} is not safe in the shells that start Ray: use letters, digits, '_', "
            "'-', '.', ':', '/', '@' and '+'"
        )


def started_counts(group: HeadGroup) -> dict[str, int]:
    """Return the amounts that Ray counts on a node without an autoscaler, keyed by resource, with memory in bytes.

    For devices that Ray detects on the node, the result contains the minimum number that Ray can detect.

    Raises:
        InvalidResourcesError: The number of CPUs is missing, or an amount is wrong.
    """
    detected: dict[str, int] = {}
    limits = group.template.spec.containers[0].resources.limits
    # In reverse order, because KubeRay uses the first key in alphabetical order (``addWellKnownAcceleratorResources``).
    for key in sorted(limits, reverse=True):
        resource, amount = ray_resource(key), ray_amount(limits[key])
        if resource is None or amount == 0:
            continue
        if resource == "GPU" and not _IS_MIG(key):
            amount = 1  # all time slices may belong to one GPU; ``ray_counts`` returns the number of whole GPUs
        elif key in NEURON_CHIPS:
            amount *= _CORES_OF_A_CHIP
        detected[resource] = amount
    shared = kai_gpus(group.template)
    if shared > 0:
        detected["GPU"] = shared  # KAI Scheduler adds the GPU when it binds the pod
    # Stated amounts come last, because KubeRay and Ray detect only what the group does not state.
    return {**detected, **ray_counts(group)}


def states_cpus(group: HeadGroup) -> bool:
    """Return whether a group sets the number of CPUs. Otherwise, Ray counts the CPUs of the machine."""
    asked = group.template.spec.containers[0].resources
    return "CPU" in group.resources or "num-cpus" in group.rayStartParams or "cpu" in {**asked.limits, **asked.requests}
