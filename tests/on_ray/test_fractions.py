"""GPU fractions with a real autoscaler v2, which adds up the fractions on a node although each must fit on one device.

For six placement groups of 0.6 GPU, it counts three per node of 2 GPUs and launches two nodes. Only two fit on each.
"""

import pytest
import ray
from ray.util.placement_group import placement_group_table, remove_placement_group

from tests.evidence.plans.trials_on_ray import trial_groups
from tests.on_ray.autoscaling import alive_workers, autoscaling_cluster, node_type, workers_when
from tests.on_ray.rays import wait_until, without_prestarted_workers
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    GpuPolicy,
    NodeTypeCapacity,
    Resources,
    request_capacity,
)

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

NUM_TRIALS = 6
TWO_GPUS = NodeTypeCapacity(name="two-gpus", resources=Resources(cpus=8, gpus=2), max_nodes_to_add=5)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    types = {TWO_GPUS.name: node_type(TWO_GPUS.max_nodes_to_add, CPU=8, GPU=2)}
    with (
        without_prestarted_workers(),
        autoscaling_cluster(types, v2=True, cpus=0, idle_timeout_minutes=0.05) as started,
    ):
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started


@pytest.fixture
def groups():
    """A list of placement groups, which are removed afterwards so that the next test starts without nodes."""
    reserved = []
    yield reserved
    for group in reserved:
        remove_placement_group(group)
    workers_when({})


@pytest.mark.parametrize(("gpus", "num_nodes"), [(0.6, 3), (0.3, 1)])
def test_all_trials_with_gpu_fractions_start_on_autoscaled_nodes(groups, gpus, num_nodes):
    policy = AutoscalingPolicy(CappedPolicy(GpuPolicy(gpus=gpus, cpus=1), NUM_TRIALS))
    plan = policy.plan(ClusterCapacity(node_types=(TWO_GPUS,)))

    with request_capacity(plan):
        groups += [group for _ in range(NUM_TRIALS) for group in trial_groups(plan, "PACK")]
        wait_until(lambda: all(placement_group_table(group)["state"] == "CREATED" for group in groups))

    assert plan.max_concurrent_trials == NUM_TRIALS
    assert dict(alive_workers()) == {"two-gpus": num_nodes}
