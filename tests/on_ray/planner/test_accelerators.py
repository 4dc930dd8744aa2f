"""Trials of every accelerator family see exactly the devices that Ray assigned to them."""

from collections import Counter

import pytest
import ray

from tests.on_ray.devices import VARIABLES, all_devices, devices_of_each_trial
from tests.on_ray.rays import local_ray
from tune_policies import AcceleratorPolicy, probe_cluster
from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, FAMILIES


@pytest.fixture(scope="module")
def capacity():
    """A Ray instance with simulated devices of every family except GPUs."""
    counted = {family.resource: 4 for family in FAMILIES if family.resource != "GPU"}
    with pytest.MonkeyPatch.context() as patch:
        # On a node with TPUs, Ray reads these variables and queries Google's metadata server for any that are not set.
        patch.setenv("TPU_NAME", "slice")
        patch.setenv("TPU_WORKER_ID", "0")
        patch.setenv("TPU_TOPOLOGY", "2x2")
        patch.setenv("TPU_ACCELERATOR_TYPE", "v6e-4")
        with local_ray(num_cpus=4, num_gpus=0, resources={**counted, "accelerator_type:A100": 1}):
            yield probe_cluster()


@pytest.mark.rest
@pytest.mark.parametrize(
    ("family", "resource"),
    [
        ("Google TPU", "TPU"),
        pytest.param("AWS Neuron", "neuron_cores", marks=pytest.mark.slow),
        pytest.param("Intel Gaudi", "HPU", marks=pytest.mark.slow),
        pytest.param("Huawei Ascend", "NPU", marks=pytest.mark.slow),
    ],
)
def test_concurrent_trials_share_no_device_and_use_all_devices_of_the_node(capacity, tmp_path, family, resource):
    plan = AcceleratorPolicy(resource=resource, amount=2).plan(capacity)

    seen = devices_of_each_trial(plan, VARIABLES[family], tmp_path)

    assert [len(devices) for devices in seen] == [2, 2]
    assert all_devices(seen) == ["0", "1", "2", "3"]


@pytest.mark.rest
def test_a_trial_with_a_fraction_of_an_npu_sees_only_its_npu(capacity, tmp_path):
    plan = AcceleratorPolicy(resource="NPU", amount=0.5, cpus=1).plan(capacity)

    seen = devices_of_each_trial(plan, VARIABLES["Huawei Ascend"], tmp_path)

    assert [len(devices) for devices in seen] == [1, 1, 1, 1]
    assert max(Counter(all_devices(seen)).values()) <= 2


@pytest.mark.rest
@pytest.mark.parametrize("resource", ["GPU", "NPU"])
def test_ray_rejects_fractional_amounts_above_one_device(capacity, resource):
    """This rule cannot be read from Ray's accelerator managers."""
    options = {"num_gpus": 1.5} if resource == "GPU" else {"resources": {resource: 1.5}}

    with pytest.raises(ValueError, match=f"{resource} resource quantities >1 must.*be whole numbers"):
        ray.remote(**options)(int).remote()


@pytest.mark.rest
def test_ray_reserves_the_planned_amount_of_an_accelerator_type(capacity):
    @ray.remote(num_cpus=0, accelerator_type="A100")
    def assigned_resources():
        return ray.get_runtime_context().get_assigned_resources()

    assigned = ray.get(assigned_resources.remote(), timeout=60)

    assert assigned["accelerator_type:A100"] == pytest.approx(ACCELERATOR_TYPE_AMOUNT)
