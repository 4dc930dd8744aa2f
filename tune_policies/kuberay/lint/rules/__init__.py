"""All rules, a chapter for each subject: what keeps trials from what a cluster's file seems to give them.

Written after the code of KubeRay 1.5 to 1.7 and of Ray's autoscaler; a message or a reason names the version where they
differ. What KubeRay's operator says by itself, and what does not concern trials, has no rule.
"""

from typing import Final

from tune_policies.kuberay.lint.rule import Rule
from tune_policies.kuberay.lint.rules import amounts, devices, documents, launcher, pods, scaling

_API = "https://ray-project.github.io/kuberay/reference/api/"
_DROPPED = "The API server refuses the manifest, or drops the field without a word."

UNREADABLE: Final = Rule(
    "unreadable", "error", "Nothing can be said of what cannot be read.", "https://yaml.org/spec/1.2.2/"
)
NOTHING_KNOWN: Final = Rule(
    "nothing-known", "note", "The file holds no cluster that lint knows, so it was not checked.", _API
)
WRONG_FIELD: Final = Rule(
    "wrong-field", "error", "Kubernetes refuses the manifest, or Ray reads something else than you mean.", _API
)
MISSPELLED: Final = Rule("misspelled-field", "error", _DROPPED, _API)
AGAINST_DEFINITION: Final = Rule(
    "against-definition", "error", _DROPPED, "the custom resource definition given with --crd"
)
KEY_TWICE: Final = Rule(
    "key-twice",
    "note",
    "Ray and kubectl take the last, but Helm and kustomize refuse the file.",
    "https://yaml.org/spec/1.2.2/#3213-node-comparison",
)

READER_RULES: Final = (UNREADABLE, NOTHING_KNOWN, WRONG_FIELD, MISSPELLED, AGAINST_DEFINITION, KEY_TWICE)
"""What the reader of files finds by itself."""

RULES: Final = (
    *devices.RULES,
    *pods.RULES,
    *amounts.RULES,
    *scaling.RULES,
    *documents.RULES,
    *launcher.RULES,
)
"""All others, in the order in which they are asked."""


def all_rules() -> tuple[Rule, ...]:
    """Return every rule, each with a name of its own."""
    return (*READER_RULES, *RULES)
