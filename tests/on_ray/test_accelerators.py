"""Trials see the devices that they were given, whatever the family; Ray hands out what the core says it does."""

from collections import Counter

import pytest
import ray

from tests.marks import further
from tests.on_ray.devices import VARIABLES, all_of, devices_of_each_trial
from tests.on_ray.rays import local_ray
from tune_policies import AcceleratorPolicy, probe_cluster
from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, FAMILIES


@pytest.fixture(scope="module")
def capacity():
    """One Ray that counts devices of every family but GPUs; there need be none behind them."""
    counted = {family.resource: 4 for family in FAMILIES if family.resource != "GPU"}
    with pytest.MonkeyPatch.context() as patch:
        # On a node with TPUs Ray asks these, and Google's metadata server for those that are not set.
        patch.setenv("TPU_NAME", "slice")
        patch.setenv("TPU_WORKER_ID", "0")
        patch.setenv("TPU_TOPOLOGY", "2x2")
        patch.setenv("TPU_ACCELERATOR_TYPE", "v6e-4")
        with local_ray(num_cpus=4, num_gpus=0, resources={**counted, "accelerator_type:A100": 1}):
            yield probe_cluster()


@pytest.mark.parametrize(
    ("family", "resource"),
    [
        ("Google TPU", "TPU"),
        *further(("AWS Neuron", "neuron_cores"), ("Intel Gaudi", "HPU"), ("Huawei Ascend", "NPU")),
    ],
)
def test_trials_side_by_side_see_their_own_devices_and_together_all(capacity, tmp_path, family, resource):
    plan = AcceleratorPolicy(resource=resource, amount=2).plan(capacity)

    seen = devices_of_each_trial(plan, VARIABLES[family], tmp_path)

    assert [len(devices) for devices in seen] == [2, 2]
    assert all_of(seen) == ["0", "1", "2", "3"]


@pytest.mark.rest
def test_trials_on_shares_of_an_npu_see_the_one_that_they_are_on(capacity, tmp_path):
    plan = AcceleratorPolicy(resource="NPU", amount=0.5, cpus=1).plan(capacity)

    seen = devices_of_each_trial(plan, VARIABLES["Huawei Ascend"], tmp_path)

    assert [len(devices) for devices in seen] == [1, 1, 1, 1]
    assert max(Counter(all_of(seen)).values()) <= 2


@pytest.mark.parametrize("resource", ["GPU", "NPU"])
def test_ray_refuses_more_than_one_device_and_a_part(capacity, resource):
    """No manager of a family says so, and yet it cannot be had."""
    options = {"num_gpus": 1.5} if resource == "GPU" else {"resources": {resource: 1.5}}

    with pytest.raises(ValueError, match=f"{resource} resource quantities >1 must.*be whole numbers"):
        ray.remote(**options)(int).remote()


@pytest.mark.rest
def test_ray_holds_as_much_of_a_device_type_as_the_plan_counts(capacity):
    @ray.remote(num_cpus=0, accelerator_type="A100")
    def held():
        return ray.get_runtime_context().get_assigned_resources()

    assigned = ray.get(held.remote(), timeout=60)

    assert assigned["accelerator_type:A100"] == pytest.approx(ACCELERATOR_TYPE_AMOUNT)
