"""The text of a cluster file: its fields from ``manifests``, and the comments at its top."""

from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.kuberay.design.catalog_file import NodeType
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.design.device_plugins import NODE_POOLS, devices_of, type_selector
from tune_policies.kuberay.reading.ray_counts import check_resource_name
from tune_policies.kuberay.writing.block_yaml import to_block_yaml
from tune_policies.kuberay.writing.manifests import cluster_yaml, has_nvidia, node_selector, ray_cluster
from tune_policies.kuberay.writing.write_options import WriteOptions
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import counted, shorten_names

_IN_RAYS_IMAGES: Final = {"NVIDIA GPU", "Google TPU"}
"""The device families whose software is in Ray's images. TPUs only need Python packages."""

_WRITERS = {"kuberay": ray_cluster, "cluster-yaml": cluster_yaml}


def write_cluster(design: ClusterDesign, options: WriteOptions | None = None) -> str:
    """Return the text of a file that defines the cluster, with optional fields as comments.

    Raises:
        InvalidResourcesError: KubeRay or Ray could not run the cluster.
    """
    options = options or WriteOptions()
    # Check the names before anything is written, because they reach several shells (see ``ray_counts.py``).
    for node in design.node_types:
        for name in node.custom:
            check_resource_name(name)
    # A cluster YAML has the fields in all supported versions of Ray.
    if options.format == "kuberay" and not options.ray_reads_group_fields:
        _check_for_old_autoscaler(design, options.ray_version)
    data, optional = _WRITERS[options.format](design, options)
    return to_block_yaml(data, _comments(design, options), optional)


def about_unselected(design: ClusterDesign, options: WriteOptions) -> Iterator[str]:
    """Yield a sentence for each node type whose pods may run on nodes with other devices, because it has no label."""
    for node in design.node_types:
        if node_selector(node, options.platform):
            continue
        others = {str(other.accelerator_type) for other in design.node_types if _has_other_type(other, node)}
        if others:
            yield (
                f"no label selects the nodes of {node.name}, so its pods may run on nodes with "
                f"{', '.join(sorted(others))}. Set node_selector of {node.name} in the catalog"
            )


def _has_other_type(other: NodeType, node: NodeType) -> bool:
    """Return whether pods for one node type can run on nodes of another type, which state another device type."""
    own, its = devices_of(node), devices_of(other)
    # Pods that request another resource, or no devices, can never run on each other's nodes because of their devices.
    if own is None or its is None or own.key != its.key:
        return False
    if other.accelerator_type is None or node.accelerator_type is None:
        return False
    return other.accelerator_type != node.accelerator_type


def _check_for_old_autoscaler(design: ClusterDesign, ray_version: str) -> None:
    if any(slot.label_selector for slot in design.trials.slots):
        raise InvalidResourcesError(
            f"the trials select nodes by label, which the autoscaler of Ray {ray_version} does not support on "
            "Kubernetes: use Ray 2.51 or newer"
        )
    newest = [group.node_type.name for group in design.groups if group.node_type.accelerator_type == "TPU-V7X"]
    if newest:
        raise InvalidResourcesError(
            f"the group {newest[0]!r} has TPU-V7X, which the autoscaler of Ray {ray_version} does not support: use Ray "
            "2.51 or newer"
        )


def _selected_alike(nodes: Sequence[NodeType], options: WriteOptions) -> list[list[str]]:
    """Return groups of node types, by name, that select the same Kubernetes nodes although their sizes differ."""
    found: dict[tuple[tuple[str, str], ...], list[NodeType]] = {}
    for node in nodes:
        selector = node_selector(node, options.platform)
        if selector:
            found.setdefault(tuple(sorted(selector.items())), []).append(node)
    groups = []
    for alike in found.values():
        first, *others = alike
        if any(node.resources != first.resources for node in others):
            names = [node.name for node in alike]
            groups.append(names)
    return groups


def _comments(design: ClusterDesign, options: WriteOptions) -> Iterator[str]:
    at_once = design.trials.min_concurrent_trials
    waiting = "" if at_once >= design.num_trials else f" ({at_once} run at once; the other trials wait)"
    yield f"Written by tune-policies: a Ray cluster for {counted(design.num_trials, 'trial')}{waiting}."
    yield from design.reasons
    if options.format == "cluster-yaml":
        yield from _comments_of_cluster_yaml(design)
    else:
        yield from _comments_of_manifest(design, options)


def _comments_of_cluster_yaml(design: ClusterDesign) -> Iterator[str]:
    yield "The fields provider and node_config depend on the cloud. Complete them."
    empty = [node.name for node in design.node_types if not node.node_config]
    if empty:
        yield (
            f"The machine types of {shorten_names(empty)} are missing. Add them to node_config, such as "
            "{InstanceType: g6.xlarge}."
        )
    yield "Optional fields are commented out. Uncomment and complete the fields that you need."


def _comments_of_manifest(design: ClusterDesign, options: WriteOptions) -> Iterator[str]:
    nodes = design.node_types
    yield (
        "A pod requests all CPUs and all memory of its node type. It stays pending indefinitely if the machine has "
        "fewer allocatable CPUs or less allocatable memory."
    )
    if design.groups:
        pools = NODE_POOLS[options.platform]
        yield f"Pods stay pending until Kubernetes adds nodes. For each group with maxReplicas N, {pools}."
    if options.image is None:
        yield (
            "Ray's images contain neither tune-policies nor a framework such as torch. Use an image that contains "
            "both, or install them with your job's runtime environment."
        )
    families = {devices.plugin.family for devices in map(devices_of, nodes) if devices is not None}
    others = sorted(families - _IN_RAYS_IMAGES)
    if options.image is None and others:
        yield f"Ray's images have no software for {', '.join(others)}. Use an image that contains it."
    unselected = [node for node in nodes if node.accelerator_type and not node_selector(node, options.platform)]
    if unselected:
        types = ", ".join(sorted({str(node.accelerator_type) for node in unselected}))
        yield (
            f"No label selects the nodes with {types}, so pods can run on any node with enough devices. If your nodes "
            "have devices of several types, set node_selector of the node types."
        )
    for alike in _selected_alike(nodes, options):
        yield (
            f"Groups {shorten_names(alike)} select the same nodes, so a small pod may occupy a large node. Set "
            "node_selector of each node type."
        )
    if any(map(has_nvidia, nodes)) and options.platform is None:
        yield (
            "Pods without GPUs can run on nodes with GPUs, where they use CPUs and memory that workers need. Add a "
            "taint to nodes with GPUs."
        )
    elif any(map(has_nvidia, nodes)):
        yield (
            "An affinity prevents pods without GPUs from occupying nodes with GPUs. Remove it if all your nodes have "
            "GPUs."
        )
    if options.platform is not None and any(node.gpus and type_selector(node, options.platform) for node in nodes):
        yield (
            f"The labels of the platform {options.platform!r} select the nodes with GPUs. If you use another platform, "
            "set the option platform."
        )
    yield "Optional fields are commented out. Uncomment and complete the fields that you need in each group."
    if options.job is not None:
        yield "Nodes and their files are deleted after the job. Set storage_path to a bucket or a volume."
    if any(group.num_hosts > 1 for group in design.groups):
        yield "Slices of several hosts require GKE's Ray operator add-on, which numbers the hosts."
