"""Each advice of the linter works as it is written: the file with the mistake is changed as the finding says."""

import pytest

from tests.advice import Row, follow, outdated, texts_with_advice, without_row
from tests.unit.kuberay.planted import capacity, files, groups, pods, sharing, templates
from tests.unit.kuberay.planted.sound import CLUSTER
from tune_policies.kuberay.lint.linting import lint_text

PLANTED = (
    *pods.MISTAKES,
    *groups.MISTAKES,
    *capacity.MISTAKES,
    *sharing.MISTAKES,
    *files.INPUTS,
    *templates.MISTAKES,
)
MISTAKES = {
    **{mistake.claim: mistake for mistake in PLANTED},
    **{f"launcher: {mistake.claim}": mistake for mistake in files.LAUNCHERS},
}

_SIDECAR = """\
            - name: logs
              image: fluent/fluent-bit:3
              resources: {limits: {cpu: 1, memory: 1Gi}}
"""


def _variable(name: str, value: int) -> str:
    return f"              env:\n                - name: {name}\n                  value: '{value}'\n"


def lint(claim: str, *changes: tuple[str, str]) -> str:
    """Return the findings in the file with a mistake after changes to it: pairs of the old and the new text.

    A change is made after the beginning of the line with the mistake, or else at the first place in the file. It must
    not lead to another error.
    """
    mistake = MISTAKES[claim]
    text, at_line = mistake.text, len("".join(mistake.text.splitlines(keepends=True)[: mistake.line - 1]))
    for old, new in changes:
        where = text.find(old, at_line)
        if where < 0:
            where = text.index(old)
        text = text[:where] + new + text[where + len(old) :]
    before = {finding.rule for finding in lint_text(mistake.text, "a.yaml")}
    found = lint_text(text, "a.yaml")
    assert not [finding for finding in found if finding.severity == "error" and finding.rule not in before]
    return "\n".join(f"{finding.rule}: {finding.message}: {finding.fix}" for finding in found)


def checked(text: str) -> str:
    """Return the findings in a file."""
    found = lint_text(text, "a.yaml")
    return "\n".join(f"{finding.rule}: {finding.message}: {finding.fix}" for finding in found)


def in_cluster(
    *,
    image: str = "rayproject/ray:2.60.0-py311-gpu",
    head: str = "rayproject/ray:2.60.0-py311",
    device: str = 'nvidia.com/gpu: "2"',
    params: str = "{}",
    version: str = "2.60.0",
    autoscaler: str = "v2",
    resized: bool = False,
    pod: str = "",
    container: str = "",
    metadata: str = "",
) -> str:
    """Return the findings in a valid cluster after changes to it and to its group ``l4``."""
    text = CLUSTER.replace("rayproject/ray:2.60.0-py311-gpu", f"'{image}'").replace('"2.60.0"', f'"{version}"')
    text = text.replace("image: rayproject/ray:2.60.0-py311\n", f"image: {head}\n", 1)
    text = text.replace('nvidia.com/gpu: "2"', device).replace("version: v2", f"version: {autoscaler}")
    text = text.replace("rayStartParams: {}", f"rayStartParams: {params}", 1)
    text = text.replace("          nodeSelector:", f"{pod}          nodeSelector:")
    text = text.replace("              image: 'rayproject", f"{container}              image: 'rayproject")
    text = text.replace(
        "        spec:\n          restartPolicy: Never\n          node", f"{metadata}        spec:\n          node"
    )
    if resized:
        groups = '{"groups": {"l4": {"max-cpu": "16", "max-memory": "64Gi", "resize-timeout": 60}}}'
        text = text.replace("purpose: trials", f"ray.io/ippr: '{groups}'")
    return checked(text)


def in_pod(field: str) -> str:
    """Return the findings in a cluster with another field in the pods of the group ``l4``."""
    text = CLUSTER[: CLUSTER.index("          nodeSelector:")]
    rest = CLUSTER[CLUSTER.index("          containers:\n            - name: ray-worker") :]
    return checked(f"{text}          {field}\n{rest}")


def in_container(field: str) -> str:
    return in_cluster(container=f"              {field}\n")


def mounted(fields: str) -> str:
    return in_container(f"volumeMounts: [{{name: data, {fields}}}]")


def requiring(fields: str) -> str:
    """Return the findings in a cluster with a node affinity."""
    required = f"{{nodeSelectorTerms: [{{matchExpressions: [{{key: a, {fields}}}]}}]}}"
    return in_pod(f"affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {required}}}}}")


def annotated(fields: str, device: str = 'nvidia.com/gpu: "2"') -> str:
    """Return the findings in a cluster whose group ``l4`` has annotations of KAI Scheduler."""
    return in_cluster(metadata=f"        metadata: {{annotations: {{{fields}}}}}\n", device=device)


def retired(**fields: object) -> str:
    """Return the findings in a cluster with fields of the retired operator in its group ``l4``."""
    return in_cluster(params="{}" + "".join(f"\n      {name}: {value}" for name, value in fields.items()))


JSON_OF_HPU = """{resources: '"{\\"HPU\\": 8}"'}"""
OF_THE_RETIRED_OPERATOR = "apiVersion: cluster.ray.io/v1\nkind: RayCluster\nspec: {headPodType: head, podTypes: []}\n"


def lint_row(claim: str, advice: str, *changes: tuple[str, str]) -> Row:
    """Return the row of a planted mistake, and of the changes to the file that follow the advice."""
    return Row(f"lint({claim!r})", advice, f"lint({claim!r}, *{changes!r})")


TABLE = [
    lint_row("half a GPU as a limit", "request whole devices here", ('"0.5"', '"2"')),
    lint_row("a part of a MiB", "write a whole number", ('"0.5"', '"500"')),
    lint_row(
        "a MIG device that the autoscaler does not count",
        'write num-gpus: "2" under rayStartParams',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {num-gpus: "2"}',
        ),
    ),
    lint_row(
        "Intel GPUs that the autoscaler does not count",
        'write num-gpus: "1" under rayStartParams',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {num-gpus: "1"}',
        ),
    ),
    lint_row(
        "Gaudi cards that the autoscaler does not count",
        'write resources: {HPU: "8"} next to groupName and template',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {}\n      resources: {HPU: "8"}',
        ),
    ),
    lint_row(
        "Neuron cores that the autoscaler does not count",
        'write resources: {neuron_cores: "2"} next to groupName and template',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {}\n      resources: {neuron_cores: "2"}',
        ),
    ),
    lint_row(
        "Ascend cards that the autoscaler does not count",
        'write resources: {NPU: "8"} next to groupName and template',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {}\n      resources: {NPU: "8"}',
        ),
    ),
    lint_row(
        "time slices of a GPU",
        "or use MIG",
        ('gpu.shared: "2"', 'mig-1g.10gb: "1"'),
        ('gpu.shared: "2"', 'mig-1g.10gb: "1"'),
        ('resources: {GPU: "2"}', 'resources: {GPU: "1"}'),
    ),
    lint_row(
        "several MIG devices in a pod",
        "request 1 per pod, with the CPUs and the memory for one device",
        ('10gb: "2"', '10gb: "1"'),
        ('10gb: "2"', '10gb: "1"'),
        ('resources: {GPU: "2"}', 'resources: {GPU: "1"}'),
    ),
    lint_row("GPU in lower case", "write GPU", ('gpu: "2"', 'GPU: "2"')),
    lint_row("CPU in lower case", "write CPU", ("{cpu:", "{CPU:")),
    lint_row(
        "more declared GPUs than the limit",
        'unless the device plugin reports a wrong number, write "2"',
        ('"4"', '"2"'),
    ),
    lint_row(
        "declared GPUs without a Kubernetes resource",
        'write nvidia.com/gpu: "1", or the key of another vendor, under limits',
        ("limits:\n", 'limits:\n                  nvidia.com/gpu: "1"\n'),
    ),
    lint_row(
        "a pod that makes all GPUs visible",
        "set the environment variable NVIDIA_VISIBLE_DEVICES to void",
        ("value: all", "value: void"),
    ),
    lint_row("another Ray version than the head's", "use an image with Ray 2.60.0", ("2.59.0", "2.60.0")),
    lint_row(
        "a sidecar that precedes Ray's container",
        "make 'ray-worker' the first container",
        (
            _SIDECAR,
            "",
        ),
        (
            '                requests:\n                  cpu: "4"\n                  memory: 16Gi\n',
            '                requests:\n                  cpu: "4"\n                  memory: 16Gi\n' + _SIDECAR,
        ),
    ),
    lint_row(
        "an image without CUDA",
        "use the image of the same version whose tag ends in -gpu",
        ("2.60.0-py311", "2.60.0-py311-gpu"),
    ),
    lint_row(
        "an image for NVIDIA on AMD's GPUs",
        "use an image for amd.com/gpu in which Ray is installed",
        ("rayproject/ray:2.60.0-py311-gpu", "registry.example/rocm:1"),
    ),
    lint_row(
        "an image with a Ray version of 2023",
        "use an image with Ray 2.50 to 2.60, such as rayproject/ray:2.60.0",
        ("ray-ml:2.6.3-gpu", "ray:2.60.0-gpu"),
    ),
    lint_row(
        "devices selected by the user",
        "remove CUDA_VISIBLE_DEVICES, because Ray sets it for each trial",
        (_variable("CUDA_VISIBLE_DEVICES", 0), ""),
    ),
    lint_row(
        "devices selected with a variable of an older Ray",
        "remove ROCR_VISIBLE_DEVICES, because Ray sets HIP_VISIBLE_DEVICES for each trial",
        (_variable("ROCR_VISIBLE_DEVICES", 0), ""),
    ),
    lint_row(
        "trials that see all devices",
        "remove RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        (
            _variable("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", 1),
            "",
        ),
    ),
    lint_row(
        "trials without GPUs that see GPUs",
        "remove RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        (
            _variable("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", 0),
            "",
        ),
    ),
    lint_row(
        "a taint that is not tolerated",
        "add to tolerations: {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}",
        (
            "          containers:",
            "          tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]\n"
            "          containers:",
        ),
    ),
    lint_row("labels that an older Ray does not read", "use Ray 2.51 or newer", ('"2.50.0"', '"2.60.0"')),
    lint_row(
        "resources that an older Ray does not read",
        "or state the amounts in rayStartParams",
        ('resources: {GPU: "2"}', 'rayStartParams: {num-gpus: "2"}'),
    ),
    lint_row("the cloud's name of a device type", "use Ray's name of the type", ("nvidia-l4", "L4")),
    lint_row(
        "an undeclared device type",
        "write labels: {ray.io/accelerator-type: A100} for label selectors and resources: "
        '{"accelerator_type:A100": "1"} for accelerator_type',
        (
            "rayStartParams: {}",
            'rayStartParams: {}\n      resources: {"accelerator_type:L4": "1"}\n'
            "      labels: {ray.io/accelerator-type: L4}",
        ),
    ),
    lint_row(
        "groups that use each other's nodes",
        "add a nodeSelector for the device type of its nodes",
        (
            "          tolerations:",
            "          nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n          tolerations:",
        ),
    ),
    lint_row(
        "a runtime class that one group lacks",
        "write runtimeClassName: nvidia if its nodes need it too",
        ("          restartPolicy: Never\n", "          restartPolicy: Never\n          runtimeClassName: nvidia\n"),
    ),
    lint_row("GPU nodes that always run", "write minReplicas: 0", ("minReplicas: 1", "minReplicas: 0")),
    lint_row("GPU nodes that idle for hours", "set idleTimeoutSeconds to a few minutes, such as 300", ("7200", "300")),
    lint_row(
        "GPU nodes that are never added",
        "write enableInTreeAutoscaling: true",
        ("enableInTreeAutoscaling: false", "enableInTreeAutoscaling: true"),
    ),
    lint_row(
        "GPU nodes that are never added",
        "or set replicas, minReplicas and maxReplicas to the same number",
        (
            "      replicas: 0\n      minReplicas: 0\n      maxReplicas: 4",
            "      replicas: 4\n      minReplicas: 4\n      maxReplicas: 4",
        ),
        (
            "      replicas: 0\n      minReplicas: 0\n      maxReplicas: 9",
            "      replicas: 9\n      minReplicas: 9\n      maxReplicas: 9",
        ),
    ),
    lint_row(
        "GPU nodes without an upper bound",
        "set maxReplicas to the largest number that you want to pay for",
        ("      replicas: 0\n", "      replicas: 0\n      maxReplicas: 4\n"),
    ),
    lint_row(
        "a head that runs trials",
        'write num-cpus: "0" under the rayStartParams of the head',
        ('num-cpus: "2"', 'num-cpus: "0"'),
    ),
    lint_row("half a CPU, which Ray counts as one", "write whole CPUs", ('cpu: "500m"', 'cpu: "4"')),
    lint_row(
        "memory that Kubernetes does not reserve", 'request memory: "16Gi" too', ("memory: 4Gi", 'memory: "16Gi"')
    ),
    lint_row(
        "memory without a limit",
        "write the memory under limits and requests",
        (
            'limits:\n                  cpu: "8"\n',
            'limits:\n                  cpu: "8"\n                  memory: 32Gi\n',
        ),
        (
            'requests:\n                  cpu: "8"\n',
            'requests:\n                  cpu: "8"\n                  memory: 32Gi\n',
        ),
    ),
    lint_row(
        "TPUs without topology",
        "add cloud.google.com/gke-tpu-topology to its nodeSelector",
        ("nodeSelector:\n", "nodeSelector:\n            cloud.google.com/gke-tpu-topology: 4x4\n"),
    ),
    lint_row("an unknown TPU type", "use one of tpu-v4-podslice", ("tpu-v6-slice", "tpu-v6e-slice")),
    lint_row("an invalid topology", "use one of 1x1, 2x2, 2x4, 2x8, 4x4", (": four", ": 4x4")),
    lint_row("three chips on a host", "write 4", ('tpu: "3"', 'tpu: "4"'), ('tpu: "3"', 'tpu: "4"')),
    lint_row("two hosts for a slice of four", "write numOfHosts: 4", ("numOfHosts: 2", "numOfHosts: 4")),
    lint_row(
        "a slice without the label of its first host",
        'write labels: {ray.io/tpu-worker-id: "0"}',
        ("labels:\n", 'labels:\n        ray.io/tpu-worker-id: "0"\n'),
    ),
    lint_row(
        "slices without labels under the default version",
        'write labels: {ray.io/tpu-worker-id: "0", ray.io/tpu-pod-type: "v6e-16"}',
        (
            "      rayStartParams: {}",
            '      labels: {ray.io/tpu-worker-id: "0", ray.io/tpu-pod-type: "v6e-16"}\n      rayStartParams: {}',
        ),
    ),
    lint_row("a minimum above the maximum", "raise maxReplicas to 5", ("maxReplicas: 4", "maxReplicas: 5")),
    lint_row("a minimum above the maximum", "or lower minReplicas to 4", ("minReplicas: 5", "minReplicas: 4")),
    lint_row("replicas out of range", "write replicas: 4", ("replicas: 7", "replicas: 4")),
    lint_row("two groups with one name", "give each group a unique name", ("groupName: l4", "groupName: cpu")),
    lint_row("a group with the head's name", "give the group another name", ("headgroup", "cpu")),
    lint_row("no CPU", "set limits.cpu of the first container", ("limits:\n", 'limits:\n                  cpu: "4"\n')),
    lint_row(
        "no CPU",
        "or resources.CPU of the group",
        ("      maxReplicas: 9\n", '      maxReplicas: 9\n      resources: {CPU: "4"}\n'),
    ),
    lint_row("images of another Ray version", 'write rayVersion: "2.60.0"', ('"2.59.0"', '"2.60.0"')),
    lint_row(
        "custom resources in one pair of quotes",
        "use the group's field resources",
        ("rayStartParams: {resources: '{\"Disk\": 1}'}", 'rayStartParams: {}\n      resources: {Disk: "1"}'),
    ),
    lint_row(
        "custom resources in one pair of quotes",
        'in two pairs of quotes: \'"{\\"Custom\\": 1}"\'',
        ("'{\"Disk\": 1}'", '\'"{\\"Disk\\": 1}"\''),
    ),
    lint_row(
        "options of a disabled autoscaler",
        "write enableInTreeAutoscaling: true",
        ("enableInTreeAutoscaling: false", "enableInTreeAutoscaling: true"),
    ),
    lint_row(
        "options of a disabled autoscaler",
        "or remove autoscalerOptions",
        ("  autoscalerOptions:\n    version: v2\n    idleTimeoutSeconds: 60\n", ""),
    ),
    lint_row("half a GPU in the parameters of ray start", 'write a whole number, such as "4"', ('"0.5"', '"2"')),
    lint_row("a parameter in the style of a field", "write num-cpus", ("numCpus", "num-cpus")),
    lint_row("a parameter with dashes", "write num-gpus", ("--num-gpus", "num-gpus")),
    lint_row(
        "a queued pod without requests",
        "add requests for CPU and memory",
        (
            "- name: ray-worker\n",
            "- name: ray-worker\n"
            "                resources: {requests: {cpu: 4, memory: 16Gi}, limits: {cpu: 4, memory: 16Gi}}\n",
        ),
    ),
    lint_row(
        "shared memory on the disk", "write emptyDir: {medium: Memory}", ("emptyDir: {}", "emptyDir: {medium: Memory}")
    ),
    lint_row(
        "shared memory on the disk",
        "or remove the volume and its mount",
        ("          volumes:\n            - name: shared\n              emptyDir: {}\n", ""),
        ("              volumeMounts: [{name: shared, mountPath: /dev/shm}]\n", ""),
    ),
    lint_row("workers without CPUs", "remove this amount", ('{num-cpus: "0"}', "{}")),
    lint_row(
        "a group that never starts a node",
        "set maxReplicas to the largest number that you want to pay for",
        ("maxReplicas: 0", "maxReplicas: 4"),
    ),
    lint_row(
        "a device type that the node selector contradicts",
        "write the device type of the nodes in both places",
        ("accelerator-type: L4", "accelerator-type: T4"),
    ),
    lint_row(
        "more GPUs than the machine has",
        "request at most 1",
        ('nvidia.com/gpu: "2"', 'nvidia.com/gpu: "1"'),
        ('nvidia.com/gpu: "2"', 'nvidia.com/gpu: "1"'),
    ),
    lint_row("more GPUs than the machine has", "or select a larger machine", ("g6.xlarge", "g6.12xlarge")),
    lint_row("a fraction above 1", 'write a number between 0 and 1, such as "0.5"', ('"2"', '"0.5"')),
    lint_row("memory with a unit", 'write a whole number of MiB, such as "4000"', ('"4Gi"', '"4000"')),
    lint_row("a misspelled annotation", "write gpu-fraction", ("gpu_fraction", "gpu-fraction")),
    lint_row(
        "memory of HAMi with a unit", 'write a number of MiB without a unit, such as "10240"', ("10Gi", '"10240"')
    ),
    lint_row("a misspelled amount for HAMi", "write nvidia.com/gpumem", ("gpu-mem:", "gpumem:")),
    lint_row("more than all memory", "write at most 100", ("150", "100")),
    lint_row(
        "no KAI Scheduler",
        "write schedulerName: kai-scheduler",
        (
            "          restartPolicy: Never\n          nodeSel",
            "          restartPolicy: Never\n          schedulerName: kai-scheduler\n          nodeSel",
        ),
    ),
    lint_row(
        "a label instead of an annotation",
        "write the part under template.metadata.annotations",
        ("labels:\n            gpu-fraction", "annotations:\n            gpu-fraction"),
    ),
    lint_row(
        "a container that does not exist",
        "write ray-worker, the Ray container",
        ("container-name: ray}", "container-name: ray-worker}"),
    ),
    lint_row("a number of GPUs in words", 'write a whole number, such as "2"', ("two", '"2"')),
    lint_row(
        "a part that Ray does not count",
        'write resources: {GPU: "1"} next to groupName and template',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {}\n      resources: {GPU: "1"}',
        ),
    ),
    lint_row(
        "a part that Ray does not count",
        'or num-gpus: "1" under rayStartParams',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {num-gpus: "1"}',
        ),
    ),
    lint_row(
        "a claim that Ray does not count",
        'if the claim is for a GPU, write resources: {GPU: "1"} next to groupName and template',
        (
            "      maxReplicas: 4\n      rayStartParams: {}",
            '      maxReplicas: 4\n      rayStartParams: {}\n      resources: {GPU: "1"}',
        ),
    ),
    lint_row(
        "a claim that no container uses",
        "write claims: [{name: gpu}] under resources of the Ray container",
        ("              resources:\n", "              resources:\n                claims: [{name: gpu}]\n"),
    ),
    lint_row(
        "cores without memory",
        "write nvidia.com/gpumem (in MiB) under limits",
        ('gpucores: "50"\n', 'gpucores: "50"\n                  nvidia.com/gpumem: "8000"\n'),
    ),
    lint_row(
        "memory without GPUs",
        'write nvidia.com/gpu: "1" under limits',
        ('gpumem: "9000"\n', 'gpumem: "9000"\n                  nvidia.com/gpu: "1"\n'),
    ),
    lint_row(
        "a size without a timeout",
        "give each group max-cpu, max-memory and resize-timeout (seconds)",
        ('"max-memory": "64Gi"', '"max-memory": "64Gi", "resize-timeout": 60'),
        (
            "- name: ray-worker\n",
            "- name: ray-worker\n              resizePolicy:\n"
            "                - {resourceName: cpu, restartPolicy: NotRequired}\n"
            "                - {resourceName: memory, restartPolicy: NotRequired}\n",
        ),
    ),
    lint_row(
        "a misspelled annotation of the cluster",
        "write ray.io/ippr under metadata.annotations of the cluster",
        ("iprr", "ippr"),
    ),
    lint_row(
        "a size that pods already have",
        "write larger amounts for max-cpu and max-memory",
        ('"max-cpu": "4"', '"max-cpu": "16"'),
        ('"4Gi"', '"64Gi"'),
    ),
    lint_row("a size of a group that does not exist", "use a groupName, or headgroup for the head", ('"l40"', '"l4"')),
    lint_row("launcher: a minimum above the maximum", "write at most 4", ("min_workers: 5", "min_workers: 4")),
    lint_row(
        "launcher: no total maximum",
        "write the maximum number of workers at the top level of the file, such as max_workers: 8",
        ("cluster_name: trials\n", "cluster_name: trials\nmax_workers: 8\n"),
    ),
    lint_row("launcher: a GPU in lower case", "write GPU", ("gpu: 1", "GPU: 1")),
    lint_row(
        "launcher: an image for the launcher without CUDA",
        "use the image of the same version whose tag ends in -gpu",
        ("2.60.0", "2.60.0-gpu"),
    ),
    lint_row(
        "launcher: a head that runs trials",
        "write resources: {CPU: 0} for the head's node type",
        ("{CPU: 2}", "{CPU: 0}"),
    ),
    lint_row(
        "launcher: a Ray version of 2023 for the launcher",
        "such as rayproject/ray:2.60.0",
        ("ray-ml:2.6.3-gpu", "ray:2.60.0-gpu"),
    ),
    lint_row("an unknown kind", "did you mean 'RayCluster'?", ("RayClutser", "RayCluster")),
    lint_row(
        "groups without the plural", "did you mean 'workerGroupSpecs'?", ("workerGroupSpec:", "workerGroupSpecs:")
    ),
    lint_row("a misspelled nodeSelector", "did you mean 'nodeSelector'?", ("nodeselector", "nodeSelector")),
    lint_row("a number instead of a string", 'write "0", in quotes', ("num-cpus: 0", 'num-cpus: "0"')),
    lint_row("a string instead of a number", "remove the quotes", ('"4"', "4")),
    lint_row("an invalid amount", "write '32G'", ("32GB", "32G"), ("32Gi", "32G")),
    lint_row("a variable that is a number", 'write "1", in quotes', ("value: 1", 'value: "1"')),
    lint_row(
        "a node selector next to the template",
        "so check the indentation",
        ("      nodeSelector: {disk: ssd}\n", ""),
        ("          restartPolicy", "          nodeSelector: {disk: ssd}\n          restartPolicy"),
    ),
    lint_row(
        "a restart policy in lower case", "did you mean 'Never'?", ("restartPolicy: never", "restartPolicy: Never")
    ),
    lint_row("the name of a secret", "did you mean 'secretName'?", ("secret: {name:", "secret: {secretName:")),
    lint_row(
        "a field of the pod in a container",
        "so check the indentation",
        ("              nodeSelector: {a: b}\n", ""),
        ("NVIDIA-L4\n", "NVIDIA-L4\n            a: b\n"),
    ),
    lint_row(
        "a GPU that is only requested",
        "write nvidia.com/gpu: '2' under limits",
        (
            'limits:\n                  cpu: "8"\n',
            "limits:\n                  cpu: \"8\"\n                  nvidia.com/gpu: '2'\n",
        ),
    ),
    lint_row(
        "more GPUs as a limit than requested",
        "write the same amount under requests and limits",
        ('nvidia.com/gpu: "2"', 'nvidia.com/gpu: "4"'),
    ),
    lint_row("a request above its limit", "or request at most 8", ('cpu: "9"', 'cpu: "8"')),
    lint_row(
        "a request above its limit",
        "raise the limit",
        ('limits:\n                  cpu: "8"\n', 'limits:\n                  cpu: "9"\n'),
    ),
    lint_row("memory without a unit", "write the memory with a unit, such as 16Gi", ("memory: 32\n", "memory: 32Gi\n")),
    lint_row("CPUs with the unit of memory", "write CPUs without a unit, such as 4 or 500m", ("cpu: 8Gi", "cpu: 8")),
    lint_row("a misspelled resource", "did you mean 'cpu'?", ('cpus: "8"', 'cpu: "8"')),
    lint_row(
        "a mount without a volume",
        "add the volume 'data' to spec.volumes",
        (
            "NoSchedule\n          containers:",
            "NoSchedule\n          volumes: [{name: data, emptyDir: {}}]\n          containers:",
        ),
    ),
    lint_row(
        "a mount of the autoscaler without a volume",
        "add the volume 'data' to the volumes of the head",
        (
            "        containers:\n          - name: ray-head",
            "        volumes: [{name: data, emptyDir: {}}]\n        containers:\n          - name: ray-head",
        ),
    ),
    lint_row(
        "two containers with one name", "give each container its own name", ("- name: ray-worker", "- name: ray-2")
    ),
    lint_row("two volumes with one name", "give each volume its own name", ("{name: d}", "{name: e}")),
    lint_row("a port above 65535", "write a number between 1 and 65535", ("70000", "7000")),
    lint_row(
        "a port with a long name",
        "use at most 15 lower-case letters, digits and single dashes",
        ("dashboard-of-ray", "dashboard"),
    ),
    lint_row(
        "a probe without a check",
        "write exactly one of exec, httpGet, tcpSocket, grpc",
        ("{periodSeconds: 5}", "{tcpSocket: {port: 8265}}"),
    ),
    lint_row(
        "a probe of an undeclared port",
        "add a port of this name to the container's ports",
        ("{port: http}}\n", "{port: http}}\n              ports: [{containerPort: 80, name: http}]\n"),
    ),
    lint_row("a probe of a port in quotes", "write port: 8265", ("'8265'", "8265")),
    lint_row(
        "a liveness probe that must succeed twice",
        "write successThreshold: 1",
        ("successThreshold: 2", "successThreshold: 1"),
    ),
    lint_row(
        "a container name in upper case", "use lower-case letters, digits and dashes", ("Ray_Worker", "ray-worker")
    ),
    lint_row(
        "no image",
        "write the image, such as image: rayproject/ray:2.60.0",
        ("- name: ray-worker\n", "- name: ray-worker\n              image: rayproject/ray:2.60.0\n"),
    ),
    lint_row("a toleration with an unneeded value", "remove the value", ("\n              value: a", "")),
    lint_row("a variable with two values", "write only one of them", ("value: b, ", "")),
    lint_row("an image in upper case", "write the name in lower case", ("RayProject", "rayproject")),
    lint_row("a misspelled field of the pod", "write one of metadata.name", ("podIp", "podIP")),
    lint_row(
        "an amount of another container",
        "write a container's name",
        ("containerName: ray,", "containerName: ray-worker,"),
    ),
    lint_row(
        "root that must not be root", "write the ID of another user, such as 1000", ("runAsUser: 0", "runAsUser: 1000")
    ),
    lint_row("permissions without a leading 0", "write 0644, with a leading 0", ("644", "0644")),
    lint_row(
        "a label of the pod that cannot be a file",
        "write one of metadata.annotations, metadata.labels",
        ("metadata.label}", "metadata.labels}"),
    ),
    lint_row("a short access mode", "write one of ReadWriteOnce", ("RWO", "ReadWriteOnce")),
    lint_row("no allowed skew", "write a number of 1 or more", ("maxSkew: 0", "maxSkew: 1")),
    lint_row("a preference above 100", "write a number from 1 to 100", ("weight: 500", "weight: 50")),
    lint_row(
        "a claim with two sources",
        "write either resourceClaimName or resourceClaimTemplateName",
        ("resourceClaimName: a, ", ""),
    ),
    lint_row(
        "a claim that the pod does not have",
        "add 'nic' to spec.resourceClaims",
        (
            "NoSchedule\n          containers:",
            "NoSchedule\n          resourceClaims: [{name: nic, resourceClaimName: a}]\n          containers:",
        ),
    ),
    lint_row("a restarted submitter", "write restartPolicy: Never", ("restartPolicy: Always", "restartPolicy: Never")),
    lint_row(
        "more CPUs than the limit of the autoscaler",
        "or request at most 500m",
        ("requests: {cpu: 1}", "requests: {cpu: 500m}"),
    ),
    lint_row("a volume with two sources", "write only one of them", ("emptyDir: {}, ", "")),
    lint_row("the name of an older type of GKE", "write nvidia-l4", ("nvidia-tesla-l4", "nvidia-l4")),
    lint_row("a misspelled label", "write cloud.google.com/gke-accelerator", ("gke-acelerator", "gke-accelerator")),
    lint_row(
        "resources of the retired chart in a group",
        'write resources: {GPU: "1"} in the group',
        ("rayResources: {GPU: 2}", 'resources: {GPU: "2"}'),
    ),
    Row("in_cluster(image=' rayproject/ray:2.60.0-py311-gpu ')", "remove the spaces", "in_cluster()"),
    Row(
        "in_pod('nodeSelector: {a: -b}')",
        "use at most 63 letters, digits, '-', '_' and '.'",
        "in_pod('nodeSelector: {a: b-c_d.e}')",
    ),
    Row(
        "in_container('env: [{name: A, valueFrom: {}}]')",
        "write one source",
        "in_container('env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]')",
    ),
    Row(
        "in_container('ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]')",
        "remove one of them",
        "in_container('ports: [{name: a, containerPort: 1}]')",
    ),
    Row("mounted('mountPath: a:b')", "use a path without ':'", "mounted('mountPath: /a')"),
    Row(
        "mounted('mountPath: /a, subPath: ../b')",
        "use a relative path without '..'",
        "mounted('mountPath: /a, subPath: b')",
    ),
    Row(
        "in_pod('tolerations: [{effect: NoSchedule}]')",
        "write a key, or operator: Exists",
        "in_pod('tolerations: [{key: a, effect: NoSchedule}]'),"
        "in_pod('tolerations: [{operator: Exists, effect: NoSchedule}]')",
    ),
    Row(
        "in_pod('tolerations: [{key: a, tolerationSeconds: 9}]')",
        "write effect: NoExecute, or remove tolerationSeconds",
        "in_pod('tolerations: [{key: a, tolerationSeconds: 9, effect: NoExecute}]'), in_pod('tolerations: [{key: a}]')",
    ),
    Row("requiring('operator: In')", "write values", "requiring('operator: In, values: [b]')"),
    Row("requiring('operator: Exists, values: [b]')", "remove values", "requiring('operator: Exists')"),
    Row("requiring('operator: Gt, values: []')", "write one number", "requiring('operator: Gt, values: [\"1\"]')"),
    Row(
        "in_container('livenessProbe: {exec: {}}')",
        "write command: [sh, -c, …]",
        "in_container('livenessProbe: {exec: {command: [sh, -c, ls]}}')",
    ),
    Row(
        "in_container('livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}')",
        "write a number of 0 or more",
        "in_container('livenessProbe: {tcpSocket: {port: 1}, periodSeconds: 0}')",
    ),
    Row(
        "in_cluster(params='{memory: \"1.5\"}')",
        "write a whole number of bytes",
        "in_cluster(params='{memory: \"34359738368\"}')",
    ),
    Row(
        "in_cluster(device='aws.amazon.com/neuron: \"2\"')",
        "write the number of cores of its 2 Neuron chips (two cores per chip on Inf2 and Trn1) as neuron_cores in the "
        "group's resources",
        "in_cluster(device='aws.amazon.com/neuron: \"2\"', params='{}\\n      resources: {neuron_cores: \"4\"}')",
    ),
    Row(
        "in_cluster(device='habana.ai/gaudi: \"8\"', version='2.50.0')",
        "write 8 as HPU in the JSON of rayStartParams.resources",
        "in_cluster(device='habana.ai/gaudi: \"8\"', version='2.50.0', params=JSON_OF_HPU)",
    ),
    Row(
        "in_cluster(version='2.59.0', head='registry.example/ray')",
        'use an image with Ray 2.59.0, or, if the head has 2.60.0 too, write rayVersion: "2.60.0"',
        "in_cluster(head='registry.example/ray')",
    ),
    Row(
        'annotated(\'gpu-fraction: "0.5", gpu-memory: "4000"\')',
        "keep one of them",
        "annotated('gpu-fraction: \"0.5\"')",
    ),
    Row(
        "annotated('gpu-fraction: \"0.5\"')",
        "remove nvidia.com/gpu from the limits and the requests",
        "annotated('gpu-fraction: \"0.5\"', device='example.com/nic: \"1\"')",
    ),
    Row(
        "in_cluster(resized=True, autoscaler='v1')",
        "write enableInTreeAutoscaling: true and autoscalerOptions: {version: v2}",
        "in_cluster(resized=True)",
    ),
    Row("retired(maxWorkers=4)", "write maxReplicas", "retired(maxReplicas=4)"),
    Row("retired(podConfig={})", "write template", "retired()"),
    Row(
        "checked(OF_THE_RETIRED_OPERATOR)", "write apiVersion: ray.io/v1 and the fields of KubeRay", "checked(CLUSTER)"
    ),
    Row("checked('head: {rayStartParams: {}}')", "Pipe the output of `helm template` into lint", "checked(CLUSTER)"),
]

OF_CHARTS = "installing a chart of KubeRay"
ELSEWHERE = {
    "KubeRay's chart": OF_CHARTS,
    "write autoscalerOptions: {": OF_CHARTS,
    "write the parameters of ray start in": OF_CHARTS,
    "write headGroupSpec.headService": OF_CHARTS,
    "install packages in the image": "an image",
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = ("tune_policies/kuberay/lint",)
FUNCTIONS = (lint, checked, in_cluster, in_pod, in_container, mounted, requiring, annotated, retired)
NAMES = {
    **{function.__name__: function for function in FUNCTIONS},
    "CLUSTER": CLUSTER,
    "JSON_OF_HPU": JSON_OF_HPU,
    "OF_THE_RETIRED_OPERATOR": OF_THE_RETIRED_OPERATOR,
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.mistake}: {row.advice}")
def test_an_advice_is_in_the_finding_and_works(row: Row) -> None:
    follow(row, NAMES)


def test_every_finding_with_an_advice_is_in_the_table_or_needs_more_than_a_file():
    assert without_row(texts_with_advice(*PARTS), TABLE, ELSEWHERE, NAMES) == []


def test_the_messages_that_are_followed_elsewhere_exist():
    assert outdated(texts_with_advice(*PARTS), ELSEWHERE) == []
