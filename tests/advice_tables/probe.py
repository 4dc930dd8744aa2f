"""Advice in messages about the cluster to connect to, its nodes and its node types."""

from types import SimpleNamespace

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.commands_in_folder import in_folder
from tune_policies import CpuPolicy, ReservingPolicy
from tune_policies.placement.gang_deadlock import Reservation, WaitingRun
from tune_policies.probe.addable_nodes import addable_node_types, addable_nodes, load_cluster_config
from tune_policies.probe.reservation_holders import _nested_error
from tune_policies.ray_compat.connection import find_ray
from tune_policies.values.resources import ray_ticks


def grown(**node_type):
    """Return the configuration of a cluster with one node type."""
    return {
        "max_workers": 2,
        "head_node_type": "head",
        "available_node_types": {"worker": {"max_workers": 2} | node_type},
    }


def raised(error):
    raise error


def waiting(**amounts):
    """Return a placement group that waits for these resources."""
    return SimpleNamespace(bundles=[SimpleNamespace(resources=amounts)])


def reservation(**amounts):
    return Reservation(node_id="a", amounts=ray_ticks(amounts), holder="a trial")


def waiting_run(**amounts):
    return WaitingRun(run_id="b", started_at=0, driver=(reservation(**amounts),))


OF_RAY = (
    "a Ray cluster: tests/on_ray/planner/test_probe.py, test_cluster_token.py, test_readiness.py and test_doctor.py"
)
OF_PACKAGES = (
    "a package that is missing or new: tests/package/benchmarks/test_run_command.py and tests/package/test_wheel.py"
)

ROWS = [
    Row(
        "raised(_nested_error(waiting(CPU=2), (reservation(CPU=1),), (waiting_run(CPU=1),)))",
        "use ReservingPolicy(policy, cpus=2) in the outer run",
        "ReservingPolicy(CpuPolicy(), cpus=2)",
    ),
    Row(
        "addable_nodes({'available_node_types': {}}, 0, source='a')",
        "Set the maximum number of worker nodes",
        "addable_nodes({'max_workers': 2}, 0, source='a')",
    ),
    Row(
        "addable_nodes([], 0, source='a')",
        "Pass a Ray cluster YAML with available_node_types and max_workers, or a KubeRay RayCluster",
        "in_folder(lambda: [load_cluster_config(file) for file in ('launcher.yaml', 'raycluster.yaml')])",
    ),
    Row(
        "addable_node_types(grown(), {}, source='a')",
        "Write the resources of a node",
        "addable_node_types(grown(resources={'CPU': 4}), {}, source='a')",
    ),
    Row("find_ray('')", "or omit the address", "find_ray(None), find_ray('host:1'), find_ray('ray://host:1')"),
    Row(
        "find_ray('http://host:8265')",
        "use host:port or ray://host:10001",
        "find_ray('host:6379'), find_ray('ray://host:10001')",
    ),
]

NAMES = {
    **named(
        CpuPolicy,
        ReservingPolicy,
        _nested_error,
        addable_node_types,
        addable_nodes,
        find_ray,
        grown,
        in_folder,
        load_cluster_config,
        raised,
        reservation,
        waiting,
        waiting_run,
    ),
}

ELSEWHERE = {
    "the NVML binding is missing": OF_PACKAGES,
    "lacks a part that … needs": OF_PACKAGES,
    "To install a tested version, run: %s": "another version of Ray: tests/package/planner/test_untried_ray.py",
    "Check that Ray is running, and try again": OF_RAY,
    "has no alive node. Start a node with `ray start`": OF_RAY,
    "Reserve fewer resources for the outer trial": OF_RAY,
    "Install it there with pip or in the node's image": OF_RAY,
    "is not in Ray's GCS and was not found on the head node": OF_RAY,
    "Call ray.init() first": OF_RAY,
    "is already connected to a Ray cluster": OF_RAY,
    "pass another address": OF_RAY,
    "no Ray cluster responds at": OF_RAY,
    "did not answer within": OF_RAY,
    "refuses the authentication token": OF_RAY,
    "Try again.": OF_RAY,
    "Request fewer concurrent trials, or add nodes.": OF_RAY,
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/probe/*.py",  # the messages of probe/doctor are in doctor.py
        "tune_policies/ray_compat",
        "tune_policies/autoscaling",
    ),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
