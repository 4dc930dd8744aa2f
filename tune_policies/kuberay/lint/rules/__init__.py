"""All rules, one module per subject. They find mistakes that prevent trials from using a cluster's resources.

The rules follow the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler. There are no rules for mistakes that do not
affect trials, and few for mistakes that KubeRay's operator or ``ray up`` report themselves. Kubernetes reports mistakes
in a pod template only when the operator creates a pod, so they are checked as Kubernetes checks them.
"""

from typing import Final

from tune_policies.kuberay.lint.rule import Rule
from tune_policies.kuberay.lint.rules import (
    cluster_yaml,
    cpus_and_memory,
    device_amounts,
    device_nodes,
    images,
    node_labels,
    pod_parts,
    ports_and_volumes,
    requests_and_limits,
    scaling,
    sharing,
    visible_devices,
)

_API = "https://ray-project.github.io/kuberay/reference/api/"

UNREADABLE: Final = Rule(
    "unreadable", "error", "The file was not checked because it cannot be read.", "https://yaml.org/spec/1.2.2/"
)
NO_CLUSTER: Final = Rule(
    "no-cluster", "note", "The file contains no cluster that lint supports, so it was not checked.", _API
)
RETIRED: Final = Rule(
    "retired-format",
    "error",
    "The file belongs to the Ray operator that KubeRay replaced. KubeRay and its Helm chart ignore these fields.",
    "https://github.com/ray-project/ray/tree/releases/2.0.0/deploy/charts/ray",
)
INVALID_FIELD: Final = Rule(
    "invalid-field", "error", "Kubernetes refuses the manifest, or Ray reads a different value than you intended.", _API
)
MISSPELLED: Final = Rule(
    "misspelled-field", "error", "The API server refuses the manifest, or drops the field without an error.", _API
)
DUPLICATE_KEY: Final = Rule(
    "duplicate-key",
    "note",
    "Ray and kubectl use the last value, but Helm and kustomize refuse the file.",
    "https://yaml.org/spec/1.2.2/#3213-node-comparison",
)

RULES: Final = (
    *requests_and_limits.RULES,
    *ports_and_volumes.RULES,
    *pod_parts.RULES,
    *node_labels.RULES,
    *device_amounts.RULES,
    *images.RULES,
    *device_nodes.RULES,
    *visible_devices.RULES,
    *cpus_and_memory.RULES,
    *scaling.RULES,
    *sharing.RULES,
    *cluster_yaml.RULES,
)
"""The rules that have a check function."""

ALL_RULES: Final = (UNREADABLE, NO_CLUSTER, RETIRED, INVALID_FIELD, MISSPELLED, DUPLICATE_KEY, *RULES)
"""All rules. For the rules without a check function, ``lint_file`` itself finds the mistakes."""
