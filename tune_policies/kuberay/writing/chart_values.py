"""The design of a cluster as values for KubeRay's chart ``ray-cluster``.

The chart has no field for a group's ``resources`` and ``labels`` (https://github.com/ray-project/kuberay/pull/4550), so
amounts that Ray does not see go through ``rayStartParams``. What it calls ``resources`` is the container's.
"""

from collections.abc import Iterable
from typing import Any

from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.writing.block_yaml import Path
from tune_policies.kuberay.writing.options import WriteOptions
from tune_policies.kuberay.writing.ray_cluster import as_start_params, optional_fields_of_pods, ray_cluster


def helm_values(design: ClusterDesign, options: WriteOptions) -> dict[str, Any]:
    """Return the chart's values.

    Raises:
        InvalidResourcesError: KubeRay could not run it.
    """
    manifest = ray_cluster(design, options)
    spec = manifest["spec"]
    head = spec["headGroupSpec"]
    head_fields = ("rayVersion", "enableInTreeAutoscaling", "autoscalerOptions")
    return {
        "fullnameOverride": design.name,
        "image": _image(head),
        "head": {field: spec[field] for field in head_fields} | _group_values(head),
        # The chart's own group: what is needed stands below, by name.
        "worker": {"disabled": True},
        "additionalWorkerGroups": {
            group["groupName"]: {
                "disabled": False,
                "replicas": group["replicas"],
                "minReplicas": group["minReplicas"],
                "maxReplicas": group["maxReplicas"],
                "numOfHosts": group.get("numOfHosts", 1),
                "image": _image(group),
            }
            | _group_values(group)
            for group in spec["workerGroupSpecs"]
        },
    }


def optional_fields_of_helm_values(design: ClusterDesign) -> dict[Path, Iterable[str]]:
    """Return what the user may fill in, by the path of the part above which it stands; for groups, of the first."""
    optional: dict[Path, Iterable[str]] = {("head",): ("imagePullSecrets: [{name: registry}]",)}
    for group in (("head",), ("additionalWorkerGroups", design.groups[0].node_type.name)):
        optional |= optional_fields_of_pods(group, group)
    return optional


def _group_values(group: dict[str, Any]) -> dict[str, Any]:
    template = group["template"]
    pod = template["spec"]
    container = pod["containers"][0]
    told = {name: int(amount) for name, amount in group.get("resources", {}).items()}
    values = {
        "rayStartParams": group["rayStartParams"] | as_start_params(told),
        "annotations": template["metadata"]["annotations"],
        "restartPolicy": pod["restartPolicy"],
        "containerEnv": container.get("env"),
        "resources": container["resources"],
        "volumeMounts": container["volumeMounts"],
        "nodeSelector": pod.get("nodeSelector"),
        "affinity": pod.get("affinity"),
        "tolerations": pod.get("tolerations"),
        "volumes": pod["volumes"],
    }
    return {key: value for key, value in values.items() if value is not None}


def _image(group: dict[str, Any]) -> dict[str, str]:
    image = group["template"]["spec"]["containers"][0]["image"]
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:  # a port of a registry
        repository, tag = image, "latest"
    return {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
