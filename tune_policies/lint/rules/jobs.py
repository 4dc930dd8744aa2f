"""Rules for what a job or a service asks of its cluster."""

from collections.abc import Iterator, Mapping
from typing import Any

from tune_policies.lint.rule import RAY_JOB, DocumentRule, Found, RuleSet
from tune_policies.lint.rules.cluster_parts import API, at, mapping
from tune_policies.manifests.documents import Document


def _spec(document: Document) -> Mapping[str, Any]:
    return mapping(at(document.data, ("spec",)))


def _entrypoint(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    if spec.get("submissionMode") == "InteractiveMode":
        return
    command = spec.get("entrypoint")
    if command is None or (isinstance(command, str) and not command.strip()):
        message = "the RayJob has no entrypoint"
        yield Found(("spec", "entrypoint"), message, "write the command, such as python train.py")


RULES: RuleSet = (
    DocumentRule(
        "job-entrypoint",
        "error",
        "There is nothing to run, so that the submission fails.",
        f"{API} (RayJobSpec.entrypoint)",
        (RAY_JOB,),
        _entrypoint,
    ),
)
