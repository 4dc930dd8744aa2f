"""Recognizes files of the retired Ray operator, and values of Helm charts, which lint cannot check as clusters.

Ray 1 and 2.0 had an operator of their own, with the kind RayCluster in ``cluster.ray.io/v1`` and a Helm chart with
``podTypes`` (https://github.com/ray-project/ray/tree/releases/2.0.0/deploy/charts/ray). KubeRay replaced both.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.pod_schema import as_list, as_mapping, cluster_of
from tune_policies.kuberay.lint.rule import Found

_CHART: Final = "use KubeRay's chart kuberay/ray-cluster or a RayCluster of ray.io/v1"

_REPLACEMENTS: Final = {
    "podTypes": f"{_CHART}: head for the head, and worker and additionalWorkerGroups for the other types",
    "headPodType": f"{_CHART}: headGroupSpec (head in the chart) is the head",
    "operatorImage": "install KubeRay's chart kuberay-operator",
    "namespacedOperator": "install KubeRay's chart kuberay-operator with singleNamespaceInstall",
    "operatorNamespace": "install KubeRay's chart kuberay-operator in this namespace",
    "clusterOnly": "install KubeRay's charts kuberay-operator and ray-cluster separately",
    "operatorOnly": "install KubeRay's chart kuberay-operator without ray-cluster",
    "upscalingSpeed": "write autoscalerOptions: {upscalingMode: Default}, or Conservative",
    "idleTimeoutMinutes": "write autoscalerOptions: {idleTimeoutSeconds: …}",
    "headStartRayCommands": "write the parameters of ray start in headGroupSpec.rayStartParams",
    "workerStartRayCommands": "write the parameters of ray start in the rayStartParams of each group",
    "headServicePorts": "write headGroupSpec.headService",
}
"""The fields of the retired operator and of its chart, each with what replaced it."""

_OF_TYPE: Final = {
    "rayResources": 'write resources: {GPU: "1"} in the group (KubeRay 1.5 and Ray 2.51), or rayStartParams',
    "minWorkers": "write minReplicas",
    "maxWorkers": "write maxReplicas",
    "podConfig": "write template",
    "setupCommands": "install packages in the image, or with a runtime environment",
}
"""The fields of a pod type, each with what replaced it."""

_SURE: Final = ("podTypes", "headPodType", "rayResources", "operatorImage", "clusterOnly", "namespacedOperator")
"""Fields that exist only in the retired formats."""


def retired_fields(manifest: Document) -> Iterator[Found]:
    """Yield each field of the retired operator or of its chart, with what replaced it."""
    data = as_mapping(manifest.data)
    spec = as_mapping(data.get("spec"))
    # A RayCluster of the retired operator.
    if str(data.get("apiVersion", "")).startswith("cluster.ray.io/"):
        message = f"apiVersion {data['apiVersion']} belongs to the operator that KubeRay replaced"
        yield Found(("apiVersion",), message, "write apiVersion: ray.io/v1 and the fields of KubeRay")
        yield from _retired(spec, ("spec",))
    # The values of its Helm chart. Other charts may also have fields such as ``upscalingSpeed``.
    elif "kind" not in data and any(name in data for name in _SURE):
        yield from _retired(data, ())
    else:
        # A manifest of KubeRay into which fields of the retired formats were copied.
        place, cluster = cluster_of(manifest)
        for name in _SURE:
            if name in cluster:
                yield from _retired({name: cluster[name]}, place)
        groups: list[tuple[Path, Any]] = [((*place, "headGroupSpec"), cluster.get("headGroupSpec"))]
        for number, group in enumerate(as_list(cluster.get("workerGroupSpecs"))):
            groups.append(((*place, "workerGroupSpecs", number), group))
        for path, group in groups:
            yield from _named(as_mapping(group), path, _OF_TYPE)


def _retired(data: Mapping[str, Any], path: Path) -> Iterator[Found]:
    yield from _named(data, path, _REPLACEMENTS)
    yield from _named(data, path, _OF_TYPE)
    # In the chart's values, the pod types are a mapping by name. In the operator's RayCluster, they are a list.
    types = data.get("podTypes")
    if isinstance(types, Mapping):
        for name, pod_type in types.items():
            yield from _named(as_mapping(pod_type), (*path, "podTypes", name), _OF_TYPE)
    else:
        for number, pod_type in enumerate(as_list(types)):
            yield from _named(as_mapping(pod_type), (*path, "podTypes", number), _OF_TYPE)


def _named(data: Mapping[str, Any], path: Path, replacements: Mapping[str, str]) -> Iterator[Found]:
    for name in data:
        if name in replacements:
            message = f"{name} is a field of the retired Ray operator and its Helm chart"
            yield Found((*path, name), message, replacements[name])


def is_chart_values(manifest: Document) -> bool:
    """Return whether a document looks like the values of KubeRay's chart ray-cluster."""
    data = as_mapping(manifest.data)
    parts = [as_mapping(data.get(name)) for name in ("head", "worker")]
    fields = {"rayStartParams", "groupName", "rayVersion", "enableInTreeAutoscaling", "maxReplicas"}
    return "kind" not in data and any(fields & part.keys() for part in parts)
