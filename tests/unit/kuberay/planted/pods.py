"""Mistakes in the devices, containers and nodes of pods."""

from tests.unit.kuberay.planted.planting import plant
from tests.unit.kuberay.planted.sound import CLUSTER, JOB, SERVICE

_LIMIT = 'nvidia.com/gpu: "2"'
_ENV = "              env:\n                - name: NVIDIA_VISIBLE_DEVICES\n                  value: void\n"
_PARAMS = "rayStartParams: {}"
_L4, _CPU = "groupName: l4\n", "groupName: cpu"
_GPU_IMAGE = "image: rayproject/ray:2.60.0-py311-gpu"
_SIDECAR = """\
            - name: logs
              image: fluent/fluent-bit:3
              resources: {limits: {cpu: 1, memory: 1Gi}}
            - name: ray-worker"""
_TOLERATION = """\
          tolerations:
            - key: nvidia.com/gpu
              operator: Exists
              effect: NoSchedule
"""
_SELECTOR = "          nodeSelector:\n            nvidia.com/gpu.product: NVIDIA-L4\n"
_ON_GKE = CLUSTER.replace("nvidia.com/gpu.product: NVIDIA-L4", "cloud.google.com/gke-accelerator: nvidia-l4")
_GROUP = CLUSTER[CLUSTER.index("    - groupName: l4") : CLUSTER.index("    - groupName: cpu")]
_TWO_GROUPS = CLUSTER + _GROUP.replace("groupName: l4", "groupName: l4-spot")
_TOLERANT = CLUSTER[: CLUSTER.index(_CPU)] + CLUSTER[CLUSTER.index(_CPU) :].replace("py311\n", "py311-gpu\n").replace(
    "          containers:", _TOLERATION + "          containers:"
)
_ON_GKE = CLUSTER.replace("nvidia.com/gpu.product: NVIDIA-L4", "cloud.google.com/gke-accelerator: nvidia-l4")
_NEVER = "          restartPolicy: Never\n"
_WITH_CLASS = CLUSTER.replace(_NEVER, _NEVER + "          runtimeClassName: nvidia\n")


def _with(device: str) -> str:
    return CLUSTER.replace(_LIMIT, device)


def _with_variable(name: str, value: str) -> str:
    return f"{_GPU_IMAGE}\n              env:\n                - name: {name}\n                  value: '{value}'"


DEVICES = (
    plant("half a GPU as a limit", CLUSTER, _LIMIT, 'nvidia.com/gpu: "0.5"',
          "device-fraction", '"0.5"', after=_L4),
    plant("a MIG device that the autoscaler does not count", _with('nvidia.com/mig-1g.10gb: "2"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "nvidia.com/mig", after=_L4),
    plant("a fraction of a GPU that the autoscaler does not count", _with('nvidia.com/gpu.shared: "2"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "nvidia.com/gpu.shared", after=_L4),
    plant("Gaudi cards that the autoscaler does not count", _with('habana.ai/gaudi: "8"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "habana.ai/gaudi", after=_L4),
    plant("Intel GPUs that the autoscaler does not count", _with('gpu.intel.com/i915: "1"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "gpu.intel.com/i915", after=_L4),
    plant("Neuron cores that the autoscaler does not count", _with('aws.amazon.com/neuroncore: "2"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "aws.amazon.com", after=_L4),
    plant("Ascend cards that the autoscaler does not count", _with('huawei.com/Ascend910: "8"'),
          "replicas: 0", "replicas: 0", "device-not-counted", "huawei.com", after=_L4),
    plant("time slices of a GPU", _with('nvidia.com/gpu.shared: "2"'),
          _PARAMS, 'resources: {GPU: "2"}', "shared-gpu", "nvidia.com/gpu.shared", after=_L4),
    plant("several MIG devices in a pod", _with('nvidia.com/mig-1g.10gb: "2"'),
          _PARAMS, 'resources: {GPU: "2"}', "several-mig-devices", "nvidia.com/mig", after=_L4),
    plant("GPU in lower case", CLUSTER, _PARAMS, 'resources:\n        gpu: "2"',
          "resource-spelling", 'gpu: "2"', after=_L4),
    plant("CPU in lower case", CLUSTER, _PARAMS, 'resources: {cpu: "4"}',
          "resource-spelling", "resources: {cpu", after=_CPU),
    plant("more declared GPUs than the limit", CLUSTER, _PARAMS, 'rayStartParams: {num-gpus: "4"}',
          "gpus-differ-from-limit", "num-gpus", after=_L4),
    plant("more GPUs in resources than the limit", CLUSTER, _PARAMS, 'resources: {GPU: "3"}',
          "gpus-differ-from-limit", "GPU:", after=_L4),
    plant("fewer declared GPUs than the limit", CLUSTER, _PARAMS, 'rayStartParams: {num-gpus: "1"}',
          "gpus-differ-from-limit", "num-gpus", after=_L4),
    plant("declared GPUs without a Kubernetes resource", CLUSTER, _PARAMS, 'rayStartParams: {num-gpus: "1"}',
          "gpus-without-device", "num-gpus", after=_CPU),
)  # fmt: skip

CONTAINERS = (
    plant("a pod that can run on a GPU node and sees all GPUs", CLUSTER.replace(_TOLERATION, ""), "-py311\n" + _ENV,
          "-py311-gpu\n", "unrequested-gpus-visible", "- name: ray-worker", after=_CPU),
    plant("a pod that makes all GPUs visible", CLUSTER, "value: void", "value: all",
          "unrequested-gpus-visible", "- name: NVIDIA_VISIBLE_DEVICES", after=_CPU),
    plant("a pod that tolerates the taint of GPU nodes and sees all", _TOLERANT.replace(_ENV, ""), "replicas: 0",
          "replicas: 0", "unrequested-gpus-visible", "- name: ray-worker", after=_CPU),
    plant("another Ray version than the head's", CLUSTER, _GPU_IMAGE, "image: rayproject/ray:2.59.0-py311-gpu",
          "ray-versions-differ", "image:", after=_L4),
    plant("another Ray version than the head's in custom images", CLUSTER.replace("rayproject/", "quay.io/modh/"),
          "ray:2.60.0-py311-gpu", "ray:2.60.1-py311-cu128", "ray-versions-differ", "image:", after=_L4),
    plant("a sidecar that precedes Ray's container", CLUSTER, "            - name: ray-worker", _SIDECAR,
          "ray-not-first", "- name: ray-worker", after=_CPU),
    plant("an image without CUDA", CLUSTER, _GPU_IMAGE, "image: rayproject/ray:2.60.0-py311",
          "image-without-cuda", "image:", after=_L4),
    plant("an image for NVIDIA on AMD's GPUs", _with('amd.com/gpu: "2"'), "replicas: 0", "replicas: 0",
          "image-for-other-devices", "image:", after=_L4),
    plant("an image for CPUs on AMD's GPUs", _with('amd.com/gpu: "2"'), _GPU_IMAGE,
          "image: rayproject/ray:2.60.0-py311", "image-for-other-devices", "image:", after=_L4),
    plant("an image with a Ray version of 2023", CLUSTER, _GPU_IMAGE, "image: rayproject/ray-ml:2.6.3-gpu",
          "ray-not-supported", "image:", after=_L4),
    plant("a Ray version of 2023 in a custom image",
          CLUSTER.replace("rayproject/ray:2.60.0", "registry.example/team/train:7"), "2.60.0", "2.6.3",
          "ray-not-supported", "rayVersion"),
    plant("devices selected by the user", CLUSTER, _GPU_IMAGE, _with_variable("CUDA_VISIBLE_DEVICES", "0"),
          "visible-devices-set", "- name: CUDA", after=_L4),
    plant("devices selected with a variable of an older Ray", CLUSTER, _GPU_IMAGE,
          _with_variable("ROCR_VISIBLE_DEVICES", "0"), "visible-devices-set", "- name: ROCR", after=_L4),
    plant("trials that see all devices", CLUSTER, _GPU_IMAGE,
          _with_variable("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1"),
          "devices-not-isolated", "- name: RAY_EXPERIMENTAL", after=_L4),
)  # fmt: skip

NODES = (
    plant("a taint that is not tolerated", CLUSTER, _TOLERATION, "",
          "taint-not-tolerated", "spec:", after=_L4),
    plant("a misspelled toleration", CLUSTER, "key: nvidia.com/gpu", "key: nvidia.com/gpus",
          "taint-not-tolerated", "tolerations:", after=_L4),
    plant("a toleration of another value", _ON_GKE, "operator: Exists", 'operator: Equal\n              value: "yes"',
          "taint-not-tolerated", "tolerations:", after=_L4),
    plant("labels that an older Ray does not read", CLUSTER, '"2.60.0"', '"2.50.0"', "group-labels-ignored",
          "labels:\n        ray.io"),
    plant("resources that an older Ray does not read", CLUSTER.replace('"2.60.0"', '"2.50.0"'), _PARAMS,
          'resources: {GPU: "2"}', "group-resources-ignored", "resources: {GPU", after=_L4),
    plant("the cloud's name of a device type", CLUSTER, "accelerator-type: L4", "accelerator-type: nvidia-l4",
          "unknown-device-type", "ray.io/accelerator-type", after=_L4),
    plant("a misspelled device type", CLUSTER, "accelerator-type: L4", "accelerator-type: A10O",
          "unknown-device-type", "ray.io/accelerator-type", after=_L4),
    plant("an undeclared device type", CLUSTER,
          "      labels:\n        ray.io/accelerator-type: L4\n", "", "device-type-missing", "- groupName: l4",
          after="workerGroupSpecs"),
    plant("groups that use each other's nodes", _TWO_GROUPS, _SELECTOR, "",
          "node-selector-missing", "spec:", after=_L4),
)  # fmt: skip

IN_OTHER_KINDS = (
    plant("half a GPU in a job", JOB, _LIMIT, 'nvidia.com/gpu: "0.5"', "device-fraction", '"0.5"', after=_L4),
    plant("a GPU in lower case in a job", JOB, _PARAMS, 'resources: {gpu: "2"}',
          "resource-spelling", "gpu:", after=_L4),
    plant("an image without CUDA in a job", JOB, "py311-gpu", "py311", "image-without-cuda", "image:", after=_L4),
    plant("half a GPU in a service", SERVICE, _LIMIT, 'nvidia.com/gpu: "0.5"', "device-fraction", '"0.5"', after=_L4),
    plant("more declared GPUs than the limit in a service", SERVICE, _PARAMS, 'rayStartParams: {num-gpus: "3"}',
          "gpus-differ-from-limit", "num-gpus", after=_L4),
    plant("trials without GPUs that see GPUs", CLUSTER, _GPU_IMAGE,
          _with_variable("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
          "gpus-visible-to-cpu-trials", "- name: RAY_ACCEL", after=_L4),
    plant("a runtime class that one group lacks", _WITH_CLASS + _GROUP.replace(": l4\n", ": l4-spot\n"),
          "maxReplicas: 4", "maxReplicas: 3", "runtime-class-missing", "spec:", after="groupName: l4-spot"),
)  # fmt: skip

MISTAKES = (*DEVICES, *CONTAINERS, *NODES, *IN_OTHER_KINDS)
