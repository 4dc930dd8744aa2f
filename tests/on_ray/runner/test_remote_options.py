"""``plan.remote_options()`` limits the number of actors and controls the reuse of processes."""

import os
import warnings

import pytest
import ray

from tests.on_ray.marked_processes import ends
from tests.on_ray.rays import cluster_of
from tune_policies import CpuPolicy, GpuPolicy, ProbeWarning, SelectingPolicy, probe_cluster


@pytest.fixture(scope="module")
def capacity():
    small = {"object_store_memory": 100 * 2**20}
    typed = {"resources": {"accelerator_type:A100": 1, "license": 2}, "labels": {"zone": "eu"}}
    with cluster_of(
        {"num_cpus": 2, "num_gpus": 1, **typed, **small}, {"num_cpus": 3, "num_gpus": 2, **small}
    ) as started:
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProbeWarning)  # NVML does not list simulated GPUs
            yield probe_cluster()


class Worker:
    def pid(self):
        return os.getpid()


@pytest.mark.rest
@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(gpus=0.5, cpus=0.5, accelerator_type="A100"),
        SelectingPolicy(CpuPolicy(cpus=0.7, custom={"license": 1}), label_selector={"zone": "eu"}),
    ],
    ids=str,
)
def test_exactly_the_planned_number_of_actors_runs_concurrently(capacity, policy):
    plan = policy.plan(capacity)
    actor = ray.remote(Worker).options(**plan.remote_options())

    actors = [actor.remote() for _ in range(plan.max_concurrent_trials + 1)]
    try:
        answers = [each.pid.remote() for each in actors]
        running, _ = ray.wait(answers, num_returns=plan.max_concurrent_trials, timeout=60)
        more, _ = ray.wait(answers, num_returns=plan.max_concurrent_trials + 1, timeout=2)

        assert len(running) == len(more) == plan.max_concurrent_trials
    finally:
        for each in actors:
            ray.kill(each)


@pytest.mark.rest
def test_the_process_of_a_task_with_reuse_release_ends_after_each_call(capacity):
    options = CpuPolicy().plan(capacity).remote_options(reuse="release")

    @ray.remote(**options)
    def task():
        return os.getpid()

    first, second = (ray.get(task.remote(), timeout=60) for _ in range(2))

    assert first != second
    assert ends(first)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("policy", "reuse", "num_processes"),
    [
        (GpuPolicy(gpus=0.5, cpus=0.5), "process", 3),
        (GpuPolicy(gpus=0.5, cpus=0.5), "keep", 1),
        (SelectingPolicy(CpuPolicy(), label_selector={"zone": "eu"}), "process", 1),
    ],
    ids=["GPU, process", "GPU, keep", "CPU, process"],
)
def test_a_task_with_gpus_reuses_its_process_only_with_reuse_keep(capacity, policy, reuse, num_processes):
    @ray.remote(**policy.plan(capacity).remote_options(reuse=reuse))
    def task():
        return os.getpid()

    assert len({ray.get(task.remote(), timeout=60) for _ in range(3)}) == num_processes
