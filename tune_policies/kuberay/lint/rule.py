"""What a rule is: a row with a function that checks a cluster, or a document of the types that the row names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.finding import Edit, Severity
from tune_policies.kuberay.manifests.chart_values import is_chart_values
from tune_policies.kuberay.manifests.cluster_yaml import is_cluster_yaml
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile

RAY_CLUSTER = "RayCluster"
RAY_JOB = "RayJob"
RAY_SERVICE = "RayService"
RAY_CRON_JOB = "RayCronJob"
VALUES = "values"
"""Values of KubeRay's chart ``ray-cluster``."""
CLUSTER_YAML = "cluster-yaml"
"""The file of ``ray up``."""


def document_type(document: Document) -> str | None:
    """Return of which type a document is; ``None``: no rule is for it."""
    data = document.data
    if isinstance(data, Mapping) and data.get("kind") in (RAY_CLUSTER, RAY_JOB, RAY_SERVICE, RAY_CRON_JOB):
        return str(data["kind"])
    if is_cluster_yaml(data):
        return CLUSTER_YAML
    return VALUES if is_chart_values(data) else None


class Found(NamedTuple):
    """What a rule says: a finding without what the rule's row says already.

    Attributes:
        path: Where: from the cluster's ``spec`` on for a :class:`Rule`, from the top for a :class:`DocumentRule`.
        message: What is wrong, with the value.
        fix: What to write instead.
        edits: Changes that mend it; their paths start as ``path`` does.
        is_safe: The changes leave what runs as it is: without them Kubernetes or Ray refuses the file, or makes the
            same of it anyway, whatever the versions.
    """

    path: Path
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()
    is_safe: bool = False


class Rule(NamedTuple):
    """A rule for clusters on Kubernetes.

    Attributes:
        name: Its name.
        severity: How bad it is.
        why: Why it matters.
        source: Where it is written, or which code acts so.
        check: Finds what breaks it.
    """

    name: str
    severity: Severity
    why: str
    source: str
    check: Callable[[ClusterInFile], Iterator[Found]]


class DocumentRule(NamedTuple):
    """A rule for whole documents: for what stands outside the cluster's own part, or is no KubeRay cluster at all.

    Attributes:
        name: Its name.
        severity: How bad it is.
        why: Why it matters.
        source: Where it is written, or which code acts so.
        types: For which documents, see :func:`document_type`.
        check: Finds what breaks it.
    """

    name: str
    severity: Severity
    why: str
    source: str
    types: tuple[str, ...]
    check: Callable[[Document], Iterator[Found]]


class ReaderRule(NamedTuple):
    """A rule that is checked as a file is read, before there is anything to ask the others about.

    Attributes:
        name: Its name.
        severity: How bad it is.
        why: Why it matters.
        source: Where it is written, or which code acts so.
    """

    name: str
    severity: Severity
    why: str
    source: str


RuleSet = Sequence[Rule | DocumentRule]
