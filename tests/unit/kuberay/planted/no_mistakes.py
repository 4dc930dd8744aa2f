"""Valid files that look like mistakes."""

from tests.unit.kuberay.planted.sound import CLUSTER, LAUNCHER, TPU

_DEVICE = 'nvidia.com/gpu: "2"'
_PARAMS = "rayStartParams: {}"
_L4, _CPU = CLUSTER.index("groupName: l4"), CLUSTER.index("groupName: cpu")
_VOID = "              env:\n                - name: NVIDIA_VISIBLE_DEVICES\n                  value: void\n"
_SELECTOR = "            nvidia.com/gpu.product: NVIDIA-L4\n"
_TOLERATIONS = """\
          tolerations:
            - key: nvidia.com/gpu
              operator: Exists
              effect: NoSchedule
"""
_ON_GKE = "            cloud.google.com/gke-accelerator: nvidia-l4\n"
_LIMIT_ALONE = """\
                requests:
                  cpu: "8"
                  memory: 32Gi
                  nvidia.com/gpu: "2"
"""


def _of_l4(old: str, new: str) -> str:
    assert old in CLUSTER[_L4:_CPU]
    return CLUSTER[:_L4] + CLUSTER[_L4:_CPU].replace(old, new) + CLUSTER[_CPU:]


def _of_cpus(old: str, new: str) -> str:
    assert old in CLUSTER[_CPU:]
    return CLUSTER[:_CPU] + CLUSTER[_CPU:].replace(old, new)


_SHOWN = _of_cpus(_VOID, "")
_SHOWN = _SHOWN[:_CPU] + _SHOWN[_CPU:].replace("          containers:", _TOLERATIONS + "          containers:")

NO_MISTAKES = {
    "a MIG device declared to Ray": _of_l4(_DEVICE, 'nvidia.com/mig-1g.10gb: "1"').replace(
        _PARAMS, 'resources: {GPU: "1"}', 1
    ),
    "Gaudi devices declared to Ray": _of_l4("NVIDIA-L4", "gaudi")
    .replace(_DEVICE, 'habana.ai/gaudi: "8"')
    .replace("key: nvidia.com/gpu", "key: habana.ai/gaudi")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/gaudi:1")
    .replace("accelerator-type: L4", "accelerator-type: Intel-GAUDI")
    .replace(_PARAMS, 'resources: {CPU: "8", HPU: "8"}', 1),
    "Intel's GPUs with a number of tiles": _of_l4(
        _DEVICE, 'gpu.intel.com/xe: "1"\n                  gpu.intel.com/tiles: "2"'
    )
    .replace("nvidia.com/gpu.product: NVIDIA-L4", 'gpu.intel.com/product: "Max_1550"')
    .replace("key: nvidia.com/gpu", "key: gpu.intel.com/xe")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/xpu:1")
    .replace("accelerator-type: L4", "accelerator-type: Intel-GPU-Max-1550")
    .replace(_PARAMS, 'resources: {GPU: "1"}', 1),
    "Ascend devices of Huawei Cloud": _of_l4("NVIDIA-L4", "ascend")
    .replace(_DEVICE, 'huawei.com/ascend-1980: "8"')
    .replace("key: nvidia.com/gpu", "key: huawei.com/ascend-1980")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/ascend:1")
    .replace("accelerator-type: L4", "accelerator-type: Ascend910B")
    .replace(_PARAMS, 'resources: {NPU: "8"}', 1),
    "a toleration of a taint named after a MIG device": _of_l4(_DEVICE, 'nvidia.com/mig-1g.10gb: "1"')
    .replace("key: nvidia.com/gpu", "key: nvidia.com/mig-1g.10gb")
    .replace(_PARAMS, 'resources: {GPU: "1"}', 1),
    "AMD's GPUs, which the autoscaler counts": _of_l4(_DEVICE, 'amd.com/gpu: "8"')
    .replace("nvidia.com/gpu.product: NVIDIA-L4", "amd.com/gpu.product-name: MI300X")
    .replace("key: nvidia.com/gpu", "key: amd.com/gpu")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/rocm:1")
    .replace("accelerator-type: L4", "accelerator-type: AMD-Instinct-MI300X-OAM"),
    "as many declared GPUs as the limit": _of_l4(_PARAMS, 'rayStartParams: {num-gpus: "2"}'),
    "a limit, which is also the request": _of_l4(_LIMIT_ALONE, ""),
    "GPUs by a resource claim": _of_l4(f"                  {_DEVICE}\n", "")
    .replace(_PARAMS, 'rayStartParams: {num-gpus: "2"}', 1)
    .replace(
        '                limits:\n                  cpu: "8"',
        '                claims: [{name: gpus}]\n                limits:\n                  cpu: "8"',
    )
    .replace(
        "          restartPolicy: Never\n          nodeSelector",
        "          restartPolicy: Never\n          resourceClaims: [{name: gpus, resourceClaimTemplateName: two}]\n"
        "          nodeSelector",
        1,
    ),
    "GPUs hidden by another value": _of_cpus("value: void", "value: none"),
    "CPU nodes separated by selectors": _of_cpus(_VOID, "").replace(
        "        spec:\n          restartPolicy: Never\n          containers:\n            - name: ray-worker\n"
        "              image: rayproject/ray:2.60.0-py311\n",
        "        spec:\n          restartPolicy: Never\n          nodeSelector: {nvidia.com/gpu.product: none}\n"
        "          containers:\n            - name: ray-worker\n              image: rayproject/ray:2.60.0-py311\n",
    ),
    "CPU pods that only a taint separates from GPU nodes": _of_cpus(_VOID, "").replace("py311\n", "py311-gpu\n"),
    "CPU pods on GPU nodes with an image without CUDA": _SHOWN,
    "CPU pods on GPU nodes that declare 0 GPUs": _SHOWN[:_CPU]
    + _SHOWN[_CPU:].replace("py311\n", "py311-gpu\n").replace(_PARAMS, 'rayStartParams: {num-gpus: "0"}'),
    "a toleration of the value of the taint": _of_l4(_SELECTOR, _ON_GKE).replace(
        "operator: Exists", "operator: Equal\n              value: present"
    ),
    "a toleration of a value that only the nodes determine": _of_l4("operator: Exists", 'value: "true"'),
    "the manufacturer of the CPUs as a label of Karpenter": _of_l4(
        _SELECTOR, f"{_SELECTOR}            karpenter.k8s.aws/instance-cpu-manufacturer: amd\n"
    ),
    "the label of virtual GPUs": _of_l4(_SELECTOR, f'{_SELECTOR}            nvidia.com/vgpu.present: "true"\n'),
    "a toleration of every effect": _of_l4("              effect: NoSchedule\n", ""),
    "only one image has a known Python version": CLUSTER.replace("-py311", "").replace(
        "2.60.0-gpu", "2.60.0-py310-gpu"
    ),
    "a custom image named ray-ml": CLUSTER.replace("rayproject/ray:2", "registry.example/rayproject/ray-ml:2"),
    "a custom tag that does not show whether it has CUDA": _of_l4("2.60.0-py311-gpu", "2.60.0-vllm_0.9"),
    "custom images with custom versions": CLUSTER.replace("rayproject/ray:2.60.0-py311-gpu", "team/ray:0.3.1"),
    "a device type without a name in Ray": _of_l4("accelerator-type: L4", "accelerator-type: GeForce-RTX-5090").replace(
        "NVIDIA-L4", "NVIDIA-GeForce-RTX-5090"
    ),
    "a toleration of every taint": _of_l4("key: nvidia.com/gpu\n              operator: Exists", "operator: Exists"),
    "a custom taint": _of_l4("key: nvidia.com/gpu\n", "key: team/vision\n"),
    "CPU nodes that always run": _of_cpus("minReplicas: 0", "minReplicas: 1").replace(
        "replicas: 0\n      minReplicas: 1", "replicas: 1\n      minReplicas: 1"
    ),
    "custom images": CLUSTER.replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/team/train:7"),
    "a sidecar after Ray's container": _of_cpus(
        "              env:\n",
        "              env:\n                - {name: A, value: b}\n",
    )
    + "            - name: logs\n              image: fluent/fluent-bit:3\n",
    "TPU slices without labels under version v1": TPU.replace("version: v2", "version: v1").replace(
        '      labels:\n        ray.io/tpu-worker-id: "0"\n        ray.io/tpu-pod-type: v6e-16\n', ""
    ),
    "TPUs of one host": TPU.replace(": 4x4", ": 2x4")
    .replace("numOfHosts: 4", "numOfHosts: 1")
    .replace('google.com/tpu: "4"', 'google.com/tpu: "8"'),
    "other objects in the file": f"apiVersion: v1\nkind: ConfigMap\ndata: {{a: b}}\n---\n{CLUSTER}",
    "machines with resources detected by the cloud": LAUNCHER.replace("    resources: {CPU: 16}\n", ""),
    "resources quoted for the shell, without an autoscaler": CLUSTER.replace(
        "enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false"
    )
    .replace("  autoscalerOptions:\n    version: v2\n    idleTimeoutSeconds: 60\n", "")
    .replace("minReplicas: 0", "minReplicas: 4")
    .replace("replicas: 0", "replicas: 4")
    .replace(_PARAMS, """rayStartParams: {resources: '''{"mine": 1.0}'''}""", 1),
    "a number of CPUs from a variable of the pod, without an autoscaler": CLUSTER.replace(
        "enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false"
    )
    .replace("  autoscalerOptions:\n    version: v2\n    idleTimeoutSeconds: 60\n", "")
    .replace("minReplicas: 0", "minReplicas: 4")
    .replace("replicas: 0", "replicas: 4")
    .replace(_PARAMS, 'rayStartParams: {num-cpus: "$NUM_CPUS"}', 1),
    "a head type with Ray's default name": LAUNCHER.replace("head_node_type: head\n", "").replace(
        "  head:\n", "  ray.head.default:\n"
    ),
    "omitted limit and node types": ("cluster_name: tune\nprovider:\n  type: aws\n  region: us-west-2\n"),
    "an omitted limit with node types within Ray's default": LAUNCHER.replace("max_workers: 6\n", "")
    .replace("max_workers: 4", "max_workers: 1")
    .replace("max_workers: 2", "max_workers: 1"),
    "Google's TPUs by topology": """\
cluster_name: tpus
max_workers: 2
provider: {type: gcp, region: us-central2, availability_zone: us-central2-b, project_id: null}
available_node_types:
  ray_head_default: {resources: {CPU: 0}, node_config: {machineType: n1-standard-4}}
  ray_tpu: {resources: {TPU: 4}, node_config: {acceleratorConfig: {type: V4, topology: 2x2x1}}}
""",
    "a cloud's defaults": "cluster_name: small\nmax_workers: 1\nprovider: {type: aws, region: us-west-2}\n",
    "existing machines": """\
cluster_name: lab
provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2, 10.0.0.3]}
auth: {ssh_user: ray}
""",
}
