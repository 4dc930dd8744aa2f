"""The command with which KubeRay starts Ray in a pod: what shells make of it, and what Ray then counts on the node.

KubeRay writes it (``generateRayStartCommand`` in ray-operator/controllers/ray/common/pod.go): the group's ``resources``
replace its ``rayStartParams``, and what neither of them says comes from the limits of the first container. It knows
more devices than the autoscaler: parts of GPUs by MIG, and Neuron cores. Of other devices Ray finds out by itself, on
the node, what it has.

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
from collections.abc import Mapping
from typing import Any, Final

from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.manifests.kuberay_models import HeadGroup, Quantity, ray_amount
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

_RESOURCE_NAME: Final = re.compile(r"[\w.:/@+-]+")
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._:/@-]*", re.ASCII | re.IGNORECASE)

_MIG: Final = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb$")
_OF_FAMILIES: Final = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}

_CORES_OF_A_CHIP: Final = 2
"""The fewest Neuron cores of a chip: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch."""

_NOT_CUSTOM: Final = ("CPU", "GPU", "memory", "object_store_memory")


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
            f"image {shorten(image)} is no name of a container image: write one such as 'registry.example/me/ray:1'"
        )


def read_start_resources(text: str) -> dict[str, Any] | None:
    """Return the mapping that ``ray start`` reads of ``--resources``, once the shell has; ``None``: it fails."""
    try:
        words = shlex.split(f"--resources={text}")
        found = parse_json(words[0].removeprefix("--resources=")) if len(words) == 1 else None
    except ValueError:
        return None
    is_read = isinstance(found, dict) and not found.keys() & set(_NOT_CUSTOM) and all(map(_is_count, found.values()))
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
            f"rayStartParams {param}: {shorten(params[param])} is no whole number, which ray start needs"
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
