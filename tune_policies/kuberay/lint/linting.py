"""Checks files against all rules. An unreadable file results in a finding instead of an exception."""

from collections.abc import Iterator
from pathlib import Path as FilePath

from tune_policies.files.yaml_documents import Document, DocumentError, read_documents
from tune_policies.kuberay.lint.misspelled_fields import misspelled_fields
from tune_policies.kuberay.lint.pod_schema import pod_problems
from tune_policies.kuberay.lint.readable import Readable, readable
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
from tune_policies.kuberay.reading.kuberay_models import FieldProblem
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
    manifests = [
        (number, *manifest) for number, document in enumerate(documents) for manifest in manifests_in(document)
    ]
    if name is not None:
        check_name(name, (manifest for _, _, manifest in manifests), source)
        manifests = [(number, top, manifest) for number, top, manifest in manifests if name_of(manifest) == name]
    kinds = [(number, top, *with_intended_kind(manifest)) for number, top, manifest in manifests]
    read = [(number, top, manifest, *clusters_in(manifest)) for number, top, manifest, _ in kinds]
    retired = [found for _, _, manifest, _, _ in read for found in retired_fields(manifest)]
    has_cluster = any(
        clusters or problems or name_of(manifest) is not None for _, _, manifest, clusters, problems in read
    )
    if not has_cluster and not retired:
        message = "the file contains no Ray cluster, job or service"
        if any(is_chart_values(manifest) for _, _, manifest, _, _ in read):
            message = f"{message}: it has values of KubeRay's Helm chart. Pipe the output of `helm template` into lint"
        return [_file_finding(NO_CLUSTER, source, 1, message)]
    findings = []
    for (number, top, manifest, clusters, problems), (_, _, _, of_kind) in zip(read, kinds, strict=True):
        part = readable(manifest, clusters, problems)
        for rule, found in _check(manifest, part, [*of_kind, *problems]):
            unchecked = None
            if rule in (INVALID_FIELD, RETIRED):
                unchecked = part.omitted_by(found.path)
            if unchecked is not None:
                unchecked = (*top, *unchecked)
            findings.append(
                Finding(
                    rule=rule.name,
                    severity=found.severity or rule.severity,
                    source=manifest.source,
                    document=number,
                    line=manifest.line(found.path),
                    why=rule.why,
                    path=(*top, *found.path),
                    message=found.message,
                    fix=found.fix,
                    unchecked=unchecked,
                )
            )
    return sorted(findings, key=lambda finding: (finding.line, finding.rule, finding.message))


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
