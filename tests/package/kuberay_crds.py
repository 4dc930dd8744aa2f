"""Validates manifests with KubeRay's official CRDs, which are stored outside the repository."""

import copy
import gzip
from pathlib import Path

import yaml
from jsonschema import Draft4Validator


def load_definitions(folder: Path):
    """Return the schemas by kind, one per version of KubeRay. The schemas reject unknown fields."""
    found: dict[str, list] = {}
    for file in sorted(folder.glob("v*/*.gz")):
        spec = yaml.load(gzip.decompress(file.read_bytes()), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in spec["versions"]:
            if version["name"] == "v1":
                found.setdefault(spec["names"]["kind"], []).append(version["schema"]["openAPIV3Schema"])
    return found


def problems(definitions, manifest):
    """Return the validation errors of a manifest."""
    return [
        error.message
        for schema in definitions[manifest["kind"]]
        for error in Draft4Validator(_closed(copy.deepcopy(schema))).iter_errors(manifest)
    ]


def _closed(schema):
    # Adapt the schema to Kubernetes, which silently drops unknown fields, adds defaults before it validates, and
    # accepts both an integer and a string for such a value.
    if schema.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if "properties" in schema:
        defaults = {name for name, each in schema["properties"].items() if "default" in each}
        schema["required"] = [name for name in schema.get("required", []) if name not in defaults]
        schema.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
        schema["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        # At the top level, the API server defines the fields of the metadata.
        schema["properties"].update({"metadata": {}} if "apiVersion" in schema["properties"] else {})
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _closed(schema[key])
    return schema
