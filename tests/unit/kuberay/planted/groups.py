"""Mistakes in the autoscaling of groups, in TPU slices, in Kueue's queues, and in fields that KubeRay rejects."""

from tests.unit.kuberay.planted.planting import plant
from tests.unit.kuberay.planted.sound import CLUSTER, QUEUED, TPU

_L4, _CPU = "groupName: l4\n", "groupName: cpu"
_PARAMS = "rayStartParams: {}"
_QUEUED_GROUP = QUEUED[QUEUED.index("      - groupName: cpu") :]
_NO_REQUESTS = _QUEUED_GROUP[: _QUEUED_GROUP.index("                resources:")]
_AMOUNTS = 'requests:\n                  cpu: "4"\n                  memory: '

SCALING = (
    plant("GPU nodes that always run", CLUSTER, "minReplicas: 0", "minReplicas: 1",
          "devices-always-on", "minReplicas", after=_L4),
    plant("GPU nodes that idle for hours", CLUSTER, "idleTimeoutSeconds: 60", "idleTimeoutSeconds: 7200",
          "long-idle-timeout", "idleTimeoutSeconds"),
    plant("GPU nodes of one group that idle for hours", CLUSTER, "maxReplicas: 4",
          "maxReplicas: 4\n      idleTimeoutSeconds: 7200", "long-idle-timeout", "idleTimeoutSeconds: 7200", after=_L4),
    plant("GPU nodes that are never added", CLUSTER, "enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false",
          "never-scales-up", "maxReplicas: 4"),
    plant("GPU nodes without an upper bound", CLUSTER, "      maxReplicas: 4\n", "",
          "no-upper-bound", "- groupName: l4", after="workerGroupSpecs"),
    plant("a head that runs trials", CLUSTER, 'num-cpus: "0"', 'num-cpus: "2"', "head-runs-trials", "num-cpus"),
    plant("a head whose resources run trials", CLUSTER, 'rayStartParams:\n      num-cpus: "0"',
          'rayStartParams: {}\n    resources: {CPU: "2"}', "head-runs-trials", 'CPU: "2"'),
    plant("half a CPU, which Ray counts as one", CLUSTER, 'cpu: "4"', 'cpu: "500m"',
          "cpus-rounded-up", "500m", after=_CPU),
    plant("memory that Kubernetes does not reserve", CLUSTER, _AMOUNTS + "16Gi", _AMOUNTS + "4Gi",
          "memory-not-reserved", "memory: 4Gi", after=_CPU),
    plant("memory without a limit", CLUSTER.replace("                  memory: 32Gi\n", ""), "replicas: 0",
          "replicas: 0", "memory-missing", "resources:", after=_L4),
)  # fmt: skip

NO_AUTOSCALER = (
    plant("a group of CPUs that never gets a node", CLUSTER.replace("  enableInTreeAutoscaling: true\n", "").replace(
          "  autoscalerOptions:\n    version: v2\n    idleTimeoutSeconds: 60\n", ""), "replicas: 0", "replicas: 0",
          "never-scales-up", "maxReplicas: 9"),
)  # fmt: skip

TPUS = (
    plant("TPUs without topology", TPU, "            cloud.google.com/gke-tpu-topology: 4x4\n", "",
          "tpu-selectors-missing", "nodeSelector"),
    plant("TPUs without accelerator", TPU, "            cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice\n", "",
          "tpu-selectors-missing", "nodeSelector"),
    plant("an unknown TPU type", TPU, "tpu-v6e-slice", "tpu-v6-slice", "unknown-tpu", "gke-tpu-accelerator"),
    plant("an unknown topology", TPU, ": 4x4", ": 4x5", "unknown-tpu-topology", "gke-tpu-topology"),
    plant("an invalid topology", TPU, ": 4x4", ": four", "unknown-tpu-topology", "gke-tpu-topology"),
    plant("three chips on a host", TPU.replace('google.com/tpu: "4"', 'google.com/tpu: "3"'), "replicas: 0",
          "replicas: 0", "tpu-chips-per-host", "google.com/tpu"),
    plant("two hosts for a slice of four", TPU, "numOfHosts: 4", "numOfHosts: 2", "tpu-hosts-per-slice", "numOfHosts"),
    plant("a slice without the label of its first host", TPU, '        ray.io/tpu-worker-id: "0"\n', "",
          "tpu-labels-missing", "labels:"),
    plant("a slice of another pod type", TPU, "tpu-pod-type: v6e-16", "tpu-pod-type: v6e-32", "tpu-labels-missing",
          "labels:"),
    plant("slices without labels under the default version", TPU.replace(
          "  autoscalerOptions:\n    version: v2\n", ""), '      labels:\n        ray.io/tpu-worker-id: "0"\n'
          "        ray.io/tpu-pod-type: v6e-16\n", "", "tpu-labels-missing", "groupName: v6e"),
)  # fmt: skip

QUEUES = (
)  # fmt: skip

OPERATOR = (
    plant("a minimum above the maximum", CLUSTER, "minReplicas: 0", "minReplicas: 5", "min-above-max", "minReplicas",
          after=_L4),
    plant("replicas out of range", CLUSTER, "replicas: 0", "replicas: 7", "replicas-out-of-range", "replicas: 7",
          after=_L4),
    plant("two groups with one name", CLUSTER, "groupName: cpu", "groupName: l4", "duplicate-group-name",
          "groupName: l4", after="NVIDIA-L4"),
    plant("a group with the head's name", CLUSTER, "groupName: cpu", "groupName: headgroup", "duplicate-group-name",
          "groupName: headgroup"),
    plant("no CPU", CLUSTER.replace('                  cpu: "4"\n', ""), "replicas: 0", "replicas: 0",
          "cpus-missing", "resources:", after=_CPU),
    plant("images of another Ray version", CLUSTER, 'rayVersion: "2.60.0"', 'rayVersion: "2.59.0"',
          "image-version-differs", "image: rayproject"),
    plant("custom resources in one pair of quotes", CLUSTER, _PARAMS, "rayStartParams: {resources: '{\"Disk\": 1}'}",
          "start-param-resources", "Disk", after=_CPU),
    plant("options of a disabled autoscaler", CLUSTER, "enableInTreeAutoscaling: true",
          "enableInTreeAutoscaling: false", "autoscaler-options-unused", "autoscalerOptions"),
    plant("half a GPU in the parameters of ray start", CLUSTER, _PARAMS, 'rayStartParams: {num-gpus: "0.5"}',
          "start-param-not-whole", "num-gpus", after=_L4),
    plant("a parameter in the style of a field", CLUSTER, _PARAMS, 'rayStartParams: {numCpus: "4"}',
          "start-param-misspelled", "numCpus", after=_L4),
    plant("a parameter with dashes", CLUSTER, _PARAMS, 'rayStartParams: {--num-gpus: "2"}',
          "start-param-misspelled", "--num-gpus", after=_L4),
    plant("a parameter that Ray has removed", CLUSTER, _PARAMS, 'rayStartParams: {dashboard-grpc-port: "8267"}',
          "start-param-misspelled", "dashboard-grpc-port", after=_L4),
    plant("labels as a parameter", CLUSTER, _PARAMS, "rayStartParams: {labels: purpose=trials}",
          "start-param-labels", "labels: purpose", after=_CPU),
    plant("misspelled labels as a parameter", CLUSTER, _PARAMS, "rayStartParams: {--labels: purpose=trials}",
          "start-param-misspelled", "--labels: purpose", after=_CPU),
    plant("a queued pod without requests", QUEUED.replace(_QUEUED_GROUP, _NO_REQUESTS), "replicas: 9",
          "replicas: 9", "kueue-no-requests", "- name: ray-worker", after=_CPU),
)  # fmt: skip

MISTAKES = (*SCALING, *NO_AUTOSCALER, *QUEUES, *TPUS, *OPERATOR)
