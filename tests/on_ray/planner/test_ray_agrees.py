"""Ray schedules exactly as many concurrent trials as the plan contains.

Each trial consists of the placement groups that Tune and Train would request, on real nodes with simulated GPUs.
"""

import warnings
from types import SimpleNamespace

import pytest
import ray

from tests.evidence.plans.trials_on_ray import disagreement
from tests.on_ray.rays import cluster_of
from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    CpuPolicy,
    EvenSplitPolicy,
    GpuDevice,
    GpuPolicy,
    ProbeWarning,
    ReservingPolicy,
    SelectingPolicy,
    probe_cluster,
)

pytestmark = pytest.mark.ci

GIB = 2**30


def node(cpus, gpus=0, **more):
    return {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": 100 * 2**20, **more}


def named(node_id):
    return {"env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id}}


FIRST = "a" * 56

CLUSTERS = {
    "labels, types and licenses": [
        node(4, 1, labels={"zone": "eu"}, resources={"accelerator_type:A100": 1, "license": 3}, **named(FIRST)),
        node(6, 2, labels={"zone": "us", "disk": "ssd"}, resources={"accelerator_type:T4": 1}),
        node(8, 1, resources={"license": 2}),
    ],
    "many GPUs": [node(32, 8)],
    "uneven nodes": [node(8, 4), node(5, 1), node(16)],
    "little host memory": [node(0, 1), node(8, 4, memory=4 * GIB, resources={"NPU": 4})],
}
EVERY_TIME = "labels, types and licenses"

# These policies plan as many trials as fit, so an additional trial must wait.
FILLING = {
    "labels, types and licenses": [
        SelectingPolicy(CpuPolicy(num_workers=2), label_selector={"zone": "!us"}),
        SelectingPolicy(GpuPolicy(gpus=0.3), label_selector={"zone": "in(eu,us)", "disk": "!ssd"}),
        SelectingPolicy(GpuPolicy(gpus=0.5, num_workers=2), exclude_nodes=[FIRST]),
        GpuPolicy(gpus=0.25, accelerator_type=("H100", "A100", "T4")),
        GpuPolicy(gpus=0.5, min_gpu_memory="20GiB", num_workers=2),
        CpuPolicy(cpus=0.5, custom={"license": 1}, num_workers=2),
    ],
    "many GPUs": [GpuPolicy(gpus=0.6, num_workers=8), EvenSplitPolicy(num_trials=80, min_gpus=0.3)],
    "uneven nodes": [GpuPolicy(gpus=2), CpuPolicy(cpus=2, num_workers=6)],
    "little host memory": [
        AcceleratorPolicy(resource="NPU", amount=0.3, memory="900MiB"),
        GpuPolicy(gpus=0.3, cpus=0),
    ],
}

# These policies leave resources free, so the test checks only that the planned trials fit.
SPARING = {
    "many GPUs": [ReservingPolicy(CappedPolicy(GpuPolicy(), 5), gpus=4, cpus=4)],
}


def shapes(name):
    for fills, policies in ((True, FILLING), (False, SPARING)):
        for policy in policies.get(name, ()):
            marks = () if name == EVERY_TIME else pytest.mark.rest
            yield pytest.param(name, policy, fills, marks=marks, id=f"{name}: {type(policy).__name__} {policy}")


@pytest.fixture(scope="module")
def cluster(request):
    with cluster_of(*CLUSTERS[request.param]) as started:
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProbeWarning)  # NVML does not list simulated GPUs
            capacity = probe_cluster()
        read = sorted((node.resources.cpus, node.resources.gpus) for node in capacity.nodes)
        assert read == sorted((node["num_cpus"], node["num_gpus"]) for node in CLUSTERS[request.param])
        yield SimpleNamespace(capacity=capacity)


@pytest.mark.parametrize(
    ("cluster", "policy", "fills"),
    [shape for name in CLUSTERS for shape in shapes(name)],  # grouped by cluster, so that each cluster starts only once
    indirect=["cluster"],
    scope="module",
)
def test_ray_schedules_all_planned_trials_concurrently_and_no_further_trial(cluster, policy, fills):
    plan = policy.plan(cluster.capacity)
    strategies = ("PACK", "SPREAD") if plan.num_workers > 1 else ("PACK",)

    found = {strategy: disagreement(plan, strategy, fills=fills) for strategy in strategies}
    assert not any(found.values()), found


@pytest.mark.rest
@pytest.mark.parametrize("cluster", ["many GPUs"], indirect=True, scope="module")
def test_trials_fit_if_the_gpu_driver_lists_fewer_gpus_than_ray(cluster):
    devices = [GpuDevice(index=i, name="GPU", memory_bytes=16 * GIB) for i in range(7)]
    capacity = cluster.capacity.with_nodes(
        node.model_copy(update={"devices": tuple(devices)}) for node in cluster.capacity.nodes
    )

    plan = ReservingPolicy(GpuPolicy(), gpus=1).plan(capacity)

    assert plan.max_concurrent_trials == 7
    assert disagreement(plan, "PACK", fills=False) is None


@pytest.mark.parametrize("cluster", [EVERY_TIME], indirect=True, scope="module")
@pytest.mark.parametrize(
    ("planned", "found"),
    [(3, "Ray schedules a further trial"), (5, "1 of 5 placement groups wait")],
    ids=["too few", "too many"],
)
def test_a_wrong_plan_is_detected(cluster, planned, found):
    plan = CpuPolicy(cpus=4).plan(cluster.capacity)
    slots = tuple(slot.model_copy(update={"max_concurrent_trials": planned}) for slot in plan.slots)

    assert found in disagreement(plan.model_copy(update={"slots": slots}), "PACK", fills=True, timeout_s=1)
