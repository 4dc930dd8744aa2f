"""Checks manifests against KubeRay's official definitions, which the user provides.

They come with KubeRay's chart ``kuberay-operator``, and from ``kubectl get crd -o yaml``. Their schemas are JSON Schema
with keywords of Kubernetes' own
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/, "Specifying a
structural schema"), which the validator below adds. It does not run ``x-kubernetes-validations``, which are programs in
CEL: those of KubeRay that matter have a rule of this package.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from jsonschema import Draft4Validator, ValidationError, validators
from jsonschema.exceptions import UnknownType
from pydantic_core import SchemaError, SchemaValidator, core_schema
from pydantic_core import ValidationError as NoMatchError

from tune_policies.files.yaml_documents import Path, read_documents
from tune_policies.kuberay.reading.documents import read_text
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten, suggest

_DEFINITION: Final = "CustomResourceDefinition"
_TIMES_LARGER: Final = 10
"""A definition is a megabyte, and `kubectl get crd` writes all that a cluster has."""

_JSON_TYPES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "nothing",
    "number": "a number",
    "object": "a mapping",
    "string": "a text",
}


class Crd(NamedTuple):
    """The definition of one kind in one version of KubeRay.

    Attributes:
        source: The name of its folder or file.
        schemas: The schemas by ``apiVersion``.
    """

    source: str
    schemas: Mapping[str, Any]


class CrdSet(NamedTuple):
    """The definitions of one or several versions of KubeRay, by kind."""

    kinds: Mapping[str, Sequence[Crd]]

    def problems(self, manifest: object) -> list[tuple[Path, str]]:
        """Return each place where a manifest breaks its definition, and why. A kind without definition has none.

        A problem that only some of several definitions report names these.
        """
        if not isinstance(manifest, Mapping) or not isinstance(kind := manifest.get("kind"), str):
            return []
        crds = self.kinds.get(kind, ())
        sources: dict[tuple[Path, str], list[str]] = {}
        for crd in crds:
            for problem in dict.fromkeys(_problems(crd, manifest)):
                sources.setdefault(problem, []).append(crd.source)
        return [
            (path, message if len(named) == len(crds) else f"{message} (by {', '.join(named)})")
            for (path, message), named in sources.items()
        ]


def load_crds(path: FilePath) -> CrdSet:
    """Read the definitions of Ray's kinds from a file, or from a folder and its subfolders, plain or gzipped.

    Raises:
        InvalidResourcesError: A file cannot be read, or there is no definition of Ray's kinds.
    """
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found: dict[str, list[Crd]] = {}
    for file in files:
        if file == path or file.name.removesuffix(".gz").endswith((".yaml", ".yml", ".json")):
            source = file.parent.name if file != path and file.parent != path else file.name
            for kind, schemas in _definitions(file):
                found.setdefault(kind, []).append(Crd(source, schemas))
    if not found:
        raise InvalidResourcesError(
            f"{path} has no custom resource definition of ray.io; KubeRay's chart has them in its folder crds, and so "
            "has `kubectl get crd -o yaml` of a cluster with KubeRay"
        )
    return CrdSet(found)


def _definitions(file: FilePath) -> list[tuple[str, dict[str, Any]]]:
    """Return the kinds that a file defines, each with its schemas by ``apiVersion``."""
    text = read_text(file, _TIMES_LARGER)
    # Other files of a chart may be templates, which are not YAML.
    documents = read_documents(text, str(file), _TIMES_LARGER) if _DEFINITION in text else ()
    found = []
    try:
        for document in documents:
            is_list = str(document.data.get("kind")).endswith("List")
            for each in document.data["items"] if is_list else [document.data]:
                if each.get("kind") == _DEFINITION and (spec := each["spec"])["group"] == "ray.io":
                    versions = spec["versions"]
                    schemas = {f"ray.io/{one['name']}": one["schema"]["openAPIV3Schema"] for one in versions}
                    found.append((str(spec["names"]["kind"]), schemas))
    except (AttributeError, LookupError, TypeError) as error:
        raise InvalidResourcesError(
            f"{file} has a custom resource definition that is not as Kubernetes writes it ({error!r})"
        ) from None
    return found


def _problems(crd: Crd, manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    version = manifest.get("apiVersion")
    if not isinstance(version, str) or version not in crd.schemas:
        yield ("apiVersion",), f"apiVersion must be {' or '.join(crd.schemas)}, got {shorten(version)}"
        return
    try:
        for error in _Validator(crd.schemas[version]).iter_errors(_without_nulls(manifest)):
            yield tuple(error.absolute_path), _message(error)
    except (UnknownType, SchemaError, AttributeError, LookupError, TypeError):  # to check it first takes seconds
        raise InvalidResourcesError(
            f"{crd.source}: the definition of {manifest['kind']} is not a valid schema"
        ) from None


def _without_nulls(value: Any) -> Any:
    """Return a copy without the fields that are null, which the API server drops before it validates."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _message(error: ValidationError) -> str:
    if error.validator in ("properties", "x-kubernetes-list-map-keys"):
        return str(error.message)
    wanted, got = error.validator_value, shorten(error.instance)
    match error.validator:
        case "minimum":
            said = f"must be at least {wanted}, got {got}"
        case "maximum":
            said = f"must be at most {wanted}, got {got}"
        case "enum":
            choices = [str(each) for each in wanted]
            said = f"must be one of {', '.join(choices)}, got {got}{suggest(str(error.instance), choices)}"
        case validator if validator in _OWN_KEYWORDS:
            said = error.message
        case validator:
            said = f"breaks the definition's {validator}: {got}"
    return f"{_name(tuple(error.absolute_path))} {said}"


def _name(path: Path) -> str:
    """Return the key of a part, with the index if it is an item of a list."""
    if not path:
        return "the document"
    return f"{_name(path[:-1])}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]


def _properties(validator: Any, properties: Mapping[str, Any], value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Validate the fields. The API server drops unknown ones without an error."""
    is_closed = "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    for name, each in value.items() if isinstance(value, Mapping) else ():
        if name in properties:
            yield from validator.descend(each, properties[name], path=name, schema_path=name)
        elif is_closed:
            yield ValidationError(f"unknown field {name!r}{suggest(str(name), properties)}", path=(name,))


def _required(_: Any, names: Sequence[str], value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    properties = schema.get("properties", {})
    for name in names if isinstance(value, Mapping) else ():
        if name not in value and "default" not in properties.get(name, {}):
            yield ValidationError(f"lacks the field {name!r}")


def _type(validator: Any, wanted: str, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    if not validator.is_type(value, wanted) and not (value is None and schema.get("nullable")):
        yield ValidationError(f"must be {_JSON_TYPES[wanted]}, got {shorten(value)}")


def _int_or_string(validator: Any, is_meant: bool, value: Any, _: Any) -> Iterator[ValidationError]:
    if is_meant and not validator.is_type(value, "integer") and not validator.is_type(value, "string"):
        yield ValidationError(f"must be a whole number or a text, got {shorten(value)}")


def _any_of(validator: Any, schemas: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    if not schema.get("x-kubernetes-int-or-string"):  # whose alternatives are these two types
        yield from Draft4Validator.VALIDATORS["anyOf"](validator, schemas, value, schema)


def _format(validator: Any, name: str, value: Any, _: Any) -> Iterator[ValidationError]:
    bits = {"int32": 31, "int64": 63}.get(name)
    if bits is None or not validator.is_type(value, "integer"):
        return
    if value < -(2**bits):
        yield ValidationError(f"must be at least {-(2**bits)}, got {shorten(value)}")
    elif value >= 2**bits:
        yield ValidationError(f"must be at most {2**bits - 1}, got {shorten(value)}")


def _list_type(_: Any, kind: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if kind != "set" or not isinstance(value, list):
        return
    if len({json.dumps(each, sort_keys=True, default=repr) for each in value}) < len(value):
        yield ValidationError(f"has an entry twice: {shorten(value)}")


def _map_keys(_: Any, keys: Sequence[str], value: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    properties = schema["items"].get("properties", {})
    defaults = {key: properties.get(key, {}).get("default") for key in keys}
    seen = set()
    for number, each in enumerate(value if isinstance(value, list) else ()):
        if isinstance(each, Mapping):
            named = ", ".join(f"{key} {each.get(key, default)!r}" for key, default in defaults.items())
            if named in seen:
                yield ValidationError(f"comes twice: {named}", path=(number,))
            seen.add(named)


_MOST_MATCHED: Final = 1000
"""Characters of a text that is matched with a pattern: a pattern of a few characters can need a thousand steps each."""


@lru_cache(maxsize=1000)
def _matcher(pattern: str) -> SchemaValidator:
    # Matches in linear time, and its syntax is nearly that of Kubernetes (RE2). With "(a+)+$", re may need years.
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    if len(value) > _MOST_MATCHED:
        yield ValidationError(f"has {len(value):,} characters; at most {_MOST_MATCHED:,} can have a pattern")
        return
    try:
        _matcher(pattern).validate_python(value)
    except NoMatchError:
        yield ValidationError(f"is not written as it must be, got {shorten(value)}")


_OWN_KEYWORDS: Final = {
    "format": _format,
    "pattern": _pattern,
    "properties": _properties,
    "required": _required,
    "type": _type,
    "x-kubernetes-int-or-string": _int_or_string,
    "x-kubernetes-list-map-keys": _map_keys,
    "x-kubernetes-list-type": _list_type,
}

_Validator: Final = validators.extend(Draft4Validator, {**_OWN_KEYWORDS, "anyOf": _any_of})
