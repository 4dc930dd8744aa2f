"""Pods of Ray's nodes: each fills a node of its type, and shows Ray what the plan counts on."""

import json
from typing import Any, Final

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.clusters.catalog import NodeType, Toleration
from tune_policies.clusters.device_plugins import Platform, devices_of, type_selector
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.writing.options import WriteOptions

_NO_GPU: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""NVIDIA's container runtime shows all its GPUs to a pod that asks for none, unless it is told not to."""

_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def pod_template(node_type: NodeType, options: WriteOptions, *, container: str) -> dict[str, Any]:
    """Return the pods of a node type, for the field ``template`` of a group.

    Raises:
        InvalidResourcesError: Kubernetes does not know its devices.
    """
    devices = devices_of(node_type)
    amounts = {"cpu": str(node_type.cpus), "memory": _quantity(node_type.memory_bytes)}
    tolerations = [*node_type.tolerations]
    if devices is not None:
        amounts[devices.key] = str(devices.amount)
        if devices.plugin.taint is not None:
            tolerations.insert(0, Toleration(key=devices.plugin.taint))
    has_cuda = devices is not None and devices.plugin.family == "NVIDIA GPU"
    ray = {
        "name": container,
        "image": options.image_of(has_cuda=has_cuda),
        "env": [] if has_cuda else [_NO_GPU],
        "resources": {"limits": amounts, "requests": amounts},
    }
    parts = {
        # Autoscaler v2 counts a pod that starts again as the node that it was.
        "restartPolicy": "Never",
        "nodeSelector": node_selector(node_type, options.platform),
        "tolerations": [each.model_dump(exclude_none=True) for each in dict.fromkeys(tolerations)],
        "containers": [_without_empty(ray)],
    }
    return {"spec": _without_empty(parts)}


def node_selector(node_type: NodeType, platform: Platform | None) -> dict[str, str]:
    """Return the labels of the nodes on which its pods run: those of its device type, and the user's."""
    return type_selector(node_type, platform) | node_type.node_selector


def _without_empty(parts: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in parts.items() if part not in ({}, [])}


def _quantity(number_of_bytes: int) -> str:
    for unit, size in _UNITS:
        if number_of_bytes % size == 0:
            return f"{number_of_bytes // size}{unit}"
    return str(number_of_bytes)


def unseen_amounts(node_type: NodeType) -> dict[str, int]:
    """Return what Ray's autoscaler does not find in the limits of a pod, by Ray's names.

    A node with devices adds ``accelerator_type:…`` itself when it starts; before, the autoscaler must know of it, or it
    launches no node for a trial that asks for the type.

    Raises:
        InvalidResourcesError: Kubernetes does not know its devices, or KubeRay would take a resource for another.
    """
    devices = devices_of(node_type)
    found = {devices.resource: devices.amount} if devices is not None and not devices.is_seen_by_ray else {}
    for name, amount in node_type.custom.items():
        if name not in DEVICE_RESOURCES:
            if name.lower().endswith("gpu") or name.lower() in ("cpu", "memory"):
                raise InvalidResourcesError(
                    f"node type {node_type.name!r}: KubeRay would take the resource {name!r} for Ray's own: give it "
                    "another name"
                )
            found[name] = int(amount)
    if node_type.accelerator_type is not None:
        found[ACCELERATOR_TYPE_PREFIX + node_type.accelerator_type] = 1
    return found


def as_start_params(amounts: dict[str, int]) -> dict[str, str]:
    """Return amounts as parameters of ``ray start``, where a group has no field for them."""
    others = {name: amount for name, amount in amounts.items() if name != "GPU"}
    params = {"num-gpus": str(amounts["GPU"])} if "GPU" in amounts else {}
    # Quoted once more for the shell that KubeRay hands it to; Ray's reader drops the first and the last character.
    return params | ({"resources": f"'{json.dumps(others)}'"} if others else {})
