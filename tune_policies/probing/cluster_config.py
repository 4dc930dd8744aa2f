"""Reads the autoscaler's configuration from a file: a Ray cluster YAML, or a KubeRay manifest."""

from pathlib import Path
from typing import Any, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.lint.rule import ClusterInFile
from tune_policies.manifests.cluster_file import find_cluster

_GROUP_DEFAULTS: Final = {"replicas": 0, "minReplicas": 0, "maxReplicas": 2147483647, "numOfHosts": 1}
"""What KubeRay's RayCluster definition fills in where a worker group says nothing."""


def load_cluster_config(path: str | Path) -> dict[str, Any]:
    """Return the configuration as Ray's autoscaler takes it.

    Of a KubeRay manifest with several documents the RayCluster counts, or the RayJob or RayService that holds one.
    Without ``enableInTreeAutoscaling`` KubeRay starts no autoscaler, so nothing can be added.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or holds neither; the message names the file.
    """
    found = find_cluster(path)
    if not isinstance(found, ClusterInFile):
        config: dict[str, Any] = found.data
        return config
    spec = found.spec.model_dump(exclude_unset=True)
    metadata = found.metadata.model_dump(exclude_unset=True)
    return _from_kuberay({"kind": "RayCluster", "metadata": metadata, "spec": spec}, path)


def _from_kuberay(manifest: dict[str, Any], path: str | Path) -> dict[str, Any]:
    # Ray's own conversion, with which the autoscaler itself reads a RayCluster; there is no public one.
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    try:
        metadata = {"namespace": "default", "name": "raycluster", **(manifest.get("metadata") or {})}
        spec = dict(manifest["spec"])
        spec["workerGroupSpecs"] = [{**_GROUP_DEFAULTS, **group} for group in spec.get("workerGroupSpecs") or ()]
        config: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(
            {**manifest, "metadata": metadata, "spec": spec}
        )
    except Exception as error:
        why = next(iter(str(error).splitlines()), "")
        raise InvalidResourcesError(
            f"{path}: Ray's autoscaler cannot read this RayCluster: {type(error).__name__}: {why}"
        ) from error
    if not spec.get("enableInTreeAutoscaling"):
        fixed = {name: {**of, "max_workers": 0} for name, of in config["available_node_types"].items()}
        return {**config, "max_workers": 0, "available_node_types": fixed}
    return config
