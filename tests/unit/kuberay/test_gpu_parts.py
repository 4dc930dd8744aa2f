"""Plans never count parts of GPUs as whole GPUs."""

import pytest

from tests.decisions import a_decision
from tune_policies import (
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
)
from tune_policies.kuberay import NodeCatalog, NodeType, design_cluster
from tune_policies.kuberay.design.catalog_file import parts_of_gpus
from tune_policies.kuberay.design.forecast import forecast_trials

GKE_PROFILE = {"cloud.google.com/gke-gpu-partition-size": "3g.20gb"}
GKE_SHARING = {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}


def parts(key, **fields):
    fields = {"gpus": 1, "accelerator_type": "A100", "price_per_hour": 0.5, **fields}
    return NodeType(name="parts", cpus=4, memory="12GiB", device_key=key, **fields)


def node_type(name, gpus=0):
    kind = "A100" if gpus else None
    return NodeType(
        name=name, cpus=12, memory="80GiB", gpus=gpus, accelerator_type=kind, price_per_hour=30 if gpus else 1
    )


def planned(policy, *node_types, num_trials=16):
    return design_cluster(policy, NodeCatalog(nodes=node_types), num_trials)


@pytest.mark.parametrize(
    ("key", "selector", "expected"),
    [
        pytest.param("nvidia.com/gpu", {}, None, id="whole GPUs"),
        pytest.param("nvidia.com/mig-1g.5gb", {}, [4.75e9] * 2, id="MIG"),
        pytest.param("nvidia.com/mig-1g.10gb.me", {}, [9.5e9] * 2, id="MIG with media extensions"),
        pytest.param("nvidia.com/gpu", GKE_PROFILE, [19e9] * 2, id="MIG on GKE"),
        pytest.param("nvidia.com/mig-of-mine", {}, [], id="an unknown profile"),
        pytest.param("nvidia.com/gpu.shared", {}, [], id="time slices"),
        pytest.param("nvidia.com/gpu", GKE_SHARING, [], id="time slices on GKE"),
    ],
)
def test_gpu_parts_have_the_memory_of_their_mig_profile(key, selector, expected):
    found = parts_of_gpus([key], selector, 2)

    assert (None if found is None else [device.memory_bytes for device in found]) == expected


@pytest.mark.parametrize(
    ("gpu_memory", "num_trials", "expected"),
    [
        pytest.param("6GiB", 16, ("whole", 3, 18), id="more memory than a part has: other nodes"),
        pytest.param("2GiB", 14, ("parts", 7, 14), id="less memory: two trials share a part"),
    ],
)
def test_trials_run_on_gpu_parts_only_if_a_part_has_enough_memory(gpu_memory, num_trials, expected):
    policy = GpuMemoryPolicy(gpu_memory=gpu_memory, cpus=1)
    groups = planned(policy, parts("nvidia.com/mig-1g.5gb"), node_type("whole", gpus=1), num_trials=num_trials).groups

    assert [(each.node_type.name, each.max_nodes, each.trials_at_once) for each in groups] == [expected]


def test_the_memory_of_time_slices_is_unknown():
    with pytest.raises(InfeasibleRequestError, match="GPU memory"):
        planned(GpuMemoryPolicy(gpu_memory="6GiB"), parts("nvidia.com/gpu.shared"))


@pytest.mark.parametrize("least", [0, 1])
def test_a_forecast_uses_the_memory_of_gpu_parts(least):
    spec = planned(GpuPolicy(), parts("nvidia.com/mig-1g.5gb"), num_trials=7).spec
    group = spec.groups[0].model_copy(update={"min_nodes": least})

    with pytest.raises(InfeasibleRequestError, match=r"4\.4 GiB"):
        forecast_trials(GpuMemoryPolicy(gpu_memory="6GiB"), spec.model_copy(update={"groups": (group,)}))


def test_a_measurement_on_whole_gpus_does_not_apply_to_gpu_parts():
    catalog = NodeCatalog(nodes=(parts("nvidia.com/mig-1g.5gb"), node_type("a100", gpus=1), node_type("cpu")))
    policy = MixedPolicy(GpuPolicy(gpus=1, cpus=1), CpuPolicy(cpus=4))

    plan = design_cluster(policy, catalog, 4, decision=a_decision("A100"))

    assert "the design does not use parts, because the benchmark measured only A100" in plan.reasons


@pytest.mark.parametrize("key", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_a_pod_with_several_gpu_parts_is_rejected(key):
    """CUDA exposes at most one MIG device to a process, and two time slices may belong to the same GPU."""
    with pytest.raises(InvalidResourcesError, match="Set gpus to 1"):
        NodeCatalog(nodes=(parts(key, gpus=2),))
