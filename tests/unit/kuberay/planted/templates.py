"""Mistakes in pod templates that Kubernetes reports only when the operator creates a pod."""

from tests.unit.kuberay.planted.planting import Planted, plant
from tests.unit.kuberay.planted.sound import CLUSTER, JOB, LAUNCHER

_L4 = "groupName: l4\n"
_NAME = "            - name: ray-worker\n"
_NEVER = "          restartPolicy: Never\n"
_LIMITS = 'limits:\n                  cpu: "8"\n                  memory: 32Gi\n                  nvidia.com/gpu: "2"\n'
_LIMITS_WITHOUT_GPU = _LIMITS.replace('                  nvidia.com/gpu: "2"\n', "")
_SELECTOR = "nvidia.com/gpu.product: NVIDIA-L4"
_GKE = "cloud.google.com/gke-accelerator"
_SUBMITTER = """\
  submitterPodTemplate:
    spec:
      restartPolicy: Never
      containers: [{name: submit, image: rayproject/ray:2.60.0}]
  entrypoint:"""


def _in_container(claim: str, lines: str, rule: str, at: str) -> Planted:
    """Add lines to the container of the group ``l4``."""
    return plant(claim, CLUSTER, _NAME, f"{_NAME}              {lines}\n", rule, at, after=_L4)


def _in_pod(claim: str, lines: str, rule: str, at: str) -> Planted:
    """Add lines to the pod of the group ``l4``."""
    return plant(claim, CLUSTER, _NEVER, f"{_NEVER}          {lines}\n", rule, at, after=_L4)


def _on(claim: str, label: str, rule: str) -> Planted:
    """Select nodes by a label in the group ``l4``."""
    return plant(claim, CLUSTER, _SELECTOR, label, rule, label, after=_L4)


AMOUNTS = (
    plant("a GPU that is only requested", CLUSTER, _LIMITS, _LIMITS_WITHOUT_GPU, "device-limit-differs",
          'nvidia.com/gpu: "2"', after=_L4),
    plant("a request of no GPU without a limit", CLUSTER.replace(_LIMITS, _LIMITS_WITHOUT_GPU), 'nvidia.com/gpu: "2"',
          'nvidia.com/gpu: "0"', "device-limit-differs", 'nvidia.com/gpu: "0"', after=_L4),
    plant("more GPUs as a limit than requested", CLUSTER, _LIMITS, _LIMITS.replace('"2"', '"4"'),
          "device-limit-differs", 'nvidia.com/gpu: "2"', after=_L4),
    plant("a request above its limit", CLUSTER, 'requests:\n                  cpu: "8"',
          'requests:\n                  cpu: "9"', "request-above-limit", 'cpu: "9"', after=_L4),
    plant("a memory request above its limit in other units", CLUSTER, "memory: 32Gi", "memory: 32G",
          "request-above-limit", "memory: 32Gi", after=_L4),
    plant("memory in GiB", CLUSTER, "32Gi", "28GiB", "invalid-field", "28GiB", after=_L4),
    plant("memory in GB with a space", CLUSTER, "32Gi", "28 GB", "invalid-field", "28 GB", after=_L4),
    plant("memory without a unit", CLUSTER, "32Gi", "32", "amount-without-unit", 'memory: 32\n', after=_L4),
    plant("CPUs with the unit of memory", CLUSTER, 'cpu: "8"', "cpu: 8Gi", "amount-without-unit", "8Gi", after=_L4),
    plant("a GPU without its vendor", CLUSTER, _LIMITS, _LIMITS.replace("nvidia.com/", ""), "resource-unknown", "gpu: ",
          after="limits:\n                  cpu: \"8\""),
    plant("a device in the plural", CLUSTER.replace(_LIMITS, _LIMITS.replace("/gpu", "/gpus")), "replicas: 0",
          "replicas: 0", "device-resource-misspelled", "nvidia.com/gpus"),
    plant("a device in upper case", CLUSTER.replace(_LIMITS, _LIMITS.replace("/gpu", "/GPU")), "replicas: 0",
          "replicas: 0", "device-resource-misspelled", "nvidia.com/GPU"),
    plant("a misspelled resource", CLUSTER, 'cpu: "8"', 'cpus: "8"', "resource-unknown", 'cpus: "8"', after=_L4),
    _in_pod("the size of a volume in GiB", "volumes: [{name: d, emptyDir: {sizeLimit: 1GiB}}]", "invalid-field",
            "1GiB"),
)  # fmt: skip

FIELDS = (
    _in_pod("a medium in lower case", "volumes: [{name: d, emptyDir: {medium: memory}}]", "invalid-field",
            "medium: memory"),
    plant("a node selector next to the template", CLUSTER, "      maxReplicas: 9\n",
          "      maxReplicas: 9\n      nodeSelector: {disk: ssd}\n", "misspelled-field", "nodeSelector: {disk"),
    _in_pod("the name of a secret", "volumes: [{name: d, secret: {name: s}}]", "misspelled-field", "secret: {name"),
    plant("a misspelled restart policy", CLUSTER, "restartPolicy: Never", "restartPolicy: Allways", "invalid-field",
          "Allways", after=_L4),
    plant("a restart policy in lower case", CLUSTER, "restartPolicy: Never", "restartPolicy: never", "invalid-field",
          "restartPolicy: never", after=_L4),
    plant("an unknown effect", CLUSTER, "effect: NoSchedule", "effect: NoScheduling", "invalid-field", "NoScheduling"),
    plant("an unknown operator", CLUSTER, "operator: Exists", "operator: Exist", "invalid-field", "operator: Exist"),
    _in_pod("a misspelled size limit", "volumes: [{name: d, emptyDir: {sizelimit: 1Gi}}]", "misspelled-field",
            "sizelimit"),
    _in_container("a misspelled pull policy", "imagePullpolicy: Always", "misspelled-field", "imagePullpolicy"),
    _in_container("an unknown pull policy", "imagePullPolicy: IfNotPresnt", "invalid-field", "IfNotPresnt"),
    _in_container("a field of the pod in a container", "nodeSelector: {a: b}", "misspelled-field",
                  "nodeSelector: {a: b}"),
    _in_container("a command that is not a list", "command: sleep 1", "invalid-field", "command: sleep"),
    _in_container("a variable that is a number", "env: [{name: A, value: 1}]", "invalid-field", "value: 1"),
    _in_container("a misspelled field of a security context", "securityContext: {runasUser: 1}", "misspelled-field",
                  "runasUser"),
    _in_container("a misspelled field of a source", "env: [{name: A, valueFrom: {secretKeyRef: {nam: a, key: b}}}]",
                  "misspelled-field", "secretKeyRef"),
    plant("a misspelled spec of a pod", CLUSTER, "        spec:\n          restartPolicy: Never",
          "        specs:\n          restartPolicy: Never", "misspelled-field", "specs:", after=_L4),
    plant("a misspelled restart policy of a submitter", JOB.replace("  entrypoint:", _SUBMITTER), "Never", "Nver",
          "invalid-field", "Nver"),
    plant("a wrong amount of the autoscaler", CLUSTER, "    version: v2\n",
          "    version: v2\n    resources: {limits: {cpu: 500m, memory: 512MiB}}\n", "invalid-field", "512MiB"),
)  # fmt: skip

RELATIONS = (
    _in_container("a mount without a volume", "volumeMounts: [{name: data, mountPath: /d}]", "volume-missing",
                  "name: data"),
    plant("a mount of the autoscaler without a volume", CLUSTER, "    version: v2\n",
          "    version: v2\n    volumeMounts: [{name: data, mountPath: /d}]\n", "autoscaler-volume-missing",
          "name: data"),
    plant("two containers with one name", CLUSTER, _NAME,
          f"{_NAME}              image: a\n              resources: {{limits: {{cpu: 1}}}}\n{_NAME}",
          "duplicate-name", "- name: ray-worker\n              image: rayproject", after=_L4),
    _in_pod("two volumes with one name", "volumes:\n            - {name: d, emptyDir: {}}\n            - {name: d}",
            "duplicate-name", "- {name: d}"),
    _in_container("a port above 65535", "ports: [{containerPort: 70000}]", "port-invalid", "70000"),
    _in_container("a port with a long name", "ports: [{containerPort: 8265, name: dashboard-of-ray}]", "port-invalid",
                  "dashboard-of-ray"),
    _in_container("a protocol in lower case", "ports: [{containerPort: 8265, protocol: tcp}]", "invalid-field", "tcp"),
    _in_container("a probe without a check", "readinessProbe: {periodSeconds: 5}", "probe-invalid", "readinessProbe"),
    _in_container("a probe of an undeclared port", "readinessProbe: {httpGet: {port: http}}", "probe-invalid",
                  "readinessProbe"),
    _in_container("a probe of a port in quotes", "livenessProbe: {tcpSocket: {port: '8265'}}", "probe-invalid",
                  "livenessProbe"),
    _in_container("a probe without a port", "livenessProbe: {tcpSocket: {}}", "invalid-field", "livenessProbe"),
    _in_container("a liveness probe that must succeed twice",
                  "livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}", "probe-invalid", "livenessProbe"),
    plant("a container name in upper case", CLUSTER, "name: ray-worker", "name: Ray_Worker", "pod-refused",
          "Ray_Worker", after=_L4),
    plant("no image", CLUSTER, "              image: rayproject/ray:2.60.0-py311-gpu\n", "", "pod-refused",
          "- name: ray-worker", after=_L4),
    plant("a toleration with an unneeded value", CLUSTER, "operator: Exists",
          "operator: Exists\n              value: a", "pod-refused", "value: a"),
    _in_container("a variable with two values",
                  "env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: a, key: b}}}]", "pod-refused", "env:"),
    plant("an image in upper case", CLUSTER, "image: rayproject/ray:", "image: RayProject/ray:", "pod-refused",
          "RayProject", after=_L4),
    _in_container("a misspelled field of the pod", "env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIp}}}]",
                  "pod-refused", "podIp"),
    _in_container("an amount of another container",
                  "env: [{name: A, valueFrom: {resourceFieldRef: {containerName: ray, resource: limits.cpu}}}]",
                  "pod-refused", "resourceFieldRef"),
    _in_container("root that must not be root", "securityContext: {runAsNonRoot: true, runAsUser: 0}", "pod-refused",
                  "runAsUser"),
    _in_pod("permissions without a leading 0", "volumes: [{name: d, secret: {secretName: a, defaultMode: 644}}]",
            "pod-refused", "defaultMode"),
    _in_pod("a label of the pod that cannot be a file",
            "volumes: [{name: d, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.label}}]}}]",
            "pod-refused", "metadata.label"),
    _in_pod("a short access mode",
            "volumes: [{name: d, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [RWO]}}}}]",
            "pod-refused", "RWO"),
    _in_pod("no allowed skew",
            "topologySpreadConstraints: [{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]",
            "pod-refused", "maxSkew"),
    _in_pod("a preference above 100",
            "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
            "[{weight: 500, preference: {}}]}}",
            "pod-refused", "weight"),
    _in_pod("a claim with two sources",
            "resourceClaims: [{name: nic, resourceClaimName: a, resourceClaimTemplateName: b}]", "pod-refused",
            "resourceClaims"),
    plant("a claim that the pod does not have", CLUSTER, _LIMITS, f"claims: [{{name: nic}}]\n                {_LIMITS}",
          "pod-refused", "claims", after=_L4),
    plant("a restarted submitter", JOB, "  entrypoint:", _SUBMITTER.replace("Never", "Always"), "pod-refused",
          "restartPolicy: Always"),
    plant("more CPUs than the limit of the autoscaler", CLUSTER, "    version: v2\n",
          "    version: v2\n    resources: {limits: {cpu: 500m}, requests: {cpu: 1}}\n", "request-above-limit",
          "resources:"),
    _in_pod("a volume with two sources", "volumes: [{name: d, emptyDir: {}, hostPath: {path: /d}}]", "pod-refused",
            "volumes:"),
)  # fmt: skip

NODES = (
    _on("the name of an older type of GKE", f"{_GKE}: nvidia-tesla-l4", "node-label-misspelled"),
    _on("a type of GKE in upper case", f"{_GKE}: nvidia-L4", "node-label-misspelled"),
    _on("a type of GKE without its prefix", f"{_GKE}: l4", "node-label-misspelled"),
    _on("a type of GKE without its memory", f"{_GKE}: nvidia-h100", "node-label-misspelled"),
    _on("a misspelled type of GKE", f"{_GKE}: nvida-l4", "node-label-misspelled"),
    _on("a misspelled label", "cloud.google.com/gke-acelerator: nvidia-l4", "node-label-misspelled"),
    _on("Karpenter's label with GKE's value", "karpenter.k8s.aws/instance-gpu-name: nvidia-l4",
        "node-label-misspelled"),
    _on("NVIDIA's label with GKE's value", "nvidia.com/gpu.product: nvidia-l4", "node-label-misspelled"),
    _on("NVIDIA's label with GKE's value of a model with several names", "nvidia.com/gpu.product: nvidia-h100-80gb",
        "node-label-misspelled"),
    _on("a processor of another naming", "kubernetes.io/arch: x86_64", "node-label-misspelled"),
    _on("an unknown type of GKE", f"{_GKE}: nvidia-l5", "node-label-unknown"),
)  # fmt: skip

FORMATS = (
    Planted("values of the retired chart", "image: rayproject/ray:2.0.0\npodTypes:\n  rayHeadType: {CPU: 1}\n",
            "retired-format", 2),
    Planted("resources in values of the retired chart", "podTypes:\n  gpus:\n    CPU: 1\n    rayResources: {GPU: 1}\n",
            "retired-format", 4),
    plant("resources of the retired chart in a group", CLUSTER, "rayStartParams: {}", "rayResources: {GPU: 2}",
          "retired-format", "rayResources", after=_L4),
    Planted("a cluster of the retired operator",
            "apiVersion: cluster.ray.io/v1\nkind: RayCluster\nspec: {headPodType: head, podTypes: []}\n",
            "retired-format", 1),
    plant("images of another Ray minor version", CLUSTER.replace("2.60.0-py311", "2.59.0-py311"), '"2.60.0"', '"2.60"',
          "image-version-differs", "image:"),
    plant("a Ray version of 2023 in the launcher's workers", LAUNCHER, "ray:2.60.0-gpu", "ray:2.9.0-gpu",
          "launcher-ray-not-supported", "image:"),
)  # fmt: skip

MISTAKES = (*AMOUNTS, *FIELDS, *RELATIONS, *NODES, *FORMATS)

_FULL_POD = """\
          initContainers:
            - name: prepare
              image: busybox:1
              command: [sh, -c, "true"]
              resources: {limits: {cpu: 100m, memory: 64Mi}}
          volumes:
            - name: data
              persistentVolumeClaim: {claimName: data}
            - name: scratch
              emptyDir: {medium: Memory, sizeLimit: 500Mi}
          topologySpreadConstraints:
            - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}
          affinity:
            nodeAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms:
                  - matchExpressions:
                      - {key: cloud.google.com/gke-accelerator, operator: In, values: [nvidia-l4]}
"""
_FULL_CONTAINER = """\
              ports: [{containerPort: 8080, name: metrics}]
              volumeMounts: [{name: data, mountPath: /data}, {name: shared-mem, mountPath: /dev/shm}]
              readinessProbe: {httpGet: {path: /healthz, port: metrics}, initialDelaySeconds: 5}
              livenessProbe: {exec: {command: [ray, health-check]}}
              lifecycle: {preStop: {exec: {command: [ray, stop]}}}
              securityContext: {capabilities: {add: [SYS_PTRACE]}}
              envFrom: [{secretRef: {name: keys}}]
"""
_START = CLUSTER.index(_L4)
NO_MISTAKES = {
    "many fields of a pod": CLUSTER[:_START]
    + CLUSTER[_START:].replace(_NEVER, _NEVER + _FULL_POD, 1).replace(_NAME, _NAME + _FULL_CONTAINER, 1),
    "a mount of a volume that KubeRay adds": CLUSTER.replace(
        _NAME, f"{_NAME}              volumeMounts: [{{name: ray-logs, mountPath: /logs}}]\n"
    ),
    "a probe of the port that KubeRay adds": CLUSTER.replace(
        _NAME, f"{_NAME}              readinessProbe: {{httpGet: {{port: metrics, path: /metrics}}}}\n"
    ),
    "a value that another program replaces": CLUSTER.replace(_SELECTOR, _GKE + ": ${GPU_TYPE}"),
    "an unquoted whole number of CPUs": CLUSTER.replace('cpu: "8"', "cpu: 8"),
    "a null field": CLUSTER.replace(_NEVER, _NEVER + "          priorityClassName: null\n"),
    "a rayVersion without the last number": CLUSTER.replace('"2.60.0"', '"2.60"'),
    "huge pages": CLUSTER.replace('nvidia.com/gpu: "2"', 'nvidia.com/gpu: "2"\n                  hugepages-2Mi: 1Gi'),
}
