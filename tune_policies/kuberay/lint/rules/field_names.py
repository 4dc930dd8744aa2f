"""Rules for names of fields: those of KubeRay with a slip of the pen, and those that its chart does not know.

The API server refuses an unknown field or drops it without a word. Only the definitions have all fields. But a name
that is nearly one of the fields below, which decide what Ray sees of a cluster, is wrong in any case. No field of the
official definitions is taken for a slip.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.rule import (
    RAY_CLUSTER,
    RAY_CRON_JOB,
    RAY_JOB,
    RAY_SERVICE,
    VALUES,
    DocumentRule,
    Found,
    document_type,
)
from tune_policies.kuberay.lint.rules.cluster_parts import mapping
from tune_policies.kuberay.manifests.chart_values import unknown_keys
from tune_policies.kuberay.manifests.kuberay_models import (
    AutoscalerOptions,
    Container,
    ContainerResources,
    HeadGroup,
    PodSpec,
    PodTemplate,
    RayClusterSpec,
    Toleration,
    WorkerGroupSpec,
)

_NEAR: Final = 0.88
"""How alike two names are that differ by a slip: an ending, a letter too many, two that changed places."""


class _Part(NamedTuple):
    """A part of a manifest: its fields, and those of them that are parts themselves, or lists of parts."""

    fields: frozenset[str]
    parts: "Mapping[str, _Part]"


def _part(*fields: str, model: type[BaseModel] | None = None, **parts: _Part) -> _Part:
    return _Part(frozenset({*fields, *parts, *(model.model_fields if model else ())}), parts)


_CONTAINER: Final = _part(
    *("command", "args", "volumeMounts", "envFrom", "ports", "lifecycle"),
    model=Container,
    resources=_part("claims", model=ContainerResources),
)
_POD: Final = _part(
    *("affinity", "volumes", "initContainers", "serviceAccountName", "priorityClassName", "imagePullSecrets"),
    model=PodSpec,
    containers=_CONTAINER,
    tolerations=_part("tolerationSeconds", model=Toleration),
)
_TEMPLATE: Final = _part(model=PodTemplate, spec=_POD)
_CLUSTER: Final = _part(
    model=RayClusterSpec,
    autoscalerOptions=_part("resources", "env", "envFrom", model=AutoscalerOptions),
    headGroupSpec=_part(model=HeadGroup, template=_TEMPLATE),
    workerGroupSpecs=_part("scaleStrategy", model=WorkerGroupSpec, template=_TEMPLATE),
)
_JOB: Final = _part(
    *("entrypoint", "runtimeEnvYAML", "submissionMode", "clusterSelector", "shutdownAfterJobFinishes"),
    *("ttlSecondsAfterFinished", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources"),
    *("activeDeadlineSeconds", "backoffLimit", "submitterPodTemplate", "suspend"),
    rayClusterSpec=_CLUSTER,
)
_SPECS: Final = {
    RAY_CLUSTER: _CLUSTER,
    RAY_JOB: _JOB,
    RAY_CRON_JOB: _part("schedule", "suspend", jobTemplate=_JOB),
    RAY_SERVICE: _part("serveConfigV2", rayClusterConfig=_CLUSTER),
}


def misspelled_fields(manifest: Document) -> Iterator[tuple[Path, str]]:
    """Yield where a manifest of KubeRay's has a field with a slip of the pen, and what is meant."""
    part = _SPECS.get(document_type(manifest) or "")
    if part is not None:
        yield from _misspelled(manifest.data.get("spec"), part, ("spec",))


def _misspelled(data: Any, part: _Part, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, list):
        for number, each in enumerate(data):
            yield from _misspelled(each, part, (*path, number))
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if key in part.parts:
                yield from _misspelled(value, part.parts[key], (*path, key))
            elif isinstance(key, str) and key not in part.fields and (meant := _meant(key, part.fields)):
                yield (*path, key), f"unknown field {key!r}; did you mean {meant!r}?"


def _meant(name: str, fields: frozenset[str]) -> str | None:
    by_plain = {_plain(field): field for field in sorted(fields)}
    near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=_NEAR)
    return by_plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _unknown_key(document: Document) -> Iterator[Found]:
    for path, near in unknown_keys(dict(mapping(document.data))):
        yield Found(path, f"{path[-1]} is nothing that the chart reads{near}", "leave it out, or correct the name")


RULES: Final = (
    DocumentRule(
        "chart-key-unknown",
        "note",
        "Helm passes over values that no template names. Known are the keys of the chart's versions up to 1.7.",
        "https://github.com/ray-project/kuberay/tree/v1.7.0/helm-chart/ray-cluster",
        (VALUES,),
        _unknown_key,
    ),
)
