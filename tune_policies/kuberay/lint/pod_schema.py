"""Checks pod templates against Kubernetes' own definition of a PodTemplateSpec.

The API server accepts a RayCluster, RayJob, RayCronJob or RayService with any pod template, because KubeRay's
definitions do not check most of its values. The operator then cannot create the pods, and the cluster stays empty.
``make pod-template-schema`` writes the file ``pod_template.json`` from the OpenAPI definitions of Kubernetes.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import jsonschema

from tune_policies.files.plain_data import parse_json
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.reading.documents import read_text
from tune_policies.kuberay.reading.kubernetes_quantities import check_quantity
from tune_policies.values.wording import shorten, suggest

_MIN_SIMILARITY: Final = 0.7
"""The minimum similarity of an unknown field and a suggested field."""


class PodTemplate(NamedTuple):
    """A pod template of a manifest.

    Attributes:
        name: The name for messages.
        path: The path in the document.
        data: The fields of the template.
        autoscaler: The path and the fields of ``autoscalerOptions``, which KubeRay copies to a container of the head.
    """

    name: str
    path: Path
    data: Mapping[str, Any]
    autoscaler: tuple[Path, Mapping[str, Any]] | None = None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The specification of the pod, or an empty mapping."""
        return as_mapping(self.data.get("spec"))

    @property
    def containers(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """The initial containers and the containers of the pod, each with its path in the document."""
        for field in ("initContainers", "containers"):
            for number, container in enumerate(as_list(self.spec.get(field))):
                yield (*self.path, "spec", field, number), as_mapping(container)

    @property
    def ray_container_path(self) -> Path | None:
        """The path of the container in which KubeRay starts Ray, or ``None`` for the pod that submits a job."""
        if "submitterPodTemplate" in self.path:
            return None
        return (*self.path, "spec", "containers", 0)


class PodProblem(NamedTuple):
    """A field that Kubernetes refuses or drops, with its path in the document."""

    path: Path
    message: str
    is_unknown_field: bool = False


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping. Another check reports values of other types."""
    if isinstance(value, Mapping):
        return value
    return {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty list. Another check reports values of other types."""
    if isinstance(value, list):
        return value
    return []


_PLACES: Final[dict[str, tuple[Path, Path | None]]] = {
    "RayCluster": (("spec",), None),
    "RayJob": (("spec", "rayClusterSpec"), ("spec", "submitterPodTemplate")),
    "RayService": (("spec", "rayClusterConfig"), None),
    "RayCronJob": (("spec", "jobTemplate", "rayClusterSpec"), ("spec", "jobTemplate", "submitterPodTemplate")),
}
"""The paths of the cluster and of the template of the pod that submits a job, by kind."""


def _at(data: object, path: Path) -> object:
    for key in path:
        data = as_mapping(data).get(str(key))
    return data


def cluster_of(manifest: Document) -> tuple[Path, Mapping[str, Any]]:
    """Return the path and the data of the cluster's ``spec`` in a manifest of KubeRay. The data may be empty."""
    kind = as_mapping(manifest.data).get("kind")
    if not isinstance(kind, str) or kind not in _PLACES:
        return (), {}
    place, _ = _PLACES[kind]
    return place, as_mapping(_at(manifest.data, place))


def templates_of(manifest: Document) -> Iterator[PodTemplate]:
    """Yield the pod templates of the head, of each worker group and of the submitter of a job."""
    place, cluster = cluster_of(manifest)
    head = as_mapping(cluster.get("headGroupSpec"))
    if "template" in head:
        autoscaler = (*place, "autoscalerOptions"), as_mapping(cluster.get("autoscalerOptions"))
        path = (*place, "headGroupSpec", "template")
        yield PodTemplate("the head", path, as_mapping(head["template"]), autoscaler)
    for number, group in enumerate(as_list(cluster.get("workerGroupSpecs"))):
        group = as_mapping(group)
        if "template" in group:
            name = f"group {shorten(group.get('groupName'))}"
            path = (*place, "workerGroupSpecs", number, "template")
            yield PodTemplate(name, path, as_mapping(group["template"]))
    kind = as_mapping(manifest.data).get("kind")
    # A job without this template gets a default submitter from KubeRay, which needs no check.
    submitter = _PLACES[kind][1] if place and isinstance(kind, str) else None
    template = None if submitter is None else _at(manifest.data, submitter)
    if submitter is not None and template is not None:
        yield PodTemplate("the submitter", submitter, as_mapping(template))


_AUTOSCALER_FIELDS: Final = {
    "env": "EnvVar",
    "envFrom": "EnvFromSource",
    "resources": "ResourceRequirements",
    "securityContext": "SecurityContext",
    "volumeMounts": "VolumeMount",
}
"""The fields of ``autoscalerOptions`` that KubeRay copies to the autoscaler's container, with their definitions."""


def pod_problems(manifest: Document) -> Iterator[PodProblem]:
    """Yield each field of the pod templates that Kubernetes refuses or drops."""
    for template in templates_of(manifest):
        yield from _problems(template.data, "PodTemplateSpec", template.path)
    place, cluster = cluster_of(manifest)
    options = as_mapping(cluster.get("autoscalerOptions"))
    for field, definition in _AUTOSCALER_FIELDS.items():
        path = (*place, "autoscalerOptions", field)
        value = options.get(field)
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from _problems(item, definition, (*path, number))
        elif value is not None:
            yield from _problems(value, definition, path)


def _problems(data: object, definition: str, top: Path) -> Iterator[PodProblem]:
    # Three kinds of errors need messages of their own: unknown fields, missing fields, and wrong values.
    for error in _validator(definition).iter_errors(data):
        path = (*top, *error.absolute_path)
        if error.validator == "additionalProperties":
            # ``jsonschema`` reports all unknown fields of a part as one error.
            for name in error.instance.keys() - error.schema.get("properties", {}).keys():
                yield PodProblem((*path, name), _unknown(name, error.schema), is_unknown_field=True)
        elif error.validator == "required":
            # A required field is not missing if it is only misspelled. Then the unknown field is reported.
            fields = error.schema.get("properties", {})
            unknown = error.instance.keys() - fields.keys()
            misspelled = {similar_field(other, fields, _MIN_SIMILARITY) for other in unknown}
            for name in error.validator_value:
                if name not in error.instance and name not in misspelled:
                    yield PodProblem((*path, name), f"{name} is missing in {_named(path)}")
        else:
            yield PodProblem(path, f"{_named(path)} {_explain(error)}")


@cache
def _schema() -> dict[str, Any]:
    found: dict[str, Any] = parse_json(read_text(FilePath(__file__).with_name("pod_template.json")))
    return found


@cache
def _validator(definition: str) -> Any:
    # Without formats of ``jsonschema`` itself, because the definitions use Kubernetes' formats, such as ``int32``. Of
    # these, only quantities are checked, and the exception becomes ``error.cause``.
    checker = jsonschema.FormatChecker(formats=())
    checker.checks("Quantity", raises=ValueError)(_is_quantity)
    schema = {**_schema(), "$ref": f"#/$defs/{definition}"}
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


def _is_quantity(value: object) -> bool:
    """Return ``True``, or raise a :class:`ValueError` if the value is not a valid quantity."""
    if isinstance(value, str | int | float):
        check_quantity(value)
    return True


_TYPES: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}


def _explain(error: Any) -> str:
    """Return why the value of a field is wrong, without the name of the field."""
    value, got = error.instance, shorten(error.instance)
    if error.validator == "format":
        return str(error.cause)
    if error.validator == "enum":
        # The definitions also allow an empty string and null, which stand for the default.
        values = [name for name in error.validator_value if name]
        hint = suggest(str(value), values) or f", but must be one of {', '.join(values)}"
        return f"is {got}{hint}"
    if error.validator != "type":
        return f"is {got}, which Kubernetes refuses"
    types = error.validator_value
    if isinstance(types, str):
        types = [types]
    if "string" in types and isinstance(value, bool | int | float):
        what = "truth value" if isinstance(value, bool) else "number"
        return f'must be a string, got the {what} {got}: write "{json.dumps(value)}", in quotes'
    expected = " or ".join(_TYPES[kind] for kind in types if kind != "null")
    # The quotes are the mistake if the text would be a valid value without them.
    quotes = isinstance(value, str) and value.lower() in ("true", "false") and "boolean" in types
    if quotes or (isinstance(value, str) and value.isdecimal() and "integer" in types):
        return f"must be {expected}, got the string {got}: remove the quotes"
    return f"must be {expected}, got {got}"


def _named(path: Path) -> str:
    """Return the last name of a path, with the index if the path ends with one."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return "the document"
    if isinstance(path[-1], int):
        return f"item {path[-1] + 1} of {names[-1]}"
    return names[-1]


_PARTS: Final = {
    "PodSpec": "the pod's spec (template.spec)",
    "Container": "a container",
    "ObjectMeta": "the template's metadata",
    "PodTemplateSpec": "the template",
    "ResourceRequirements": "a container's resources",
    "SecurityContext": "a container's securityContext",
    "PodSecurityContext": "the pod's securityContext",
    "Probe": "a probe",
    "VolumeMount": "an item of volumeMounts",
    "Volume": "an item of volumes",
    "ContainerPort": "an item of ports",
    "EnvVar": "an item of env",
    "EmptyDirVolumeSource": "an emptyDir",
}
"""Descriptions of the definitions in which users look for a misplaced field, most common first."""

_GROUP_FIELDS: Final = ("groupName", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas")


_MEANT: Final = {
    ("ConfigMapVolumeSource", "configMapName"): "name",
    ("PersistentVolumeClaimVolumeSource", "name"): "claimName",
    ("SecretVolumeSource", "name"): "secretName",
}
"""The fields that are meant by the names of fields in similar parts, by part."""


def owner_of(name: str) -> str | None:
    """Return a description of the part of a pod template to which a field belongs, or ``None`` for other fields."""
    definitions = _schema()["$defs"]
    return next((text for title, text in _PARTS.items() if name in definitions[title]["properties"]), None)


def _unknown(name: str, schema: Mapping[str, Any]) -> str:
    """Return the message about an unknown field: with the similar name, or with the part to which it belongs."""
    meant = _MEANT.get((str(schema.get("title")), name))
    if meant is not None:
        return f"unknown field {name!r}; did you mean {meant!r}?"
    # A field of another part is rather misplaced than misspelled, unless it differs from a field of this part only in
    # its case, dashes and underscores.
    near = similar_field(name, schema.get("properties", {}), _MIN_SIMILARITY)
    owner = "the group, next to template" if name in _GROUP_FIELDS else owner_of(name)
    if near is not None and (not owner or _plain(near) == _plain(name)):
        return f"unknown field {name!r}; did you mean {near!r}?"
    here = _PARTS.get(str(schema.get("title")), f"{schema.get('title', 'this part')}")
    if owner:
        return f"unknown field {name!r} of {here}: it is a field of {owner}, so check the indentation"
    return f"unknown field {name!r} of {here}"


def similar_field(name: str, fields: Iterable[str], similarity: float) -> str | None:
    """Return the field that is most similar to an unknown name, or ``None``. Case, ``_`` and ``-`` do not count.

    Args:
        name: The unknown name.
        fields: The known names.
        similarity: The minimum similarity of the names, from 0 to 1.
    """
    by_plain = {_plain(field): field for field in sorted(fields)}
    near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=similarity)
    if near:
        return by_plain[near[0]]
    return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
