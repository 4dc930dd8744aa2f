"""Writes the design of a cluster as a file: for KubeRay or for Ray's own launcher."""

from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.kuberay.design.catalog import NodeType
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.design.device_plugins import NODE_POOLS, devices_of, type_selector
from tune_policies.kuberay.reading.ray_counts import check_resource_name
from tune_policies.kuberay.writing.block_yaml import to_block_yaml
from tune_policies.kuberay.writing.manifests import cluster_yaml, has_nvidia, node_selector, ray_cluster
from tune_policies.kuberay.writing.options import WriteOptions
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import counted, shorten_names

__all__ = ["WriteOptions", "write_cluster"]

_IN_RAYS_IMAGES: Final = {"NVIDIA GPU", "Google TPU"}
"""TPUs need nothing but packages of Python."""

_WRITERS = {"kuberay": ray_cluster, "cluster-yaml": cluster_yaml}


def write_cluster(design: ClusterDesign, options: WriteOptions | None = None) -> str:
    """Return the text of the file. Optional fields stand in comments.

    Raises:
        InvalidResourcesError: KubeRay or Ray could not run such a cluster.
    """
    options = options or WriteOptions()
    for node in design.node_types:
        for name in node.custom:
            check_resource_name(name)
    _check_that_labels_are_seen(design, options)
    _check_that_ray_knows_the_tpus(design, options)
    data, optional = _WRITERS[options.format](design, options)
    return to_block_yaml(data, _comments(design, options), optional)


def _check_that_labels_are_seen(design: ClusterDesign, options: WriteOptions) -> None:
    if not any(slot.label_selector for slot in design.trials.slots):
        return
    if options.format == "kuberay" and not options.ray_reads_group_fields:
        raise InvalidResourcesError(
            f"the trials select nodes by label, which the autoscaler of Ray {options.ray_version} does not know on "
            "Kubernetes: take Ray 2.51 or newer"
        )


def _check_that_ray_knows_the_tpus(design: ClusterDesign, options: WriteOptions) -> None:
    newest = next((group for group in design.groups if group.node_type.accelerator_type == "TPU-V7X"), None)
    if newest is not None and options.format != "cluster-yaml" and not options.ray_reads_group_fields:
        raise InvalidResourcesError(
            f"the autoscaler of Ray {options.ray_version} fails at a group of TPU-V7X, as {newest.node_type.name!r} "
            "is: take a newer Ray"
        )


def _selected_alike(nodes: Sequence[NodeType], options: WriteOptions) -> list[list[str]]:
    """Return the names of node types of several sizes whose pods select the same nodes."""
    found: dict[tuple[tuple[str, str], ...], list[NodeType]] = {}
    for node in nodes:
        if selector := node_selector(node, options.platform):
            found.setdefault(tuple(sorted(selector.items())), []).append(node)
    return [
        [node.name for node in alike]
        for alike in found.values()
        if any(node.resources != alike[0].resources for node in alike)
    ]


def _comments(design: ClusterDesign, options: WriteOptions) -> Iterator[str]:
    at_once = design.trials.min_concurrent_trials
    waiting = "" if at_once >= design.num_trials else f", of which {at_once} run at once: the others wait"
    yield f"Written by tune-policies: a Ray cluster for {counted(design.num_trials, 'trial')}{waiting}."
    yield from design.reasons
    nodes = design.node_types
    if options.format == "cluster-yaml":
        yield "provider and node_config are the cloud's: fill in what is missing."
        if empty := [node.name for node in nodes if not node.node_config]:
            yield (
                f"Nothing tells the cloud which machines are {shorten_names(empty)}: name them in node_config, such as "
                "{InstanceType: g6.xlarge}."
            )
        yield "Optional fields stand behind #: fill in those that you need."
        return
    yield (
        "A pod asks for all CPUs and all memory of its node type. If Kubernetes has less allocatable on the machine, "
        "the pod waits indefinitely."
    )
    if design.groups:
        pools = NODE_POOLS[options.platform]
        yield f"A pod waits until Kubernetes has a node for it. With N as maxReplicas of a group: {pools}."
    if options.image is None:
        yield (
            "Ray's images have neither tune-policies nor a framework such as torch: name an image that has both, or "
            "let your job's runtime environment bring them."
        )
    families = {devices.plugin.family for node in nodes if (devices := devices_of(node)) is not None}
    if options.image is None and (others := sorted(families - _IN_RAYS_IMAGES)):
        yield f"Ray's images have no software for {', '.join(others)}: name an image that has it."
    untold = [node for node in nodes if node.accelerator_type and not node_selector(node, options.platform)]
    if untold:
        types = ", ".join(sorted({str(node.accelerator_type) for node in untold}))
        yield (
            f"Nothing tells Kubernetes which nodes have {types}, so it takes any with such devices: if yours have "
            "several types, give the node types a node_selector."
        )
    for alike in _selected_alike(nodes, options):
        yield (
            f"Groups {shorten_names(alike)} select the same nodes, so a small pod may take a large one: give each node "
            "type a node_selector."
        )
    if any(map(has_nvidia, nodes)):
        yield (
            "Nothing keeps pods without GPUs off nodes with GPUs: taint these, or they take the room of workers."
            if options.platform is None
            else "Pods without GPUs keep off nodes with GPUs, or they would take the room of workers there: where all "
            "your nodes have GPUs, take the affinity out."
        )
    if options.platform is not None and any(node.gpus and type_selector(node, options.platform) for node in nodes):
        yield f"Nodes with GPUs are selected by the labels of platform {options.platform!r}: on another, name that one."
    yield "Optional fields stand behind #: fill in those that you need, in each group."
    if options.job is not None:
        yield "Nodes and their files go when the job has ended: let storage_path be in a bucket or on a volume."
    if any(group.num_hosts > 1 for group in design.groups):
        yield "Slices of several hosts need the Ray operator add-on of GKE, which numbers the hosts."
