"""Shares of GPUs on a real autoscaler v2, which adds them up for each node where a device must hold each of them.

Six trials of 0.6 GPU on nodes of 2 GPUs: it counts three to a node and launches two, each of which holds two of them.
"""

import time

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.evidence.plans.trials_on_ray import trial_groups
from tests.on_ray.autoscaling import alive_workers, autoscaling_cluster, cluster_status, node_type, workers_when
from tests.on_ray.rays import no_workers_ahead
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    GpuPolicy,
    NodeTypeCapacity,
    Resources,
    request_capacity,
)
from tune_policies.ray_compat.autoscaler import find_autoscaler

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

NUM_TRIALS = 6
TWO_GPUS = NodeTypeCapacity(name="two-gpus", resources=Resources(cpus=8, gpus=2), max_nodes_to_add=5)
_ROUNDS = 5
"""So many rounds of the autoscaler without a launch mean that none will come: it makes one every second."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    types = {TWO_GPUS.name: node_type(TWO_GPUS.max_nodes_to_add, CPU=8, GPU=2)}
    with no_workers_ahead(), autoscaling_cluster(types, v2=True, cpus=0, idle_timeout_minutes=0.05) as started:
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started


@pytest.fixture
def groups():
    """Placement groups; they are removed afterwards, so that the next test begins without nodes."""
    reserved = []
    yield reserved
    for group in reserved:
        remove_placement_group(group)
    workers_when({})


def running(groups):
    return sum(placement_group_table(group)["state"] == "CREATED" for group in groups)


def running_at_last(groups):
    """How many of the groups run, when all do, or when the autoscaler has launched nothing more for some rounds."""
    autoscaler = find_autoscaler()
    deadline, last, rounds = time.monotonic() + 90, None, 0
    while time.monotonic() < deadline and rounds < _ROUNDS and running(groups) < len(groups):
        report = autoscaler.report()
        now = (running(groups), dict(report.pending), dict(alive_workers()))
        if now != last or report.pending or not now[0]:
            last, rounds, number = now, 0, report.number
        elif report.number != number:
            rounds, number = rounds + 1, report.number
        time.sleep(0.1)
    return running(groups)


def test_trials_of_six_tenths_wait_for_ever_while_the_autoscaler_believes_that_they_fit(groups):
    groups += [placement_group([{"CPU": 1, "GPU": 0.6}]) for _ in range(NUM_TRIALS)]

    found, came = running_at_last(groups), dict(alive_workers())

    status = cluster_status()
    assert (found, came) == (4, {"two-gpus": 2})
    assert len(status.cluster_resource_state.pending_gang_resource_requests) == 2
    assert not status.autoscaling_state.infeasible_gang_resource_requests
    assert not status.autoscaling_state.pending_instance_requests


@pytest.mark.parametrize(("gpus", "nodes"), [(0.6, 3), (0.7, 3), (0.3, 1)])
def test_all_trials_of_a_plan_for_such_a_wish_run(groups, gpus, nodes):
    policy = AutoscalingPolicy(CappedPolicy(GpuPolicy(gpus=gpus, cpus=1), NUM_TRIALS))
    plan = policy.plan(ClusterCapacity(node_types=(TWO_GPUS,)))

    with request_capacity(plan):
        groups += [group for _ in range(NUM_TRIALS) for group in trial_groups(plan, "PACK")]
        found, came = running_at_last(groups), dict(alive_workers())

    assert plan.max_concurrent_trials == NUM_TRIALS
    assert (found, came) == (NUM_TRIALS, {"two-gpus": nodes})
