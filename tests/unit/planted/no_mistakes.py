"""What looks like a mistake and is none."""

from tests.unit.planted.sound import CLUSTER, LAUNCHER, TPU

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
    "a slice of a GPU that Ray is told of": _of_l4(_DEVICE, 'nvidia.com/mig-1g.10gb: "1"').replace(
        _PARAMS, 'resources: {GPU: "1"}', 1
    ),
    "Gaudi cards that Ray is told of": _of_l4("NVIDIA-L4", "gaudi")
    .replace(_DEVICE, 'habana.ai/gaudi: "8"')
    .replace("key: nvidia.com/gpu", "key: habana.ai/gaudi")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/gaudi:1")
    .replace("accelerator-type: L4", "accelerator-type: Intel-GAUDI")
    .replace(_PARAMS, 'resources: {CPU: "8", HPU: "8"}', 1),
    "AMD's GPUs, which the autoscaler counts": _of_l4(_DEVICE, 'amd.com/gpu: "8"')
    .replace("nvidia.com/gpu.product: NVIDIA-L4", "amd.com/gpu.product-name: MI300X")
    .replace("key: nvidia.com/gpu", "key: amd.com/gpu")
    .replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/rocm:1")
    .replace("accelerator-type: L4", "accelerator-type: AMD-Instinct-MI300X-OAM"),
    "as many GPUs told as there are": _of_l4(_PARAMS, 'rayStartParams: {num-gpus: "2"}'),
    "a limit alone, which Kubernetes requests too": _of_l4(_LIMIT_ALONE, ""),
    "GPUs by a resource claim": _of_l4(f"                  {_DEVICE}\n", "")
    .replace(_PARAMS, 'rayStartParams: {num-gpus: "2"}', 1)
    .replace(
        '                limits:\n                  cpu: "8"',
        '                claims: [{name: gpus}]\n                limits:\n                  cpu: "8"',
    ),
    "GPUs that are hidden by another word": _of_cpus("value: void", "value: none"),
    "CPU nodes that selectors keep apart": _of_cpus(_VOID, "").replace(
        "        spec:\n          restartPolicy: Never\n          containers:\n            - name: ray-worker\n"
        "              image: rayproject/ray:2.60.0-py311\n",
        "        spec:\n          restartPolicy: Never\n          nodeSelector: {nvidia.com/gpu.product: none}\n"
        "          containers:\n            - name: ray-worker\n              image: rayproject/ray:2.60.0-py311\n",
    ),
    "CPU nodes that only a taint keeps off GPUs": _of_cpus(_VOID, "").replace("py311\n", "py311-gpu\n"),
    "CPU nodes beside GPUs whose image has no CUDA": _SHOWN,
    "CPU nodes beside GPUs that count none": _SHOWN[:_CPU]
    + _SHOWN[_CPU:].replace("py311\n", "py311-gpu\n").replace(_PARAMS, 'rayStartParams: {num-gpus: "0"}'),
    "a toleration of the value that the taint has": _of_l4(_SELECTOR, _ON_GKE).replace(
        "operator: Exists", "operator: Equal\n              value: present"
    ),
    "a toleration of a value that only the nodes tell": _of_l4("operator: Exists", 'value: "true"'),
    "a toleration of every effect": _of_l4("              effect: NoSchedule\n", ""),
    "images that may have one Python, of which one says which": CLUSTER.replace("-py311", "").replace(
        "2.60.0-gpu", "2.60.0-py310-gpu"
    ),
    "an image of ray-ml of one's own": CLUSTER.replace("rayproject/ray:2", "registry.example/rayproject/ray-ml:2"),
    "a tag of one's own, of which nobody knows whether it has CUDA": _of_l4("2.60.0-py311-gpu", "2.60.0-vllm_0.9"),
    "images of one's own with versions of their own": CLUSTER.replace(
        "rayproject/ray:2.60.0-py311-gpu", "team/ray:0.3.1"
    ),
    "a type that Ray has no name for": _of_l4("accelerator-type: L4", "accelerator-type: GeForce-RTX-5090"),
    "a toleration of every taint": _of_l4("key: nvidia.com/gpu\n              operator: Exists", "operator: Exists"),
    "a taint of one's own": _of_l4("key: nvidia.com/gpu\n", "key: team/vision\n"),
    "CPU nodes that are always there": _of_cpus("minReplicas: 0", "minReplicas: 1").replace(
        "replicas: 0\n      minReplicas: 1", "replicas: 1\n      minReplicas: 1"
    ),
    "images of one's own": CLUSTER.replace("rayproject/ray:2.60.0-py311-gpu", "registry.example/team/train:7"),
    "a sidecar behind Ray": _of_cpus(
        "              env:\n",
        "              env:\n                - {name: A, value: b}\n",
    )
    + "            - name: logs\n              image: fluent/fluent-bit:3\n",
    "TPUs of one host": TPU.replace(": 4x4", ": 2x4")
    .replace("numOfHosts: 4", "numOfHosts: 1")
    .replace('google.com/tpu: "4"', 'google.com/tpu: "8"'),
    "other objects in the file": f"apiVersion: v1\nkind: ConfigMap\ndata: {{a: b}}\n---\n{CLUSTER}",
    "machines whose resources the cloud tells": LAUNCHER.replace("    resources: {CPU: 16}\n", ""),
    "resources in words that only the shell reads, where no autoscaler does": CLUSTER.replace(
        "enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false"
    )
    .replace("  autoscalerOptions:\n    version: v2\n    idleTimeoutSeconds: 60\n", "")
    .replace("minReplicas: 0", "minReplicas: 4")
    .replace("replicas: 0", "replicas: 4")
    .replace(_PARAMS, """rayStartParams: {resources: '''{"mine": 1.0}'''}""", 1),
    "a head's type of the name that Ray takes where none is given": LAUNCHER.replace(
        "head_node_type: head\n", ""
    ).replace("  head:\n", "  ray.head.default:\n"),
    "a limit that is left out together with the node types": (
        "cluster_name: tune\nprovider:\n  type: aws\n  region: us-west-2\n"
    ),
    "a limit that is left out where the node types keep to Ray's": LAUNCHER.replace("max_workers: 6\n", "")
    .replace("max_workers: 4", "max_workers: 1")
    .replace("max_workers: 2", "max_workers: 1"),
    "TPUs of Google's by their topology": """\
cluster_name: tpus
max_workers: 2
provider: {type: gcp, region: us-central2, availability_zone: us-central2-b, project_id: null}
available_node_types:
  ray_head_default: {resources: {CPU: 0}, node_config: {machineType: n1-standard-4}}
  ray_tpu: {resources: {TPU: 4}, node_config: {acceleratorConfig: {type: V4, topology: 2x2x1}}}
""",
    "a cloud's defaults": "cluster_name: small\nmax_workers: 1\nprovider: {type: aws, region: us-west-2}\n",
    "machines that are there": """\
cluster_name: lab
provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2, 10.0.0.3]}
auth: {ssh_user: ray}
""",
}
