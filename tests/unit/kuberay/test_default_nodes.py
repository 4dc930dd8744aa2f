"""Tests of the node types that a design uses without a catalog."""

import math

import pytest

from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    SelectingPolicy,
)
from tune_policies.kuberay import design_cluster
from tune_policies.policies.first_feasible import plan_first_feasible
from tune_policies.policies.policy import ResourcePolicy


class CpusOfAUser(ResourcePolicy):
    def plan(self, capacity):
        return plan_first_feasible([CpuPolicy()], capacity)


class NeverPlans(ResourcePolicy):
    def plan(self, capacity):
        raise InfeasibleRequestError("a trial", "nothing is enough", "patience", "Ask for less.")


@pytest.mark.parametrize(
    ("policy", "name", "resources"),
    [
        pytest.param(CpusOfAUser(), "cpu-16", "16 CPUs, 64 GiB", id="a user-defined policy"),
        pytest.param(GpuPolicy(gpus=0.25, cpus=2), "gpu", "8 CPUs, 1 GPU, 32 GiB", id="four trials on a GPU"),
        pytest.param(GpuPolicy(gpus=2, accelerator_type="A100"), "a100-x2", "16 CPUs, 2 GPUs, 64 GiB", id="two GPUs"),
        pytest.param(CpuPolicy(cpus=3), "cpu-15", "15 CPUs, 60 GiB", id="CPUs that divide evenly"),
        pytest.param(CpuPolicy(cpus=32), "cpu-32", "32 CPUs, 128 GiB", id="more CPUs than usual"),
        pytest.param(CpuPolicy(memory="10GiB"), "cpu-16", "16 CPUs, 161 GiB", id="requested host memory"),
        pytest.param(CpuPolicy(custom={"license": 0.5}), "cpu-16", "16 CPUs, 8 license, 64 GiB", id="custom resources"),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="10GiB", accelerator_type="A100"),
            "a100",
            "8 CPUs, 1 GPU, 32 GiB",
            id="by GPU memory",
        ),
        pytest.param(
            AcceleratorPolicy(resource="HPU", amount=2), "hpu-x2", "16 CPUs, 2 HPUs, 64 GiB", id="other devices"
        ),
        pytest.param(
            AcceleratorPolicy(resource="TPU", amount=4, topology="4x4", accelerator_type="TPU-V6E", num_workers=4),
            "tpu-v6e-4x4-x4",
            "32 CPUs, 4 TPUs, 128 GiB",
            id="TPU slices",
        ),
        pytest.param(CappedPolicy(CpuPolicy(), 2), "cpu-16", "16 CPUs, 64 GiB", id="inside a wrapper"),
        pytest.param(
            FirstFeasiblePolicy(GpuPolicy(), CpuPolicy()), "gpu", "8 CPUs, 1 GPU, 32 GiB", id="the first choice"
        ),
    ],
)
def test_without_a_catalog_the_node_type_is_derived_from_the_policy(policy, name, resources):
    (group,) = design_cluster(policy, None, 16).groups

    assert group.node_type.name == name
    assert str(group.node_type.resources) == f"{resources} of host memory"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        pytest.param(
            GpuMemoryPolicy(gpu_memory="6GiB"), "unknown without a GPU type", id="GPU memory without a GPU type"
        ),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="6GiB", accelerator_type="M3-Max"),
            "unknown for 'M3-Max'",
            id="a GPU type of unknown memory",
        ),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="60GiB", accelerator_type="T4"),
            "Types with enough memory: A100",
            id="a GPU type that is too small",
        ),
        pytest.param(SelectingPolicy(CpuPolicy(), label_selector={"zone": "eu"}), "pass a catalog", id="labels"),
        pytest.param(NeverPlans(), "no default nodes for NeverPlans: pass a catalog", id="a policy that fits no node"),
    ],
)
def test_without_a_catalog_a_policy_that_does_not_determine_a_node_type_is_rejected(policy, message):
    with pytest.raises(InvalidResourcesError, match=message):
        design_cluster(policy, None, 64)


@pytest.mark.parametrize("topology", ["4x4", "16x16", "8x16"])
def test_without_a_catalog_the_number_of_tpu_nodes_is_a_multiple_of_the_hosts_of_a_slice(topology):
    chips = math.prod(map(int, topology.split("x")))
    policy = AcceleratorPolicy(
        resource="TPU", accelerator_type="TPU-V6E", topology=topology, amount=4, num_workers=chips // 4
    )

    (group,) = design_cluster(policy, None, 1).groups

    assert group.num_hosts == chips // 4
    assert group.node_type.num_nodes % group.num_hosts == 0
