"""The iterative workload whose data go through Ray's object store, against the one that keeps them."""

import pytest

from tests.on_ray.rays import local_ray
from tune_policies import ProbeError
from tune_policies.benchmarks.workloads.registry import load_workload

pytestmark = pytest.mark.rest


def losses(name):
    steps = load_workload(name)(1_000, "cpu")
    return [float(steps.with_transfers()) for _ in range(steps.steps_per_epoch)]


def test_without_a_ray_it_refuses_to_start_one():
    with pytest.raises(ProbeError, match="no Ray runs"):
        losses("iterative-tasks")


def test_tasks_and_an_actor_come_to_the_same_numbers():
    with local_ray(num_cpus=1):
        assert losses("iterative-tasks") == losses("iterative-actor")
