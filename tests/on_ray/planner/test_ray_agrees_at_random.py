"""Checks some of the 300 random clusters of ``python -m tests.evidence ray-agreement``."""

import pytest

from tests.evidence.plans.ray_agreement import check_cluster
from tests.on_ray.rays import without_prestarted_workers

pytestmark = pytest.mark.rest

SAMPLE = (3, 5, 20, 29)

FAILED_ONCE: tuple[int, ...] = ()
"""Seeds for which Ray and a plan once disagreed, each with a comment about the difference."""


@pytest.mark.parametrize(
    "seed", [SAMPLE[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SAMPLE[1:]), *FAILED_ONCE]
)
def test_ray_schedules_exactly_the_planned_trials_on_a_random_cluster(seed):
    with without_prestarted_workers():
        result = check_cluster(seed, num_policies=6)

    assert (result.policies, result.failures) == (6, ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [208, 211])  # each Train worker of a trial needs its own node
def test_ray_schedules_the_slots_of_all_types_of_a_mixed_plan_concurrently(seed):
    with without_prestarted_workers():
        result = check_cluster(seed, num_policies=4, mixed=True)

    assert (result.policies, result.failures) == (4, ())
