"""A rule for each pod template of a manifest, and the source of Kubernetes' rules for pods."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.pod_schema import PodTemplate, templates_of
from tune_policies.kuberay.lint.rule import Found, Rule, Severity, why
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile

VALIDATION: Final = "https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/validation.go"

_Check: TypeAlias = Callable[[PodTemplate], Iterator[Found]]


def template_rule(rules: list[Rule], name: str, severity: Severity, source: str) -> Callable[[_Check], _Check]:
    """Return a decorator that adds a rule for each pod template of a manifest to a list of rules."""

    def add(check: _Check) -> _Check:
        def of_document(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
            for template in templates_of(document):
                yield from check(template)

        rules.append(Rule(name, severity, why(check), source, of_document))
        return check

    return add


def is_filled_in_later(value: str) -> bool:
    """Return whether a value contains a variable such as ``${GPU_TYPE}``, which another program replaces."""
    return "$" in value or "{{" in value
