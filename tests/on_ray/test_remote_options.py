"""``plan.remote_options()`` on a real Ray: as many actors run as planned, and a task gives its process back."""

import os
import time
import warnings
from pathlib import Path

import pytest
import ray

from tests.marks import further
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
            warnings.simplefilter("ignore", ProbeWarning)  # logical GPUs have no NVML
            yield probe_cluster()


class Worker:
    def pid(self):
        return os.getpid()


@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(gpus=0.6, cpus=0.5),
        *further(
            GpuPolicy(gpus=0.5, accelerator_type="A100"),
            CpuPolicy(cpus=2),
            CpuPolicy(cpus=0.5, custom={"license": 1}),
            SelectingPolicy(CpuPolicy(cpus=0.7), label_selector={"zone": "!eu"}),
        ),
    ],
    ids=str,
)
def test_as_many_actors_run_at_once_as_planned_and_one_more_does_not(capacity, policy):
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
def test_a_task_that_releases_gets_a_new_process_for_each_call_and_the_old_one_ends(capacity):
    options = CpuPolicy().plan(capacity).remote_options(reuse="release")

    @ray.remote(**options)
    def task():
        return os.getpid()

    first, second = (ray.get(task.remote(), timeout=60) for _ in range(2))

    assert first != second
    assert not is_alive(first)


def is_alive(pid, within_s=20):
    deadline = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.rest
@pytest.mark.parametrize(("reuse", "num_processes"), [("process", 3), ("release", 3), ("keep", 1)])
def test_a_task_with_gpus_keeps_its_process_only_if_it_should(capacity, reuse, num_processes):
    @ray.remote(**GpuPolicy(gpus=0.5, cpus=0.5).plan(capacity).remote_options(reuse=reuse))
    def task():
        return os.getpid()

    assert len({ray.get(task.remote(), timeout=60) for _ in range(3)}) == num_processes


@pytest.mark.rest
def test_an_actor_keeps_its_process(capacity):
    actor = ray.remote(Worker).options(**GpuPolicy().plan(capacity).remote_options(reuse="process")).remote()

    assert ray.get(actor.pid.remote(), timeout=60) == ray.get(actor.pid.remote(), timeout=60)
    ray.kill(actor)
