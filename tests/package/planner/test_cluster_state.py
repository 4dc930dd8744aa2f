"""Tests with GCS data of autoscalers that cannot run in a test, such as KubeRay's sidecar and cloud autoscalers."""

from collections import Counter

import pytest
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from tune_policies import InvalidResourcesError
from tune_policies.cluster.ray_totals import HEAD_RESOURCE
from tune_policies.probe.probe_cluster import _addable
from tune_policies.ray_compat.gcs import to_cluster_state

pytestmark = pytest.mark.ray_border


def reply(*nodes, autoscaler_v2=False, pending=()):
    """Return a cluster status reply of the GCS. ``nodes`` are (address, node type, resources) tuples."""
    message = GetClusterStatusReply()
    for i, (address, node_type, resources) in enumerate(nodes):
        message.cluster_resource_state.node_states.add(
            node_id=bytes([i]), node_ip_address=address, ray_node_type_name=node_type, status=NodeStatus.RUNNING
        ).total_resources.update(resources)
    message.autoscaling_state.autoscaler_state_version = int(autoscaler_v2)
    for node_type, count in pending:
        message.autoscaling_state.pending_instance_requests.add(ray_node_type_name=node_type, count=count)
    return message


HEAD = {"CPU": 1, HEAD_RESOURCE: 1}
MIRRORED = f"node_{'0af' * 18}01"


def test_a_sidecar_autoscaler_requires_a_cluster_config():
    state = to_cluster_state(reply(("10.0.0.1", "headgroup", HEAD), autoscaler_v2=True), {})

    with pytest.raises(InvalidResourcesError, match=r"not in Ray's GCS .* Pass the path of the cluster YAML"):
        _addable(state, monitor=None)


@pytest.mark.parametrize("autoscaler_v2", [False, True])
def test_a_monitor_that_only_mirrors_the_nodes_adds_no_nodes(autoscaler_v2):
    v1 = {"autoscaler_report": {"active_nodes": {MIRRORED: 1}, "node_type_mapping": {"10.0.0.1": MIRRORED}}}
    answer = reply(("10.0.0.1", "", HEAD), autoscaler_v2=autoscaler_v2)

    state = to_cluster_state(answer, {} if autoscaler_v2 else v1)

    assert _addable(state, monitor=None) == ((), None)


def test_a_user_defined_node_type_named_node_0_is_not_a_mirrored_node():
    v1 = {"autoscaler_report": {"active_nodes": {"node_0": 1}, "node_type_mapping": {"10.0.0.1": "node_0"}}}

    state = to_cluster_state(reply(("10.0.0.1", "", HEAD)), v1)

    assert state.has_autoscaler


def test_autoscaler_v1_reports_nodes_by_type_and_the_head_is_not_a_worker():
    """With autoscaler v1, the reply does not contain the type of each node."""
    nodes = [("10.0.0.1", "", HEAD), ("10.0.0.2", "", {"CPU": 8}), ("10.0.0.3", "", {"CPU": 8})]
    v1 = {
        "active_nodes": {"head": 1, "cpu": 2},
        "node_type_mapping": {"10.0.0.1": "head", "10.0.0.2": "cpu", "10.0.0.3": "cpu"},
        "pending_nodes": [["i-1", "10.0.0.4", "gpu", "setting-up"]],
        "pending_launches": {"gpu": 2},
    }

    state = to_cluster_state(reply(*nodes), {"autoscaler_report": v1})

    assert (state.workers_by_type, state.num_workers) == (Counter(cpu=2), 2)


def test_requested_nodes_of_autoscaler_v2_are_not_counted_as_workers():
    nodes = [("10.0.0.1", "head", HEAD), ("10.0.0.2", "gpu", {"GPU": 1}), ("10.0.0.3", "", {"CPU": 1})]

    state = to_cluster_state(reply(*nodes, autoscaler_v2=True, pending=[("gpu", 2), ("cpu", 1)]), {})

    assert (state.workers_by_type, state.num_workers) == (Counter(gpu=1), 2)


@pytest.mark.parametrize(("autoscaler_v2", "version"), [(True, 2), (False, 1)])
def test_the_state_of_a_cluster_contains_the_version_of_its_autoscaler(autoscaler_v2, version):
    v1 = {"autoscaler_report": {"active_nodes": {"gpu": 1}, "node_type_mapping": {"10.0.0.1": "gpu"}}}
    answer = reply(("10.0.0.1", "gpu", HEAD), autoscaler_v2=autoscaler_v2)

    assert to_cluster_state(answer, {} if autoscaler_v2 else v1).autoscaler_version == version
