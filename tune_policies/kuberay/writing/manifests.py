"""Converts a designed cluster to plain data for KubeRay and Ray's cluster launcher.

On Kubernetes, each pod occupies a whole node. The manifests follow KubeRay's API reference
(https://ray-project.github.io/kuberay/reference/api/) for KubeRay 1.5 and later. The cluster YAML follows
https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html, and omits Ray's defaults.
"""

import shlex
from typing import Any, Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.kuberay.design.catalog_file import NodeType, Toleration, check_dns_label
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.design.device_plugins import (
    AKS_GPU_TAINT,
    Platform,
    devices_of,
    gpu_node_label,
    type_selector,
)
from tune_policies.kuberay.reading.kuberay_models import HEAD_GROUP
from tune_policies.kuberay.reading.ray_counts import quoted_amounts
from tune_policies.kuberay.writing.block_yaml import Optional, Path, block_text
from tune_policies.kuberay.writing.write_options import WriteOptions
from tune_policies.values.errors import InvalidResourcesError

_PYTHON: Final = "py311"
"""The oldest Python version that tune-policies supports.

If the tag of Ray's image contains no Python version, the image has an older Python.
"""

_NO_GPU: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""Hides the node's GPUs from a pod that requests none. By default, NVIDIA's container runtime exposes all GPUs."""

_NOT_EVICTED: Final = {
    # https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    # https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that prevent Kubernetes from removing a node while a trial runs on it."""

_DISK: Final = "10Gi"
"""The disk space of a pod for logs, packages of the runtime environment, and spilled objects."""

_SHARED_MEMORY: Final = "shared-memory"

_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def _pod_template(
    node_type: NodeType, options: WriteOptions, container: str, *, is_beside_nvidia: bool
) -> dict[str, Any]:
    """Return the pod template of a node type. ``container`` is the name of Ray's container."""
    devices = devices_of(node_type)
    amounts = {"cpu": str(node_type.cpus), "memory": _quantity(int(node_type.memory or 0))}
    tolerations = [*node_type.tolerations]
    if devices is not None:
        amounts[devices.key] = str(devices.amount)
        tolerations.insert(0, Toleration(key=devices.plugin.taint(devices.key)))
    # Azure's own taint of GPU nodes has a name of its own. Other taints have the name of the device.
    has_cuda = has_nvidia(node_type)
    if has_cuda and options.platform == "aks":
        tolerations.insert(1, AKS_GPU_TAINT)
    hides_gpus = is_beside_nvidia and not has_cuda
    ray = {
        "name": container,
        "image": _image(options, has_cuda=has_cuda),
        "env": [_NO_GPU] if hides_gpus else [],
        # Ray counts the limits, and Kubernetes reserves the requests, so both must agree. The disk has no limit,
        # because Kubernetes would evict the pod when it exceeds one:
        # https://kubernetes.io/docs/concepts/storage/ephemeral-storage/.
        "resources": {"limits": amounts, "requests": amounts | {"ephemeral-storage": _DISK}},
        "volumeMounts": [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}],  # noqa: S108 - a path in the pod
    }
    parts = {
        # Autoscaler v2 would count a restarted pod as the same node, so pods must not restart.
        "restartPolicy": "Never",
        "nodeSelector": node_selector(node_type, options.platform),
        "affinity": _off_gpu_nodes(node_type, options.platform) if is_beside_nvidia else {},
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in dict.fromkeys(tolerations)],
        "containers": [_without_empty(ray)],
        # The content of the volume counts as memory of the pod.
        "volumes": [{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": amounts["memory"]}}],
    }
    return {"metadata": {"annotations": dict(_NOT_EVICTED)}, "spec": _without_empty(parts)}


def has_nvidia(node_type: NodeType) -> bool:
    """Return whether the pods of a node type have NVIDIA GPUs or parts of them."""
    devices = devices_of(node_type)
    return devices is not None and devices.plugin.family == "NVIDIA GPU"


def _off_gpu_nodes(node_type: NodeType, platform: Platform | None) -> dict[str, Any]:
    """Return the affinity that prevents pods without devices from running on untainted nodes with GPUs."""
    if platform is None or node_type.devices or node_type.node_selector:  # the user has chosen the nodes
        return {}
    has_none = {"matchExpressions": [{"key": gpu_node_label(platform), "operator": "DoesNotExist"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [has_none]}}}


def _optional_fields(pod: Path, container: Path) -> Optional:
    """Return the optional fields of a pod and its Ray container, given their paths."""
    return {
        (*pod, "restartPolicy"): (
            "serviceAccountName: tune  # an existing account that can read the data and write the results",
            "priorityClassName: batch",
        ),
        (*container, "resources"): ("envFrom: [{secretRef: {name: tune-secrets}}]",),
        (*container, "volumeMounts", 0): (
            "- {name: results, mountPath: /mnt/results}  # storage_path of the runs, unless it is in a bucket",
        ),
        (*pod, "volumes", 0): ("- {name: results, persistentVolumeClaim: {claimName: tune-results}}  # ReadWriteMany",),
    }


def _image(options: WriteOptions, *, has_cuda: bool) -> str:
    """Return the image of a pod: the user's, or Ray's image, which has CUDA only if its tag says so."""
    if options.image is not None:
        return options.image
    variant = "-gpu" if has_cuda else ""
    return f"rayproject/ray:{options.ray_version}-{_PYTHON}{variant}"


def node_selector(node_type: NodeType, platform: Platform | None) -> dict[str, str]:
    """Return the labels that select nodes for the pods: the labels of the device type, and the user's labels."""
    return type_selector(node_type, platform) | node_type.node_selector


def _without_empty(parts: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in parts.items() if part not in ({}, [])}


def _quantity(number_of_bytes: int) -> str:
    for unit, size in _UNITS:
        if number_of_bytes % size == 0:
            return f"{number_of_bytes // size}{unit}"
    return str(number_of_bytes)


def uncounted_amounts(node_type: NodeType) -> dict[str, int]:
    """Return the amounts, by Ray's resource name, that Ray's autoscaler does not read from the limits of a pod.

    A node adds ``accelerator_type:…`` only when it starts. The autoscaler needs it earlier, to launch nodes for trials
    that request the type.

    Raises:
        InvalidResourcesError: KubeRay would interpret a custom resource as one of Ray's resources.
    """
    devices = devices_of(node_type)
    found = {}
    if devices is not None and not devices.is_detected_by_ray:
        found[devices.resource] = devices.amount
    for name, amount in node_type.custom.items():
        if name not in DEVICE_RESOURCES:
            if name.lower().endswith("gpu") or name.lower() in ("cpu", "memory"):
                raise InvalidResourcesError(
                    f"KubeRay would interpret the custom resource {name!r} of node type {node_type.name!r} as one of "
                    "Ray's own resources. Rename the custom resource"
                )
            found[name] = int(amount)
    if node_type.accelerator_type is not None:
        found[ACCELERATOR_TYPE_PREFIX + node_type.accelerator_type] = 1
    return found


def as_start_params(amounts: dict[str, int]) -> dict[str, str]:
    """Return amounts as parameters of ``ray start``."""
    others = {name: amount for name, amount in amounts.items() if name != "GPU"}
    params = {}
    if "GPU" in amounts:
        params["num-gpus"] = str(amounts["GPU"])
    if others:
        params["resources"] = quoted_amounts(others)
    return params


_LONGEST_JOB_NAME: Final = 47
"""The maximum length of a job's name. KubeRay adds a suffix to it (``ValidateRayClusterMetadata``)."""

_KEPT_AFTER_JOB_S: Final = 300
"""The number of seconds that the cluster is kept after its job, so that users can look at the dashboard."""


def ray_cluster(design: ClusterDesign, options: WriteOptions) -> tuple[dict[str, Any], Optional]:
    """Return a RayCluster or, with ``options.job``, a RayJob, and its optional fields.

    Raises:
        InvalidResourcesError: KubeRay could not run the cluster because of a name, an amount or unknown devices.
    """
    kind = "RayCluster" if options.job is None else "RayJob"
    if kind == "RayJob" and len(design.name) > _LONGEST_JOB_NAME:
        raise InvalidResourcesError(
            f"the name {design.name!r} has {len(design.name)} characters, but the name of a RayJob can have at most "
            f"{_LONGEST_JOB_NAME}: use a shorter name"
        )
    # Without a namespace, ``kubectl apply`` uses the namespace of the user's context.
    metadata = {"name": design.name}
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    spec = _spec(design, options)
    place: Path = ("spec",)
    if options.job is not None:
        runtime_env = {}
        if options.runtime_env:
            runtime_env = {"runtimeEnvYAML": block_text(options.runtime_env)}
        spec = {
            "entrypoint": options.job,
            **runtime_env,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEPT_AFTER_JOB_S,
            "rayClusterSpec": spec,
        }
        place = ("spec", "rayClusterSpec")
    optional: Optional = {
        ("metadata", "name"): (
            "labels: {kueue.x-k8s.io/queue-name: trials}",
            'annotations: {kueue.x-k8s.io/elastic-job: "true"}  # required by Kueue for clusters with an autoscaler',
        )
    }
    groups: list[Path] = [("headGroupSpec",)]
    groups += [("workerGroupSpecs", number) for number in range(len(design.groups))]
    for group in groups:
        pod = (*place, *group, "template", "spec")
        optional |= _optional_fields(pod, (*pod, "containers", 0))
        optional[(*pod, "containers")] = ("imagePullSecrets: [{name: registry}]",)
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": spec}, optional


def _spec(design: ClusterDesign, options: WriteOptions) -> dict[str, Any]:
    check_group_names(design, HEAD_GROUP)
    for group in design.groups:
        try:
            check_dns_label(group.node_type.name)
        except InvalidResourcesError as error:
            raise InvalidResourcesError(
                f"Kubernetes does not support the name of a group in a manifest: {error}"
            ) from error
    is_beside_nvidia = any(map(has_nvidia, design.node_types))
    spec: dict[str, Any] = {
        "rayVersion": options.ray_version,
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": design.idle_timeout_s},
    }
    if options.ray_has_tokens:
        # From Ray 2.61 on, Ray requires a token by default. With this field, KubeRay creates it for all pods.
        spec["authOptions"] = {"mode": "token"}
    head: dict[str, Any] = {"rayStartParams": {"num-cpus": "0"}}  # only Ray's own processes run here, and no trials
    if design.head.devices:
        head = _amount_fields(design.head, options)
    elif design.head.ray_labels:
        head["labels"] = design.head.ray_labels
    head["template"] = _pod_template(design.head, options, "ray-head", is_beside_nvidia=is_beside_nvidia)
    workers = [_worker_group(group, options, is_beside_nvidia=is_beside_nvidia) for group in design.groups]
    return {**spec, "headGroupSpec": head, "workerGroupSpecs": workers}


def check_group_names(design: ClusterDesign, head: str) -> None:
    """Raise :class:`InvalidResourcesError` if two groups, or a group and the head, have the same name."""
    names = [head, *(group.node_type.name for group in design.groups)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidResourcesError(
            f"the names of groups must be unique, but {twice[0]!r} is used twice or reserved for the head"
        )


def _worker_group(group: DesignedGroup, options: WriteOptions, *, is_beside_nvidia: bool) -> dict[str, Any]:
    node_type = group.node_type
    spec: dict[str, Any] = {
        "groupName": node_type.name,
        "replicas": _replicas(group, group.min_nodes),
        "minReplicas": _replicas(group, group.min_nodes),
        "maxReplicas": _replicas(group, group.max_nodes),
    }
    if group.num_hosts > 1:
        spec["numOfHosts"] = group.num_hosts
    spec |= _amount_fields(node_type, options)
    return spec | {"template": _pod_template(node_type, options, "ray-worker", is_beside_nvidia=is_beside_nvidia)}


def _amount_fields(node_type: NodeType, options: WriteOptions) -> dict[str, Any]:
    """Return the fields of a group that contain its labels and resource amounts for Ray."""
    amounts, labels = uncounted_amounts(node_type), node_type.ray_labels
    states_gpus = options.num_gpus and node_type.gpus > 0
    if states_gpus:
        amounts["GPU"] = node_type.gpus
    fields: dict[str, Any] = {}
    if labels:
        fields["labels"] = labels  # Ray adds the label of the device type only when the node starts
    # KubeRay refuses a group with amounts in both ``resources`` and ``rayStartParams``.
    if not options.ray_reads_group_fields or states_gpus:
        fields["rayStartParams"] = as_start_params(amounts)
        return fields
    if amounts:
        fields["resources"] = {name: str(amount) for name, amount in amounts.items()}
    # Written even if it is empty, because KubeRay requires the field before version 1.4.
    fields["rayStartParams"] = {}
    return fields


def _replicas(group: DesignedGroup, nodes: int) -> int:
    if nodes % group.num_hosts:
        raise InvalidResourcesError(
            f"the group {group.node_type.name!r} cannot have {nodes} nodes: use a multiple of {group.num_hosts}, "
            "because all hosts of a slice are added together"
        )
    return nodes // group.num_hosts


def cluster_yaml(design: ClusterDesign, options: WriteOptions) -> tuple[dict[str, Any], Optional]:
    """Return the configuration of Ray's cluster launcher, and its optional fields.

    Raises:
        InvalidResourcesError: Two groups have the same name, or a group has TPU slices of several hosts.
    """
    check_group_names(design, design.head.name)
    for group in design.groups:
        if group.num_hosts > 1:
            raise InvalidResourcesError(
                f"the group {group.node_type.name!r} has slices of {group.num_hosts} hosts, which Ray's cluster "
                "launcher does not support: write a manifest (format 'kuberay')"
            )
    optional: Optional = {
        ("head_node_type",): ("file_mounts: {~/code: .}  # copies the folder of your program to every node",)
    }
    # Ray's launcher runs Ray in a container if the file has an image, and otherwise installs it on the machine.
    software: dict[str, Any] = {"docker": {"image": options.image, "container_name": "ray_container"}}
    if options.image is None:
        software = {"setup_commands": [f"pip install {shlex.quote(f'ray[default,tune,train]=={options.ray_version}')}"]}
        optional["setup_commands", 0] = ("- pip install --requirement ~/code/requirements.txt",)
    head: dict[str, Any] = {"max_workers": 0, "resources": _amounts(design.head)}
    if not design.head.devices:
        # With 0 CPUs, the head runs no trials. It still runs trial drivers, which need memory.
        head["resources"] = {"CPU": 0, "memory": design.head.memory}
    if design.head.ray_labels:
        head["labels"] = design.head.ray_labels
    head["node_config"] = design.head.node_config
    node_types = {design.head.name: head}
    for group in design.groups:
        node_types[group.node_type.name] = {
            "min_workers": group.min_nodes,
            "max_workers": group.max_nodes,
            "resources": _amounts(group.node_type),
            "labels": group.node_type.ray_labels,
            "node_config": group.node_type.node_config,
        }
    config = {
        "cluster_name": design.name,
        "max_workers": sum(group.max_nodes for group in design.groups),
        "idle_timeout_minutes": design.idle_timeout_s / 60,
        "provider": options.provider,
        **software,
        "head_node_type": design.head.name,
        "available_node_types": node_types,
    }
    return config, optional


def _amounts(node_type: NodeType) -> dict[str, int]:
    amounts = {"CPU": node_type.cpus, "GPU": node_type.gpus, "memory": int(node_type.memory or 0)}
    for name, amount in node_type.custom.items():
        amounts[name] = int(amount)
    if node_type.accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + node_type.accelerator_type] = 1
    return {name: amount for name, amount in amounts.items() if amount}
