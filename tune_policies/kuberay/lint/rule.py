"""Rules, their findings, and the decorators that make rules of functions."""

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
"""With an error, the cluster does not work as its file says. With a warning, it may not."""

RAY_CLUSTER = "RayCluster"
RAY_JOB = "RayJob"
RAY_SERVICE = "RayService"
RAY_CRON_JOB = "RayCronJob"
VALUES = "values"
"""Values of KubeRay's chart ``ray-cluster``."""
CLUSTER_YAML = "cluster-yaml"
"""The file of ``ray up``."""
RETIRED_VALUES = "retired-values"
"""Values of the chart of Ray's own operator, which KubeRay has replaced."""


def document_type(document: Document) -> str | None:
    """Return the type of a document, or ``None`` if no rule checks it."""
    data = document.data
    if isinstance(data, Mapping) and data.get("kind") in (RAY_CLUSTER, RAY_JOB, RAY_SERVICE, RAY_CRON_JOB):
        return str(data["kind"])
    if is_cluster_yaml(data):
        return CLUSTER_YAML
    if is_chart_values(data):
        return VALUES
    is_retired = isinstance(data, Mapping) and "kind" not in data and isinstance(data.get("podTypes"), Mapping)
    return RETIRED_VALUES if is_retired else None


class Edit(NamedTuple):
    """A change of the part at ``path``. A ``value`` of ``None`` removes the part."""

    path: Path
    value: Any


class Found(NamedTuple):
    """What a rule's check returns: a :class:`Finding` without the fields of the rule and the file.

    Attributes:
        path: Starts at the cluster's ``spec`` in rules for clusters and groups, else at the document's root. The paths
            of ``edits`` start there, too.
        is_safe: Whether the edits keep what runs: without them, Kubernetes and Ray either refuse the file or use the
            same values, in every version.
    """

    path: Path
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    is_safe: bool = False

    def moved(self, path_of: Callable[[Path], Path]) -> "Found":
        """Return the same with ``path_of`` applied to each path."""
        edits = tuple(Edit(path_of(each.path), each.value) for each in self.edits)
        return self._replace(path=path_of(self.path), edits=edits)


class Finding(Value):
    """A mistake in a file.

    Attributes:
        rule: The name of the rule, such as ``"min-above-max"``.
        source: The name of the file.
        document: The index of the document in the file, without empty documents.
        line: The line in the file, from 1.
        path: The keys and indices that lead to the part of the document.
        message: What is wrong, with the value.
        why: Why it matters.
        fix: What to write instead.
        edits: The changes that ``--fix`` applies; empty if a person must decide.
        is_safe: Whether the edits keep what runs. Other edits need ``--unsafe-fixes``.
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
        why: Why it matters.
        source: The documentation, or the code, that it follows.
        check: Checks a document and the clusters in it; ``None`` if the reader of files finds the mistakes.
    """

    name: str
    severity: Severity
    why: str
    source: str
    check: Callable[[Document, Sequence[ClusterInFile]], Iterator[Found]] | None = None


class RuleBook(list[Rule]):
    """The rules of one subject.

    The methods are decorators that add a rule. The docstring of the decorated function is the rule's ``why``.
    """

    def of_documents(
        self, types: tuple[str, ...], name: str, severity: Severity, source: str
    ) -> Callable[[_CheckT[Document]], _CheckT[Document]]:
        """Add a rule that checks whole documents of these types, see :func:`document_type`."""

        def add(check: _CheckT[Document]) -> _CheckT[Document]:
            def of_document(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
                return check(document) if document_type(document) in types else iter(())

            self.append(Rule(name, severity, _why(check), source, of_document))
            return check

        return add

    def of_each(
        self, parts_of: Callable[[ClusterInFile], Iterable[_PartT]], name: str, severity: Severity, source: str
    ) -> Callable[[_CheckT[_PartT]], _CheckT[_PartT]]:
        """Add a rule that checks some parts of each cluster on Kubernetes, such as its groups."""

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
