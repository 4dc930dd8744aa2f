"""Tests of device types that the installed Ray derives from product names. They do not start Ray."""

import re
import sys
from types import SimpleNamespace

import pytest
import ray
from packaging.version import Version
from ray._private.accelerators.amd_gpu import amd_product_dict
from ray._private.accelerators.intel_gpu import IntelGPUAcceleratorManager
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from tests.clusters import gpu_node
from tune_policies import (
    ClusterCapacity,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    NodeTypeCapacity,
    Resources,
)
from tune_policies.cluster.accelerators import family_of_type, type_of_product
from tune_policies.cluster.gpu_sizes import total_of_type
from tune_policies.kuberay.reading.ray_counts import device_type

NVIDIA = {
    "NVIDIA GeForce GTX 1060 3GB": 3,
    "NVIDIA GeForce GTX 1060 6GB": 6,
    "NVIDIA GeForce GTX 1070": 8,
    "NVIDIA GeForce GTX 1070 Ti": 8,
    "NVIDIA GeForce GTX 1080": 8,
    "NVIDIA GeForce GTX 1080 Ti": 11,
    "GeForce GTX 1080 Ti": 11,
    "NVIDIA GeForce GTX 1650": 4,
    "NVIDIA GeForce GTX 1660 SUPER": 6,
    "NVIDIA GeForce RTX 2060": 6,
    "NVIDIA GeForce RTX 2070 SUPER": 8,
    "NVIDIA GeForce RTX 2080 Ti": 11,
    "GeForce RTX 2080 Ti": 11,
    "NVIDIA GeForce RTX 3050": 8,
    "NVIDIA GeForce RTX 3060": 12,
    "NVIDIA GeForce RTX 3060 Laptop GPU": 6,
    "NVIDIA GeForce RTX 3060 Ti": 8,
    "NVIDIA GeForce RTX 3070": 8,
    "NVIDIA GeForce RTX 3080": 10,
    "NVIDIA GeForce RTX 3080 Ti": 12,
    "NVIDIA GeForce RTX 3090": 24,
    "NVIDIA GeForce RTX 3090 Ti": 24,
    "NVIDIA GeForce RTX 4060 Ti": 16,
    "NVIDIA GeForce RTX 4070": 12,
    "NVIDIA GeForce RTX 4070 Ti SUPER": 16,
    "NVIDIA GeForce RTX 4080": 16,
    "NVIDIA GeForce RTX 4090": 24,
    "NVIDIA GeForce RTX 4090 Laptop GPU": 16,
    "NVIDIA GeForce RTX 5060 Ti": 16,
    "NVIDIA GeForce RTX 5070 Ti": 16,
    "NVIDIA GeForce RTX 5080": 16,
    "NVIDIA GeForce RTX 5090": 32,
    "NVIDIA TITAN Xp": 12,
    "TITAN X (Pascal)": 12,
    "NVIDIA TITAN V": 12,
    "NVIDIA TITAN RTX": 24,
    "Quadro P4000": 8,
    "Quadro P5000": 16,
    "Quadro P6000": 24,
    "Quadro GV100": 32,
    "Quadro RTX 4000": 8,
    "Quadro RTX 5000": 16,
    "Quadro RTX 6000": 24,
    "Quadro RTX 8000": 48,
    "NVIDIA RTX A2000 12GB": 12,
    "NVIDIA RTX A4000": 16,
    "NVIDIA RTX A5000": 24,
    "NVIDIA RTX A6000": 48,
    "NVIDIA RTX 4000 Ada Generation": 20,
    "NVIDIA RTX 5000 Ada Generation": 32,
    "NVIDIA RTX 6000 Ada Generation": 48,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 96,
    "NVIDIA RTX PRO 5000 Blackwell": 48,
    "NVIDIA RTX PRO 4500 Blackwell": 32,
    "Tesla M40 24GB": 24,
    "Tesla M60": 8,
    "Tesla P40": 24,
    "Tesla P100-PCIE-16GB": 16,
    "Tesla V100-SXM2-32GB": 32,
    "Tesla T4": 16,
    "NVIDIA A2": 16,
    "NVIDIA A10": 24,
    "NVIDIA A10G": 24,
    "NVIDIA A16": 16,
    "NVIDIA A30": 24,
    "NVIDIA A40": 48,
    "NVIDIA A100-SXM4-80GB": 80,
    "NVIDIA A800-SXM4-80GB": 80,
    "NVIDIA L4": 24,
    "NVIDIA L40": 48,
    "NVIDIA L40S": 48,
    "NVIDIA H100 80GB HBM3": 80,
    "NVIDIA H800": 80,
    "NVIDIA GH200 480GB": 96,
    "NVIDIA H200": 141,
}
"""The product names of NVIDIA cards, as their driver reports them, with the nominal memory in GiB."""

SHARED_MEMORY = ("NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)")
"""GPUs without their own memory."""

INTEL = {
    "Intel(R) Arc(TM) A770 Graphics": 16,
    "Intel(R) Arc(TM) B580 Graphics": 12,
    "Intel(R) Arc(TM) Pro B60 Graphics": 24,
    "Intel(R) Data Center GPU Flex 170": 16,
    "Intel(R) Data Center GPU Max 1100": 48,
}

only_for_the_names_of_this_ray = pytest.mark.skipif(
    Version(ray.__version__) < Version("2.60"), reason="older Ray versions shorten the names of some cards"
)


def intel_type(product, monkeypatch):
    monkeypatch.setitem(sys.modules, "dpctl", SimpleNamespace(SyclDevice=lambda _: SimpleNamespace(name=product)))
    return IntelGPUAcceleratorManager.get_current_node_accelerator_type()


def one_node(accelerator_type):
    return ClusterCapacity.of(gpu_node("node", cpus=8, accelerator_type=accelerator_type))


@only_for_the_names_of_this_ray
@pytest.mark.parametrize("product", [*NVIDIA, *SHARED_MEMORY])
def test_the_type_of_an_nvidia_product_is_the_same_as_in_ray(product):
    assert type_of_product(product) == NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(product)


@pytest.mark.parametrize("product", [*NVIDIA, *SHARED_MEMORY])
def test_a_policy_accepts_the_type_that_ray_derives_from_the_product(product):
    name = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(product)

    assert GpuPolicy(accelerator_type=name).plan(one_node(name)).max_concurrent_trials == 1


@only_for_the_names_of_this_ray
@pytest.mark.parametrize(("product", "gib"), NVIDIA.items())
def test_the_assumed_memory_of_a_type_is_known_and_never_exceeds_the_memory_of_a_card(product, gib):
    total = total_of_type(NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(product))

    assert 0 < total.memory_bytes < gib * 2**30
    assert total.variants or total.memory_bytes > 0.9 * gib * 2**30


@only_for_the_names_of_this_ray
@pytest.mark.parametrize("product", [product for product in NVIDIA if "(" not in product])
@pytest.mark.parametrize("suffix", ["", "-SHARED", "-MIG-1g.10gb"])
def test_the_label_of_gpu_feature_discovery_results_in_the_type_of_ray(product, suffix):
    label = re.sub(r"\s", "-", product) + suffix

    assert device_type({}, {}, {"nvidia.com/gpu.product": label}) == type_of_product(product)


@pytest.mark.parametrize("name", sorted(set(amd_product_dict.values())))
def test_a_policy_accepts_the_amd_types_of_ray(name):
    assert family_of_type(name).vendor == "AMD"
    assert GpuPolicy(accelerator_type=name).plan(one_node(name)).max_concurrent_trials == 1


@pytest.mark.parametrize(("product", "gib"), INTEL.items())
def test_a_policy_accepts_the_intel_types_of_ray_and_knows_their_memory(product, gib, monkeypatch):
    name = intel_type(product, monkeypatch)

    assert family_of_type(name).vendor == "Intel"
    assert 0 < total_of_type(name).memory_bytes < gib * 2**30
    assert GpuPolicy(accelerator_type=name).plan(one_node(name)).max_concurrent_trials == 1


def test_the_error_names_a_similar_type_of_the_nodes():
    for wanted, there in [("RTX-4090", "GeForce-RTX-4090"), ("A10O", "A100"), ("RTX-6000-Ada", "RTX-6000")]:
        with pytest.raises(InfeasibleRequestError, match=rf"Did you mean '{there}'\?"):
            GpuPolicy(accelerator_type=wanted).plan(one_node(there))


def test_the_error_names_a_similar_type_of_the_node_types():
    addable = NodeTypeCapacity(
        name="gpus", resources=Resources(cpus=8, gpus=1), max_nodes_to_add=2, accelerator_type="GeForce-RTX-5090"
    )
    cluster = ClusterCapacity.of(Resources(cpus=4)).model_copy(update={"node_types": (addable,)})

    for policy in (
        GpuPolicy(accelerator_type="RTX-5090"),
        GpuMemoryPolicy(gpu_memory="4GiB", accelerator_type="RTX-5090"),
    ):
        with pytest.raises(InfeasibleRequestError, match=r"Did you mean 'GeForce-RTX-5090'\?"):
            policy.plan(cluster)


def test_a_type_that_the_cluster_has_is_not_questioned():
    with pytest.raises(InfeasibleRequestError) as caught:
        GpuPolicy(accelerator_type="A40", gpus=2).plan(one_node("A40"))

    assert "Did you mean" not in str(caught.value)


def test_the_plan_assumes_the_smallest_size_of_a_name_and_names_the_others():
    plan = GpuMemoryPolicy(gpu_memory="8GiB").plan(one_node("RTX-6000"))

    assert plan.max_concurrent_trials == 2
    assert "RTX-6000 also exists with 48 GB (Ada)" in "\n".join(plan.reasons)


def test_the_memory_that_was_read_takes_precedence_over_the_type():
    node = gpu_node("node", cpus=8, accelerator_type="RTX-6000", gpu_memory_gib=47.9)

    assert GpuMemoryPolicy(gpu_memory="8GiB").plan(ClusterCapacity.of(node)).max_concurrent_trials == 5
