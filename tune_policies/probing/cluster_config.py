"""Reads the autoscaler's configuration from a file: a Ray cluster YAML, or a KubeRay manifest."""

from pathlib import Path
from typing import Any, Final

import yaml

from tune_policies.autoscaling.ray_readers import read_ray_cluster
from tune_policies.errors import InvalidResourcesError
from tune_policies.values import shorten

_CLUSTER_IN: Final = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
"""Manifests that hold the specification of a RayCluster, and under which key."""


def load_cluster_config(path: str | Path) -> dict[str, Any]:
    """Return the configuration as Ray's autoscaler takes it.

    Of a KubeRay manifest with several documents the RayCluster counts, or the RayJob or RayService that holds one.
    Without ``enableInTreeAutoscaling`` KubeRay
    starts no autoscaler, so nothing can be added.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or holds neither; the message names the file.
    """
    try:
        documents = [found for found in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if found is not None]
    except (OSError, ValueError) as error:  # not there, not text, or a name that no file can have
        raise InvalidResourcesError(f"cannot read the cluster configuration {path}: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidResourcesError(f"{path} is not YAML: {error}") from error
    mappings = [found for found in documents if isinstance(found, dict)]
    clusters = [found for found in map(_cluster_in, mappings) if _is_kuberay(found) or "available_node_types" in found]
    if len(clusters) != 1:
        kinds = sorted({str(found.get("kind", "no kind")) for found in mappings}) or [shorten(documents)]
        raise InvalidResourcesError(
            f"{path} must hold one Ray cluster YAML (available_node_types) or one KubeRay RayCluster, RayJob or "
            f"RayService, but holds {len(clusters)} (found: {', '.join(kinds)})"
        )
    return _from_kuberay(clusters[0], path) if _is_kuberay(clusters[0]) else clusters[0]


def _is_kuberay(manifest: dict[str, Any]) -> bool:
    return manifest.get("kind") == "RayCluster"


def _cluster_in(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the RayCluster that a RayJob or a RayService starts; anything else as it is."""
    spec = manifest.get("spec")
    inner = _CLUSTER_IN.get(str(manifest.get("kind")))
    if inner is None or not isinstance(spec, dict) or inner not in spec:  # a RayJob may choose a cluster that runs
        return manifest
    return {"kind": "RayCluster", "metadata": manifest.get("metadata") or {}, "spec": spec[inner]}


def _from_kuberay(manifest: dict[str, Any], path: str | Path) -> dict[str, Any]:
    try:
        config = read_ray_cluster(manifest)
    except ValueError as error:
        raise InvalidResourcesError(f"{path}: Ray's autoscaler cannot read this RayCluster: {error}") from error
    if not manifest["spec"].get("enableInTreeAutoscaling"):
        fixed = {name: {**of, "max_workers": 0} for name, of in config["available_node_types"].items()}
        return {**config, "max_workers": 0, "available_node_types": fixed}
    return config
