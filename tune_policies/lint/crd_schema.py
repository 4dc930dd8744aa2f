"""Turns the schema of a custom resource definition into JSON Schema.

Both are nearly the same; what differs is Kubernetes' own
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/, "Specifying a
structural schema"). ``x-kubernetes-validations`` are programs in CEL, which nothing here runs: those of KubeRay that
matter have a rule of this package.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators

_KEPT = frozenset(
    {"type", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required"}
)
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


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
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = [*kinds, "null"]
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


CrdValidator = validators.extend(Draft202012Validator, {"uniqueKeys": _unique_keys})
"""Checks values by what :func:`to_json_schema` returned."""
