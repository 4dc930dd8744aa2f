"""All rules, a chapter for each subject: what keeps trials from what a cluster's file seems to give them.

Written after the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler; a message or a reason names the version where they
differ. What KubeRay's operator says by itself, and what does not concern trials, has no rule.
"""

from tune_policies.kuberay.lint.rule import DocumentRule, ReaderRule, Rule, RuleSet
from tune_policies.kuberay.lint.rules import (
    autoscaling,
    cluster_yaml,
    cpus_and_memory,
    devices,
    field_names,
    gpu_visibility,
    images,
    jobs,
    kueue,
    labels,
    nodes,
    tpu,
)

UNREADABLE = ReaderRule(
    "unreadable", "error", "Nothing can be said of what cannot be read.", "https://yaml.org/spec/1.2.2/"
)
WRONG_FIELD = ReaderRule(
    "wrong-field",
    "error",
    "Kubernetes refuses the manifest, or Ray reads something else than is meant.",
    "https://ray-project.github.io/kuberay/reference/api/",
)
AGAINST_DEFINITION = ReaderRule(
    "against-definition",
    "error",
    "The API server refuses the manifest, or drops the field without a word.",
    "the custom resource definition given with --crd",
)

MISSPELLED = ReaderRule(
    "misspelled-field",
    "error",
    "The API server refuses the manifest, or drops the field without a word.",
    "https://ray-project.github.io/kuberay/reference/api/",
)

NOTHING_KNOWN = ReaderRule(
    "nothing-known",
    "note",
    "That nothing is found in such a file says nothing.",
    "https://ray-project.github.io/kuberay/reference/api/",
)

KEY_TWICE = ReaderRule(
    "key-twice",
    "note",
    "Ray and kubectl take the last, but Helm and kustomize refuse the file.",
    "https://yaml.org/spec/1.2.2/#3213-node-comparison",
)

READER_RULES: tuple[ReaderRule, ...] = (
    UNREADABLE,
    NOTHING_KNOWN,
    WRONG_FIELD,
    MISSPELLED,
    AGAINST_DEFINITION,
    KEY_TWICE,
)
"""What the reader of files finds by itself."""

RULES: RuleSet = (
    *devices.RULES,
    *gpu_visibility.RULES,
    *images.RULES,
    *nodes.RULES,
    *labels.RULES,
    *cpus_and_memory.RULES,
    *autoscaling.RULES,
    *tpu.RULES,
    *jobs.RULES,
    *kueue.RULES,
    *cluster_yaml.RULES,
    *field_names.RULES,
)
"""All others, in the order in which they are asked."""


def all_rules() -> tuple[ReaderRule | Rule | DocumentRule, ...]:
    """Return every rule, each with a name of its own."""
    return (*READER_RULES, *RULES)
