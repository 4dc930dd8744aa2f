"""Advice of the linter about devices: GPUs, MIG devices, TPU slices, and devices that pods share."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.linted_files import annotated, in_cluster, lint, lint_row

JSON_OF_HPU = """{resources: '"{\\"HPU\\": 8}"'}"""

ROWS = [
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
]

NAMES = {
    **named(annotated, in_cluster, lint),
    "JSON_OF_HPU": JSON_OF_HPU,
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/kuberay/lint/rules/device_amounts.py",
        "tune_policies/kuberay/lint/rules/sharing.py",
    ),
    rows=ROWS,
    elsewhere={},
    names=NAMES,
)
