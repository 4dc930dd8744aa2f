"""What a rule is, what it finds, and how the rules of a chapter are written down."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.reading.chart_values import is_chart_values
from tune_policies.kuberay.reading.cluster_yaml import is_cluster_yaml
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile
from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.sanitize import shortened
from tune_policies.values.value import Value

Severity = Literal["error", "warning", "note"]
"""An error keeps the cluster from working as it is written; a warning may; a note is worth knowing."""

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


class Edit(NamedTuple):
    """A change that mends something.

    Attributes:
        path: What is changed.
        value: To what; ``None``: it is removed.
    """

    path: Path
    value: Any


class Found(NamedTuple):
    """What a rule says: a finding without what the rule says already.

    Attributes:
        path: Where: from the cluster's ``spec`` on for rules of clusters and groups, else from the document's top.
        message: What is wrong, with the value.
        fix: What to write instead.
        edits: Changes that mend it; their paths start as ``path`` does.
        is_safe: The changes leave what runs as it is: without them Kubernetes or Ray refuses the file, or makes the
            same of it anyway, whatever the versions.
    """

    path: Path
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    is_safe: bool = False

    def moved(self, path_of: Callable[[Path], Path]) -> "Found":
        """Return the same, at other places."""
        edits = tuple(Edit(path_of(each.path), each.value) for each in self.edits)
        return self._replace(path=path_of(self.path), edits=edits)


class Finding(Value):
    """One thing that is wrong.

    Attributes:
        rule: Its name, such as ``"min-above-max"``.
        severity: How bad it is.
        source: The file.
        document: Which of the file's documents, from 0; those that are empty do not count.
        line: The line, from 1.
        path: Where in the document.
        message: What is wrong, with the value.
        why: Why it matters.
        fix: What to write instead.
        edits: The changes that mend it; empty: a person must decide.
        is_safe: What runs stays as it is, so that ``--fix`` makes the changes; others it makes with
            ``--unsafe-fixes`` alone.
    """

    rule: str
    severity: Severity
    source: str
    document: Count = 0
    line: PositiveCount
    path: Path = ()
    message: Annotated[str, AfterValidator(shortened)]
    why: str = ""
    fix: Annotated[str, AfterValidator(shortened)] = ""
    edits: tuple[Edit, ...] = ()
    is_safe: bool = False


_PartT = TypeVar("_PartT")
_CheckT: TypeAlias = Callable[[_PartT], Iterator[Found]]


class Rule(NamedTuple):
    """A rule.

    Attributes:
        name: Its name.
        severity: How bad it is.
        why: Why it matters.
        source: Where it is written, or which code acts so.
        check: Finds what breaks it in a document with some clusters; ``None``: the reader of files does.
    """

    name: str
    severity: Severity
    why: str
    source: str
    check: Callable[[Document, Sequence[ClusterInFile]], Iterator[Found]] | None = None


class RuleBook(list[Rule]):
    """The rules of a chapter, in the order in which they are written.

    Each method makes a rule of a function that finds what breaks it. The docstring of the function is for who reads
    the finding: it says why the rule matters.
    """

    def of_documents(
        self, types: tuple[str, ...], name: str, severity: Severity, source: str
    ) -> Callable[[_CheckT[Document]], _CheckT[Document]]:
        """Make a rule of a function that checks a whole document of these types, see :func:`document_type`."""

        def add(check: _CheckT[Document]) -> _CheckT[Document]:
            def of_document(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
                return check(document) if document_type(document) in types else iter(())

            self.append(Rule(name, severity, _why(check), source, of_document))
            return check

        return add

    def of_each(
        self, parts_of: Callable[[ClusterInFile], Iterable[_PartT]], name: str, severity: Severity, source: str
    ) -> Callable[[_CheckT[_PartT]], _CheckT[_PartT]]:
        """Make a rule of a function that checks some parts of a cluster on Kubernetes, such as each of its groups."""

        def add(check: _CheckT[_PartT]) -> _CheckT[_PartT]:
            def of_clusters(_: Document, clusters: Sequence[ClusterInFile]) -> Iterator[Found]:
                for cluster in clusters:
                    for part in parts_of(cluster):
                        for found in check(part):
                            yield found.moved(cluster.path_of)

            self.append(Rule(name, severity, _why(check), source, of_clusters))
            return check

        return add


def _why(check: Callable[..., object]) -> str:
    return " ".join((check.__doc__ or "").split())
