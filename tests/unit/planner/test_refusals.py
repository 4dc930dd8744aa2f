"""Tests of the errors that policies raise at construction and during planning."""

import pytest
from ray import tune

from tests.clusters import gpu_node, nodes
from tests.decisions import a_decision
from tests.unit.planner.test_common_plans import FEW_H100, LARGE, QUARTERS, SMALL, T4, growing, in_use
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    BenchmarkedPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
    run,
    tuner,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.policies.policy import build_policy

of = ClusterCapacity.of
CPU, GPU, BY_MEMORY = CpuPolicy(), GpuPolicy(), GpuMemoryPolicy(gpu_memory="6GiB")
PROBED = of(nodes((8, 1)).nodes[0].model_copy(update={"address": "10.0.0.7"}))
ONE_T4, FEW_CPUS = of(gpu_node("a", **T4)), nodes((2, 0))
INDISTINCT = of(
    gpu_node("a", gpu_memory_gib=16, accelerator_type="A100", is_expected=True),
    gpu_node("b", gpu_memory_gib=80, accelerator_type="A100", is_expected=True),
)
OTHERS = of(
    gpu_node("a", gpus=0, cpus=8, accelerator_type="TPU-V4", custom={"TPU": 4}),
    gpu_node("b", gpus=0, cpus=4, custom={"HPU": 8}),
)
PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"batch": 1}, total_bytes=2**30),))


def of_type(accelerator_type, **more):
    return of(gpu_node("a", accelerator_type=accelerator_type, **more))


# fmt: off
INFEASIBLE = {
    "2 GPUs on two nodes with 1 GPU each": (nodes((6, 1), (6, 1)), GpuPolicy(gpus=2), "GPU",
        "one trial needs 2 GPUs, but the largest node has 6 CPUs, 1 GPU: short of GPU. Request at most 1 GPU per "
        "trial, or num_workers=2 with 1 GPU each, or add a larger node."),
    "no GPU": (nodes((8, 0)), GPU, "GPU",
        "Add a GPU node. Or fall back to CPUs: policy | CpuPolicy()."),
    "too many CPUs":
        (nodes((4, 0), (2, 0)), CpuPolicy(cpus=8), "CPU", "Request at most 4 CPUs per trial, or add a larger"),
    "too many workers": (nodes((4, 0)), CpuPolicy(num_workers=6), "CPU",
        "one trial needs 6 workers, each with 1 CPU, but the cluster has room for only 4 such workers: short of CPU. "
        "Set num_workers=4, or add nodes."),
    "a worker that is too large":
        (nodes((4, 0)), CpuPolicy(cpus=8, num_workers=1), "CPU", "1 worker with 8 CPUs, but the"),
    "an empty cluster":
        (of(), CPU, "nodes", "but the cluster has no alive node: short of nodes. Start Ray nodes, then"),
    "a device type that the cluster lacks": (ONE_T4, GpuPolicy(accelerator_type="H100"), "H100",
        "but the cluster's GPUs are T4: short of H100. Omit accelerator_type, use a type that the cluster has, or add"),
    "too much GPU memory": (ONE_T4, GpuMemoryPolicy(gpu_memory="24GiB"), "GPU memory",
        "the largest GPUs have 16 GiB: short of GPU memory. Request at most 16GiB of GPU memory, or add a"),
    "large GPUs that Ray cannot distinguish before they are added": (INDISTINCT, GpuMemoryPolicy(gpu_memory="24GiB"),
        "GPU memory", "but Ray cannot distinguish 1 A100 (80 GiB) from 1 A100 (16 GiB) before the nodes are added"),
    "GPUs with the minimum memory that Ray cannot distinguish": (INDISTINCT, GpuPolicy(min_gpu_memory="24GiB"),
        "GPU memory", "Give node types with different GPU memory different labels ray.io/accelerator-type, or request"),
    "too many CPUs for a GPU fraction":
        (ONE_T4, GpuMemoryPolicy(gpu_memory="4GiB", cpus=128), "CPU", "at most 64 CPUs per"),
    "too few CPUs beside the large GPU":
        (of(gpu_node("a", cpus=2, accelerator_type="H100"), gpu_node("b", cpus=8, accelerator_type="T4")),
        GpuMemoryPolicy(gpu_memory="40GiB", cpus=4), "CPU",
        "the largest node has 2 CPUs, 1 GPU (H100): short of CPU. Request at most 2 CPUs per trial, or add a larger"),
    "too little host memory beside the large GPU":
        (of(gpu_node("a", memory_gib=4, accelerator_type="H100"), gpu_node("b", memory_gib=8, accelerator_type="T4")),
        GpuMemoryPolicy(gpu_memory="40GiB", memory="6GiB"), "memory",
        "1 GPU (H100), 4 GiB of host memory: short of memory. Request at most 4GiB of host memory per trial, or add"),
    "unread GPU memory": (nodes((8, 1)), BY_MEMORY, "GPU memory",
        "Set their accelerator type, or use GpuPolicy with"),
    "unread GPU memory of a node that was probed": (PROBED, BY_MEMORY, "GPU memory",
        "Install nvidia-ml-py on the GPU nodes and probe again, set their accelerator type, or use GpuPolicy with"),
    "an unknown GPU type": (of_type("RTX-7090"), BY_MEMORY, "GPU memory", "and is unknown for the type RTX-7090"),
    "an unread AMD GPU": (of_type("AMD-Instinct-MI210"), GpuPolicy(min_gpu_memory="80GiB"), "GPU memory",
        "but the cluster has only 1 AMD-Instinct-MI210 (64 GiB): short of GPU memory. Request less GPU memory, or add"),
    "an AMD GPU whose memory is unknown": (of_type("AMD-Instinct-MI300A"), BY_MEMORY, "GPU memory",
        "short of GPU memory. Set gpu_memory of the node type in the catalog (in Python, list each device with its"),
    "a type with two memory sizes": (of_type("A100"), GpuMemoryPolicy(gpu_memory="60GiB"), "GPU memory",
        "add a larger GPU. If a node's GPU memory was not read, set gpu_memory of the node type"),
    "unlisted devices":
        (of(*(gpu_node(f"{gpus}", gpus=gpus, gpu_memory_gib=24, num_devices=1) for gpus in (5, 2))),
        BY_MEMORY, "GPU memory", "of all 2 GPU nodes was not read in full: only 1 of 2 GPUs are listed as devices"),
    "minimum memory with GPUs of unknown memory":
        (of_type("M3-Max"), GpuPolicy(min_gpu_memory="1GiB"), "GPU memory", "memory not read"),
    "resources that exist, but not on one node":
        (nodes((8, 2), (64, 0)), GpuPolicy(cpus=32), "CPU", "at most 8 CPUs per trial"),
    "two resources that the cluster lacks":
        (nodes((8, 0)), GpuPolicy(cpus=32), "CPU", "Add a node with more CPU and GPU, or request"),
    "a reservation of all resources": (nodes((8, 0)), ReservingPolicy(CPU, cpus=8), "CPU",
        "but with 8 CPUs reserved for other programs, the largest node has 0 CPUs, 0 GPUs: short of CPU."),
    "a reservation of more than the cluster has":
        (nodes((8, 0)), ReservingPolicy(CPU, gpus=1), "GPU", "Reserve less, or add nodes."),
    "a reservation of more GPU memory than a GPU has":
        (of(gpu_node("a", gpu_memory_gib=3), gpu_node("b", gpu_memory_gib=4)),
        ReservingPolicy(GPU, gpu_memory="4GiB"), "GPU",
        "4 GiB is reserved on each GPU, and 2 nodes with at most 4 GiB per GPU cannot be used; the largest node has"),
    "all resources in use":
        (in_use(Resources(gpus=2)), FreeCapacityPolicy(GPU), "GPU", "Or wait until other programs release resources"),
    "no feasible choice":
        (FEW_CPUS, GPU | CpuPolicy(cpus=4), "GPU and CPU", "one trial needs 1 GPU or else 4 CPUs, but the largest"),
    "no feasible choice among many":
        (FEW_CPUS, FirstFeasiblePolicy(*(CpuPolicy(cpus=number) for number in range(100, 300))), "CPU",
        "100 CPUs or else 101 CPUs or else 102 CPUs or else 103 CPUs or else 104 CPUs or else 195 more"),
    "no feasible policy in a MixedPolicy":
        (nodes((1, 0)), MixedPolicy(QUARTERS, CpuPolicy(cpus=2)), "GPU and CPU", "1 CPU, 0.25 GPU or else 2"),
    "too few concurrent trials with each type":
        (FEW_H100, GpuPolicy(accelerator_type=("H100", "A100"), min_trials=9), "GPU",
        "on A100, and min_trials=9: only 8 trials can run at once"),
    "too few concurrent trials":
        (FEW_H100, GpuPolicy(min_trials=12), "GPU", "1 GPU, and min_trials=12, but only 11 trials can run at once"),
    "too few concurrent trials with each choice":
        (FEW_H100, FirstFeasiblePolicy(GpuPolicy(gpus=4), CpuPolicy(cpus=64), min_trials=9), "GPU and CPU",
        "only 2 trials can run at once; for 64 CPUs, and min_trials=9: only 3 trials can"),
    "no selected node":
        (of(gpu_node("a", labels={"zone": "eu"}), gpu_node("b")), SelectingPolicy(CPU, {"zone": "us"}),
        "nodes", "none of the 2 nodes is selected (zone is eu, not set): short of"),
    "draining nodes": (ClusterCapacity(nodes=(gpu_node("a", gpus=0),), draining=(gpu_node("b"),)), GPU, "GPU",
        "0 GPUs (not counting 1 draining node)"),
    "unusable nodes":
        (ClusterCapacity(nodes=(gpu_node("a", gpus=0),), unusable=(gpu_node("b", problem="it is old"),)), GPU, "GPU",
        "0 GPUs (not counting 1 node (b): it is old)"),
    "resources of the program itself":
        (of(gpu_node("a", gpus=0, held={"its entrypoint": Resources(gpus=1)})), GPU, "GPU",
        "(not counting 1 GPU, reserved by its entrypoint): short of GPU. Add a GPU node. Or reserve fewer"),
    "resources that no node type has": (growing(SMALL, LARGE), AutoscalingPolicy(GpuPolicy(gpus=16)), "GPU",
        "with all nodes that can be added, the largest node has 64 CPUs, 8 GPUs: short of GPU. Request at most 8"),
    "a missing accelerator":
        (OTHERS, AcceleratorPolicy(resource="RBLN"), "RBLN", "Add an RBLN node."),
    "too many chips":
        (OTHERS, AcceleratorPolicy(resource="TPU", amount=8), "TPU", "Request at most 4 TPUs per trial"),
    "too many devices":
        (OTHERS, AcceleratorPolicy(resource="HPU", amount=9), "HPU", "Request at most 8 HPUs per trial"),
    "too few CPUs on nodes with devices":
        (OTHERS, AcceleratorPolicy(resource="HPU", cpus=5), "CPU", "at most 4 CPUs per trial"),
    "too many workers with devices": (OTHERS, AcceleratorPolicy(resource="HPU", num_workers=9), "HPU", "num_workers=8"),
    "an accelerator type that the cluster lacks":
        (OTHERS, AcceleratorPolicy(resource="TPU", accelerator_type="TPU-V6E"), "TPU-V6E",
        "the cluster's TPUs are TPU-V4: short of TPU-V6E. Omit accelerator_type"),
}
# fmt: on


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (GpuMemoryPolicy(gpu_memory="24GiB"), "large"),
        (GpuPolicy(min_gpu_memory="24GiB"), "large"),
        (GpuPolicy(gpus=2), "many"),
        (EvenSplitPolicy(num_trials=2, min_gpus=2), "many"),
    ],
    ids=["GPU memory", "minimum GPU memory", "GPUs", "an even split"],
)
def test_an_error_names_the_node_types_that_the_autoscaler_could_add_for_a_trial(policy, named):
    types = [("large", "H100", 1), ("many", "T4", 4), ("same", "T4", 1)]
    addable = tuple(
        NodeTypeCapacity(
            name=name, resources=Resources(cpus=8, gpus=gpus), accelerator_type=accelerator_type, max_nodes_to_add=1
        )
        for name, accelerator_type, gpus in types
    )
    capacity = ONE_T4.model_copy(update={"node_types": addable})

    with pytest.raises(InfeasibleRequestError) as error:
        policy.plan(capacity)

    assert f"The autoscaler could add nodes of type {named}. To use them, " in error.value.suggestion


@pytest.mark.parametrize(("capacity", "policy", "short_of", "message"), INFEASIBLE.values(), ids=INFEASIBLE)
def test_the_error_of_an_infeasible_request_has_the_available_resources_and_a_suggestion(
    capacity, policy, short_of, message
):
    with pytest.raises(InfeasibleRequestError) as caught:
        policy.plan(capacity)

    assert caught.value.short_of == short_of
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "policy", [GPU | CpuPolicy(cpus=4), MixedPolicy(GPU, CpuPolicy(cpus=4))], ids=["choices", "a mixed pool"]
)
def test_the_error_contains_the_error_of_each_policy(policy):
    with pytest.raises(InfeasibleRequestError) as caught:
        policy.plan(FEW_CPUS)

    assert [error.short_of for error in caught.value.tried] == ["GPU", "CPU"]


def test_no_nodes_are_suggested_if_the_cluster_may_not_grow():
    with pytest.raises(InfeasibleRequestError) as caught:
        GPU.plan(growing(SMALL, most=0))

    assert "small" not in caught.value.suggestion


def _doubled(times):
    policy = CpuPolicy()
    for _ in range(times):
        policy = FirstFeasiblePolicy(policy, policy)
    return policy


def _doubled_data(times):
    """Return plain data with shared parts, as from YAML with aliases."""
    data = {"kind": "CpuPolicy"}
    for _ in range(times):
        data = {"kind": "FirstFeasiblePolicy", "policies": [data, data]}
    return data


def accelerator(**fields):
    return lambda: AcceleratorPolicy(**fields)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GpuPolicy(gpus=1.5), "gpus above 1 must be whole, got 1.5. Request 1 or 2"),
        (lambda: GpuPolicy(gpus=0), "gpus=0 is not valid for GpuPolicy. Set a number above 0, or use CpuPolicy"),
        (lambda: GpuPolicy(gpus=0.00005), "gpus must be 0, or at least 0.0001 (Ray's smallest amount)"),
        (lambda: GpuPolicy(gpus=float("nan")), "gpus must be a finite number up to 1e+11, got nan"),
        (lambda: CpuPolicy(cpus=-1), "cpus must be 0 or more, got -1"),
        (lambda: CpuPolicy(cpus=0), "cpus=0 is not valid for CpuPolicy"),
        (lambda: CpuPolicy(num_workers=1.5), "num_workers must be a whole number, 0 or above, got 1.5"),
        (lambda: CpuPolicy(num_workers=10**12), "num_workers must be at most 100,000,000,000, got 1000000000000"),
        (lambda: CpuPolicy(custom={"NPU": 0.3}), "is not valid, because Ray assigns devices individually"),
        (lambda: CpuPolicy(custom={"gpu": 1}), "custom resource 'gpu' is Tune's name for GPU. Use gpus"),
        (lambda: CpuPolicy(custom={"accelerator_type:T4": 0.001}), "Use accelerator_type"),
        (
            lambda: GpuMemoryPolicy(gpu_memory="6 gigs"),
            "gpu_memory must be a number of bytes above 0 or a string such as '6GiB'",
        ),
        (lambda: GpuMemoryPolicy(), "GpuMemoryPolicy requires either gpu_memory, such as '6GiB', or a measured"),
        (lambda: GpuMemoryPolicy(profile={1: 2}), "profile.1: Keys should be strings, got 1"),
        (lambda: GpuPolicy(accelerator_type="a100"), "unknown accelerator type 'a100'; did you mean 'A100'?"),
        (
            lambda: GpuPolicy(accelerator_type="NVIDIA GeForce RTX 4090"),
            "unknown accelerator type 'NVIDIA GeForce RTX 4090'; did you mean 'GeForce-RTX-4090'?",
        ),
        (
            lambda: GpuPolicy(accelerator_type={"A100"}),
            "must be the name of a device type, or a list of distinct names",
        ),
        (
            lambda: GpuPolicy(accelerator_type=["A100", ["T4"]]),
            "must be the name of a device type, or a list of distinct",
        ),
        (lambda: EvenSplitPolicy(num_trials=0), "num_trials must be a whole number, 1 or above, got 0"),
        (lambda: EvenSplitPolicy(num_trials=2, min_cpus=0), "min_cpus and min_gpus are both 0"),
        (lambda: CappedPolicy(CpuPolicy(), 0), "max_concurrent_trials must be a whole number, 1 or above, got 0"),
        (lambda: CappedPolicy(CpuPolicy(), 1, 2), "accepts inner, max_concurrent_trials by position, got 3 arguments"),
        (lambda: CappedPolicy(CpuPolicy(), inner=CpuPolicy()), "inner was passed twice, by position and by name"),
        (lambda: ReservingPolicy(CpuPolicy(), gpus=0.5), "gpus must be a whole number, 0 or above, got 0.5"),
        (lambda: FirstFeasiblePolicy(policies=()), "FirstFeasiblePolicy requires at least one policy"),
        (lambda: FirstFeasiblePolicy(CpuPolicy(), policies=()), "pass the policies either as positional arguments or"),
        (lambda: FirstFeasiblePolicy("CpuPolicy"), "a policy must be a mapping with a 'kind', got a string"),
        (lambda: _doubled(14), "may contain at most 256 policies, got 511"),
        (lambda: build_policy(_doubled_data(30)), "may contain at most 256 policies, got "),
        (lambda: FirstFeasiblePolicy(*[CpuPolicy()] * 10_000), "may contain at most 256 policies, got 10,001"),
        (lambda: MixedPolicy(policies=()), "requires at least one policy"),
        (lambda: MixedPolicy(CPU, speeds=(1, 2)), "speeds must have 1 number, one for each policy, got 2"),
        (lambda: MixedPolicy(CPU, speeds=(0,)), "must be a number above 0 and at most 1e+11, got 0"),
        (lambda: MixedPolicy(CPU, speeds=("fast",)), "must be a number above 0 and at most 1e+11, got 'fast'"),
        (
            lambda: MixedPolicy(GpuMemoryPolicy(profile=PROFILE), CPU),
            "MixedPolicy cannot contain a GpuMemoryPolicy with a profile",
        ),
        (
            lambda: BenchmarkedPolicy(a_decision(), decision=a_decision()),
            "decision was passed twice, by position and by name",
        ),
        (accelerator(resource="TPUS"), "unknown accelerator resource 'TPUS'; did you mean 'TPU'"),
        (accelerator(resource="HPU", amount=0.5), "amount=0.5 of HPU is not possible"),
        (accelerator(resource="TPU", amount=3), "Request 2 or 4"),
        (accelerator(resource="TPU", accelerator_type="A100"), "'A100' is not a type of resource 'TPU'"),
        (accelerator(resource="TPU", num_workers=2), "only on whole slices. Set topology and accelerator_type"),
        (accelerator(resource="HPU", topology="2x2"), "topology='2x2' is valid only for TPU slices"),
        (accelerator(resource="TPU", topology="2x2"), "Set resource='TPU', an accelerator_type"),
    ],
    ids=range(43),
)
def test_an_invalid_policy_is_rejected_at_construction(build, message):
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
def test_max_concurrent_trials_must_be_a_non_negative_integer(start, value):
    with pytest.raises(InvalidResourcesError) as caught:
        start(value)

    assert str(caught.value) == f"max_concurrent_trials must be a whole number, 0 or above, got {value!r}"
