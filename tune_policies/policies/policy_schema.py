"""The JSON schema of policy files. Editors use it to complete and validate policy files.

Pydantic generates the schema from the fields of the policies. The descriptions come from the policies' docstrings.
The schema does not contain the rules of a policy's own validators, such as the rule that ``gpus`` above 1 must be
whole. ``load_policy`` checks these rules.
"""

import inspect
from typing import Any, Final

from tune_policies.policies.policy import ResourcePolicy, documented_fields
from tune_policies.policies.policy_file import IN_FILES
from tune_policies.policies.policy_kinds import policies_by_kind

_ANY_POLICY: Final = ResourcePolicy.__name__
"""Pydantic's name for the type of an inner policy."""


def policy_schema() -> dict[str, Any]:
    """Return the JSON schema of a policy file, with all policies of this package."""
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
        # Pydantic writes an optional field as ``anyOf``, and a required field as ``$ref``.
        others = property_.pop("anyOf", None) or [{"$ref": property_.pop("$ref")}]
        property_["anyOf"] = [{"type": "string", "description": f"The name of a {what} file."}, *others]
    # With `if`, an editor reports the invalid field. With `oneOf`, it would report only that no policy matches.
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
    """Return the schema with the policy's ``kind`` and with descriptions from its docstring."""
    doc = inspect.getdoc(cls) or ""
    about: dict[str, str] = {}
    for base in reversed(cls.__mro__):  # a user's policy may describe only its own fields
        for name, lines in documented_fields(inspect.getdoc(base) or "").items():
            about[name] = _plain(lines.partition(":")[2])
    fields = {name: {**field, "description": about.get(name, "")} for name, field in schema["properties"].items()}
    return {
        **schema,
        "description": _plain(doc.partition("\n\n")[0]),
        "properties": {"kind": {"const": cls.__name__}, **fields},
        "required": ["kind", *schema.get("required", ())],
    }


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
