"""The plan after one whose Train workers ran out of memory."""

import pytest

from tests.clusters import GIB, gpu_node
from tune_policies import ClusterCapacity, CpuPolicy, GpuPolicy, InfeasibleRequestError
from tune_policies.cluster.labels import NODE_ID
from tune_policies.oom import OutOfMemory
from tune_policies.tune.oom_retry import larger_plan

ACCELERATOR, HOST = OutOfMemory(kind="accelerator"), OutOfMemory(kind="host")
NODES = (gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=16, memory_gib=16),)


def plan_of(policy, nodes=NODES):
    return policy.plan(ClusterCapacity.of(*nodes))


def larger(plan, out_of_memory=ACCELERATOR, nodes=NODES, **kwargs):
    return larger_plan(plan, out_of_memory, **{"growth": 2.0, "max_gpus": 1.0, **kwargs}, nodes=nodes)


def test_each_worker_has_more_and_fewer_trials_run_at_once():
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=2))

    after = larger(plan)

    assert (plan.max_concurrent_trials, after.max_concurrent_trials) == (4, 2)
    assert (after.per_worker.gpus, after.per_worker.cpus, after.num_workers) == (0.5, 1, 2)


def test_the_gpu_memory_of_a_worker_grows_in_proportion():
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1))

    assert (plan.gpu_memory_bytes, larger(plan).gpu_memory_bytes) == (4 * GIB, 8 * GIB)


def test_the_plan_says_why_it_is_larger():
    after = larger(plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=2)))

    assert after.reasons[0] == "each worker ran out of memory with 0.25 GPU, and now has 0.5 GPU"


def test_host_memory_grows_too_and_the_gpu_stays():
    after = larger(plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1)), HOST)

    assert (after.per_worker.gpus, after.per_worker.memory_bytes, after.gpu_memory_bytes) == (0.25, 4 * GIB, 4 * GIB)
    assert after.max_concurrent_trials == 3  # a driver needs a little of the 16 GiB


def test_only_nodes_that_the_plan_selects_are_counted():
    nodes = (gpu_node("a", gpus=1, cpus=8, labels={"zone": "x"}), gpu_node("b", gpus=2, cpus=8))
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1), nodes).on_nodes({"zone": "x"})

    assert larger(plan, nodes=nodes).max_concurrent_trials == 2


def test_a_node_may_be_selected_by_its_identifier():
    nodes = (gpu_node("a", gpus=1, cpus=8), gpu_node("b", gpus=2, cpus=8))
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=1), nodes).on_nodes({NODE_ID: "a"})

    assert larger(plan, nodes=nodes).max_concurrent_trials == 2


def test_workers_that_would_not_all_find_a_gpu_are_refused():
    plan = plan_of(GpuPolicy(gpus=0.25, cpus=1, num_workers=8))

    with pytest.raises(
        InfeasibleRequestError, match=r"8 workers, each with 1 CPU, 0.5 GPU.* do not hold them all at once"
    ):
        larger(plan)


def test_a_whole_gpu_is_the_end():
    with pytest.raises(InfeasibleRequestError, match=r"more GPU memory than 1 GPU gave it, but max_gpus=1"):
        larger(plan_of(GpuPolicy(gpus=1, cpus=1, num_workers=1)))


def test_a_plan_without_gpus_has_no_share_to_raise():
    with pytest.raises(InfeasibleRequestError, match="it holds no GPU of its own"):
        larger(plan_of(CpuPolicy(cpus=1, num_workers=1)))
