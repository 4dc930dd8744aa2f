"""The iterative workload gives the same losses with Ray tasks as with an actor that keeps its data."""

import pytest

from tests.on_ray.rays import local_ray
from tune_policies import ProbeError
from tune_policies.benchmarks.workloads.registry import load_workload

pytestmark = pytest.mark.rest


def losses(name):
    steps = load_workload(name)(1_000, "cpu")
    return [float(steps.with_transfers()) for _ in range(steps.steps_per_epoch)]


def test_the_workload_raises_an_error_if_ray_is_not_running():
    with pytest.raises(ProbeError, match="Ray is not running"):
        losses("iterative-tasks")


def test_tasks_and_an_actor_compute_the_same_losses():
    with local_ray(num_cpus=1):
        assert losses("iterative-tasks") == losses("iterative-actor")
