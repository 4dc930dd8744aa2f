"""GPU memory of nodes that are not there yet: what a catalogue and the names of MIG devices say of it."""

import pytest

from tune_policies import (
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    NodeCatalog,
    NodeType,
    load_cluster,
    plan_cluster,
    write_cluster,
)

GB = 10**9


def catalog(**fields):
    node = {"name": "a100", "cpus": 14, "memory_bytes": "64GiB", "gpus": 7, "accelerator_type": "A100", **fields}
    return NodeCatalog(node_types=(NodeType(**node),))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 38 * GB),
        ({"device_key": "nvidia.com/mig-1g.10gb"}, 9.5 * GB),
        ({"gpu_memory_bytes": 12 * GB}, 12 * GB),
        ({"device_key": "nvidia.com/mig-1g.10gb", "gpu_memory_bytes": 12 * GB}, 12 * GB),
    ],
    ids=["of the type", "of the MIG device", "as the catalogue says", "as it says, whatever the name"],
)
def test_a_trial_has_the_memory_of_the_devices_that_its_node_will_have(fields, expected):
    plan = plan_cluster(GpuPolicy(), catalog(**fields), num_trials=7)

    assert plan.trials.gpu_memory_bytes == expected


def test_a_training_that_is_larger_than_a_mig_device_is_not_planned_on_it():
    with pytest.raises(InfeasibleRequestError):
        plan_cluster(GpuMemoryPolicy(gpu_memory="12GiB"), catalog(device_key="nvidia.com/mig-1g.10gb"), num_trials=7)


def test_the_memory_of_mig_devices_is_read_again_from_a_written_manifest(tmp_path):
    plan = plan_cluster(GpuPolicy(), catalog(device_key="nvidia.com/mig-1g.10gb"), num_trials=7)
    path = tmp_path / "cluster.yaml"
    path.write_text(write_cluster(plan))

    assert load_cluster(path).groups[0].gpu_memory_bytes == 9.5 * GB
