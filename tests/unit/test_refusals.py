"""What policies refuse, when they are made and when they plan, and what they say about it."""

import pytest
from ray import tune

from tests.clusters import gpu_node, nodes
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    ReservingPolicy,
    run,
    tuner,
)
from tune_policies.policies.policy import build_policy

T4 = {"gpu_memory_gib": 16, "accelerator_type": "T4"}


@pytest.mark.parametrize(
    ("capacity", "policy", "message"),
    [
        pytest.param(
            nodes((6, 1), (6, 1)),
            GpuPolicy(gpus=2),
            "one trial needs 2 GPUs, but the largest node offers 6 CPUs, 1 GPU: short of GPU. "
            "Ask for at most 1 GPU per worker, or for num_workers=2 with 1 GPU each, or add a larger node.",
            id="2 GPUs on two nodes of 1",
        ),
        pytest.param(
            nodes((8, 0)),
            GpuPolicy(),
            "one trial needs 1 GPU, but the largest node offers 8 CPUs, 0 GPUs: short of GPU. "
            "Add a GPU node. Or take CpuPolicy() instead, or as a fallback (policy | CpuPolicy()).",
            id="no GPU",
        ),
        pytest.param(
            nodes((4, 0), (2, 0)),
            CpuPolicy(cpus=8),
            "one trial needs 8 CPUs, but the largest node offers 4 CPUs, 0 GPUs: short of CPU. "
            "Ask for at most 4 CPUs per worker, or add a larger node.",
            id="too many CPUs",
        ),
        pytest.param(
            nodes((4, 0)),
            CpuPolicy(num_workers=6),
            "one trial needs 6 workers, each with 1 CPU, but the cluster holds 4 such workers at once: short of CPU. "
            "Ask for num_workers=4, or add nodes.",
            id="too many workers",
        ),
        pytest.param(
            nodes((4, 0)),
            CpuPolicy(cpus=8, num_workers=1),
            "one trial needs 1 worker with 8 CPUs, but the largest node offers 4 CPUs, 0 GPUs: short of CPU. "
            "Ask for at most 4 CPUs per worker, or add a larger node.",
            id="one worker that is too large",
        ),
        pytest.param(
            ClusterCapacity.of(),
            CpuPolicy(),
            "one trial needs 1 CPU, but the cluster has no alive node: short of nodes. "
            "Start Ray nodes, then probe again.",
            id="empty cluster",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuPolicy(accelerator_type="H100"),
            "one trial needs 1 GPU on H100, but the cluster's GPUs are T4: short of H100. "
            "Leave accelerator_type out, or name one that is there, or add such a node.",
            id="no such device type",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuMemoryPolicy(gpu_memory="24GiB"),
            "one trial needs a GPU share of 24 GiB, but the largest GPUs have 16 GiB: short of GPU memory. "
            "Ask for at most 16GiB, or add a larger GPU.",
            id="too much GPU memory",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", **T4)),
            GpuMemoryPolicy(gpu_memory="4GiB", cpus=128),
            "one trial needs 128 CPUs, a GPU share of 4 GiB, but the largest node offers 64 CPUs, 1 GPU (T4): "
            "short of CPU. Ask for at most 64 CPUs per worker, or add a larger node.",
            id="too many CPUs beside a share",
        ),
        pytest.param(
            nodes((8, 1)),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read: "
            "short of GPU memory. Install nvidia-ml-py on the GPU nodes and probe again, give them an accelerator "
            "type, or take GpuPolicy with a share of a GPU.",
            id="GPU memory not read",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", accelerator_type="RTX-4090")),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read, and is not known "
            "of the type RTX-4090: short of GPU memory. Install nvidia-ml-py on the GPU nodes and probe again, give "
            "each device its memory_bytes, or take GpuPolicy with a share of a GPU.",
            id="a type that nobody knows",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", accelerator_type="AMD-Instinct-MI210")),
            GpuPolicy(min_gpu_memory="80GiB"),
            "one trial needs 1 GPU with 80 GiB of GPU memory, but the cluster has only 1 AMD-Instinct-MI210 (64 GiB): "
            "short of GPU memory. Ask for less, or add larger GPUs.",
            id="an AMD GPU that was not read",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", accelerator_type="AMD-Instinct-MI300A")),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read, and is not known "
            "of the type AMD-Instinct-MI300A: short of GPU memory. Give each device its memory_bytes, or take "
            "GpuPolicy with a share of a GPU.",
            id="an AMD GPU whose memory is unknown",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", accelerator_type="A100")),
            GpuMemoryPolicy(gpu_memory="60GiB"),
            "one trial needs a GPU share of 60 GiB, but the largest GPUs have 39.6 GiB: short of GPU memory. Ask for "
            "at most 40536MiB, or add a larger GPU. Where GPU memory was not read, install nvidia-ml-py there, or list "
            "each device with its memory_bytes in the capacity.",
            id="a type of two sizes that was not read",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", gpus=2, gpu_memory_gib=24, num_devices=1)),
            GpuMemoryPolicy(gpu_memory="6GiB"),
            "one trial needs a GPU share of 6 GiB, but the GPU memory of the GPU node was not read in full: its "
            "devices are 1 of 2 GPUs: short of GPU memory. Install nvidia-ml-py on the GPU nodes and probe again, "
            "list each device with its memory_bytes, or take GpuPolicy with a share of a GPU.",
            id="a device that is not listed",
        ),
        pytest.param(
            nodes((8, 2), (64, 0)),
            GpuPolicy(cpus=32),
            "one trial needs 32 CPUs, 1 GPU, but the largest node offers 8 CPUs, 2 GPUs: short of CPU. "
            "Ask for at most 8 CPUs per worker, or add a larger node.",
            id="each is there, but not on one node",
        ),
        pytest.param(
            nodes((8, 0)),
            GpuPolicy(cpus=32),
            "one trial needs 32 CPUs, 1 GPU, but the largest node offers 8 CPUs, 0 GPUs: short of CPU. "
            "Add a node with more CPU and GPU, or ask for less in every respect.",
            id="neither is there",
        ),
        pytest.param(
            nodes((8, 0)),
            ReservingPolicy(CpuPolicy(), cpus=8),
            "one trial needs 1 CPU, but with 8 CPUs left free, the largest node offers 0 CPUs, 0 GPUs: short of CPU. "
            "Add a node with more CPU, or ask for less in every respect. Or leave less free.",
            id="all is to be left free",
        ),
        pytest.param(
            nodes((8, 0)),
            ReservingPolicy(CpuPolicy(), gpus=1),
            "one trial needs 1 GPU left free beside it, but the whole cluster has less: short of GPU. "
            "Leave less free, or add nodes.",
            id="more to be left free than there is",
        ),
        pytest.param(
            ClusterCapacity.of(gpu_node("a", gpu_memory_gib=24)),
            ReservingPolicy(GpuPolicy(gpus=0.5), gpu_memory="24GiB"),
            "one trial needs 24 GiB of each GPU left free beside it, but node a has GPUs of 24 GiB: short of GPU "
            "memory. Leave less free, or leave such nodes out: SelectingPolicy(policy, exclude_nodes=…).",
            id="more GPU memory to be left free than there is",
        ),
        pytest.param(
            nodes((2, 0)),
            FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=4)),
            "one trial needs 1 GPU or else 4 CPUs, but the largest node offers 2 CPUs, 0 GPUs: short of GPU and CPU. "
            "Ask for at most 2 CPUs per worker, or add a larger node.",
            id="no choice fits",
        ),
    ],
)
def test_an_infeasible_wish_is_answered_with_what_there_is_and_what_would_work(capacity, policy, message):
    with pytest.raises(InfeasibleRequestError) as caught:
        policy.plan(capacity)

    assert str(caught.value) == message


def test_what_a_message_suggests_works():
    capacity = nodes((6, 1), (6, 1))

    assert GpuPolicy(gpus=1).plan(capacity).max_concurrent_trials == 2
    assert GpuPolicy(gpus=1, num_workers=2).plan(capacity).max_concurrent_trials == 1


def test_each_choice_that_failed_is_kept_in_the_error():
    with pytest.raises(InfeasibleRequestError) as caught:
        FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=4)).plan(nodes((2, 0)))

    assert [error.short_of for error in caught.value.tried] == ["GPU", "CPU"]


def test_of_many_choices_the_error_names_the_first():
    with pytest.raises(InfeasibleRequestError) as caught:
        FirstFeasiblePolicy(*(CpuPolicy(cpus=number) for number in range(100, 300))).plan(nodes((2, 0)))

    assert str(caught.value) == (
        "one trial needs 100 CPUs or else 101 CPUs or else 102 CPUs or else 103 CPUs or else 104 CPUs or else 195 "
        "more, but the largest node offers 2 CPUs, 0 GPUs: short of CPU. Ask for at most 2 CPUs per worker, or add a "
        "larger node."
    )


def _doubled(times):
    policy = CpuPolicy()
    for _ in range(times):
        policy = FirstFeasiblePolicy(policy, policy)
    return policy


def _doubled_data(times):
    """Plain data with shared parts, as YAML with aliases has them."""
    data = {"kind": "CpuPolicy"}
    for _ in range(times):
        data = {"kind": "FirstFeasiblePolicy", "policies": [data, data]}
    return data


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GpuPolicy(gpus=1.5), "gpus above 1 must be whole, got 1.5: ask for 1 or 2"),
        (lambda: GpuPolicy(gpus=0), "gpus must be above 0, got 0: for trials without GPUs take CpuPolicy"),
        (lambda: GpuPolicy(gpus=0.00005), "gpus must be 0.0001 or more, as Ray counts in such steps"),
        (lambda: GpuPolicy(gpus=float("nan")), "gpus must be a finite number from 0 to 1e+11, got nan"),
        (lambda: CpuPolicy(cpus=-1), "cpus must be a finite number from 0 to 1e+11, got -1"),
        (lambda: CpuPolicy(cpus=float("inf")), "cpus must be a finite number from 0 to 1e+11, got inf"),
        (lambda: CpuPolicy(cpus=0), "cpus must be above 0 for a worker without GPUs"),
        (lambda: CpuPolicy(num_workers=1.5), "num_workers must be a whole number, 0 or above, got 1.5"),
        (lambda: GpuMemoryPolicy(gpu_memory="6 gigs"), "gpu_memory must be above 0: a number of bytes, or a number"),
        (lambda: GpuMemoryPolicy(), "GpuMemoryPolicy needs either gpu_memory, an amount such as '6GiB', or profile"),
        (lambda: GpuPolicy(accelerator_type="A10O"), "unknown accelerator type 'A10O'; did you mean 'A10G'?"),
        (lambda: GpuPolicy(accelerator_type="a100"), "unknown accelerator type 'a100'; did you mean 'A100'?"),
        (lambda: EvenSplitPolicy(num_trials=0), "num_trials must be a whole number, 1 or above, got 0"),
        (lambda: EvenSplitPolicy(num_trials=2, min_cpus=0), "min_cpus and min_gpus are both 0"),
        (lambda: CappedPolicy(CpuPolicy(), 0), "max_concurrent_trials must be a whole number, 1 or above, got 0"),
        (lambda: CappedPolicy(CpuPolicy(), 1, 2), "takes inner, max_concurrent_trials by position, got 3 arguments"),
        (lambda: CappedPolicy(CpuPolicy(), inner=CpuPolicy()), "inner given twice"),
        (lambda: CpuPolicy(num_workers=10**12), "num_workers must be at most 100,000,000,000, got 1000000000000"),
        (lambda: ReservingPolicy(CpuPolicy(), gpus=0.5), "gpus must be a whole number, 0 or above, got 0.5"),
        (lambda: FirstFeasiblePolicy(policies=()), "needs at least one policy to try"),
        (lambda: FirstFeasiblePolicy(CpuPolicy(), policies=()), "give the policies as arguments or as policies="),
        (lambda: _doubled(14), "511 policies are in one, and at most 256 may be"),
        (lambda: build_policy(_doubled_data(30)), "policies are in one, and at most 256 may be"),
        (lambda: FirstFeasiblePolicy(*[CpuPolicy()] * 10_000), "10,001 policies are in one, and at most 256 may be"),
        (lambda: FirstFeasiblePolicy("CpuPolicy"), "a policy must be a mapping with a 'kind', got a text"),
        (lambda: GpuPolicy(accelerator_type=iter(())), "must be the name of a device type, or a list of such names"),
        (lambda: GpuPolicy(accelerator_type={"A100"}), "must be the name of a device type, or a list of such names"),
        (lambda: GpuPolicy(accelerator_type=["A100", ["T4"]]), "must be the name of a device type, or a list of such"),
        (lambda: GpuMemoryPolicy(profile={1: 2}), "profile must be a mapping of field names to values, got {1: 2}"),
    ],
    ids=range(29),
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(build, message):
    with pytest.raises(InvalidResourcesError) as caught:
        build()

    assert message in str(caught.value)


@pytest.mark.parametrize("value", [-1, "2", True, 2.0])
@pytest.mark.parametrize(
    "start",
    [
        lambda value: run(print, max_concurrent_trials=value),
        lambda value: tuner(print, tune_config=tune.TuneConfig(max_concurrent_trials=value)),
    ],
    ids=["run", "tuner"],
)
def test_max_concurrent_trials_must_be_a_count(start, value):
    with pytest.raises(InvalidResourcesError) as caught:
        start(value)

    assert str(caught.value) == f"max_concurrent_trials must be a whole number, 0 or above, got {value!r}"
