"""Tests of how a run detects that nodes were added, removed or lost."""

import socket

import pytest
from ray.exceptions import RayActorError

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import PlannedRun, SmallCluster
from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, MixedPolicy
from tune_policies.trainers.watches import node_watch
from tune_policies.trainers.watches.node_watch import NodeWatch, lost_node

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
A, B, C = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2), gpu_node("c", gpus=0, cpus=2)


@pytest.fixture
def planned(monkeypatch):
    """A function that returns the plan of a run with a policy on nodes."""
    return lambda policy, *nodes: PlannedRun(monkeypatch, policy, *nodes)


# Lost nodes


def test_a_node_that_lost_a_trial_is_avoided_for_a_minute(planned):
    run = planned(MixedPolicy(HALVES, CPUS), A, C)
    run.pass_time(100)

    run.plan.avoid_node("a")

    assert run.plan.follow_nodes(None)
    assert run.places() == [(1, "c", 1)]
    run.pass_time(59.9)
    assert not run.plan.follow_nodes(None)
    assert run.places() == [(1, "c", 1)]
    run.pass_time(0.1)
    assert run.plan.follow_nodes(None)
    assert run.places() == [(0, "a", 2), (1, "c", 1)]


@pytest.mark.parametrize(
    ("is_alive", "answers", "expected"),
    [
        pytest.param(False, False, "n", id="dead"),
        pytest.param(True, False, "n", id="alive for Ray, but without an answer"),
        pytest.param(True, True, None, id="alive"),
    ],
)
def test_a_node_is_lost_if_ray_or_its_raylet_says_so(monkeypatch, is_alive, answers, expected):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not answers:
            server.close()
        node = {"NodeID": "n", "Alive": is_alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        monkeypatch.setattr(node_watch.ray, "nodes", lambda: [{**node, "NodeID": "other", "Alive": False}, node])
        monkeypatch.setattr(node_watch, "node_of_actor", lambda actor_id: {"0" * 32: "n"}.get(actor_id))

        assert lost_node(RayActorError(actor_id="0" * 32)) == expected


def test_an_error_without_a_dead_process_has_no_lost_node():
    assert lost_node(ValueError("a mistake")) is None


def test_if_ray_does_not_answer_no_node_counts_as_lost(monkeypatch, caplog):
    def fails(*_):
        raise ConnectionError("no answer")

    monkeypatch.setattr(node_watch, "node_of_actor", fails)

    assert lost_node(RayActorError(actor_id="0" * 32)) is None
    assert "could not determine whether a trial was lost with its node: no answer" in caplog.text


# The watch of nodes


def watch(*nodes, probes=False):
    return NodeWatch(5.0, probes=probes, known=ClusterCapacity.of(*nodes))


def test_unknown_nodes_are_no_change(monkeypatch):
    SmallCluster(monkeypatch, A)

    assert watch(A).changed(None) is None


def test_the_first_reading_of_the_known_nodes_is_no_change(monkeypatch):
    """A probe and the GCS describe the same node differently."""
    SmallCluster(monkeypatch, A)

    assert watch(A).changed([gpu_node("a", gpus=1, cpus=2, labels={"zone": "eu"})]) is None


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(B, id="another node"),
        pytest.param(gpu_node("a", gpus=1, cpus=3), id="other resources"),
        pytest.param(gpu_node("a", gpus=1, cpus=2, labels={"zone": "eu"}), id="other labels"),
    ],
)
def test_a_later_reading_is_compared_with_the_one_before(monkeypatch, node):
    SmallCluster(monkeypatch, A)
    watching = watch(A)
    assert watching.changed([A]) is None

    assert watching.changed([node]) == ClusterCapacity.of(node)
    assert watching.changed([node]) is None


def test_a_change_starts_one_probe_whose_result_is_returned_later(monkeypatch):
    cluster = SmallCluster(monkeypatch, A, B)
    watching = watch(A, probes=True)

    assert watching.changed([A, B]) is None
    assert watching.changed([A, B]) == ClusterCapacity.of(A, B)
    assert watching.changed([A, B]) is None
    assert cluster.num_probes == 1


def test_after_a_failed_probe_the_nodes_are_probed_again(monkeypatch, caplog):
    cluster = SmallCluster(monkeypatch, A, B)
    watching = watch(A, probes=True)
    cluster.nodes = None
    watching.changed([A, B])
    cluster.nodes = (A, B)
    assert watching.changed([A, B]) is None
    assert "the nodes of the cluster could not be read, and will be read again: Ray does not respond" in caplog.text

    cluster.clock.now_s = 5.0
    watching.changed([A, B])

    assert watching.changed([A, B]) == ClusterCapacity.of(A, B)


def test_after_a_failed_probe_of_known_nodes_they_are_probed_again(monkeypatch):
    cluster = SmallCluster(monkeypatch, A)
    larger = gpu_node("a", gpus=2, cpus=2)
    watching = watch(A, probes=True)
    watching.changed([A])
    cluster.nodes = None
    watching.changed([larger])
    cluster.nodes, cluster.clock.now_s = (larger,), 5.0

    watching.changed([larger])

    assert watching.changed([larger]) == ClusterCapacity.of(larger)
