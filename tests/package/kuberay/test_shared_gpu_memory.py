"""Tests of GPUs that Kubernetes shares below Ray: 40 manifests in 8 ways of sharing.

The fields follow the documentation of KAI Scheduler, HAMi, DRA, and NVIDIA's device plugin and GPU feature discovery.
Each manifest is also read by Ray's own reader.
"""

import copy
import json

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from tests.clusters import GIB, gpu_node
from tune_policies import (
    AutoscalingPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuDevice,
    GpuMemoryPolicy,
    InfeasibleRequestError,
    NodeCapacity,
    Resources,
)
from tune_policies.kuberay import load_cluster
from tune_policies.kuberay.lint.linting import lint_text

MIB = 2**20
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
A100_MIB = 40_536
T4 = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
T4_MIB = 15_079
GPU = {"nvidia.com/gpu": "1"}


def manifest(limits=None, *, annotations=None, selector=None, resources=None, num_gpus=None, claims=None, pod=None):
    """Return a RayCluster with 2 worker pods of 8 CPUs."""
    amounts = {"cpu": "8", "memory": "32Gi"}
    container = {
        "name": "ray-worker",
        "image": "rayproject/ray:2.60.0-gpu",
        "resources": {"limits": {**amounts, **(limits or {})}, "requests": amounts},
    }
    if claims:
        container["resources"]["claims"] = [{"name": name} for name in claims]
    head = {"name": "ray-head", "image": "rayproject/ray:2.60.0", "resources": {"limits": amounts, "requests": amounts}}
    group = {
        "groupName": "gpus",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
        "rayStartParams": {} if num_gpus is None else {"num-gpus": num_gpus},
        "template": {
            "metadata": {"annotations": annotations or {}},
            "spec": {"nodeSelector": selector or {}, "containers": [container], **(pod or {})},
        },
    }
    if resources:
        group["resources"] = resources
    spec = {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": {"containers": [head]}}},
        "workerGroupSpecs": [group],
    }
    metadata = {"name": "shared", "namespace": "default"}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def kai(annotations, **more):
    pod = {"schedulerName": "kai-scheduler"}
    return manifest(annotations=annotations, **{"num_gpus": "1", "pod": pod, "selector": A100, **more})


def hami(limits, **more):
    return manifest({**GPU, **limits}, **{"selector": A100, **more})


def dra(**more):
    claims = [{"name": "gpu", "resourceClaimTemplateName": "single-gpu"}]
    return manifest(**{"selector": A100, "claims": ["gpu"], "pod": {"resourceClaims": claims}, **more})


def on_labels(labels, limits=GPU):
    return manifest(limits, selector=labels)


def resized(max_cpu="16", max_memory="64Gi"):
    limits = {"max-cpu": max_cpu, "max-memory": max_memory, "resize-timeout": 60}
    return with_annotations(manifest(GPU, selector=A100), {"ray.io/ippr": json.dumps({"groups": {"gpus": limits}})})


def with_annotations(data, annotations):
    return {**data, "metadata": {**data["metadata"], "annotations": annotations}}


KAI_FRACTIONS = {
    "KAI, half an A100": (kai({"gpu-fraction": "0.5"}), A100_MIB / 2),
    "KAI, a fifth of an A100": (kai({"gpu-fraction": "0.2"}), A100_MIB / 5),
    "KAI, half a T4": (kai({"gpu-fraction": "0.5"}, selector=T4), T4_MIB / 2),
    "KAI, a fraction in the group's resources": (
        kai({"gpu-fraction": "0.25"}, num_gpus=None, resources={"CPU": "8", "GPU": "1"}), A100_MIB / 4,
    ),
    "KAI, a fraction of an unknown GPU": (kai({"gpu-fraction": "0.5"}, selector={}), None),
}  # fmt: skip
KAI_MEMORY = {
    "KAI, 4,000 MiB": (kai({"gpu-memory": "4000"}), 4000),
    "KAI, 2,000 MiB of an unknown GPU": (kai({"gpu-memory": "2000"}, selector={}), 2000),
    "KAI, 12,000 MiB of a T4": (kai({"gpu-memory": "12000"}, selector=T4), 12_000),
    "KAI, memory with a unit": (kai({"gpu-memory": "4Gi"}), None),
    "KAI, memory for another container": (
        kai({"gpu-memory": "4000", "gpu-fraction-container-name": "sidecar"}), None,
    ),
}  # fmt: skip
HAMI = {
    "HAMi, 10,240 MiB": (hami({"nvidia.com/gpumem": 10240}), 10_240),
    "HAMi, 30 %": (hami({"nvidia.com/gpumem-percentage": 30}), A100_MIB * 0.3),
    "HAMi, memory and cores": (hami({"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}), 3000),
    "HAMi, only cores": (hami({"nvidia.com/gpucores": 50}), None),
    "HAMi, more memory than the GPU has": (hami({"nvidia.com/gpumem": 50_000}), A100_MIB),
}
CLAIMS = {
    "DRA, not counted": (dra(), None),
    "DRA, counted by num-gpus": (dra(num_gpus="1"), None),
    "DRA, counted in the group's resources": (dra(resources={"CPU": "8", "GPU": "1"}), None),
    "DRA, one claim for all pods": (
        dra(num_gpus="1", pod={"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared-gpu"}]}), None,
    ),
    "DRA, two claims": (dra(num_gpus="2", claims=["gpu0", "gpu1"]), None),
}  # fmt: skip
MPS = {
    "MPS, 4 clients of an A100": (
        on_labels({**A100, "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}), A100_MIB / 4,
    ),
    "MPS on GKE": (
        on_labels({
            **T4, "cloud.google.com/gke-gpu-sharing-strategy": "mps",
            "cloud.google.com/gke-max-shared-clients-per-gpu": "3",
        }), T4_MIB / 3,
    ),
    "MPS with an unknown number of clients": (
        on_labels({**A100, "nvidia.com/gpu.sharing-strategy": "mps"}), None,
    ),
    "MPS, the shared key": (
        on_labels(
            {**A100, "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "2"},
            {"nvidia.com/gpu.shared": "1"},
        ), A100_MIB / 2,
    ),
    "MPS, an RTX 4090": (
        on_labels({
            "nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090-SHARED",
            "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "8",
        }), 24 * 1024 / 8,
    ),
}  # fmt: skip
TIME_SLICES = {
    "time slices, the shared key": (on_labels(A100, {"nvidia.com/gpu.shared": "1"}), None),
    "time slices, the product's label": (on_labels({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}), None),
    "time slices, 10 replicas": (
        on_labels({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "10"}), T4_MIB / 10,
    ),
    "time slices on GKE": (
        on_labels({**T4, "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}), None,
    ),
    "time slices on GKE, 2 clients": (
        on_labels({
            **T4, "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
            "cloud.google.com/gke-max-shared-clients-per-gpu": "2",
        }), T4_MIB / 2,
    ),
}  # fmt: skip
MIG = {
    "MIG, strategy mixed": (on_labels(A100, {"nvidia.com/mig-1g.5gb": "1"}), 4864),
    "MIG, strategy mixed, counted": (manifest({"nvidia.com/mig-3g.20gb": "1"}, selector=A100, num_gpus="1"), 19_968),
    "MIG, strategy single": (on_labels({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}), 4864),
    "MIG, one configuration for the node": (on_labels({**A100, "nvidia.com/mig.config": "all-2g.10gb"}), 9856),
    "MIG with time slices on GKE": (
        on_labels({
            **A100, "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
            "cloud.google.com/gke-max-shared-clients-per-gpu": "2",
        }), 4864 / 2,
    ),
}  # fmt: skip
RESIZED = {
    "in-place resize, whole GPUs": (resized(), A100_MIB),
    "in-place resize, only CPUs": (resized(max_memory="32Gi"), A100_MIB),
    "in-place resize, HAMi": (resized() | {"spec": hami({"nvidia.com/gpumem": 5000})["spec"]}, 5000),
    "in-place resize, KAI": (resized() | {"spec": kai({"gpu-fraction": "0.5"})["spec"]}, A100_MIB / 2),
    "in-place resize, MIG": (
        resized() | {"spec": on_labels({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"})["spec"]}, 4864,
    ),
}  # fmt: skip

MANIFESTS = {
    **KAI_FRACTIONS,
    **KAI_MEMORY,
    **HAMI,
    **CLAIMS,
    **MPS,
    **TIME_SLICES,
    **MIG,
    **RESIZED,
}
"""Each manifest with the GPU memory that a pod may use, in MiB, or ``None`` if the manifest does not contain it."""

every_manifest = pytest.mark.parametrize(
    ("data", "mib"), [pytest.param(*case, id=name) for name, case in MANIFESTS.items()]
)


def loaded(data, folder):
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_cluster(path)


def rules(data):
    return {finding.rule for finding in lint_text(yaml.safe_dump(data), "cluster.yaml")}


def gpus_of_ray(data):
    config = _derive_autoscaling_config_from_ray_cr(copy.deepcopy(data))
    return config["available_node_types"]["gpus"]["resources"].get("GPU", 0)


def test_there_are_five_manifests_for_each_of_eight_ways_of_sharing():
    assert len(MANIFESTS) == 40


@every_manifest
def test_a_group_has_as_many_gpus_as_ray_counts(data, mib, tmp_path):
    (group,) = loaded(data, tmp_path).groups

    assert group.resources.gpus == gpus_of_ray(data)


@every_manifest
@pytest.mark.parametrize("gpu_memory", ["1GiB", "3GiB", "8GiB"])
def test_trials_get_no_more_gpu_memory_than_their_pod_has(data, mib, gpu_memory, tmp_path):
    try:
        plan = AutoscalingPolicy(GpuMemoryPolicy(gpu_memory=gpu_memory)).plan(loaded(data, tmp_path).capacity)
    except InfeasibleRequestError:
        promised = 0
    else:
        promised = sum(slot.gpu_memory_bytes * slot.max_concurrent_trials for slot in plan.slots) / 2

    assert promised <= (mib or 0) * MIB


def on_affinity(**values):
    """Return a manifest whose pods select labels of nodes by a required node affinity."""
    expressions = [{"key": f"nvidia.com/gpu.{key}", "operator": "In", "values": each} for key, each in values.items()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return labeled(manifest(GPU, pod={"affinity": affinity}))


def labeled(data):
    """Return the manifest with the device type A100 in the labels of its group."""
    data["spec"]["workerGroupSpecs"][0]["labels"] = {"ray.io/accelerator-type": "A100"}
    return data


def as_labels(data):
    """Return the manifest with the annotations of its pods as labels."""
    metadata = data["spec"]["workerGroupSpecs"][0]["template"]["metadata"]
    metadata["labels"] = metadata.pop("annotations")
    return data


COMBINATIONS = {
    "KAI, one part that Ray counts as 2 GPUs": (kai({"gpu-fraction": "0.5"}, num_gpus="2"), A100_MIB / 2),
    "HAMi, one GPU that Ray counts as 2": (hami({"nvidia.com/gpumem": 10_240}, num_gpus="2"), 10_240),
    "a whole GPU that Ray counts as 4": (manifest(GPU, selector=A100, num_gpus="4"), A100_MIB),
    "MIG, one device that Ray counts as 2": (
        manifest({"nvidia.com/mig-3g.20gb": "1"}, selector=A100, num_gpus="2"), 19_968,
    ),
    "MIG, devices of two sizes": (
        manifest({"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 1}, selector=A100, num_gpus="2"), 4864 * 2,
    ),
    "MPS, the label of the device plugin": (on_labels({**A100, "nvidia.com/mps.capable": "true"}), None),
    "time slices, a node affinity": (
        on_affinity(product=["NVIDIA-A100-SXM4-40GB-SHARED"], replicas=["4"]), A100_MIB / 4,
    ),
    "time slices, several numbers": (
        on_affinity(product=["NVIDIA-A100-SXM4-40GB-SHARED"], replicas=["2", "10"]), A100_MIB / 10,
    ),
    "time slices, whole GPUs too": (
        on_affinity(product=["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-SHARED"]), None,
    ),
    "DRA, a claim of another container": (labeled(dra(claims=None, num_gpus="1")), None),
    "KAI, an annotation of the cluster": (
        with_annotations(kai({}), {"gpu-fraction": "0.5"}), None,
    ),
    "KAI, a label": (as_labels(kai({"gpu-fraction": "0.5"})), None),
    "Koordinator": (manifest({"koordinator.sh/gpu-memory-ratio": 50}, selector=A100, num_gpus="1"), None),
    "Aliyun": (manifest({"aliyun.com/gpu-mem": 3}, selector=A100, num_gpus="1"), None),
    "HAMi, a misspelled amount": (hami({"nvidia.com/gpumemory": 3000}), None),
    "Volcano": (
        manifest({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}, selector=A100, num_gpus="1"), 3000,
    ),
}  # fmt: skip
"""Combinations and mistakes, with the GPU memory that a pod may use in MiB, or ``None`` if it is unknown."""


@pytest.mark.parametrize(("data", "mib"), [pytest.param(*case, id=name) for name, case in COMBINATIONS.items()])
@pytest.mark.parametrize("gpu_memory", ["1GiB", "3GiB", "8GiB"])
def test_combined_ways_of_sharing_promise_no_more_gpu_memory_than_the_pod_has(data, mib, gpu_memory, tmp_path):
    try:
        plan = AutoscalingPolicy(GpuMemoryPolicy(gpu_memory=gpu_memory)).plan(loaded(data, tmp_path).capacity)
    except InfeasibleRequestError:
        promised = 0
    else:
        promised = sum(slot.gpu_memory_bytes * slot.max_concurrent_trials for slot in plan.slots) / 2

    assert promised <= (mib or 0) * MIB


def test_a_plan_states_that_ray_counts_more_gpus_than_a_pod_has(tmp_path):
    cluster = loaded(manifest(GPU, selector=A100, num_gpus="4"), tmp_path)

    assert any("counts 4 GPUs" in text and "only 1" in text for text in cluster.assumptions)


def test_a_claim_for_a_network_interface_leaves_the_gpu_memory_known(tmp_path):
    data = manifest(GPU, selector=A100, claims=["rdma-nic"], pod={"resourceClaims": [{"name": "rdma-nic"}]})

    assert GpuMemoryPolicy(gpu_memory="30GiB").plan(loaded(data, tmp_path).capacity).max_concurrent_trials == 2


def test_ray_before_2_56_does_not_resize_pods(tmp_path):
    data = resized()
    data["spec"]["rayVersion"] = "2.55.0"

    assert loaded(data, tmp_path).groups[0].resources.cpus == 8
    assert "resize-ignored" in rules(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(hami({"nvidia.com/gpumem": 10_240}, num_gpus="2"), id="HAMi"),
        pytest.param(hami({"nvidia.com/gpu-mem": 10_240}, num_gpus="2"), id="HAMi, with a misspelled amount"),
        pytest.param(kai({"gpu-fraction": "0.5"}, num_gpus="2"), id="KAI"),
    ],
)
def test_lint_finds_a_number_of_parts_that_ray_counts_but_kubernetes_does_not_give(data):
    assert "gpus-differ-from-limit" in rules(data)


def test_volcano_needs_no_number_of_gpus_without_an_autoscaler():
    data = manifest({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}, selector=A100)
    data["spec"]["enableInTreeAutoscaling"] = False

    assert "hami-gpus-missing" not in rules(data)


@every_manifest
def test_a_trial_runs_if_the_known_part_of_its_pod_is_large_enough(data, mib, tmp_path):
    if mib is None or not gpus_of_ray(data):
        pytest.skip("the memory is unknown, or Ray counts no GPU")

    plan = GpuMemoryPolicy(gpu_memory="1.2GiB", cpus=1).plan(loaded(data, tmp_path).capacity)

    assert plan.max_concurrent_trials >= 2


def test_the_kai_example_has_room_for_two_trials_on_each_half_of_a_gpu(tmp_path):
    plan = GpuMemoryPolicy(gpu_memory="8GiB").plan(loaded(kai({"gpu-fraction": "0.5"}), tmp_path).capacity)

    assert (plan.max_concurrent_trials, plan.slots[0].gpu_memory_bytes) == (4, A100_MIB * MIB // 4)


def test_ray_detects_the_gpu_of_kai_on_a_cluster_without_an_autoscaler(tmp_path):
    data = kai({"gpu-fraction": "0.5"}, num_gpus=None)
    data["spec"]["enableInTreeAutoscaling"] = False

    assert loaded(data, tmp_path).groups[0].resources.gpus == 1


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        pytest.param(kai({"gpu-fraction": "0.5"}), "kai-gpu-memory-not-isolated", id="KAI does not isolate"),
        pytest.param(kai({"gpu-memory": "4000"}), "kai-gpu-memory-not-isolated", id="KAI by memory"),
        pytest.param(kai({"gpu-fraction": "0.5"}, num_gpus=None), "shared-gpu-not-counted", id="KAI not counted"),
        pytest.param(kai({"gpu-fraction": "1.5"}), "kai-invalid-part", id="a fraction above 1"),
        pytest.param(kai({"gpu-memory": "4Gi"}), "kai-invalid-part", id="memory with a unit"),
        pytest.param(kai({"gpu-memory": "9", "gpu-fraction": "0.5"}), "kai-invalid-part", id="both annotations"),
        pytest.param(kai({"gpu-fraction": "0.5"}, limits=GPU), "kai-invalid-part", id="a part and a whole GPU"),
        pytest.param(hami({"nvidia.com/gpucores": 50}), "hami-memory-not-stated", id="HAMi without memory"),
        pytest.param(manifest({"nvidia.com/gpumem": 9000}), "hami-gpus-missing", id="HAMi without GPUs"),
        pytest.param(dra(), "claim-not-counted", id="DRA not counted"),
        pytest.param(dra(claims=None), "claim-not-used", id="DRA not used"),
    ],
)
def test_lint_explains_shared_gpus(data, rule):
    assert rule in rules(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(hami({"nvidia.com/gpumem": 10240}), id="HAMi"),
        pytest.param(dra(num_gpus="1"), id="DRA by num-gpus"),
        pytest.param(dra(resources={"CPU": "8", "GPU": "1"}), id="DRA by resources"),
        pytest.param(resized(), id="in-place resize"),
    ],
)
def test_lint_has_no_finding_about_sharing_that_is_written_as_documented(data):
    names = {"claim-not-counted", "claim-not-used", "hami-memory-not-stated", "hami-gpus-missing", "kai-invalid-part"}

    assert rules(data).isdisjoint({*names, "shared-gpu-not-counted", "resize-refused", "resize-ignored"})


def test_the_fix_of_a_claim_names_both_fields_that_ray_counts():
    (found,) = [each for each in lint_text(yaml.safe_dump(dra()), "c.yaml") if each.rule == "claim-not-counted"]

    assert 'resources: {GPU: "1"}' in found.fix
    assert "num-gpus" in found.fix


def test_the_note_about_kai_names_the_variable_with_the_limit():
    texts = [finding.fix for finding in lint_text(yaml.safe_dump(kai({"gpu-fraction": "0.5"})), "c.yaml")]

    assert any("GPU_MEMORY_LIMIT" in text and "bytes" in text for text in texts)


def ippr(text, **changes):
    data = resized()
    data["metadata"]["annotations"]["ray.io/ippr"] = text if isinstance(text, str) else json.dumps(text)
    group = data["spec"]["workerGroupSpecs"][0]
    group["rayStartParams"] = changes.get("params", {})
    container = group["template"]["spec"]["containers"][0]
    if "requests" in changes:
        container["resources"]["requests"] = changes["requests"]
    if "policy" in changes:
        container["resizePolicy"] = changes["policy"]
    return data


LIMITS = {"max-cpu": "16", "max-memory": "64Gi", "resize-timeout": 60}
RESTARTS = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
IN_PLACE = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]

IPPR = {
    "valid": ippr({"groups": {"gpus": LIMITS}}),
    "numbers": ippr({"groups": {"gpus": {**LIMITS, "max-cpu": 12.5, "max-memory": 2**36}}}),
    "no groups": ippr({}),
    "a group that does not exist": ippr({"groups": {"gpu": LIMITS}}),
    "the head": ippr({"groups": {"headgroup": LIMITS}}),
    "not JSON": ippr("groups: {}"),
    "a list": ippr([]),
    "groups as a list": ippr({"groups": []}),
    "no maximum of CPUs": ippr({"groups": {"gpus": {"max-memory": "64Gi", "resize-timeout": 60}}}),
    "no timeout": ippr({"groups": {"gpus": {"max-cpu": 8, "max-memory": "64Gi"}}}),
    "a timeout as text": ippr({"groups": {"gpus": {**LIMITS, "resize-timeout": "60"}}}),
    "a timeout with a fraction": ippr({"groups": {"gpus": {**LIMITS, "resize-timeout": 0.5}}}),
    "a missing field of a group that does not exist": ippr({"groups": {"other": {}}}),
    "num-cpus": ippr({"groups": {"gpus": LIMITS}}, params={"num-cpus": "8"}),
    "memory": ippr({"groups": {"gpus": LIMITS}}, params={"memory": "8000000000"}),
    "no requests": ippr({"groups": {"gpus": LIMITS}}, requests={}),
    "no memory request": ippr({"groups": {"gpus": LIMITS}}, requests={"cpu": "8"}),
    "a restart": ippr({"groups": {"gpus": LIMITS}}, policy=RESTARTS),
    "no restart": ippr({"groups": {"gpus": LIMITS}}, policy=IN_PLACE),
}


@pytest.mark.parametrize("data", IPPR.values(), ids=IPPR)
def test_lint_refuses_a_resize_exactly_if_ray_refuses_it(data):
    provider = pytest.importorskip("ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.ippr_provider")
    is_refused = False
    try:
        provider.KubeRayIPPRProvider(None, None).validate_and_set_ippr_specs(copy.deepcopy(data))
    except Exception:  # noqa: BLE001 - Ray raises errors of several libraries
        is_refused = True

    assert ("resize-refused" in rules(data)) == is_refused


def test_a_group_grows_to_the_maximum_of_its_annotation(tmp_path):
    data = resized("16", "64Gi")
    (group,) = loaded(data, tmp_path).groups

    assert (group.resources.cpus, group.resources.memory_bytes) == (16, 64 * GIB)


def test_a_trial_that_fits_only_an_enlarged_pod_is_planned(tmp_path):
    plan = AutoscalingPolicy(CpuPolicy(cpus=12)).plan(loaded(resized(), tmp_path).capacity)

    assert plan.max_concurrent_trials == 2


@pytest.mark.parametrize("name", ["not JSON", "num-cpus", "no requests", "a restart"])
def test_a_resize_that_ray_refuses_enlarges_no_node(name, tmp_path):
    assert loaded(IPPR[name], tmp_path).groups[0].resources.cpus == 8


def test_version_1_of_the_autoscaler_resizes_no_pod(tmp_path):
    data = resized()
    data["spec"]["autoscalerOptions"] = {"version": "v1"}

    assert loaded(data, tmp_path).groups[0].resources.cpus == 8
    assert "resize-ignored" in rules(data)


def two_nodes(*uuids):
    return ClusterCapacity(
        nodes=[
            NodeCapacity(
                node_id=f"node-{number}",
                resources=Resources(cpus=8, gpus=1),
                devices=[GpuDevice(index=0, name="A100", memory_bytes=40 * GIB, uuid=uuid)],
            )
            for number, uuid in enumerate(uuids)
        ]
    )


def test_the_memory_of_a_gpu_that_two_nodes_report_counts_once():
    policy = GpuMemoryPolicy(gpu_memory="8GiB", headroom=0)

    shared = policy.plan(two_nodes("GPU-1", "GPU-1"))
    apart = policy.plan(two_nodes("GPU-1", "GPU-2"))

    assert (shared.max_concurrent_trials, apart.max_concurrent_trials) == (4, 10)
    assert shared.max_concurrent_trials * shared.slots[0].gpu_memory_bytes <= 40 * GIB


def test_the_plan_names_the_nodes_that_share_a_gpu():
    plan = GpuMemoryPolicy(gpu_memory="8GiB").plan(two_nodes("GPU-1", "GPU-1", "GPU-2"))

    assert any("the nodes node-0, node-1 share the GPU GPU-1" in reason for reason in plan.reasons)


def test_a_saved_cluster_with_shared_gpus_stays_the_same():
    capacity = two_nodes("GPU-1", "GPU-1")

    assert ClusterCapacity.from_dict(json.loads(capacity.to_json())) == capacity


def test_gpus_without_a_uuid_are_not_shared():
    nodes = [gpu_node(name, gpu_memory_gib=40, accelerator_type="A100") for name in ("a", "b")]

    assert ClusterCapacity(nodes=nodes).nodes[0].smallest_gpu_memory_bytes == 40 * GIB
