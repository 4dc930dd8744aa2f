"""Some of the clusters of ``python -m tests.evidence ray-agreement``, which tries 300."""

import pytest

from tests.evidence.plans.ray_agreement import check_cluster
from tests.on_ray.rays import without_prestarted_workers

pytestmark = pytest.mark.rest

SAMPLE = (3, 5, 20, 29)

FAILED_ONCE: tuple[int, ...] = ()
"""Seeds with which Ray and a plan ever disagreed, each with what it was."""


@pytest.mark.parametrize(
    "seed", [SAMPLE[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SAMPLE[1:]), *FAILED_ONCE]
)
def test_ray_schedules_as_many_trials_as_planned_on_a_random_cluster_and_not_one_more(seed):
    with without_prestarted_workers():
        result = check_cluster(seed, num_policies=6)

    assert (result.policies, result.failures) == (6, ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [208, 211])  # of a trial here, each Train worker needs its own node
def test_ray_runs_the_slots_of_all_types_at_once_on_the_nodes_that_a_plan_asks_for(seed):
    with without_prestarted_workers():
        result = check_cluster(seed, num_policies=4, mixed=True)

    assert (result.policies, result.failures) == (4, ())
