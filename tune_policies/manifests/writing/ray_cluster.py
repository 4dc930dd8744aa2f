"""A plan as KubeRay's RayCluster, or as a RayJob that starts it.

After KubeRay's API reference (https://ray-project.github.io/kuberay/reference/api/), for KubeRay 1.5 and later.
"""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from tune_policies.clusters.catalog import NodeType
from tune_policies.clusters.cluster_plan import ClusterPlan, PlannedGroup
from tune_policies.errors import InvalidResourcesError
from tune_policies.labels import ACCELERATOR_TYPE
from tune_policies.manifests.writing.block_yaml import Path
from tune_policies.manifests.writing.options import WriteOptions
from tune_policies.manifests.writing.pods import (
    as_start_params,
    has_nvidia,
    pod_template,
    room_in_pods,
    unseen_amounts,
)

_LONGEST_JOB_NAME: Final = 47
"""KubeRay makes names of services and jobs from it, which may have 63 (``ValidateRayClusterMetadata`` and its like)."""

_HEAD_GROUP: Final = "headgroup"
"""What KubeRay and Ray call the head's group."""

_KEPT_AFTER_JOB_S: Final = 300
"""So long one can still look at the dashboard."""


def ray_cluster(plan: ClusterPlan, options: WriteOptions) -> dict[str, Any]:
    """Return the manifest of a plan: a RayCluster, or with ``options.job`` a RayJob.

    Raises:
        InvalidResourcesError: KubeRay could not run it: a name, an amount, or devices that Kubernetes does not know.
    """
    kind = "RayCluster" if options.job is None else "RayJob"
    if kind == "RayJob" and len(plan.name) > _LONGEST_JOB_NAME:
        raise InvalidResourcesError(
            f"the name {plan.name!r} has {len(plan.name)} characters, and a RayJob's may have {_LONGEST_JOB_NAME}: "
            "choose a shorter one"
        )
    metadata = {"name": plan.name} | ({} if options.namespace is None else {"namespace": options.namespace})
    manifest = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata}
    spec = ray_cluster_spec(plan, options)
    if options.job is None:
        return manifest | {"spec": spec}
    brings = options.runtime_env and {"runtimeEnvYAML": yaml.safe_dump(options.runtime_env, sort_keys=False)}
    return manifest | {
        "spec": {
            "entrypoint": options.job,
            **(brings or {}),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEPT_AFTER_JOB_S,
            "rayClusterSpec": spec,
        }
    }


def room_in_ray_cluster(plan: ClusterPlan, options: WriteOptions) -> dict[Path, Iterable[str]]:
    """Return what may be filled in, by the path of the part above which it stands; of the groups, in the first."""
    spec: Path = ("spec",) if options.job is None else ("spec", "rayClusterSpec")
    room: dict[Path, Iterable[str]] = {
        ("metadata", "name"): (
            "labels: {kueue.x-k8s.io/queue-name: trials}",
            'annotations: {kueue.x-k8s.io/elastic-job: "true"}  # or Kueue takes no cluster with an autoscaler',
        )
    }
    for group in (("headGroupSpec",), ("workerGroupSpecs", 0)):
        pod = (*spec, *group, "template", "spec")
        room |= room_in_pods(pod, (*pod, "containers", 0))
        room[(*pod, "containers")] = ("imagePullSecrets: [{name: registry}]",)
    return room


def ray_cluster_spec(plan: ClusterPlan, options: WriteOptions) -> dict[str, Any]:
    """Return the specification of the cluster.

    Raises:
        InvalidResourcesError: KubeRay could not run it.
    """
    check_group_names(plan, _HEAD_GROUP)
    is_beside_nvidia = any(has_nvidia(group.node_type) for group in plan.groups)
    return {
        "rayVersion": options.ray_version,
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": plan.idle_timeout_s},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},  # no trial takes the room of Ray's own processes
            "template": pod_template(plan.head, options, container="ray-head", is_beside_nvidia=is_beside_nvidia),
        },
        "workerGroupSpecs": [_worker_group(group, options, is_beside_nvidia=is_beside_nvidia) for group in plan.groups],
    }


def check_group_names(plan: ClusterPlan, head: str) -> None:
    """Check that each group has a name of its own.

    Raises:
        InvalidResourcesError: Two groups, or a group and the head, have the same.
    """
    names = [head, *(group.node_type.name for group in plan.groups)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidResourcesError(
            f"each group needs a name of its own, but {twice[0]!r} comes twice, or is the head's"
        )


def _worker_group(group: PlannedGroup, options: WriteOptions, *, is_beside_nvidia: bool) -> dict[str, Any]:
    node_type = group.node_type
    unseen = unseen_amounts(node_type)
    spec: dict[str, Any] = {
        "groupName": node_type.name,
        "replicas": replicas(group, max(group.start_nodes, group.min_nodes)),
        "minReplicas": replicas(group, group.min_nodes),
        "maxReplicas": replicas(group, group.max_nodes),
    }
    if group.num_hosts > 1:
        spec["numOfHosts"] = group.num_hosts
    if options.ray_starts_with_labels and (labels := ray_labels(node_type)):
        spec["labels"] = labels
    if options.ray_reads_group_fields:
        if unseen:
            spec["resources"] = {name: str(amount) for name, amount in unseen.items()}
        spec["rayStartParams"] = {}
    else:
        spec["rayStartParams"] = as_start_params(unseen)
    template = pod_template(node_type, options, container="ray-worker", is_beside_nvidia=is_beside_nvidia)
    return spec | {"template": template}


def ray_labels(node_type: NodeType) -> dict[str, str]:
    """Return Ray's labels of a node: the user's, and its device type, which Ray adds only when the node has started."""
    typed = {} if node_type.accelerator_type is None else {ACCELERATOR_TYPE: node_type.accelerator_type}
    return typed | node_type.labels


def replicas(group: PlannedGroup, nodes: int) -> int:
    """Return how many replicas have so many nodes.

    Raises:
        InvalidResourcesError: No number of them does.
    """
    if nodes % group.num_hosts:
        raise InvalidResourcesError(
            f"the group {group.node_type.name!r} has nodes that come {group.num_hosts} at once, so there "
            f"cannot be {nodes}"
        )
    return nodes // group.num_hosts
