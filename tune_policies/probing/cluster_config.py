"""Reads the autoscaler's configuration from a file: a Ray cluster YAML, or a KubeRay manifest."""

from pathlib import Path
from typing import Any, Final

from tune_policies.autoscaling.ray_readers import read_ray_cluster
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.cluster_file import find_cluster
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.cluster_yaml import with_defaults

_HEAD: Final = "headgroup"
"""What Ray's autoscaler calls the head's node type."""


def load_cluster_config(path: str | Path) -> dict[str, Any]:
    """Return the configuration as Ray's autoscaler takes it.

    Of a KubeRay manifest with several documents the RayCluster counts, or the RayJob or RayService that holds one.
    Without ``enableInTreeAutoscaling`` KubeRay starts no autoscaler, so nothing can be added.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or holds neither; the message names the file.
    """
    found = find_cluster(path)
    if not isinstance(found, ClusterInFile):
        return with_defaults(found.data)
    if not found.spec.enableInTreeAutoscaling:
        fixed = {group.groupName: {"max_workers": 0} for group in found.spec.workerGroupSpecs}
        return {"max_workers": 0, "head_node_type": _HEAD, "available_node_types": {_HEAD: {"max_workers": 0}, **fixed}}
    spec = found.spec.model_dump(exclude_unset=True)
    try:
        return read_ray_cluster({"metadata": found.metadata.model_dump(exclude_unset=True), "spec": spec})
    except ValueError as error:
        raise InvalidResourcesError(f"{path}: Ray's autoscaler cannot read this RayCluster: {error}") from error
