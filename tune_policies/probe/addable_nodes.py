"""Determines which nodes Ray's autoscaler can still add, according to its configuration.

The configuration has the keys of a Ray cluster YAML. ``max_workers`` limits the worker nodes, excluding the head node.
Its default for a node type is the cluster's ``max_workers``, or 0 for the head node's type.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.cluster.ray_totals import accelerator_type_of, to_resources
from tune_policies.kuberay.reading.cluster_yaml import with_defaults
from tune_policies.kuberay.reading.kuberay_models import HEAD_GROUP, ClusterInFile
from tune_policies.kuberay.reading.load_cluster import find_cluster
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.units import is_number
from tune_policies.values.wording import shorten

_TYPES: Final = "available_node_types"


def addable_node_types(
    config: object, workers_by_type: Mapping[str, int], *, source: str
) -> tuple[NodeTypeCapacity, ...]:
    """Return the node types that the autoscaler can still add, in the order of the configuration.

    Args:
        config: The configuration, with ``available_node_types``, ``head_node_type`` and ``max_workers``.
        workers_by_type: The number of running worker nodes of each type.
        source: The origin of the configuration, for error messages.

    Raises:
        InvalidResourcesError: A part of the configuration is missing or invalid. The message contains ``source`` and
            the key.
    """
    most = _max_workers(config, source)
    head = _mapping(config, None, source).get("head_node_type")
    rows = []
    for name, node_type in _mapping(config, _TYPES, source).items():
        key = f"{source}: {_TYPES}.{name}"
        if not isinstance(node_type, dict):
            raise InvalidResourcesError(f"{key} must be a mapping, got {shorten(node_type)}")
        default = 0 if name == head else most
        of_type = check_count(node_type.get("max_workers", default), least=0, name=f"{key}.max_workers")
        more = of_type - workers_by_type.get(name, 0)
        # It is negative if ``max_workers`` was lowered while more nodes than that were running.
        if more > 0:
            rows.append(_to_node_type(str(name), node_type, more, key))
    return tuple(rows)


def addable_nodes(config: object, num_workers: int, *, source: str) -> int:
    """Return the total number of nodes that can be added if ``num_workers`` worker nodes are running.

    Raises:
        InvalidResourcesError: ``max_workers`` of the configuration is missing, or not a whole number of 0 or more.
    """
    return max(0, _max_workers(config, source) - num_workers)


def _max_workers(config: object, source: str) -> int:
    found = _mapping(config, None, source)
    if "max_workers" not in found:
        raise InvalidResourcesError(
            f"{source}: max_workers is missing. Set the maximum number of worker nodes (Ray's default depends on "
            "the provider)"
        )
    return check_count(found["max_workers"], least=0, name=f"{source}: max_workers")


def _mapping(config: object, key: str | None, source: str) -> dict[Any, Any]:
    found, what = config, source
    if key is not None:
        found = _mapping(config, None, source).get(key)
        what = f"{source}: {key}"
    if not isinstance(found, dict) or (key is not None and not found):
        raise InvalidResourcesError(
            f"{what} must be a mapping, got {shorten(found)}. Pass a Ray cluster YAML with available_node_types and "
            "max_workers, or a KubeRay RayCluster"
        )
    return found


def _to_node_type(name: str, node_type: dict[str, Any], more: int, key: str) -> NodeTypeCapacity:
    resources, labels = node_type.get("resources"), node_type.get("labels") or {}
    if not isinstance(resources, dict) or not resources:
        raise InvalidResourcesError(
            f"{key}.resources must map Ray resources to amounts, got {shorten(resources)}. Write the resources of a "
            "node, because Ray detects them only on some clouds"
        )
    if not isinstance(labels, dict):
        raise InvalidResourcesError(f"{key}.labels must be a mapping, got {shorten(labels)}")
    for resource, amount in resources.items():
        if not is_number(amount):
            raise InvalidResourcesError(f"{key}.resources.{resource} must be a number, got {shorten(amount)}")
    amounts = {str(resource): amount for resource, amount in resources.items()}
    try:
        return NodeTypeCapacity(
            name=name,
            resources=to_resources(amounts),
            max_nodes_to_add=more,
            # Do not read the type from a label, because the autoscaler and resource requests use the resource.
            accelerator_type=accelerator_type_of(amounts),
            labels=labels,
        )
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{key}: {error}") from error


def load_cluster_config(path: str | Path) -> dict[str, Any]:
    """Read a cluster YAML or a KubeRay manifest, and return it in the configuration format of Ray's autoscaler.

    In a KubeRay manifest, the function reads the RayCluster, or the cluster in a RayJob, RayCronJob or RayService.
    Without ``enableInTreeAutoscaling``, KubeRay starts no autoscaler, so no node can be added.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or has no cluster. The message contains the path.
    """
    found = find_cluster(path)
    if not isinstance(found, ClusterInFile):
        return with_defaults(found.data)
    if not found.spec.enableInTreeAutoscaling:
        fixed = {group.groupName: {"max_workers": 0} for group in found.spec.workerGroupSpecs}
        return {
            "max_workers": 0,
            "head_node_type": HEAD_GROUP,
            "available_node_types": {HEAD_GROUP: {"max_workers": 0}, **fixed},
        }
    spec = found.spec.model_dump(exclude_unset=True)
    try:
        return read_ray_cluster({"metadata": found.metadata.model_dump(exclude_unset=True), "spec": spec})
    except ValueError as error:
        raise InvalidResourcesError(f"{path}: Ray's autoscaler cannot read this RayCluster: {error}") from error
