"""Rules, their findings, and the decorator that turns a function into a rule."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile
from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.sanitize import shortened
from tune_policies.values.value import Value

Severity = Literal["error", "warning", "note"]
"""An error means that the cluster does not work as its file describes. A warning means that it may not work.

A note is informational.
"""


class Found(NamedTuple):
    """The result of a rule's check: a :class:`Finding` without the fields of the rule and the file.

    Attributes:
        path: The path of the mistake. It starts at the cluster's ``spec`` in rules for clusters and groups, else at the
            document's root.
        severity: The severity, if it differs from the severity of the rule.
    """

    path: Path
    message: str
    fix: str = ""
    severity: Severity | None = None


class Finding(Value):
    """A mistake in a file.

    Attributes:
        rule: The name of the rule, such as ``"min-above-max"``.
        source: The name of the file.
        document: The index of the document in the file, not counting empty documents.
        line: The line number in the file, starting at 1.
        path: The path of the mistake in the document: keys and indices.
        message: A description of the mistake, with the value.
        why: Why the mistake matters.
        fix: The correction.
        unchecked: The path of the part that the other rules did not check because of this mistake, or ``None``.
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
    unchecked: Path | None = None


_PartT = TypeVar("_PartT")
_CheckT: TypeAlias = Callable[[_PartT], Iterator[Found]]


class Rule(NamedTuple):
    """A rule that finds one kind of mistake.

    Attributes:
        why: Why the mistake matters.
        source: The documentation or code on which the rule is based.
        check: Checks a document and the clusters in it; ``None`` if ``lint_file`` itself finds the mistakes.
    """

    name: str
    severity: Severity
    why: str
    source: str
    check: Callable[[Document, Sequence[ClusterInFile]], Iterator[Found]] | None = None


class RuleBook(list[Rule]):
    """The rules of one subject.

    The docstring of a decorated function is the rule's ``why``.
    """

    def of_each(
        self, parts_of: Callable[[ClusterInFile], Iterable[_PartT]], name: str, severity: Severity, source: str
    ) -> Callable[[_CheckT[_PartT]], _CheckT[_PartT]]:
        """Return a decorator that adds a rule for some parts of each cluster on Kubernetes, such as its groups."""

        def add(check: _CheckT[_PartT]) -> _CheckT[_PartT]:
            def of_clusters(_: Document, clusters: Sequence[ClusterInFile]) -> Iterator[Found]:
                for cluster in clusters:
                    for part in parts_of(cluster):
                        for found in check(part):
                            yield found._replace(path=(*cluster.path, *found.path))

            self.append(Rule(name, severity, why(check), source, of_clusters))
            return check

        return add


def why(check: Callable[..., object]) -> str:
    """Return the docstring of a check as a single line."""
    return " ".join((check.__doc__ or "").split())
