"""Pods of Ray's nodes: each fills a node of its type, and shows Ray what the plan counts on."""

from collections.abc import Iterable
from typing import Any, Final

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.clusters.catalog import NodeType, Toleration
from tune_policies.clusters.device_plugins import Platform, devices_of, gpu_node_label, type_selector
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.shell import quoted_amounts
from tune_policies.manifests.writing.block_yaml import Path
from tune_policies.manifests.writing.options import WriteOptions

_NO_GPU: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""NVIDIA's container runtime shows all its GPUs to a pod that asks for none, unless it is told not to."""

_NOT_EVICTED: Final = {
    # https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    # https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
    "karpenter.sh/do-not-disrupt": "true",
}
"""Nodes go when Ray has taken their pods away, and not while a trial runs on them."""

_DISK: Final = "10Gi"
"""Logs, packages of the runtime environment, and objects that do not fit the memory; every usual node has so much."""

_SHARED_MEMORY: Final = "shared-memory"

_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def pod_template(
    node_type: NodeType, options: WriteOptions, *, container: str, is_beside_nvidia: bool
) -> dict[str, Any]:
    """Return the pods of a node type, for the field ``template`` of a group.

    Args:
        node_type: Of the node that a pod fills.
        options: How the cluster is to be written.
        container: The name of Ray's container.
        is_beside_nvidia: Whether pods of the cluster have NVIDIA's GPUs.

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
    has_cuda = has_nvidia(node_type)
    ray = {
        "name": container,
        "image": options.image_of(has_cuda=has_cuda),
        "env": [_NO_GPU] if is_beside_nvidia and not has_cuda else [],
        "resources": {"limits": amounts, "requests": amounts | {"ephemeral-storage": _DISK}},
        "volumeMounts": [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}],  # noqa: S108 - of the pod alone
    }
    parts = {
        # Autoscaler v2 counts a pod that starts again as the node that it was.
        "restartPolicy": "Never",
        "nodeSelector": node_selector(node_type, options.platform),
        "affinity": _off_gpu_nodes(node_type, options.platform) if is_beside_nvidia else {},
        "tolerations": [each.model_dump(exclude_none=True) for each in dict.fromkeys(tolerations)],
        "containers": [_without_empty(ray)],
        # The memory of the pod bounds it anyway, as what is in it counts there.
        "volumes": [{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": amounts["memory"]}}],
    }
    return {"metadata": {"annotations": dict(_NOT_EVICTED)}, "spec": _without_empty(parts)}


def has_nvidia(node_type: NodeType) -> bool:
    """Return whether its pods have NVIDIA's GPUs, or parts of them.

    Raises:
        InvalidResourcesError: Kubernetes does not know its devices.
    """
    devices = devices_of(node_type)
    return devices is not None and devices.plugin.family == "NVIDIA GPU"


def _off_gpu_nodes(node_type: NodeType, platform: Platform | None) -> dict[str, Any]:
    """Return what keeps pods without devices off nodes with GPUs that have no taint: no pod for all would fit there."""
    if platform is None or node_type.devices or node_type.node_selector:  # the user has said where
        return {}
    has_none = {"matchExpressions": [{"key": gpu_node_label(platform), "operator": "DoesNotExist"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [has_none]}}}


def room_in_pods(pod: Path, container: Path) -> dict[Path, Iterable[str]]:
    """Return what a platform's owner may fill in, by the path of the part above which it stands.

    Args:
        pod: Where the pod's fields are.
        container: Where those of Ray's container are.
    """
    return {
        (*pod, "restartPolicy"): (
            "serviceAccountName: tune  # one that there is, and that may read the data and write the results",
            "priorityClassName: batch",
        ),
        (*container, "resources"): ("envFrom: [{secretRef: {name: tune-secrets}}]",),
        (*container, "volumeMounts", 0): (
            "- {name: results, mountPath: /mnt/results}  # storage_path of the runs; with a bucket there is no need",
        ),
        (*pod, "volumes", 0): ("- {name: results, persistentVolumeClaim: {claimName: tune-results}}  # ReadWriteMany",),
    }


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
    return params | ({"resources": quoted_amounts(others)} if others else {})
