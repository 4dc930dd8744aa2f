"""Reads files and asks all rules. A file that cannot be read is a finding like any other."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path as FilePath

from tune_policies.files.yaml_documents import Document, DocumentError, Path, read_documents
from tune_policies.kuberay.lint.crd import CrdSet
from tune_policies.kuberay.lint.finding import Edit, Finding
from tune_policies.kuberay.lint.rule import DocumentRule, Found, ReaderRule, Rule, document_type
from tune_policies.kuberay.lint.rules import (
    AGAINST_DEFINITION,
    KEY_TWICE,
    MISSPELLED,
    NOTHING_KNOWN,
    RULES,
    UNREADABLE,
    WRONG_FIELD,
)
from tune_policies.kuberay.lint.rules.cluster_parts import at
from tune_policies.kuberay.lint.rules.field_names import misspelled_fields
from tune_policies.kuberay.manifests.clusters_in_document import check_name, clusters_in, manifests_in, name_of
from tune_policies.kuberay.manifests.file_text import read_text
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, FieldProblem
from tune_policies.values.errors import InvalidResourcesError


def lint_file(path: str | FilePath, crds: CrdSet | None = None, name: str | None = None) -> list[Finding]:
    """Return what is wrong with a file, by line.

    Args:
        path: The file, plain or gzipped; ``-`` is what is piped in.
        crds: Also check against these definitions.
        name: Of the one cluster, job or service to look at; ``None``: all of the file.

    Raises:
        InvalidResourcesError: There is none of the name; the message lists those that there are.
    """
    try:
        text = read_text(path)
    except DocumentError as error:
        return [_unreadable(str(path), error.line, error.reason)]
    except InvalidResourcesError as error:
        return [_unreadable(str(path), 1, str(error))]
    return lint_text(text, str(path), crds, name)


def lint_text(text: str, source: str, crds: CrdSet | None = None, name: str | None = None) -> list[Finding]:
    """Return what is wrong with a text, by line; ``source`` is the name under which findings tell of it.

    Raises:
        InvalidResourcesError: There is no cluster of the name; the message lists those that there are.
    """
    try:
        documents = read_documents(text, source)
    except DocumentError as error:
        return [_unreadable(source, error.line, error.reason)]
    if not any(map(_is_known, documents)):
        return [_of_file(NOTHING_KNOWN, source, 1, "there is no cluster, job or service of Ray's in it")]
    tops = None if name is None else _tops_of(name, documents, source)
    written = text.splitlines()
    found = [
        _finding(rule, said, document, number)
        for number, document in enumerate(documents)
        for rule, said in _asked(document, crds, written)
    ]
    if tops is not None:
        found = [each for each in found if any((each.document, each.path[: len(top)]) == (at, top) for at, top in tops)]
    return sorted(found, key=lambda each: (each.line, each.rule, each.message))


def _tops_of(name: str, documents: Sequence[Document], source: str) -> list[tuple[int, Path]]:
    """Return where the manifests of a name stand: the number of the document, and the path in it."""
    manifests = [
        (number, top, each) for number, document in enumerate(documents) for top, each in manifests_in(document)
    ]
    check_name(name, (each for _, _, each in manifests), source)
    return [(number, top) for number, top, each in manifests if name_of(each) == name]


def _unreadable(source: str, line: int, message: str) -> Finding:
    return _of_file(UNREADABLE, source, line, message)


def _of_file(rule: ReaderRule, source: str, line: int, message: str) -> Finding:
    return Finding(rule=rule.name, severity=rule.severity, source=source, line=line, message=message, why=rule.why)


def _is_known(document: Document) -> bool:
    """Return whether there is something to ask the rules about."""
    clusters, problems = clusters_in(document)
    types = (document_type(manifest) for _, manifest in manifests_in(document))
    return bool(clusters or problems) or any(each is not None for each in types)


_Said = Iterator[tuple[Rule | DocumentRule | ReaderRule, Found]]


def _asked(document: Document, crds: CrdSet | None, written: list[str]) -> _Said:
    clusters, problems = clusters_in(document)
    for problem in problems:
        yield WRONG_FIELD, Found(problem.path, problem.message, "", _edits_of(problem, document, written), is_safe=True)
    for path, line in document.repeated.items():
        yield KEY_TWICE, Found(path, f"the key {str(path[-1])!r} comes again in line {line}, with the same value", "")
    yield from _asked_of_definitions(document, crds, {problem.path for problem in problems})
    yield from _asked_of_rules(document, clusters)


def _edits_of(problem: FieldProblem, document: Document, written: list[str]) -> tuple[Edit, ...]:
    """Return the change where quotes are all that is wrong, as the message says."""
    value = at(document.data, problem.path)
    if isinstance(value, str) and problem.message.endswith("leave the quotes out"):
        return (Edit(problem.path, int(value)),)
    if isinstance(value, int | float) and problem.message.endswith("in quotes"):
        text = json.dumps(value)
        is_as_written = text in written[document.line(problem.path) - 1]  # not so for 0777 and yes
        return (Edit(problem.path, text),) if is_as_written else ()
    return ()


def _asked_of_definitions(document: Document, crds: CrdSet | None, known: set[Path]) -> _Said:
    """Check fields by the definition of the document's type; without one, by the names that are known here."""
    for top, manifest in manifests_in(document):
        is_defined = crds is not None and document_type(manifest) in crds.kinds
        rule = AGAINST_DEFINITION if is_defined else MISSPELLED
        problems = crds.problems(manifest.data) if crds and is_defined else misspelled_fields(manifest)
        for path, message in problems:
            if (*top, *path) not in known:
                yield rule, Found((*top, *path), message, "")


def _asked_of_rules(document: Document, clusters: list[ClusterInFile]) -> _Said:
    manifests = [(top, each, document_type(each)) for top, each in manifests_in(document)]
    for rule in RULES:
        if isinstance(rule, Rule):
            for cluster in clusters:
                for found in rule.check(cluster):
                    yield rule, _moved(found, cluster.path_of)
            continue
        for top, manifest, its_type in manifests:
            if its_type in rule.types:
                for found in rule.check(manifest):
                    yield rule, _moved(found, partial(_below, top))


def _below(top: Path, path: Path) -> Path:
    return (*top, *path)


def _moved(found: Found, path_of: Callable[[Path], Path]) -> Found:
    edits = tuple(Edit(path_of(each.path), each.value) for each in found.edits)
    return found._replace(path=path_of(found.path), edits=edits)


def _finding(rule: Rule | DocumentRule | ReaderRule, found: Found, document: Document, number: int) -> Finding:
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        source=document.source,
        document=number,
        line=document.line(found.path),
        path=found.path,
        message=found.message,
        why=rule.why,
        fix=found.fix,
        edits=found.edits,
        is_safe=found.is_safe,
    )
