"""Finds misspelled field names.

The API server refuses an unknown field or drops it without an error. Only the official definitions list all fields.
This module reports names that are similar to one of the fields below, which determine Ray's view of a cluster, and
fields of pods outside of a pod template. It never reports a field of the official definitions.
:mod:`tune_policies.kuberay.lint.pod_schema` checks pod templates.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeAlias, Union, get_args

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.pod_schema import as_mapping, owner_of, similar_field
from tune_policies.kuberay.reading.kuberay_models import (
    AutoscalerOptions,
    HeadGroup,
    Part,
    PodTemplate,
    RayClusterSpec,
    WorkerGroupSpec,
)

_MIN_SIMILARITY: Final = 0.88
"""The minimum similarity of a misspelled name and a known field.

A name with an additional letter or two swapped letters reaches this similarity.
"""

_Fields: TypeAlias = Mapping[str, Union[type[Part], "_Fields", None]]
"""The known fields of a part, each with the type of its value if the value is a part, else ``None``."""

_OTHER_FIELDS: Final[dict[type[Part], tuple[str, ...]]] = {
    AutoscalerOptions: ("resources", "env", "envFrom", "upscalingMode"),
    WorkerGroupSpec: ("scaleStrategy", "priority"),
}
"""Further known fields, which the models do not declare."""

# From ``RayJobSpec`` in KubeRay's API reference: https://ray-project.github.io/kuberay/reference/api/.
_JOB: Final[_Fields] = {
    **dict.fromkeys(("entrypoint", "runtimeEnvYAML", "submissionMode", "clusterSelector", "shutdownAfterJobFinishes")),
    **dict.fromkeys(("ttlSecondsAfterFinished", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources")),
    **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "submitterPodTemplate", "suspend")),
    "rayClusterSpec": RayClusterSpec,
}
_SPECS: Final[dict[str, type[Part] | _Fields]] = {
    "RayCluster": RayClusterSpec,
    "RayJob": _JOB,
    "RayCronJob": {"schedule": None, "suspend": None, "jobTemplate": _JOB},
    "RayService": {"serveConfigV2": None, "rayClusterConfig": RayClusterSpec},
}


def misspelled_fields(manifest: Document) -> Iterator[tuple[Path, str]]:
    """Yield the path of each misspelled field, and a message with the correct name."""
    data = as_mapping(manifest.data)
    kind = data.get("kind")
    if isinstance(kind, str) and kind in _SPECS:
        yield from _misspelled(data.get("spec"), _SPECS[kind], ("spec",))


def _misspelled(data: Any, part: type[Part] | _Fields, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, list):
        # ``part`` describes each item of the list.
        for number, item in enumerate(data):
            yield from _misspelled(item, part, (*path, number))
    elif isinstance(data, Mapping):
        fields = _fields_of(part) if isinstance(part, type) else part
        for key, value in data.items():
            if key in fields:
                inner = fields[key]
                if inner is not None:
                    yield from _misspelled(value, inner, (*path, key))
                continue
            # A misspelling is more likely than wrong indentation, so it comes first.
            meant = similar_field(key, fields, _MIN_SIMILARITY)
            owner = owner_of(str(key)) if part in (HeadGroup, WorkerGroupSpec) else None
            if meant is not None:
                yield (*path, key), f"unknown field {key!r}; did you mean {meant!r}?"
            elif owner is not None:
                message = f"unknown field {key!r} of a group: it is a field of {owner}, so check the indentation"
                yield (*path, key), message


@cache
def _fields_of(model: type[Part]) -> _Fields:
    fields: dict[str, type[Part] | None] = dict.fromkeys(_OTHER_FIELDS.get(model, ()))
    for name, field in model.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        parts = (part for part in types if isinstance(part, type) and issubclass(part, Part))
        # ``pod_schema.py`` checks pod templates with Kubernetes' complete definitions.
        fields[name] = next((part for part in parts if part is not PodTemplate), None)
    return fields
