"""Mistakes in YAML syntax, in field names and types, and in values of the Helm chart."""

from tests.unit.kuberay.planted.planting import Planted, plant
from tests.unit.kuberay.planted.sound import CLUSTER, JOB, LAUNCHER

_CPU = "groupName: cpu"
_CONTAINERS = "containers:\n            - name"
_AMOUNTS = """\
                limits:
                  cpu: "4"
                  memory: 16Gi
                requests:
                  cpu: "4"
                  memory: 16Gi
"""
_ANCHORED = """\
                requests: &amounts
                  cpu: 500m
                  memory: 16Gi
                limits: *amounts
"""


LAUNCHERS = (
    plant("a minimum above the maximum", LAUNCHER, "min_workers: 0", "min_workers: 5",
          "launcher-min-above-max", "min_workers: 5"),
    plant("no total maximum", LAUNCHER, "max_workers: 6\n", "", "launcher-limit-missing", "cluster_name"),
    plant("a GPU in lower case", LAUNCHER, "GPU: 1", "gpu: 1", "launcher-resource-spelling", "gpu: 1"),
    plant("an image for the launcher without CUDA", LAUNCHER, "2.60.0-gpu", "2.60.0",
          "launcher-image-without-cuda", "image:"),
    plant("a head that runs trials", LAUNCHER, "resources: {CPU: 0}", "resources: {CPU: 2}",
          "launcher-head-runs-trials", "  head:"),
    plant("a Ray version of 2023 for the launcher", LAUNCHER, "ray:2.60.0-gpu", "ray-ml:2.6.3-gpu",
          "launcher-ray-not-supported", "image:"),
    plant("half a GPU per node", LAUNCHER, "GPU: 1", "GPU: 0.5", "invalid-field", "GPU: 0.5"),
)  # fmt: skip

INPUTS = (
    Planted("not YAML", "a: 1\nb: ]\n", "unreadable", 2),
    Planted("code", "a: 1\nb: !!python/object/apply:os.system ['true']\n", "unreadable", 2),
    Planted("a tab", "a:\n\tb: 1\n", "unreadable", 2),
    Planted("an undefined alias", "a: 1\nb: *c\n", "unreadable", 2),
    Planted("a recursive alias", "a: 1\nb: &b [*b]\n", "unreadable", 2),
    Planted("a NUL byte", "a: 1\nb: \0\n", "unreadable", 2),
    plant("a duplicate key with the same value", LAUNCHER, "max_workers: 6\n", "max_workers: 6\n" * 2,
          "duplicate-key", "max_workers: 6"),
    Planted("a duplicate key with another value", "a: 1\nb: 1\na: 2\n", "unreadable", 3),
    plant("an unknown kind", CLUSTER, "kind: RayCluster", "kind: RayClutser", "invalid-field", "kind: RayClutser"),
    plant("groups without the plural", CLUSTER, "workerGroupSpecs:", "workerGroupSpec:", "misspelled-field",
          "workerGroupSpec:"),
    plant("a misspelled nodeSelector", CLUSTER, "nodeSelector:", "nodeselector:", "misspelled-field",
          "nodeselector:"),
    plant("a misspelled enableInTreeAutoscaling", CLUSTER, "enableInTreeAutoscaling", "enableInTreeAutoscaler",
          "misspelled-field", "enableInTreeAutoscaler"),
    plant("parameters with underscores", CLUSTER, "rayStartParams: {}", "ray_start_params: {}", "misspelled-field",
          "ray_start_params", after="groupName: l4"),
    plant("one toleration", CLUSTER, "tolerations:", "toleration:", "misspelled-field", "toleration:"),
    plant("a limit without the plural", CLUSTER, "limits:", "limit:", "misspelled-field", "limit:", after="l4"),
    plant("a misspelled entrypoint of a job", JOB, "entrypoint:", "entryPoint:", "misspelled-field",
          "entryPoint"),
    plant("a mistake in the second document", "apiVersion: v1\nkind: ConfigMap\n---\n" + CLUSTER, "replicas: 0",
          "replicas: none", "invalid-field", "replicas: none"),
    plant("a number instead of a string", CLUSTER, 'num-cpus: "0"', "num-cpus: 0", "invalid-field", "num-cpus"),
    plant("a string instead of a number", CLUSTER, "maxReplicas: 4", 'maxReplicas: "4"',
          "invalid-field", "maxReplicas"),
    plant("a number of seconds as a string", CLUSTER, "idleTimeoutSeconds: 60", 'idleTimeoutSeconds: "60"',
          "invalid-field", "idleTimeoutSeconds"),
    plant("an invalid amount", CLUSTER, "memory: 32Gi", "memory: 32GB", "invalid-field", "32GB"),
    plant("no containers", CLUSTER, _CONTAINERS, "containers: []\n          initContainers:\n            - name",
          "invalid-field", "containers: []", after=_CPU),
    plant("an anchored mistake, at the line of its alias", CLUSTER, _AMOUNTS, _ANCHORED,
          "cpus-rounded-up", "limits: *amounts", after=_CPU),
)  # fmt: skip

MISTAKES = (*LAUNCHERS, *INPUTS)
