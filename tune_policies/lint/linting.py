"""Reads files and asks all rules; what cannot be read is a finding like any other."""

from collections.abc import Iterator
from pathlib import Path as FilePath

import yaml

from tune_policies.lint.crd import CrdSet
from tune_policies.lint.finding import Edit, Finding
from tune_policies.lint.kinds import kind_of
from tune_policies.lint.rule import ClusterInFile, DocumentRule, Found, ReaderRule, Rule
from tune_policies.lint.rules import AGAINST_DEFINITION, RULES, UNREADABLE, WRONG_FIELD
from tune_policies.manifests.documents import Document, read_documents
from tune_policies.manifests.reading import clusters_in


def lint_file(path: FilePath, crds: CrdSet | None = None) -> list[Finding]:
    """Return what is wrong with a file, by line; with ``crds`` also by the official definitions."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [_unreadable(str(path), 1, f"cannot read the file: {error}")]
    return lint_text(text, str(path), crds)


def lint_text(text: str, source: str, crds: CrdSet | None = None) -> list[Finding]:
    """Return what is wrong with a text, by line; ``source`` is the name under which findings tell of it."""
    try:
        documents = read_documents(text, source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return [_unreadable(source, mark.line + 1 if mark else 1, str(getattr(error, "problem", None) or error))]
    found = [each for number, document in enumerate(documents) for each in _lint_document(document, number, crds)]
    return sorted(found, key=lambda each: (each.line, each.rule, each.message))


def _unreadable(source: str, line: int, message: str) -> Finding:
    rule = UNREADABLE
    return Finding(rule=rule.name, severity=rule.severity, source=source, line=line, message=message, why=rule.why)


def _lint_document(document: Document, number: int, crds: CrdSet | None) -> Iterator[Finding]:
    clusters, problems = clusters_in(document)
    for problem in problems:
        yield _finding(WRONG_FIELD, Found(problem.path, problem.message, ""), document, number)
    if crds is not None:
        known = {problem.path for problem in problems}
        for path, message in crds.problems(document.data):
            if path not in known:
                yield _finding(AGAINST_DEFINITION, Found(path, message, ""), document, number)
    kind = kind_of(document)
    for rule in RULES:
        if isinstance(rule, DocumentRule):
            if kind in rule.kinds:
                for found in rule.check(document):
                    yield _finding(rule, found, document, number)
        else:
            for cluster in clusters:
                for found in rule.check(cluster):
                    yield _finding(rule, _in_document(found, cluster), document, number)


def _in_document(found: Found, cluster: ClusterInFile) -> Found:
    edits = tuple(Edit(cluster.path_of(each.path), each.value) for each in found.edits)
    return found._replace(path=cluster.path_of(found.path), edits=edits)


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
    )
