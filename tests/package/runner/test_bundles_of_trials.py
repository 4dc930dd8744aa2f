"""Tests of the maximum number and the placement of concurrent trials with several bundles."""

import pytest

from tests.clusters import nodes
from tune_policies import (
    CappedPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    ReservingPolicy,
)
from tune_policies.placement.bundles import BundleGroup
from tune_policies.trainers.scheduling.own_slots import slot_of_bundles

HEAD_AND_CHILDREN = BundleGroup([{"CPU": 1}, {"CPU": 2}, {"CPU": 2}], "PACK", [])
TWO_GPUS = BundleGroup([{"CPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}], "PACK", [])


@pytest.mark.parametrize(
    ("policy", "group", "cluster", "at_once"),
    [
        pytest.param(CpuPolicy(cpus=1), HEAD_AND_CHILDREN, nodes((10, 0)), 2, id="as many as fit"),
        pytest.param(CpuPolicy(cpus=1), HEAD_AND_CHILDREN, nodes((5, 0), (4, 0), (1, 0)), 2, id="on several nodes"),
        pytest.param(
            CappedPolicy(CpuPolicy(cpus=1), 1), HEAD_AND_CHILDREN, nodes((10, 0)), 1, id="a limit of concurrent trials"
        ),
        pytest.param(GpuPolicy(), TWO_GPUS, nodes((16, 4)), 2, id="GPUs"),
        pytest.param(
            ReservingPolicy(CpuPolicy(cpus=1), cpus=1), HEAD_AND_CHILDREN, nodes((10, 0)), 1, id="reserved CPUs"
        ),
        pytest.param(ReservingPolicy(GpuPolicy(), gpus=1), TWO_GPUS, nodes((16, 4)), 1, id="a reserved GPU"),
    ],
)
def test_the_number_of_concurrent_trials_is_limited_by_nodes_and_policy(policy, group, cluster, at_once):
    slot, _ = slot_of_bundles(policy.plan(cluster), group, cluster)

    assert (slot.max_concurrent_trials, slot.trial.cpus) == (at_once, 1)


@pytest.mark.parametrize(
    ("policy", "group", "message"),
    [
        (GpuPolicy(), HEAD_AND_CHILDREN, "plans trials with a GPU, but the trainable reserves 1 CPU .* Use CpuPolicy"),
        (CpuPolicy(), TWO_GPUS, "plans trials without a GPU, .* Use a policy with GPUs"),
    ],
    ids=["GPUs for bundles without GPUs", "no GPUs for bundles with GPUs"],
)
def test_a_plan_that_contradicts_the_bundles_is_rejected(policy, group, message):
    cluster = nodes((16, 4))

    with pytest.raises(InvalidResourcesError, match=message):
        slot_of_bundles(policy.plan(cluster), group, cluster)


def test_bundles_that_do_not_fit_together_are_infeasible():
    cluster = nodes((4, 0))

    with pytest.raises(InfeasibleRequestError, match="the nodes do not have room for all of them"):
        slot_of_bundles(CpuPolicy(cpus=1).plan(cluster), HEAD_AND_CHILDREN, cluster)
