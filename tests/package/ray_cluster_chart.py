"""What KubeRay's chart ``ray-cluster`` makes of its values: its template, field by field, without Helm.

After helm-chart/ray-cluster/templates/raycluster-cluster.yaml of KubeRay. It shows that the values name the fields
which the template reads; not that Helm renders them so.
"""

_FIELDS = {"fullnameOverride", "image", "imagePullSecrets", "head", "worker", "additionalWorkerGroups"}
_HEAD_FIELDS = {"rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"}
_POD_FIELDS = {
    *("rayStartParams", "restartPolicy", "image", "containerEnv", "resources", "nodeSelector", "tolerations"),
    *("annotations", "volumeMounts", "volumes", "affinity"),
    *("serviceAccountName", "priorityClassName", "envFrom"),
}
_GROUP_FIELDS = {"disabled", "replicas", "minReplicas", "maxReplicas", "numOfHosts"}


def rendered(values):
    """Return the RayCluster of the chart's values; a field that the template does not read is an error."""
    assert values.keys() <= _FIELDS
    head, default_group = values["head"], values["worker"]
    assert head.keys() <= _HEAD_FIELDS | _POD_FIELDS
    assert default_group == {"disabled": True}
    spec = {name: head[name] for name in _HEAD_FIELDS if name in head}
    spec["headGroupSpec"] = {"serviceType": "ClusterIP", **_group(head, values, "ray-head")}
    spec["workerGroupSpecs"] = []
    for name, group in values["additionalWorkerGroups"].items():
        assert group.keys() <= _GROUP_FIELDS | _POD_FIELDS
        if not group["disabled"]:
            numbers = {
                "replicas": group["replicas"],
                "minReplicas": group.get("minReplicas") or 0,
                "maxReplicas": group.get("maxReplicas") or 2147483647,
                "numOfHosts": group.get("numOfHosts") or 1,
                "groupName": name,
            }
            spec["workerGroupSpecs"].append({**numbers, **_group(group, values, "ray-worker")})
    metadata = {"name": values["fullnameOverride"]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def _group(group, values, container):
    image = group.get("image") or values["image"]
    pod = {
        "restartPolicy": group["restartPolicy"],
        "containers": [
            {
                "name": container,
                "image": f"{image['repository']}:{image['tag']}",
                "imagePullPolicy": image["pullPolicy"],
                "resources": group["resources"],
                "env": group.get("containerEnv", []),
                "envFrom": group.get("envFrom", []),
                "volumeMounts": group["volumeMounts"],
            }
        ],
        "tolerations": group.get("tolerations", []),
        "nodeSelector": group.get("nodeSelector", {}),
        "affinity": group.get("affinity", {}),
        "volumes": group["volumes"],
        "imagePullSecrets": values.get("imagePullSecrets", []),
        **{name: group[name] for name in ("serviceAccountName", "priorityClassName") if name in group},
    }
    params = {name: str(value) for name, value in group["rayStartParams"].items()}
    template = {"metadata": {"annotations": group.get("annotations", {})}, "spec": pod}
    return {"rayStartParams": params, "template": template}
