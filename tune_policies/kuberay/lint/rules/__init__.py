"""All rules, a module for each subject, about what keeps trials from the resources that a cluster's file promises.

The rules follow the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler. Most mistakes that Kubernetes, KubeRay's
operator or ``ray up`` report themselves have no rule, and neither have those that do not concern trials.
"""

from typing import Final

from tune_policies.kuberay.lint.rule import Rule
from tune_policies.kuberay.lint.rules import amounts, devices, launcher, pods, scaling

_API = "https://ray-project.github.io/kuberay/reference/api/"

UNREADABLE: Final = Rule(
    "unreadable", "error", "Nothing can be said of what cannot be read.", "https://yaml.org/spec/1.2.2/"
)
NOTHING_KNOWN: Final = Rule(
    "nothing-known", "note", "The file holds no cluster that lint knows, so it was not checked.", _API
)
WRONG_FIELD: Final = Rule(
    "wrong-field", "error", "Kubernetes refuses the manifest, or Ray reads something else than you mean.", _API
)
MISSPELLED: Final = Rule(
    "misspelled-field", "error", "The API server refuses the manifest, or drops the field without an error.", _API
)
KEY_TWICE: Final = Rule(
    "key-twice",
    "note",
    "Ray and kubectl take the last, but Helm and kustomize refuse the file.",
    "https://yaml.org/spec/1.2.2/#3213-node-comparison",
)

READER_RULES: Final = (UNREADABLE, NOTHING_KNOWN, WRONG_FIELD, MISSPELLED, KEY_TWICE)
"""The rules of the reader of files."""

RULES: Final = (
    *devices.RULES,
    *pods.RULES,
    *amounts.RULES,
    *scaling.RULES,
    *launcher.RULES,
)
"""All other rules."""


def all_rules() -> tuple[Rule, ...]:
    """Return every rule, each with a name of its own."""
    return (*READER_RULES, *RULES)
