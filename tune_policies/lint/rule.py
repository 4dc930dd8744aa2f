"""How a rule is written, and what it is given."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tune_policies.lint.finding import Edit, Severity
from tune_policies.manifests.documents import Document, Path
from tune_policies.manifests.kuberay_models import Manifest, Metadata, RayClusterSpec


class ClusterInFile(NamedTuple):
    """A RayCluster in a document, by itself or in a RayJob or a RayService, or made of the values of the chart.

    Attributes:
        document: Where it stands.
        kind: ``"RayCluster"``, ``"RayJob"``, ``"RayService"`` or ``"values"``.
        manifest: The whole document.
        metadata: Of the document.
        spec: Of the cluster.
        path: Where the cluster's specification stands in the document, as ``("spec", "rayClusterSpec")``.
        path_of: Where a part of the specification stands, by where it would stand in a RayCluster's ``spec``: the
            chart's values have other places.
    """

    document: Document
    kind: str
    manifest: Manifest
    metadata: Metadata
    spec: RayClusterSpec
    path: Path
    path_of: Callable[[Path], Path]


class Found(NamedTuple):
    """What a rule says: a finding without what the rule's row says already.

    Attributes:
        path: Where, from the cluster's ``spec`` on.
        message: What is wrong, with the value.
        fix: What to write instead.
        edits: Safe changes, paths from the cluster's ``spec`` on.
    """

    path: Path
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()


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


RuleSet = Sequence[Rule]
