"""What AcceleratorPolicy plans for devices that are no GPUs, and what it refuses."""

import pytest

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    ClusterCapacity,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    Resources,
)


def with_devices(*shapes):
    """A cluster from (cpus, custom resources) pairs."""
    return ClusterCapacity.of(*(Resources(cpus=cpus, custom=custom) for cpus, custom in shapes))


def test_whole_devices_are_counted_node_by_node_and_share_the_cpus_of_the_poorest():
    plan = AcceleratorPolicy(resource="HPU", amount=2).plan(with_devices((16, {"HPU": 8}), (5, {"HPU": 3})))

    assert (plan.max_concurrent_trials, plan.resources_per_trial) == (5, {"cpu": 4, "HPU": 2})
    assert (plan.limited_by, plan.use_gpu) == ("HPU", False)


def test_a_share_of_an_npu_is_an_equal_part_of_it():
    plan = AcceleratorPolicy(resource="NPU", amount=0.3).plan(with_devices((12, {"NPU": 4})))

    assert (plan.max_concurrent_trials, plan.resources_per_trial) == (12, {"cpu": 1, "NPU": 0.3333})
    assert plan.reasons[0].startswith("0.3 NPU became 0.3333: a device holds 3 such workers")
    assert plan.reasons[1] == "no limit holds a worker to its share of NPU memory"


def test_gpus_are_planned_as_gpu_policy_plans_them():
    cluster = nodes((16, 4), (8, 1))

    plan = AcceleratorPolicy(resource="GPU", amount=0.3, num_workers=2).plan(cluster)

    assert plan == GpuPolicy(gpus=0.3, num_workers=2).plan(cluster)


def test_cpus_that_are_asked_for_limit_the_trials():
    plan = AcceleratorPolicy(resource="TPU", amount=1, cpus=8).plan(with_devices((16, {"TPU": 4})))

    assert (plan.max_concurrent_trials, plan.limited_by) == (2, "CPU")
    assert plan.reasons == ("1 TPU per worker, as asked for",)


def test_only_devices_of_the_type_that_is_asked_for_are_used():
    cluster = ClusterCapacity.of(
        gpu_node("a", gpus=0, cpus=8, accelerator_type="TPU-V4", custom={"TPU": 4}),
        gpu_node("b", gpus=0, cpus=99, accelerator_type="TPU-V6E", custom={"TPU": 8}),
    )

    plan = AcceleratorPolicy(resource="TPU", amount=4, accelerator_type="TPU-V4").plan(cluster)

    assert plan.max_concurrent_trials == 1
    assert plan.resources_per_trial == {"cpu": 8, "TPU": 4, "accelerator_type:TPU-V4": 0.001}


def test_train_workers_get_the_devices_and_the_driver_none():
    plan = AcceleratorPolicy(resource="neuron_cores", amount=2, num_workers=3).plan(
        with_devices((8, {"neuron_cores": 16}))
    )

    assert plan.resources_per_trial == {"cpu": 0, "memory": 2**20}
    assert (plan.max_concurrent_trials, plan.resources_per_worker) == (2, {"CPU": 1, "neuron_cores": 2})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource": "TPUS"}, "unknown accelerator resource 'TPUS'; did you mean 'TPU'"),
        ({"resource": "HPU", "amount": 0.5}, "amount=0.5 of HPU is not possible"),
        ({"resource": "TPU", "amount": 3}, "Ask for 2 or 4"),
        ({"resource": "TPU", "accelerator_type": "A100"}, "'A100' is not of resource 'TPU'"),
        (
            {"resource": "TPU", "num_workers": 2},
            "on whole slices only, so give topology and accelerator_type, or ask for",
        ),
        ({"resource": "HPU", "topology": "2x2"}, "topology='2x2' is for TPU slices"),
        ({"resource": "TPU", "topology": "2x2"}, "it needs resource='TPU' and an accelerator_type"),
    ],
)
def test_what_ray_would_not_hand_out_is_refused_when_the_policy_is_made(fields, message):
    with pytest.raises(InvalidResourcesError, match=message):
        AcceleratorPolicy(**fields)


CLUSTER = ClusterCapacity.of(
    gpu_node("a", gpus=0, cpus=8, accelerator_type="TPU-V4", custom={"TPU": 4}),
    gpu_node("b", gpus=0, cpus=4, custom={"HPU": 8}),
    gpu_node("c", gpus=0, cpus=4, accelerator_type="aws-neuron-core", custom={"neuron_cores": 1}),
)


@pytest.mark.parametrize(
    ("fields", "short_of", "message"),
    [
        ({"resource": "RBLN"}, "RBLN", r"no node has RBLN \(Rebellions RBLN\): short of RBLN. Add a node with RBLN"),
        ({"resource": "TPU", "amount": 8}, "TPU", "Ask for amount=4, or add a larger node"),
        ({"resource": "HPU", "amount": 9}, "HPU", "Ask for amount=8, or add a larger node"),
        ({"resource": "neuron_cores", "amount": 2}, "neuron_cores", "Ask for amount=1, or add a larger node"),
        ({"resource": "HPU", "amount": 8, "cpus": 5}, "CPU", "Ask for at most 4 CPUs per worker"),
        ({"resource": "HPU", "num_workers": 9}, "HPU", "holds 8 such workers at once.*Ask for num_workers=8"),
        (
            {"resource": "TPU", "accelerator_type": "TPU-V6E"},
            "TPU-V6E",
            "the cluster's TPU are TPU-V4: short of TPU-V6E. Leave accelerator_type out",
        ),
    ],
)
def test_what_this_cluster_cannot_give_is_refused_with_what_would_work(fields, short_of, message):
    with pytest.raises(InfeasibleRequestError, match=message) as caught:
        AcceleratorPolicy(**fields).plan(CLUSTER)

    assert caught.value.short_of == short_of
