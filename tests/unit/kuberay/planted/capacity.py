"""Mistakes in the capacity of a node, each next to a valid part that looks similar."""

from tests.unit.kuberay.planted.planting import plant
from tests.unit.kuberay.planted.sound import CLUSTER, JOB

_L4, _CPU = "groupName: l4\n", "groupName: cpu"
_PARAMS = "rayStartParams: {}"
_NAMES = "            - name: ray-worker\n"
_SELECTOR = "            nvidia.com/gpu.product: NVIDIA-L4\n"
_DEVICE = 'nvidia.com/gpu: "2"'
_CRON_JOB = (
    JOB[: JOB.index("spec:\n")].replace("RayJob", "RayCronJob")
    + 'spec:\n  schedule: "0 3 * * *"\n  jobTemplate:\n'
    + "".join(f"  {line}\n" for line in JOB[JOB.index("spec:\n") + 6 :].splitlines())
)


def _with_shm(empty_dir: str, memory: str = "32Gi") -> str:
    volumes = f"          volumes:\n            - name: shared\n              emptyDir: {empty_dir}\n"
    start, end = CLUSTER.index(_L4), CLUSTER.index("    - groupName: cpu")
    group = CLUSTER[start:end].replace(_NAMES, f"{_NAMES}{_MOUNT}").replace("32Gi", memory) + volumes
    return CLUSTER[:start] + group + CLUSTER[end:]


_MOUNT = "              volumeMounts: [{name: shared, mountPath: /dev/shm}]\n"
_SHM = _with_shm("{medium: Memory, sizeLimit: 12Gi}")


def _asking(**amounts: str) -> str:
    fields = "".join(f"  {name}: {amount}\n" for name, amount in amounts.items())
    return JOB.replace("  entrypoint:", f"{fields}  entrypoint:")


def _on(machine: str, gpus: int = 2) -> str:
    selected = CLUSTER.replace(_SELECTOR, f"            node.kubernetes.io/instance-type: {machine}\n")
    return selected.replace(_DEVICE, f'nvidia.com/gpu: "{gpus}"')


MISTAKES = (
    plant("shared memory on the disk", _SHM, "{medium: Memory, sizeLimit: 12Gi}", "{}", "shm-on-disk",
          "- name: shared", after=_L4),
    plant("shared memory on the disk, with a limit", _SHM, "medium: Memory, ", "", "shm-on-disk", "- name: shared",
          after=_L4),
    plant("workers without CPUs", CLUSTER, _PARAMS, 'rayStartParams: {num-cpus: "0"}', "workers-without-cpus",
          "num-cpus", after=_L4),
    plant("workers without CPUs by the group's resources", CLUSTER, _PARAMS, 'resources: {CPU: "0", GPU: "2"}',
          "workers-without-cpus", "resources: {CPU", after=_L4),
    plant("a group that never starts a node", CLUSTER, "maxReplicas: 4", "maxReplicas: 0", "group-never-starts",
          "maxReplicas: 0"),
    plant("a device type that the node selector contradicts", CLUSTER, "NVIDIA-L4", "Tesla-T4",
          "device-type-contradicted", "ray.io/accelerator-type"),
    plant("a device type that Google's selector contradicts",
          CLUSTER.replace("nvidia.com/gpu.product: NVIDIA-L4", "cloud.google.com/gke-accelerator: nvidia-l4"),
          "nvidia-l4", "nvidia-a100-80gb", "device-type-contradicted", "ray.io/accelerator-type"),
    plant("more GPUs than the machine has", _on("g6.12xlarge"), "g6.12xlarge", "g6.xlarge",
          "more-gpus-than-machine", _DEVICE),
    plant("more GPUs than Google's machine has", _on("a2-highgpu-4g", 4), "4g", "2g",
          "more-gpus-than-machine", 'nvidia.com/gpu: "4"'),
)  # fmt: skip

NO_MISTAKES = {
    "shared memory of the size of the object store": _SHM,
    "shared memory without a limit": _with_shm("{medium: Memory}"),
    "an emptyDir elsewhere": _with_shm("{}").replace("mountPath: /dev/shm", "mountPath: /data"),
    "a driver that uses a whole node": _asking(entrypointNumCpus="8", entrypointNumGpus="2"),
    "a driver with a resource of a group": _asking(entrypointResources="""'{"Disk": 1}'""").replace(
        _PARAMS, "resources: {CPU: '8', GPU: '2', Disk: '1'}", 1
    ),
    "a driver with resources that Ray detects": _asking(entrypointResources="""'{"accelerator_type:L4": 0.1}'"""),
    "a machine with more GPUs than the pod requests": _on("g6.12xlarge"),
    "an unknown machine": _on("made-to-order", 16),
    "a cron job": _CRON_JOB,
    "a group with declared CPUs": CLUSTER.replace(_PARAMS, 'rayStartParams: {num-cpus: "8"}', 1),
    "a request below the limit": CLUSTER.replace(
        'requests:\n                  cpu: "4"', 'requests:\n                  cpu: "2"'
    ),
    "a variant of the declared type": CLUSTER.replace("accelerator-type: L4", "accelerator-type: A100").replace(
        "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB"
    ),
}
