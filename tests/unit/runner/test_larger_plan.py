"""Tests of the plan for a new run after Train workers ran out of memory."""

import pytest

from tests.clusters import GIB, gpu_node
from tune_policies import ClusterCapacity, GpuPolicy, InfeasibleRequestError
from tune_policies.oom import OutOfMemory
from tune_policies.trainers.retries.oom_history import TrialOomHistory
from tune_policies.trainers.retries.oom_retry import decide_worker_retry, larger_plan

ACCELERATOR, HOST = OutOfMemory(kind="accelerator"), OutOfMemory(kind="host")
NODES = (gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=16, memory_gib=16),)


def plan_of(policy, nodes=NODES):
    return policy.plan(ClusterCapacity.of(*nodes))


def larger(plan, out_of_memory=ACCELERATOR, nodes=NODES, **kwargs):
    options = {"growth": 2.0, "max_gpus": 1.0, **kwargs}
    decision = decide_worker_retry(plan, out_of_memory, TrialOomHistory(), nodes=nodes, **options)
    return larger_plan(plan, decision.floor, nodes)


def test_each_worker_gets_a_larger_gpu_fraction_and_fewer_trials_run_concurrently():
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=2))

    after = larger(plan)

    assert (plan.max_concurrent_trials, after.max_concurrent_trials) == (4, 2)
    assert (after.worker.gpus, after.worker.cpus, after.num_workers) == (0.5, 1, 2)
    assert after.gpu_memory_bytes == 8 * GIB


def test_host_memory_increases_and_the_gpu_fraction_does_not_change():
    after = larger(plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1)), HOST)

    assert (after.worker.gpus, after.worker.memory_bytes, after.gpu_memory_bytes) == (0.25, 4 * GIB, 4 * GIB)
    assert after.max_concurrent_trials == 3  # 16 GiB of host memory is not enough for four trials with their drivers


def test_only_nodes_with_the_labels_of_the_plan_are_used():
    nodes = (gpu_node("a", gpus=1, cpus=8, labels={"zone": "x"}), gpu_node("b", gpus=2, cpus=8))
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1), nodes).on_nodes({"zone": "x"})

    assert larger(plan, nodes=nodes).max_concurrent_trials == 2


def test_more_workers_than_fit_the_gpus_raise_an_error():
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=8))

    with pytest.raises(
        InfeasibleRequestError,
        match=r"8 workers, each with 1 CPU, 0.5 GPU.* do not have room for all workers at the same time",
    ) as caught:
        larger(plan)
    assert caught.value.short_of == "GPU"


def test_workers_that_need_more_host_memory_than_the_nodes_have_raise_an_error():
    with pytest.raises(InfeasibleRequestError) as caught:
        larger(plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=8)), HOST)
    assert caught.value.short_of == "memory"


def test_workers_with_whole_gpus_cannot_get_more_gpu_memory():
    with pytest.raises(InfeasibleRequestError, match=r"more than 1 GPU, but max_gpus is 1"):
        larger(plan_of(GpuPolicy(gpus=1, cpus=1, num_workers=1)))
