"""The JSON schema of policy files, with which an editor completes and validates them.

Pydantic generates it from the fields of the policies, and the descriptions come from their docstrings. Rules in a
policy's own validators, such as whole ``gpus`` above 1, are not part of the schema; ``load_policy`` checks them.
"""

import inspect
from typing import Any, Final

from tune_policies.policies.policy import ResourcePolicy, documented_fields, policies_by_kind
from tune_policies.policies.policy_file import IN_FILES

_ANY_POLICY: Final = ResourcePolicy.__name__
"""Pydantic's name of the type of an inner policy."""


def policy_schema() -> dict[str, Any]:
    """Return the schema of a policy file, with all policies of this package by ``kind``."""
    definitions: dict[str, Any] = {}
    kinds = {
        kind: cls for kind, cls in sorted(policies_by_kind().items()) if cls.__module__.startswith("tune_policies.")
    }
    for kind, cls in kinds.items():
        schema = cls.model_json_schema()
        definitions |= schema.pop("$defs", {})
        definitions[kind] = _described(cls, schema)
    for (kind, field), (what, _) in IN_FILES.items():
        property_ = definitions[kind]["properties"][field]
        others = property_.pop("anyOf", None) or [{"$ref": property_.pop("$ref")}]
        property_["anyOf"] = [{"type": "string", "description": f"The file of a {what}."}, *others]
    # With `if`, an editor reports the wrong field. With `oneOf`, it would report that no policy matches.
    definitions[_ANY_POLICY] = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(kinds)}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": {"$ref": f"#/$defs/{kind}"}} for kind in kinds
        ],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:tune-policies:policy",
        "title": "A policy of tune-policies",
        "$ref": f"#/$defs/{_ANY_POLICY}",
        "$defs": definitions,
    }


def _described(cls: type[ResourcePolicy], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the ``kind`` of the policy, and descriptions from its docstring."""
    doc = inspect.getdoc(cls) or ""
    about = {name: _plain(lines.partition(":")[2]) for name, lines in documented_fields(doc).items()}
    fields = {name: {**field, "description": about.get(name, "")} for name, field in schema["properties"].items()}
    return {
        **schema,
        "description": _plain(doc.partition("\n\n")[0]),
        "properties": {"kind": {"const": cls.__name__}, **fields},
        "required": ["kind", *schema.get("required", ())],
    }


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
