"""If other programs use GPUs, a policy plans with the free GPUs, waits for their release, or falls back to CPUs."""

import threading
import time

import pytest
import ray
from ray import tune

from tests.on_ray.rays import wait_until
from tests.rest_parameters import further
from tune_policies import (
    CpuPolicy,
    FreeCapacityPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    plan_when_ready,
    probe_cluster,
    run,
)

RAY = {"num_cpus": 4, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
GPU_OR_CPU = GpuPolicy(cpus=1) | CpuPolicy(cpus=1)


@ray.remote(num_cpus=0, num_gpus=1)
class Server:
    def ready(self):
        return True


def wait_for_free_gpus(number=2):
    """Wait until a probe reports this number of free GPUs, because Ray updates the number with a delay."""

    def are_free():
        (node,) = probe_cluster().nodes
        return node.in_use is not None and node.resources.gpus - node.in_use.gpus == number

    wait_until(are_free)


@pytest.fixture
def serve():
    """Start actors that each use one GPU until the test ends."""
    started = []

    def start(count):
        started.extend(Server.remote() for _ in range(count))
        ray.get([each.ready.remote() for each in started])
        wait_for_free_gpus(2 - len(started))
        return started

    yield start
    for each in started:
        ray.kill(each)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("num_servers", "slot", "at_once"), [(2, "1 CPU", 4), *further((0, "1 CPU, 1 GPU", 2), (1, "1 CPU, 1 GPU", 1))]
)
def test_the_plan_uses_only_free_resources(serve, num_servers, slot, at_once):
    wait_for_free_gpus()
    serve(num_servers)

    plan = plan_when_ready(GPU_OR_CPU, only_free=True, timeout_s=2)

    assert (str(plan.common_slot), plan.max_concurrent_trials) == (slot, at_once)


def test_the_plan_and_the_error_name_the_actors_that_use_the_gpus(serve):
    wait_for_free_gpus()
    serve(2)
    holder = "the resources were not released within 1 s: actor Server of this program uses 2 GPUs"
    began_s = time.monotonic()

    plan = plan_when_ready(GPU_OR_CPU, only_free=True, timeout_s=1)
    with pytest.raises(InfeasibleRequestError) as error:
        plan_when_ready(GpuPolicy(cpus=1), only_free=True, timeout_s=1)

    assert holder in plan.explain()
    assert holder in str(error.value)
    assert time.monotonic() - began_s > 2  # both calls waited for the timeout


@pytest.mark.rest
def test_gpus_that_are_released_before_the_deadline_are_used(serve):
    wait_for_free_gpus()
    servers = serve(2)
    release = threading.Timer(3, lambda: ray.kill(servers[0]))
    release.start()

    plan = plan_when_ready(GPU_OR_CPU, only_free=True, timeout_s=60)

    assert (str(plan.common_slot), plan.max_concurrent_trials) == ("1 CPU, 1 GPU", 1)


@pytest.mark.rest
def test_train_workers_are_placed_only_on_free_gpus(serve):
    wait_for_free_gpus()
    serve(1)

    plan = plan_when_ready(GpuPolicy(cpus=1, num_workers=2) | CpuPolicy(cpus=1), only_free=True, timeout_s=1)

    assert str(plan.common_slot) == "1 CPU"


@pytest.mark.rest
def test_planning_does_not_wait_for_gpus_that_the_cluster_does_not_have(serve):
    plan = plan_when_ready(GpuPolicy(gpus=3) | CpuPolicy(cpus=1), only_free=True, timeout_s=3600)

    assert str(plan.common_slot) == "1 CPU"


def report(config):
    tune.report({"loss": 1})


def test_a_run_falls_back_to_cpus_if_all_gpus_are_in_use(serve, tmp_path, capsys):
    wait_for_free_gpus()
    serve(2)
    policy = FreeCapacityPolicy(GpuPolicy(cpus=1)) | CpuPolicy(cpus=2)

    found = run(report, policy, num_samples=2, storage_path=str(tmp_path), verbose=0)

    assert [trial.last_result["slot"] for trial in found.trials] == ["2 CPUs"] * 2
    assert "one trial needs 1 CPU, 1 GPU, but with 2 GPUs in use, the largest node has" in capsys.readouterr().out
