"""Advice of the linter about groups, the autoscaler, amounts of CPUs and memory, and Ray's cluster YAML."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.linted_files import in_cluster, lint, lint_row

ROWS = [
    lint_row("labels that an older Ray does not read", "use Ray 2.51 or newer", ('"2.50.0"', '"2.60.0"')),
    lint_row(
        "resources that an older Ray does not read",
        "or state the amounts in rayStartParams",
        ('resources: {GPU: "2"}', 'rayStartParams: {num-gpus: "2"}'),
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
        "a parameter that Ray has removed",
        "remove dashboard-grpc-port",
        ('rayStartParams: {dashboard-grpc-port: "8267"}', "rayStartParams: {}"),
    ),
    *(
        lint_row(
            claim,
            "write the labels as a mapping in the field labels, next to rayStartParams",
            (f"rayStartParams: {{{name}: purpose=trials}}", "rayStartParams: {}\n      labels: {purpose: trials}"),
        )
        for claim, name in (("labels as a parameter", "labels"), ("misspelled labels as a parameter", "--labels"))
    ),
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
    lint_row("a head whose resources run trials", 'write CPU: "0" under the resources', ('CPU: "2"', 'CPU: "0"')),
    lint_row("workers without CPUs", "remove this amount", ('{num-cpus: "0"}', "{}")),
    lint_row(
        "a group that never starts a node",
        "set maxReplicas to the largest number that you want to pay for",
        ("maxReplicas: 0", "maxReplicas: 4"),
    ),
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
    Row(
        "in_cluster(params='{memory: \"1.5\"}')",
        "write a whole number of bytes",
        "in_cluster(params='{memory: \"34359738368\"}')",
    ),
]

NAMES = {
    **named(in_cluster, lint),
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/kuberay/lint/rules/scaling.py",
        "tune_policies/kuberay/lint/rules/cpus_and_memory.py",
        "tune_policies/kuberay/lint/rules/cluster_yaml.py",
        "tune_policies/kuberay/lint/cluster_parts.py",
    ),
    rows=ROWS,
    elsewhere={},
    names=NAMES,
)
