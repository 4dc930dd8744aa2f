"""Checks manifests against KubeRay's official definitions, which the user gives.

They come with KubeRay's chart ``kuberay-operator``, and from ``kubectl get crd -o yaml``. Their schema is turned into
JSON Schema. Both are nearly the same; what differs is Kubernetes' own
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/, "Specifying a
structural schema"). ``x-kubernetes-validations`` are programs in CEL, which nothing here runs: those of KubeRay that
matter have a rule of this package.

A pattern is matched in linear time by the regular expressions of Rust, which pydantic brings and whose syntax is nearly
that of Kubernetes' own (RE2): ``re`` may need years for a pattern such as ``(a+)+$``. Both refuse look-around and
back-references.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import UnknownType
from pydantic_core import SchemaError, SchemaValidator, core_schema
from pydantic_core import ValidationError as NoMatchError

from tune_policies.files.yaml_documents import Path, read_documents
from tune_policies.kuberay.reading.documents import read_text
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten, suggest

_JSON_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "nothing",
    "number": "a number",
    "object": "a mapping",
    "string": "a text",
}
_KEPT = frozenset(
    {"type", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required"}
)
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_DEFINITION: Final = "CustomResourceDefinition"
_TIMES_LARGER: Final = 10
"""A definition is a megabyte, and `kubectl get crd` writes all that a cluster has."""


class Crd(NamedTuple):
    """One kind by one version of KubeRay.

    Attributes:
        source: The folder, or the file, from which it comes.
        validators: By the version of the API.
    """

    source: str
    validators: Mapping[str, Any]


class CrdSet(NamedTuple):
    """The definitions of one or several versions of KubeRay, by kind."""

    kinds: Mapping[str, Sequence[Crd]]

    def problems(self, manifest: object) -> list[tuple[Path, str]]:
        """Return where a manifest is not as it must be, and why; none where its kind is not defined here.

        Where there are several definitions of its kind, what not all of them say is told with its source.
        """
        if not isinstance(manifest, Mapping) or not isinstance(kind := manifest.get("kind"), str):
            return []
        crds = self.kinds.get(kind, ())
        said: dict[tuple[Path, str], list[str]] = {}
        for crd in crds:
            for problem in dict.fromkeys(_problems(crd, manifest)):
                said.setdefault(problem, []).append(crd.source)
        return [
            (path, message if len(sources) == len(crds) else f"{message} (by {', '.join(sources)})")
            for (path, message), sources in said.items()
        ]


def load_crds(path: FilePath) -> CrdSet:
    """Read the definitions of a file or of a folder and all that is in it, plain or gzipped.

    Raises:
        InvalidResourcesError: There is no such file, it cannot be read, or no definition of Ray's is in it.
    """
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found: dict[str, list[Crd]] = {}
    for file in files:
        name = file.name.removesuffix(".gz")
        if file == path or name.endswith((".yaml", ".yml", ".json")):
            source = file.parent.name if file != path and file.parent != path else file.name
            for kind, by_version in _definitions(file):
                found.setdefault(kind, []).append(Crd(source, by_version))
    if not found:
        raise InvalidResourcesError(
            f"{path} has no custom resource definition of ray.io; KubeRay's chart has them in its folder crds, and so "
            "has `kubectl get crd -o yaml` of a cluster with KubeRay"
        )
    return CrdSet(found)


def _definitions(file: FilePath) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the kinds that a file defines, each with its validators."""
    try:
        return tuple(
            (str(spec["names"]["kind"]), _validators(spec))
            for each in _manifests(file)
            if each.get("kind") == _DEFINITION and (spec := each["spec"])["group"] == "ray.io"
        )
    except (AttributeError, LookupError, TypeError) as error:
        raise InvalidResourcesError(
            f"{file} has a custom resource definition that is not as Kubernetes writes it ({error!r})"
        ) from None


def _manifests(file: FilePath) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a file, also of a list; other files of a chart have none, as some are no YAML."""
    text = read_text(file, _TIMES_LARGER)
    for document in read_documents(text, str(file), _TIMES_LARGER) if _DEFINITION in text else ():
        data = document.data
        items = data.get("items") if isinstance(data, dict) and str(data.get("kind")).endswith("List") else None
        yield from (each for each in (items if isinstance(items, list) else [data]) if isinstance(each, dict))


def _validators(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"ray.io/{version['name']}": CrdValidator(to_json_schema(version["schema"]["openAPIV3Schema"]))
        for version in spec["versions"]
    }


def _problems(crd: Crd, manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    version = manifest.get("apiVersion")
    if not isinstance(version, str) or version not in crd.validators:
        yield ("apiVersion",), f"apiVersion must be {' or '.join(crd.validators)}, got {shorten(version)}"
        return
    try:
        for error in crd.validators[version].iter_errors(_without_nulls(manifest)):
            yield from _explain(error)
    except (UnknownType, SchemaError, AttributeError, LookupError, TypeError):  # to check it first takes seconds
        raise InvalidResourcesError(
            f"{crd.source}: the definition of {manifest['kind']} is not a valid schema"
        ) from None


def _without_nulls(value: Any) -> Any:
    """Return a copy without the fields that have nothing in them: so does the API server, before it validates."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _name(path: Path) -> str:
    """Return how a part is called: by its key, with its place where it is an item of a list."""
    if not path:
        return "the document"
    return f"{_name(path[:-1])}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]


_SAID: Final = {
    "minimum": "must be at least {wanted}, got {got}",
    "maximum": "must be at most {wanted}, got {got}",
    "pattern": "is not written as it must be, got {got}",
    "uniqueItems": "has an entry twice: {got}",
}


def _explain(error: ValidationError) -> Iterator[tuple[Path, str]]:
    path = tuple(error.absolute_path)
    name = _name(path)
    wanted, got = error.validator_value, shorten(error.instance)
    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {})
            for key in error.instance:
                if key not in known:
                    yield (*path, key), f"unknown field {key!r}{suggest(str(key), known)}"
        case "required":
            for key in wanted:
                if key not in error.instance:
                    yield path, f"{name} lacks the field {key!r}"
        case "type":
            types = wanted if isinstance(wanted, list) else [wanted]
            yield path, f"{name} must be {' or '.join(_JSON_TYPES[each] for each in types)}, got {got}"
        case "enum":
            choices = [str(each) for each in wanted]
            yield path, f"{name} must be one of {', '.join(choices)}, got {got}{suggest(str(error.instance), choices)}"
        case "pattern" if len(error.instance) > _MOST_MATCHED:
            yield path, f"{name} {error.message}"
        case "uniqueKeys":
            yield path, str(error.message)
        case _:
            said = _SAID.get(str(error.validator), f"breaks the definition's {error.validator}: {{got}}")
            yield path, f"{name} {said.format(wanted=wanted, got=got)}"


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema that refuses what the API server refuses, and fields that it would drop."""
    found: dict[str, Any] = {key: value for key, value in schema.items() if key in _KEPT}
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            found[key] = [to_json_schema(each) for each in schema[key]]
    if "not" in schema:
        found["not"] = to_json_schema(schema["not"])
    if "items" in schema:
        found["items"] = to_json_schema(schema["items"])
    _add_fields(schema, found)
    _add_kubernetes_own(schema, found)
    return found


def _add_fields(schema: Mapping[str, Any], found: dict[str, Any]) -> None:
    if "properties" in schema:
        filled_in = {name for name, each in schema["properties"].items() if "default" in each}
        found["required"] = [name for name in schema.get("required", ()) if name not in filled_in]
        found["properties"] = {name: to_json_schema(each) for name, each in schema["properties"].items()}
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        found["additionalProperties"] = to_json_schema(others)
    elif "properties" in schema and others is None and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False


def _add_kubernetes_own(schema: Mapping[str, Any], found: dict[str, Any]) -> None:
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in found:
        types = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = [*types, "null"]
    if schema.get("type") == "integer" and schema.get("format") in _RANGES:
        least, most = _RANGES[schema["format"]]
        found["minimum"] = max(least, schema.get("minimum", least))
        found["maximum"] = min(most, schema.get("maximum", most))
    if schema.get("x-kubernetes-list-type") == "set":
        found["uniqueItems"] = True
    if schema.get("x-kubernetes-list-type") == "map":
        defaults = {name: each.get("default") for name, each in schema["items"].get("properties", {}).items()}
        found["uniqueKeys"] = {key: defaults.get(key) for key in schema["x-kubernetes-list-map-keys"]}


def _unique_keys(_: Any, keys: Mapping[str, Any], value: Any, __: Any) -> Iterator[ValidationError]:
    seen = set()
    for number, each in enumerate(value if isinstance(value, list) else ()):
        if isinstance(each, Mapping):
            name = tuple(repr(each.get(key, default)) for key, default in keys.items())
            if name in seen:
                told = ", ".join(f"{key} {each.get(key, default)!r}" for key, default in keys.items())
                yield ValidationError(f"comes twice: {told}", path=(number,))
            seen.add(name)


def _unique_items(_: Any, is_unique: bool, value: Any, __: Any) -> Iterator[ValidationError]:
    """Find an item that comes twice; jsonschema's own check compares all pairs of mappings."""
    if not is_unique or not isinstance(value, list):
        return
    if len({json.dumps(each, sort_keys=True, default=repr) for each in value}) < len(value):
        yield ValidationError("an entry comes twice")


_MOST_MATCHED: Final = 1000
"""Characters of a text that is matched with a pattern: a pattern of a few characters can need a thousand steps each."""


@lru_cache(maxsize=1000)
def _matcher(pattern: str) -> SchemaValidator:
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
        yield ValidationError("does not match the pattern")


CrdValidator = validators.extend(
    Draft202012Validator, {"uniqueKeys": _unique_keys, "uniqueItems": _unique_items, "pattern": _pattern}
)
"""Checks values by what :func:`to_json_schema` returned."""
