"""A real autoscaler for tests: the one that the benchmark measures."""

import time
from collections import Counter
from contextlib import contextmanager

import ray
import yaml
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from tests.evidence.plans.autoscaling_cluster import AutoscalingCluster, autoscaling_cluster, node_type
from tests.on_ray.rays import no_workers_ahead
from tune_policies.ray_compat.autoscaler import find_autoscaler

__all__ = [
    "AutoscalingCluster",
    "alive_workers",
    "asked_for",
    "autoscaling_cluster",
    "cluster_of_yaml",
    "cluster_status",
    "node_type",
    "workers_when",
]


@contextmanager
def cluster_of_yaml(text, *, v2):
    """The cluster that a cluster YAML describes, with nodes of this machine in place of a cloud's; connected to it."""
    config = yaml.safe_load(text)
    types = dict(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    limits = {name: config[name] for name in ("max_workers", "idle_timeout_minutes")}
    with no_workers_ahead(), autoscaling_cluster(types, v2=v2, cpus=head["resources"]["CPU"], **limits) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster


def cluster_status():
    """What Ray's control store knows of the cluster, and what autoscaler v2 has told it."""
    reply = GetClusterStatusReply()
    reply.ParseFromString(ray._private.worker.global_worker.gcs_client.get_cluster_status(timeout_s=10))
    return reply


def alive_workers():
    """How many worker nodes of each type are alive."""
    nodes = cluster_status().cluster_resource_state.node_states
    # The head was started by hand, and has no type.
    return Counter(
        node.ray_node_type_name for node in nodes if node.ray_node_type_name and node.status != NodeStatus.DEAD
    )


def workers_when(expected, timeout_s=60):
    """The worker nodes as soon as they are what is expected, or those after the deadline."""
    deadline = time.monotonic() + timeout_s
    while (found := dict(alive_workers())) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def asked_for():
    """What the autoscaler is asked for."""
    return dict(find_autoscaler().requested())
