"""Writes a cluster that was planned as a file: for KubeRay, for its chart, or for Ray's own launcher."""

from collections.abc import Iterator
from typing import Final

from tune_policies.clusters.cluster_plan import ClusterPlan
from tune_policies.clusters.device_plugins import devices_of, type_selector
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.writing.block_yaml import to_block_yaml
from tune_policies.manifests.writing.cluster_yaml import cluster_yaml
from tune_policies.manifests.writing.helm_values import helm_values
from tune_policies.manifests.writing.options import WriteOptions
from tune_policies.manifests.writing.pods import node_selector
from tune_policies.manifests.writing.ray_cluster import ray_cluster

__all__ = ["WriteOptions", "write_cluster"]

_IN_RAYS_IMAGES: Final = {"NVIDIA GPU", "Google TPU"}
"""TPUs need nothing but packages of Python."""

_WRITERS = {"kuberay": ray_cluster, "kuberay-helm": helm_values, "cluster-yaml": cluster_yaml}


def write_cluster(plan: ClusterPlan, options: WriteOptions | None = None) -> str:
    """Return the text of a file; the same for the same plan.

    Raises:
        InvalidResourcesError: Who reads the file could not run the cluster; the message says why.
    """
    options = options or WriteOptions()
    _check_that_labels_are_seen(plan, options)
    _check_that_ray_knows_the_tpus(plan, options)
    return to_block_yaml(_WRITERS[options.format](plan, options), _comments(plan, options))


def _check_that_labels_are_seen(plan: ClusterPlan, options: WriteOptions) -> None:
    if not any(slot.label_selector for slot in plan.trials.slots):
        return
    if options.format == "kuberay-helm":
        raise InvalidResourcesError(
            "the trials select nodes by label, but KubeRay's chart has no place for Ray's node labels: write a "
            "manifest (format 'kuberay')"
        )
    if options.format == "kuberay" and not options.ray_reads_group_fields:
        raise InvalidResourcesError(
            f"the trials select nodes by label, which the autoscaler of Ray {options.ray_version} does not know on "
            "Kubernetes: take Ray 2.51 or newer"
        )


def _check_that_ray_knows_the_tpus(plan: ClusterPlan, options: WriteOptions) -> None:
    newest = next((group for group in plan.groups if group.node_type.accelerator_type == "TPU-V7X"), None)
    if newest is not None and options.format != "cluster-yaml" and not options.ray_reads_group_fields:
        raise InvalidResourcesError(
            f"the autoscaler of Ray {options.ray_version} ends at a group of TPU-V7X, as {newest.node_type.name!r} is: "
            "take a newer Ray"
        )


def _comments(plan: ClusterPlan, options: WriteOptions) -> Iterator[str]:
    yield f"Written by tune-policies: a Ray cluster for {plan.num_trials} trials."
    yield from plan.reasons
    nodes = [group.node_type for group in plan.groups]
    if options.format == "cluster-yaml":
        yield "provider and node_config are the cloud's: fill in what is missing."
        return
    yield "Pods ask for all that the plan counts on a node: the machines must have some more, for Kubernetes itself."
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
    if options.platform is not None and any(node.gpus and type_selector(node, options.platform) for node in nodes):
        yield f"Nodes with GPUs are selected by the labels of platform {options.platform!r}: on another, name that one."
    if any(group.num_hosts > 1 for group in plan.groups):
        yield "Slices of several hosts need the Ray operator add-on of GKE, which numbers the hosts."
    if options.format == "kuberay-helm" and any(node.labels for node in nodes):
        yield "The chart has no place for Ray's node labels, so these are left out."
