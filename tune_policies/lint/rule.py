"""How a rule is written, and what it is given."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tune_policies.lint.finding import Edit, Severity
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.documents import Document, Path


class Found(NamedTuple):
    """What a rule says: a finding without what the rule's row says already.

    Attributes:
        path: Where: from the cluster's ``spec`` on for a :class:`Rule`, from the top for a :class:`DocumentRule`.
        message: What is wrong, with the value.
        fix: What to write instead.
        edits: Safe changes; their paths start as ``path`` does.
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


class DocumentRule(NamedTuple):
    """A rule for whole documents: for what stands outside the cluster's own part, or is no KubeRay cluster at all.

    Attributes:
        name: Its name.
        severity: How bad it is.
        why: Why it matters.
        source: Where it is written, or which code acts so.
        kinds: For which documents, see :func:`tune_policies.lint.kinds.kind_of`.
        check: Finds what breaks it.
    """

    name: str
    severity: Severity
    why: str
    source: str
    kinds: tuple[str, ...]
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
