"""Train drivers reserve a little host memory on any node, and a plan must allow for every placement."""

import pytest

from tune_policies import ClusterCapacity, CpuPolicy, InfeasibleRequestError, Resources

MIB = 2**20


def plan_of(num_workers, *node_mibs):
    capacity = ClusterCapacity.of(*(Resources(cpus=8, memory_bytes=mib * MIB) for mib in node_mibs))
    return CpuPolicy(memory="1GiB", num_workers=num_workers).plan(capacity)


@pytest.mark.parametrize(
    ("num_workers", "node_mibs", "expected"),
    [
        pytest.param(1, (4096,), 3, id="drivers use the last GiB of the only node"),
        pytest.param(1, (1024, 1024), 1, id="a driver blocks one node, and the worker is on the other"),
        pytest.param(1, (1024, 1024, 1024), 1, id="two drivers can block two of three nodes"),
        pytest.param(1, (1025, 1025, 1025), 2, id="two drivers can block one node with room for one worker"),
        pytest.param(1, (1023, 1024, 1024), 1, id="a node without a worker cannot be blocked"),
        pytest.param(2, (4100, 4100), 4, id="drivers fit next to the workers"),
    ],
)
def test_the_planned_trials_run_for_every_placement_of_drivers(num_workers, node_mibs, expected):
    assert plan_of(num_workers, *node_mibs).max_concurrent_trials == expected


def test_a_trial_that_its_own_driver_can_block_raises_an_error():
    with pytest.raises(
        InfeasibleRequestError,
        match="in addition to a driver with 1 MiB of host memory, the cluster has room for only 1 ",
    ):
        plan_of(2, 1024, 1024)
