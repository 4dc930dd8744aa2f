"""Valid manifests, and functions that return changed copies."""

from copy import deepcopy

import yaml

CONTAINER = {
    "name": "ray",
    "image": "rayproject/ray:2.56.0",
    "resources": {"limits": {"cpu": "4", "memory": "16Gi"}, "requests": {"cpu": "4", "memory": "16Gi"}},
}


def _template():
    return {"spec": {"containers": [deepcopy(CONTAINER)]}}


def _worker(name):
    return {
        "groupName": name,
        "replicas": 0,
        "minReplicas": 0,
        "maxReplicas": 4,
        "rayStartParams": {},
        "template": _template(),
    }


def _cluster():
    return {
        "rayVersion": "2.56.0",
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 60},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _template()},
        "workerGroupSpecs": [_worker("small"), _worker("large")],
    }


def _manifest(kind, spec):
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "demo"}, "spec": spec}


def sound(kind):
    """Return a manifest without mistakes."""
    if kind == "RayJob":
        job = {"entrypoint": "python train.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": _cluster()}
        return _manifest(kind, job)
    if kind == "RayService":
        config = "applications:\n- name: app\n  import_path: app:app\n"
        return _manifest(kind, {"serveConfigV2": config, "rayClusterConfig": _cluster()})
    return _manifest(kind, _cluster())


CLUSTER = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}
"""The path of the cluster in each kind of manifest."""


def changed(kind, changes):
    """Return the valid manifest as YAML, with these changes, keyed by dotted path. ``None`` removes a part."""
    manifest = sound(kind)
    for dotted, value in changes.items():
        *parents, last = [int(part) if part.isdecimal() else part.replace("|", ".") for part in dotted.split(".")]
        part = manifest
        for parent in parents:
            part = part.setdefault(parent, {}) if isinstance(part, dict) else part[parent]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return yaml.safe_dump(manifest, sort_keys=False)
