"""Checks files against all rules. An unreadable file results in a finding instead of an exception."""

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import NamedTuple

from tune_policies.files.yaml_documents import Document, DocumentError, Path, read_documents
from tune_policies.kuberay.lint.lenient_reading import Readable, readable
from tune_policies.kuberay.lint.misspelled_fields import misspelled_fields
from tune_policies.kuberay.lint.pod_schema import pod_problems
from tune_policies.kuberay.lint.retired_formats import is_chart_values, retired_fields
from tune_policies.kuberay.lint.rule import Finding, Found, Rule
from tune_policies.kuberay.lint.rules import (
    DUPLICATE_KEY,
    INVALID_FIELD,
    MISSPELLED,
    NO_CLUSTER,
    RETIRED,
    RULES,
    UNREADABLE,
)
from tune_policies.kuberay.reading.documents import (
    check_name,
    clusters_in,
    manifests_in,
    name_of,
    read_text,
    with_intended_kind,
)
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, FieldProblem
from tune_policies.values.errors import InvalidResourcesError


def lint_file(path: str | FilePath, name: str | None = None) -> list[Finding]:
    """Return the findings in a file, sorted by line.

    Args:
        path: The file, plain or gzipped; ``-`` is stdin.
        name: The name of the only cluster, job or service to check; ``None`` checks all.

    Raises:
        InvalidResourcesError: The file has no cluster of this name.
    """
    try:
        text = read_text(path)
    except DocumentError as error:
        return [_file_finding(UNREADABLE, str(path), error.line, error.reason)]
    except InvalidResourcesError as error:
        return [_file_finding(UNREADABLE, str(path), 1, str(error))]
    return lint_text(text, str(path), name)


def lint_text(text: str, source: str, name: str | None = None) -> list[Finding]:
    """Check the text of a file and return the findings. ``source`` is the name of the file in the findings."""
    try:
        documents = read_documents(text, source)
    except DocumentError as error:
        return [_file_finding(UNREADABLE, source, error.line, error.reason)]
    manifests = _read_manifests(documents, source, name)
    # Without this finding, a file of another program would look like a file without mistakes.
    if not any(map(_is_of_ray, manifests)):
        message = "the file contains no Ray cluster, job or service"
        if any(is_chart_values(read.manifest) for read in manifests):
            message = f"{message}: it has values of KubeRay's Helm chart. Pipe the output of `helm template` into lint"
        return [_file_finding(NO_CLUSTER, source, 1, message)]
    findings: list[Finding] = []
    for read in manifests:
        findings += _findings(read)
    # The rule and the message make the order of findings in one line independent of the order of the rules.
    return sorted(findings, key=lambda finding: (finding.line, finding.rule, finding.message))


class _ReadManifest(NamedTuple):
    """A manifest of a file, and what the reader found in it.

    Attributes:
        document: The number of its document in the file, starting at 0.
        top: Its path in the document, which is empty unless the document is a ``List``.
        manifest: The manifest, with the kind that its author probably intended.
        kind_problems: The problem of its own kind, or an empty list.
        clusters: The cluster that it describes, or an empty list.
        problems: The problems of its other fields.
    """

    document: int
    top: Path
    manifest: Document
    kind_problems: list[FieldProblem]
    clusters: list[ClusterInFile]
    problems: list[FieldProblem]


def _read_manifests(documents: Iterable[Document], source: str, name: str | None) -> list[_ReadManifest]:
    """Read all manifests, or only those with ``name``."""
    found = []
    for number, document in enumerate(documents):
        for top, manifest in manifests_in(document):
            found.append((number, top, manifest))
    if name is not None:
        check_name(name, (manifest for _, _, manifest in found), source)
        found = [(number, top, manifest) for number, top, manifest in found if name_of(manifest) == name]
    read = []
    for number, top, manifest in found:
        # With a misspelled kind, nothing else could be checked. The problem of the kind itself is reported in addition.
        intended, kind_problems = with_intended_kind(manifest)
        clusters, problems = clusters_in(intended)
        read.append(_ReadManifest(number, top, intended, kind_problems, clusters, problems))
    return read


def _is_of_ray(read: _ReadManifest) -> bool:
    """Return whether a manifest is written for KubeRay or for the operator that KubeRay replaced."""
    if read.clusters or read.problems or name_of(read.manifest) is not None:
        return True
    return any(True for _ in retired_fields(read.manifest))


def _findings(read: _ReadManifest) -> Iterator[Finding]:
    part = readable(read.manifest, read.clusters, read.problems)
    for rule, found in _check(read.manifest, part, [*read.kind_problems, *read.problems]):
        # Only these two rules report mistakes that keep a part from being read.
        unchecked = None
        if rule in (INVALID_FIELD, RETIRED):
            unchecked = part.omitted_by(found.path)
        if unchecked is not None:
            unchecked = (*read.top, *unchecked)
        yield Finding(
            rule=rule.name,
            severity=found.severity or rule.severity,
            source=read.manifest.source,
            document=read.document,
            line=read.manifest.line(found.path),
            why=rule.why,
            path=(*read.top, *found.path),
            message=found.message,
            fix=found.fix,
            unchecked=unchecked,
        )


def _file_finding(rule: Rule, source: str, line: int, message: str) -> Finding:
    unchecked = () if rule is UNREADABLE else None
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        source=source,
        line=line,
        message=message,
        why=rule.why,
        unchecked=unchecked,
    )


def _check(manifest: Document, part: Readable, problems: list[FieldProblem]) -> Iterator[tuple[Rule, Found]]:
    """Yield each mistake in a document with its rule, starting with invalid fields, duplicate keys and misspellings."""
    for found in retired_fields(manifest):
        yield RETIRED, found
    for problem in problems:
        yield INVALID_FIELD, Found(problem.path, problem.message)
    for path, line in manifest.repeated.items():
        yield DUPLICATE_KEY, Found(path, f"the key {str(path[-1])!r} is repeated in line {line} with the same value")
    # The reader, the search for misspellings and Kubernetes' definitions can find the same mistake. The first one
    # reports it.
    known = {problem.path for problem in problems}
    for path, message in misspelled_fields(manifest):
        if path not in known:
            yield MISSPELLED, Found(path, message)
    for wrong in pod_problems(manifest):
        if wrong.path not in known:
            rule = MISSPELLED if wrong.is_unknown_field else INVALID_FIELD
            yield rule, Found(wrong.path, wrong.message)
    for rule in RULES:
        if rule.check is not None:
            for found in rule.check(part.manifest, part.clusters):
                if not part.hides(found.path):
                    yield rule, found
