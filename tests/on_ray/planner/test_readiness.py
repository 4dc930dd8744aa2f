"""Tests plan_when_ready with a real autoscaler whose launches succeed, fail or hang.

The tests share a cluster, and each test uses its own node type, so that their order does not matter.
"""

import logging
import signal
import subprocess
import sys

import pytest
import ray

from tests.clusters import nodes
from tests.on_ray.autoscaling import autoscaling_cluster, node_type
from tests.on_ray.rays import local_ray, wait_until, without_prestarted_workers
from tune_policies import (
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    NodeTypeCapacity,
    ProbeError,
    Resources,
    plan_when_ready,
    probe_cluster,
    release_capacity,
    request_capacity,
)
from tune_policies.ray_compat.autoscaler import find_autoscaler

# NVML does not list simulated GPUs.
pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]


def gpu_type(accelerator_type):
    return node_type(CPU=1, GPU=1, **{f"accelerator_type:{accelerator_type}": 1})


NEVER_S = 3600  # longer than a test may take, so that a call that waits for the timeout fails

TYPES = {
    "starts": gpu_type("T4"),
    "fails": gpu_type("A100"),
    "hangs": gpu_type("H100"),
    "late": gpu_type("L4"),
    "less": gpu_type("V100"),
    "requested": node_type(CPU=3),
    "never": node_type(CPU=64),
}


@pytest.fixture(scope="module")
def started():
    with without_prestarted_workers(), autoscaling_cluster(TYPES, v2=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(started):
    if not ray.is_initialized():
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
    yield started
    started.end_launches()


def gpu_or_cpu(accelerator_type):
    return FirstFeasiblePolicy(GpuPolicy(accelerator_type=accelerator_type), CpuPolicy())


def without_types():
    """Return the probed capacity without the autoscaler's node types, as on KubeRay."""
    return probe_cluster().model_copy(update={"node_types": None, "max_nodes_to_add": None})


def requested_nodes():
    return dict(find_autoscaler().requested())


@pytest.mark.usefixtures("cluster")
@pytest.mark.ray_border
def test_planning_waits_for_a_gpu_node_that_can_be_added():
    plan = plan_when_ready(gpu_or_cpu("T4"))

    assert (plan.use_gpu, plan.max_concurrent_trials) == (True, 1)
    assert requested_nodes() == {}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (probe_cluster, "the nodes that can be added are not sufficient"),
        (without_types, "and the autoscaler reports that it cannot add a node that satisfies the request"),
    ],
    ids=["known node types", "unknown node types"],
)
def test_a_policy_for_a_gpu_that_no_node_type_has_is_skipped_before_the_timeout(probe, why):
    plan = plan_when_ready(gpu_or_cpu("H200"), probe=probe, timeout_s=NEVER_S)

    assert not plan.use_gpu
    assert why in plan.reasons[0]
    assert requested_nodes() == {}


@pytest.mark.ray_border
def test_a_failed_launch_is_detected_immediately_and_does_not_affect_later_requests(cluster):
    cluster.launches(fails="fail")
    plan = plan_when_ready(gpu_or_cpu("A100"), timeout_s=NEVER_S)
    cluster.launches(fails="start")
    later = plan_when_ready(gpu_or_cpu("A100"))

    assert not plan.use_gpu
    assert "the launch of 'fails' failed" in plan.reasons[0]
    assert later.use_gpu


@pytest.mark.rest
def test_a_hanging_launch_is_abandoned_at_the_timeout(cluster):
    cluster.launches(hangs="hang")

    plan = plan_when_ready(gpu_or_cpu("H100"), timeout_s=3)

    assert not plan.use_gpu
    assert "no nodes started within 3 s" in plan.reasons[0]


@pytest.mark.rest
def test_an_earlier_alternative_is_used_if_its_node_starts_late(cluster):
    cluster.launches(late="hang", never="hang")
    lines = []

    def start_late(line):
        lines.append(line)
        if line.startswith("GpuPolicy is not possible"):
            cluster.launches(late="start")

    plan = plan_when_ready(
        FirstFeasiblePolicy(GpuPolicy(accelerator_type="L4"), CpuPolicy(cpus=64)), timeout_s=8, on_progress=start_late
    )

    assert plan.accelerator_type == "L4"
    assert any(
        line.startswith("CpuPolicy does not fit the alive nodes. Requesting nodes for 64 CPUs") for line in lines
    )


@pytest.mark.rest
def test_a_node_with_fewer_resources_than_declared_does_not_fulfill_the_request(cluster):
    cluster.launches(less="less")

    plan = plan_when_ready(gpu_or_cpu("V100"), timeout_s=60)

    assert not plan.use_gpu
    assert "and the autoscaler reports that it cannot add a node that satisfies the request" in plan.reasons[0]


INTERRUPTED = """
import sys, warnings, ray
from tune_policies import GpuPolicy, plan_when_ready
warnings.simplefilter("ignore")
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
try:
    plan_when_ready(GpuPolicy(accelerator_type='H100'), on_progress=lambda line: print(line, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.rest
def test_ctrl_c_releases_the_requested_nodes(cluster):
    cluster.launches(hangs="hang")
    command = [sys.executable, "-c", INTERRUPTED, cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        # Ray may print that tasks of other tests are infeasible.
        line = next(each for each in iter(child.stdout.readline, "") if each.startswith("GpuPolicy"))
        wait_until(lambda: any("H100" in bundle for bundle in requested_nodes()))
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=60)[0]

    assert line.startswith(
        "GpuPolicy does not fit the alive nodes. Requesting nodes for 1 CPU, 1 GPU, 0.001 accelerator_type:H100"
    )
    assert "interrupted" in rest
    assert requested_nodes() == {}


@pytest.mark.usefixtures("cluster")
@pytest.mark.ray_border
def test_request_capacity_requests_nodes_and_releases_them_after_the_block():
    plan = CpuPolicy(cpus=3).plan(nodes((3, 0)))

    with request_capacity(plan):
        during = requested_nodes()
        wait_until(lambda: any(node["Alive"] and node["Resources"].get("CPU") == 3 for node in ray.nodes()))

    assert during == {'{"CPU": 3.0}': 1}
    assert requested_nodes() == {}


@pytest.mark.usefixtures("cluster")
def test_request_capacity_releases_the_nodes_after_an_error():
    with pytest.raises(ZeroDivisionError), request_capacity(CpuPolicy().plan(nodes((1, 0)))):
        raise ZeroDivisionError

    assert requested_nodes() == {}


@pytest.mark.usefixtures("cluster")
def test_releasing_a_replaced_request_keeps_the_newer_request():
    plan = CpuPolicy().plan(nodes((1, 0)))

    request = request_capacity(plan)
    request_capacity(plan, num_trials=2)
    request.release()
    others = requested_nodes()
    release_capacity()

    assert others == {'{"CPU": 1.0}': 2}
    assert requested_nodes() == {}


@pytest.mark.usefixtures("cluster")
def test_node_types_that_are_too_small_are_not_requested():
    types = (NodeTypeCapacity(name="starts", resources=Resources(cpus=1, gpus=1), max_nodes_to_add=1),)
    lines = []

    with pytest.raises(
        InfeasibleRequestError, match="the nodes that can be added are not sufficient: with all nodes that can be"
    ):
        plan_when_ready(
            GpuPolicy(gpus=16),
            probe=lambda: probe_cluster().model_copy(update={"node_types": types}),
            on_progress=lines.append,
        )

    assert len(lines) == 1
    assert lines[0].startswith("GpuPolicy is not possible: the nodes that can be added are not sufficient")


@pytest.fixture(scope="module")
def cluster_v1():
    types = {name: TYPES[name] for name in ("starts", "fails")}
    with without_prestarted_workers(), autoscaling_cluster(types, v2=False) as started:
        yield started


@pytest.fixture
def connected_to_v1(cluster_v1):
    ray.shutdown()
    ray.init(address=cluster_v1.address, logging_level="ERROR", log_to_driver=False)
    yield cluster_v1
    ray.shutdown()


@pytest.mark.rest
@pytest.mark.ray_border
def test_autoscaler_v1_adds_a_gpu_node(connected_to_v1):
    plan = plan_when_ready(gpu_or_cpu("T4"))

    assert plan.use_gpu
    assert requested_nodes() == {}


@pytest.mark.rest
def test_an_impossible_request_to_autoscaler_v1_is_abandoned_before_the_timeout(connected_to_v1):
    plan = plan_when_ready(gpu_or_cpu("H200"), probe=without_types, timeout_s=NEVER_S)

    assert "and the autoscaler launches no further nodes for the request" in plan.reasons[0]


@pytest.mark.rest
@pytest.mark.ray_border
def test_the_reason_for_a_failed_launch_by_autoscaler_v1_is_reported(connected_to_v1):
    connected_to_v1.launches(fails="fail")

    plan = plan_when_ready(gpu_or_cpu("A100"), timeout_s=NEVER_S)

    assert "the launch of 'fails' failed: no such machine is left" in plan.reasons[0]


@pytest.fixture
def disconnected():
    ray.shutdown()


@pytest.mark.rest
@pytest.mark.usefixtures("disconnected")
def test_planning_does_not_wait_without_an_autoscaler(caplog):
    caplog.set_level(logging.INFO, logger="tune_policies")
    with local_ray(num_cpus=2):
        plan = plan_when_ready(gpu_or_cpu("T4"), timeout_s=NEVER_S)
        request_capacity(plan).release()
        release_capacity()
        with pytest.raises(InfeasibleRequestError, match="this cluster has no autoscaler") as caught:
            plan_when_ready(FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=9)), timeout_s=60)

    assert [error.short_of for error in caught.value.tried] == ["GPU", "CPU"]
    assert "plan_when_ready" not in str(caught.value)  # the error does not advise calling plan_when_ready again
    assert plan.max_concurrent_trials == 2
    assert "and this cluster has no autoscaler" in plan.reasons[0]
    assert "this cluster has no autoscaler, so no nodes are requested" in caplog.messages


@pytest.mark.usefixtures("disconnected")
def test_planning_and_requesting_without_a_connection_raise_an_error():
    plan = CpuPolicy().plan(nodes((1, 0)))

    for call in (lambda: plan_when_ready(CpuPolicy()), lambda: request_capacity(plan), release_capacity):
        with pytest.raises(ProbeError, match=r"not connected to a Ray cluster. Call ray.init\(\)"):
            call()


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"num_trials": 0}])
def test_timeout_s_and_num_trials_must_be_above_zero(wrong):
    with pytest.raises(InvalidResourcesError, match=f"{next(iter(wrong))} must be"):
        plan_when_ready(CpuPolicy(), **wrong)
