"""``plan.remote_options()`` uses all device types of a plan, for tasks and actors."""

import pytest
import ray

from tests.on_ray.rays import cluster_of, wait_until
from tune_policies import Resources
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan

TYPES = ("H100", "A100")


@pytest.fixture(scope="module")
def started():
    nodes = [
        {"num_cpus": 1, "num_gpus": 1, "labels": {"ray.io/accelerator-type": name}, "object_store_memory": 100 * 2**20}
        for name in TYPES
    ]
    with cluster_of({"num_cpus": 0, "object_store_memory": 100 * 2**20}, *nodes) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster


def type_of_node():
    return ray.get_runtime_context().get_node_labels().get("ray.io/accelerator-type")


def options():
    slots = [
        TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=1, accelerator_type=name) for name in TYPES
    ]
    return TrialPlan(slots=slots, limited_by="GPU").remote_options()


class Actor:
    def type_of_node(self):
        return type_of_node()


@pytest.mark.rest
def test_actors_run_on_each_device_type(started):
    actors = [ray.remote(Actor).options(**options()).remote() for _ in TYPES]

    assert sorted(ray.get([actor.type_of_node.remote() for actor in actors], timeout=60)) == sorted(TYPES)

    for actor in actors:
        ray.kill(actor)


@pytest.mark.rest
def test_the_first_task_runs_on_the_first_device_type(started):
    wait_until(lambda: ray.available_resources().get("GPU") == len(TYPES))  # earlier actors may still be ending

    assert ray.get(ray.remote(**options())(type_of_node).remote(), timeout=60) == "H100"
