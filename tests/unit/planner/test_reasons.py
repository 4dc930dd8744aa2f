"""Tests of the reasons in plans."""

import pytest

from tests.clusters import gpu_node, nodes, with_devices
from tests.unit.planner.test_common_plans import (
    CPUS,
    FEW_H100,
    L4,
    LARGE,
    QUARTERS,
    SEVERAL,
    SMALL,
    T4,
    growing,
    in_use,
)
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    MixedPolicy,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.plan.plan_notes import describe_gpus

of = ClusterCapacity.of
CPU, GPU, HALF, SIX_GIB = CpuPolicy(), GpuPolicy(), GpuPolicy(gpus=0.5), GpuMemoryPolicy(gpu_memory="6GiB")
WITHOUT_CPUS = of(gpu_node("a", cpus=0, **T4), gpu_node("b", cpus=8, **T4))
TYPES = ("H100", "L4", "A100")
A100_80 = gpu_node("a", cpus=8, gpu_memory_gib=80, accelerator_type="A100")
ASSUMED = of(*(gpu_node(f"{cpus}", cpus=cpus, accelerator_type="A100") for cpus in (8, 64)))
UNKNOWN = of(gpu_node("a", gpu_memory_gib=16, memory_gib=8), gpu_node("b"))
QUOTA = of(*(gpu_node(name, gpus=0, cpus=4).model_copy(update={"usable_cpus": 2}) for name in "ab"))
REHEARSAL = of(gpu_node("a", gpus=2, cpus=4).model_copy(update={"usable_cpus": 2, "has_simulated_gpus": True}))


def of_shared_gpu(node_id):
    node = gpu_node(node_id, gpu_memory_gib=24)
    device = node.devices[0].model_copy(update={"uuid": "GPU-1"})
    return node.model_copy(update={"devices": (device,)})


# fmt: off
REASONS = {
    "a GPU node without CPUs": (WITHOUT_CPUS, GPU, "trials on 1 node without CPUs reserve no CPU"),
    "a GPU node without CPUs if all trials get the same":
        (WITHOUT_CPUS, GpuPolicy(same_for_all=True),
         "1 node with GPU is not used, because it has no CPUs; set cpus=0 to use all nodes"),
    "a node with other devices and without CPUs":
        (WITHOUT_CPUS, AcceleratorPolicy(resource="GPU", same_for_all=True),
         "1 node with GPU is not used, because it has no CPUs"),
    "no trial fits the nodes with CPUs":
        (nodes((0, 1), (0, 1), (8, 1)), GpuPolicy(num_workers=2),
         "no worker reserves a CPU, because no trial fits the nodes that have CPUs"),
    "more trials than a plan counts": (nodes((10**11, 0)), CpuPolicy(cpus=0.0001), "1e+15 trials would fit, but"),
    "CPUs divided": (nodes((8, 4)), GPU, "2 CPUs per trial: 8 CPUs ÷ 4 GPU slots; set cpus= to change this"),
    "CPUs rounded": (nodes((9, 4)), GPU, "2 CPUs per trial: 9 CPUs ÷ 4 GPU slots, rounded down; set cpus= to"),
    "the fewest CPUs":
        (nodes((8, 4), (4, 4)), GpuPolicy(same_for_all=True), "4 GPU slots, on the node with the fewest"),
    "an even split": (nodes((8, 0)), EvenSplitPolicy(num_trials=8), "the cluster is divided among 8 trials: 1 CPU per"),
    "rounds": (nodes((24, 0)), EvenSplitPolicy(num_trials=10, min_cpus=3),
              "with 3 CPUs per trial, 8 concurrent trials would fit and need 2 rounds; 5 concurrent trials"),
    "an earlier choice":
        (nodes((4, 0)), GPU | CPU, "skipped GpuPolicy: one trial needs 1 GPU, but the largest node has 4 CPUs, 0 GPUs"),
    "a choice with too few trials":
        (FEW_H100, GpuPolicy(accelerator_type="H100", min_trials=3) | CPU, "and min_trials=3, but"),
    "nodes that the autoscaler could add":
        (growing(SMALL), GPU | CPU, "could add nodes of type small. To use them, call plan_when_ready"),
    "assumed memory":
        (of(gpu_node("a", accelerator_type="L4")), HALF, "plan assumes the smallest amount known"),
    "two sizes": (ASSUMED, HALF, "A100 also exists with 80 GB (type A100-80G). If your GPUs have more memory"),
    "two sizes, divided": (ASSUMED, EvenSplitPolicy(num_trials=2, min_gpus=0.5), "A100 also exists with 80 GB"),
    "no published total":
        (of(gpu_node("a", accelerator_type="AMD-Instinct-MI100")), HALF, "less GPU memory than the nominal size of"),
    "too small":
        (SEVERAL, GpuMemoryPolicy(gpu_memory="30GiB"), "their memory is too small or unknown: 2 L4 (22 GiB)"),
    "another type":
        (of(A100_80, gpu_node("b", accelerator_type="M3-Max")), SIX_GIB,
         "some GPUs are not used because the plan uses only A100: 1 M3"),
    "too few CPUs":
        (of(gpu_node("a", gpu_memory_gib=80), gpu_node("b", cpus=2, gpu_memory_gib=8), gpu_node("c", cpus=2)),
                     GpuMemoryPolicy(gpu_memory="6GiB", cpus=8),
                     "too little CPU: 1 unknown type (8 GiB), 1 unknown type (memory not read)"),
    "trials on a GPU": (of(gpu_node("a", gpu_memory_gib=21.234)), GpuMemoryPolicy(gpu_memory="5GiB"),
                         "5 GiB per trial: 4 trials on a GPU of 21.2 GiB"),
    "enough digits to show the difference":
        (of(gpu_node("a", gpu_memory_gib=19.999)), GpuMemoryPolicy(gpu_memory="5GiB"),
                             "5 GiB per trial: 3 trials on a GPU of 19.999 GiB"),
    "a limit on a GPU": (of(A100_80), GpuMemoryPolicy(gpu_memory="24GiB", max_trials_per_gpu=2),
                         "2 trials on a GPU of 80 GiB, with max_trials_per_gpu=2"),
    "draining":
        (ClusterCapacity(nodes=(gpu_node("a"),), draining=(gpu_node("b"),)), CPU, "not use 1 draining node"),
    "an unusable node":
        (ClusterCapacity(nodes=(gpu_node("a"),), unusable=(gpu_node("b", problem="tune-policies is not installed"),)),
         CPU, "not use 1 node (b): tune-policies is not installed"),
    "resources of the program itself":
        (of(gpu_node("a", held={"the entrypoint of this Ray job": Resources(gpus=1)})), CPU,
         "the plan does not use 1 GPU, reserved by the entrypoint of this Ray job"),
    "a quota": (QUOTA, ReservingPolicy(CPU, cpus=1), "Ray counts 4 CPUs per node on 2 nodes, but"),
    "a rehearsal with more CPUs than exist": (REHEARSAL, CPU,
        "Ray counts 4 CPUs per node on 1 node, but 2 exist: they are simulated, like the GPUs"),
    "an unknown node":
        (nodes((2, 0)), SelectingPolicy(CPU, exclude_nodes=("10.0.0.9",)), "exclude_nodes contains '10.0.0.9', but no"),
    "an unknown head node": (nodes((2, 0)), SelectingPolicy(CPU, exclude_head=True), "the head node is unknown"),
    "a rounded fraction": (with_devices((12, {"NPU": 4})), AcceleratorPolicy(resource="NPU", amount=0.3),
                        "0.3 NPU is rounded up to 0.3333, because a device has room for 3 workers of this size"),
    "no limit on an NPU":
        (with_devices((12, {"NPU": 4})), AcceleratorPolicy(resource="NPU", amount=0.3),
                       "the NPU memory of a worker is not limited to its fraction"),
    "reserved GPU memory":
        (of(A100_80), ReservingPolicy(HALF, gpu_memory="4GiB"), "4 GiB of memory is reserved on each GPU"),
    "fractions next to a free GPU": (nodes((8, 1), (8, 1)), ReservingPolicy(HALF, gpus=1), "but possibly not as whole"),
    "a whole GPU has no limit":
        (nodes((8, 1)), ReservingPolicy(GPU, gpu_memory="1GiB"), "a trial with a whole GPU has no"),
    "unknown host memory": (UNKNOWN, ReservingPolicy(HALF, memory="1GiB"), "host memory of some nodes is unknown"),
    "unknown GPU memory": (UNKNOWN, ReservingPolicy(HALF, gpu_memory="1GiB"), "GPU memory of some nodes is unknown"),
    "resources in use by others":
        (in_use(Resources(cpus=2, gpus=1)), FreeCapacityPolicy(GPU), "resources already in use: 2 CPUs, 1 GPU"),
    "nodes that can be added": (growing(SMALL, LARGE, most=5), AutoscalingPolicy(GPU, max_nodes_to_add=1),
                                "nodes that the autoscaler can add: up to 2 large, 4 small, at most 1 in total"),
    "unknown types of nodes": (nodes((8, 0)).model_copy(update={"node_types": None}), AutoscalingPolicy(CPU),
                               "the node types of the autoscaler are unknown, so the plan adds no nodes"),
    "no remaining resources for a slot type":
        (nodes((8, 2)), MixedPolicy(QUARTERS, CpuPolicy(cpus=2)), "CpuPolicy has no slots next to"),
    "different fractions of two slot types": (nodes((16, 2)), MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 1), QUARTERS),
                            "earlier policies split the same GPUs into different fractions"),
    "a GPU that three nodes share":
        (ClusterCapacity(nodes=(of_shared_gpu("a"), of_shared_gpu("b")), draining=(of_shared_gpu("c"),)), SIX_GIB,
         "the nodes a, b and 1 node that the plan does not use share the GPU GPU-1, so its memory counts only once, "
         "and each node has 1/3 of it"),
    "a cap": (nodes((16, 2)), CappedPolicy(QUARTERS, 4),
              "8 trials would fit, but max_concurrent_trials limits the number to 4"),
}
# fmt: on


@pytest.mark.parametrize(("capacity", "policy", "reason"), REASONS.values(), ids=REASONS)
def test_a_plan_has_the_reasons_for_its_numbers(capacity, policy, reason):
    assert sum(reason in each for each in policy.plan(capacity).reasons) == 1


@pytest.mark.parametrize(
    ("capacity", "policy", "line"),
    [
        pytest.param(
            of(gpu_node("a", gpus=2, cpus=4, has_simulated_gpus=True)),
            SIX_GIB | CPU,
            "4 trials at once on CPUs, limited by CPU. GPUs are not used, because the GPU memory of the GPU node was "
            "not read (its GPUs are simulated). Declare the type of simulated GPUs, as in ray.init(num_gpus=2, "
            'resources={"accelerator_type:A100": 1}), or use GpuPolicy with a fraction of a GPU',
            id="unknown GPU memory",
        ),
        pytest.param(
            nodes((4, 1)),
            CappedPolicy(GpuPolicy(cpus=9), 3) | CPU,
            "4 trials at once on CPUs, limited by CPU. GPUs are not used, because the largest node has 4 CPUs, 1 GPU. "
            "Request at most 4 CPUs per trial, or add a larger node",
            id="too few CPUs",
        ),
        pytest.param(
            nodes((4, 1)),
            AcceleratorPolicy(resource="GPU", cpus=9) | CPU,
            "4 trials at once on CPUs, limited by CPU. GPUs are not used, because the largest node has 4 CPUs, 1 GPU. "
            "Request at most 4 CPUs per trial, or add a larger node",
            id="too few CPUs for an AcceleratorPolicy",
        ),
        pytest.param(nodes((4, 0)), GPU | CPU, "4 trials at once, limited by CPU", id="a cluster without GPUs"),
        pytest.param(
            nodes((4, 1)), CpuPolicy(cpus=9) | CPU, "4 trials at once, limited by CPU", id="only CPU policies"
        ),
        pytest.param(
            nodes((4, 1)), CpuPolicy(cpus=9) | GPU, "1 trial at once, limited by GPU", id="a fallback to GPUs"
        ),
    ],
)
def test_the_first_line_states_why_a_fallback_does_not_use_the_gpus_of_the_cluster(capacity, policy, line):
    assert policy.plan(capacity).explain().splitlines()[0] == line


@pytest.mark.parametrize(
    ("capacity", "policy", "word"),
    [
        pytest.param(nodes((8, 0)), EvenSplitPolicy(num_trials=8), "rounds", id="one round"),
        pytest.param(UNKNOWN, ReservingPolicy(HALF, cpus=1), "host memory", id="resources that no trial requests"),
        pytest.param(growing(CPUS), CPU, "can be added", id="excluded nodes"),
    ],
)
def test_a_plan_has_no_irrelevant_reasons(capacity, policy, word):
    assert not any(word in reason for reason in policy.plan(capacity).reasons)


def test_reasons_about_nodes_appear_once_and_other_reasons_with_their_policy():
    cluster = nodes((16, 2)).model_copy(update={"draining": (gpu_node("leaving"),)})

    plan = MixedPolicy(CappedPolicy(QUARTERS, 4), CpuPolicy(cpus=2), speeds=(10, 1)).plan(cluster)

    assert plan.explain().splitlines() == [
        "10 trials at once, limited by CPU",
        "  4 with 1 CPU, 0.25 GPU (speed 10)",
        "  6 with 2 CPUs (speed 1)",
        "  - CappedPolicy: GPU memory was not read on every node, so the memory of a fraction is unknown",
        "  - CappedPolicy: 8 trials would fit, but max_concurrent_trials limits the number to 4",
        "  - CpuPolicy: each trial reserves 2 CPUs and no GPU",
        "  - the plan does not use 1 draining node",
    ]


def test_gpus_are_described_by_type_and_memory_and_half_a_gpu_counts_as_one():
    others = gpu_node("b", gpus=4, **L4), gpu_node("c", accelerator_type="T4"), gpu_node("d", gpus=0.5)

    described = describe_gpus(of(A100_80, *others).groups)

    assert described == "1 A100 (80 GiB), 4 L4 (22 GiB), 1 T4 (14.7 GiB), 1 unknown type (memory not read)"


def test_an_even_split_has_no_reason_about_rounds_if_trials_get_no_more_than_the_minimum():
    for num_trials in (9, 27, 30):
        (reason,) = EvenSplitPolicy(num_trials=num_trials).plan(nodes((8, 0))).reasons

        assert reason == f"the cluster is divided among {num_trials} trials: 1 CPU per trial"
