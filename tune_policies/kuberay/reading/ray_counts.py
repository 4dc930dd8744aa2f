"""What Ray counts on a node of a KubeRay group: as its autoscaler reads it, or by the command that starts Ray there.

The autoscaler goes by the precedence of ``ray.autoscaler._private.kuberay.autoscaling_config`` (Ray 2.60): the group's
``resources``, then ``rayStartParams``, then the limits of the pod's first container, then its requests. All amounts are
whole.

KubeRay writes the command (``generateRayStartCommand`` in ray-operator/controllers/ray/common/pod.go): the group's
``resources`` replace its ``rayStartParams``, and what neither of them says comes from the limits of the first
container. It knows more devices than the autoscaler: parts of GPUs by MIG, and Neuron cores. Of other devices Ray finds
out by itself, on the node, what it has.

One function quotes texts for a shell, and names hold nothing for it. Quoting alone is not enough, as others put names
into commands, too:

* KubeRay joins ``rayStartParams`` to a command for ``bash -c`` as they are, and puts the amounts of a group's
  ``resources`` between single quotes without a look at them (``convertParamMap``, ``updateRayStartParamsResources`` in
  https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/common/pod.go).
* Kubernetes replaces ``$(NAME)`` in that command by a variable, quoted or not.
* Ray's autoscaler drops the first and the last character of the parameter ``resources``, and each backslash in it.
* Ray's launcher passes amounts to ``docker exec`` in a variable without quotes, and an image to ``docker pull`` as it
  is.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, FAMILIES
from tune_policies.cluster.capacity import accelerator_type_of
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TOPOLOGY, GKE_TPU_TYPE, ray_resource
from tune_policies.kuberay.reading.kuberay_models import HeadGroup, Quantity, ray_amount
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
        raise InvalidResourcesError(
            f"{GKE_TPU_TOPOLOGY}: {shorten(topology)} is not a topology: write one such as '4x4'"
        )
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
    models = [selector[key] for key in _GPU_LABELS if key in selector]
    # The longest name of a type that stands in the name of a model as a word.
    return next(
        (
            name
            for model in models
            for name in _NVIDIA_TYPES
            if re.search(rf"(^|-){re.escape(name)}(-|$)", model, re.IGNORECASE)
        ),
        None,
    )


_RESOURCE_NAME: Final = re.compile(r"[\w.:/@+-]+")
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._:/@-]*", re.ASCII | re.IGNORECASE)

_MIG: Final = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb$")
_OF_FAMILIES: Final = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}

_CORES_OF_A_CHIP: Final = 2
"""The fewest Neuron cores of a chip: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch."""

_OPTIONS_OF_THEIR_OWN: Final = ("CPU", "GPU", "memory", "object_store_memory")


def quoted(text: str) -> str:
    """Return ``text`` as one word of a shell's command."""
    return shlex.quote(text)


def quoted_amounts(amounts: Mapping[str, int]) -> str:
    """Return amounts by Ray's names as ``ray start --resources`` takes them."""
    # Letters as they are: of "\u00e9" the autoscaler would read "u00e9".
    return quoted(json.dumps(amounts, ensure_ascii=False))


def is_resource_name(name: str) -> bool:
    """Return whether no shell on the way to Ray takes a part of a resource's name for something else."""
    return _RESOURCE_NAME.fullmatch(name) is not None


def check_resource_name(name: str) -> None:
    """Check that a resource's name can be written for a cluster.

    Raises:
        InvalidResourcesError: Some shell might take a part of it for something else.
    """
    if not is_resource_name(name):
        raise InvalidResourcesError(
            f"the resource name {shorten(name)} cannot be written for a cluster, as shells on the way to Ray would not "
            "take it as it is: use letters, digits, '_', '-', '.', ':', '/', '@' and '+'"
        )


def check_image(image: str) -> None:
    """Check that an image is named as registries do.

    Raises:
        InvalidResourcesError: It is not.
    """
    if not _IMAGE.fullmatch(image):
        raise InvalidResourcesError(
            f"image {shorten(image)} does not name a container image: write one such as 'registry.example/me/ray:1'"
        )


def read_start_resources(text: str) -> dict[str, Any] | None:
    """Return the mapping that ``ray start`` reads of ``--resources``, once the shell has; ``None``: it fails."""
    try:
        words = shlex.split(f"--resources={text}")
        found = parse_json(words[0].removeprefix("--resources=")) if len(words) == 1 else None
    except ValueError:
        return None
    is_read = (
        isinstance(found, dict)
        and not found.keys() & set(_OPTIONS_OF_THEIR_OWN)
        and all(map(_is_count, found.values()))
    )
    return found if is_read else None


def _is_count(amount: object) -> bool:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return False
    return amount >= 0 and (isinstance(amount, int) or amount.is_integer())


def started_counts(group: HeadGroup) -> dict[str, int]:
    """Return the amounts by Ray's resource where no autoscaler reads the manifest; ``memory`` in bytes.

    Raises:
        InvalidResourcesError: Nothing says how many CPUs a node has, or ``ray start`` would fail; the message says what
            to write.
    """
    params, custom = _told(group)
    limits = group.template.spec.containers[0].resources.limits
    cpus = _whole(params, "num-cpus", _asked_cpus(group))
    if cpus is None:
        raise InvalidResourcesError(
            "nothing says how many CPUs a node has, so that Ray counts those of the machine on which the pod happens "
            "to run: give the first container limits.cpu, or rayStartParams num-cpus"
        )
    found = {"CPU": cpus, **custom}
    gpu_limit = next((limits[key] for key in sorted(limits) if _is_gpu(key) and _is_some(limits[key])), None)
    for resource, param, limit in (("GPU", "num-gpus", gpu_limit), ("memory", "memory", limits.get("memory"))):
        if (amount := _whole(params, param, limit if _is_some(limit) else None)) is not None:
            found[resource] = amount
    if not found.keys() & set(_OF_FAMILIES.values()):
        key = next((key for key in sorted(_OF_FAMILIES) if _is_some(limits.get(key))), None)
        found |= {} if key is None else {_OF_FAMILIES[key]: ray_amount(limits[key])}
    return {**_detected(limits), **found}


def says_cpus(group: HeadGroup) -> bool:
    """Return whether a group says how many CPUs its nodes have; else each counts those of its machine."""
    told = {name.lower() for name in group.resources} | group.rayStartParams.keys()
    return not told.isdisjoint({"cpu", "num-cpus"}) or _asked_cpus(group) is not None


def _asked_cpus(group: HeadGroup) -> Quantity | None:
    resources = group.template.spec.containers[0].resources
    amounts = (each.get("cpu") for each in (resources.limits, resources.requests))
    return next((amount for amount in amounts if _is_some(amount)), None)


def _told(group: HeadGroup) -> tuple[dict[str, str], dict[str, int]]:
    """Return the parameters of ``ray start``, and its custom resources."""
    params, custom = dict(group.rayStartParams), {}
    for name, amount in group.resources.items():
        lower = name.lower()
        param = {"cpu": "num-cpus", "memory": "memory"}.get(lower) or ("num-gpus" if _is_gpu(lower) else None)
        if param is None:
            custom[name] = ray_amount(amount)
        else:
            params[param] = str(ray_amount(amount))
    if custom or "resources" not in params:
        return params, custom
    found = read_start_resources(params["resources"])
    limits = group.template.spec.containers[0].resources.limits
    if found is None and any(_is_some(limits.get(key)) for key in _OF_FAMILIES):
        # KubeRay adds the devices to what is told, unless it names some, and writes all of it anew, in quotes.
        found = read_start_resources(quoted(params["resources"].strip("'\"` ")))
        found = None if found is None or found.keys() & set(_OF_FAMILIES.values()) else found
    if found is None:
        raise InvalidResourcesError(
            f"rayStartParams resources: {shorten(params['resources'])} is not what ray start reads: write JSON with "
            """whole numbers in single quotes of its own, as "'{\\"mine\\": 1}'", or use the group's field resources"""
        )
    return params, {name: int(amount) for name, amount in found.items()}


def _whole(params: Mapping[str, str], param: str, limit: Quantity | None) -> int | None:
    if param in params:
        return whole_param(params, param)
    return None if limit is None else ray_amount(limit)


def whole_param(params: Mapping[str, str], param: str) -> int:
    """Return a parameter of ``ray start`` that must be a whole number.

    Raises:
        InvalidResourcesError: It is none.
    """
    try:
        return int(params[param])
    except ValueError as error:
        raise InvalidResourcesError(
            f"rayStartParams {param}: {shorten(params[param])} is not a whole number, which ray start needs"
        ) from error


def _detected(limits: Mapping[str, Quantity]) -> dict[str, int]:
    """Return the devices that Ray finds on the node, at the least, of those that KubeRay does not tell it of."""
    found: dict[str, int] = {}
    for key in sorted(limits, reverse=True):
        resource = ray_resource(key)
        if resource is None or not _is_some(limits[key]):
            continue
        amount = ray_amount(limits[key])
        if resource == "GPU":
            amount = 1  # time slices and other parts may all be of one GPU
        elif resource == "neuron_cores" and key not in _OF_FAMILIES:
            amount *= _CORES_OF_A_CHIP
        found[resource] = amount
    return found


def _is_gpu(key: str) -> bool:
    return key.endswith("gpu") or _MIG.search(key) is not None


def _is_some(amount: Quantity | None) -> bool:
    return amount is not None and ray_amount(amount) > 0
