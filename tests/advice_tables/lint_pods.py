"""Advice of the linter about images, environment variables, taints, node selectors and node labels."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.linted_files import in_cluster, lint, lint_row

_SIDECAR = """\
            - name: logs
              image: fluent/fluent-bit:3
              resources: {limits: {cpu: 1, memory: 1Gi}}
"""


def _variable(name: str, value: int) -> str:
    return f"              env:\n                - name: {name}\n                  value: '{value}'\n"


ROWS = [
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
    lint_row("images of another Ray version", 'write rayVersion: "2.60.0"', ('"2.59.0"', '"2.60.0"')),
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
    lint_row("the name of an older type of GKE", "write nvidia-l4", ("nvidia-tesla-l4", "nvidia-l4")),
    lint_row(
        "NVIDIA's label with GKE's value of a model with several names",
        "copy the value from `kubectl get nodes -L nvidia.com/gpu.product`",
        ("nvidia-h100-80gb", "NVIDIA-H100-80GB-HBM3"),
    ),
    lint_row("a misspelled label", "write cloud.google.com/gke-accelerator", ("gke-acelerator", "gke-accelerator")),
    Row(
        "in_cluster(version='2.59.0', head='registry.example/ray')",
        'use an image with Ray 2.59.0, or, if the head has 2.60.0 too, write rayVersion: "2.60.0"',
        "in_cluster(head='registry.example/ray')",
    ),
]

NAMES = {
    **named(in_cluster, lint),
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/kuberay/lint/rules/images.py",
        "tune_policies/kuberay/lint/rules/device_nodes.py",
        "tune_policies/kuberay/lint/rules/visible_devices.py",
        "tune_policies/kuberay/lint/rules/node_labels.py",
    ),
    rows=ROWS,
    elsewhere={},
    names=NAMES,
)
