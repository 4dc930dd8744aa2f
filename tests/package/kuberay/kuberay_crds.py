"""Validates manifests with KubeRay's official CRDs, which are stored outside the repository."""

import functools
import gzip
from pathlib import Path

import yaml
from jsonschema import Draft4Validator


@functools.cache
def read_crds(folder: Path):
    """Return the ``spec`` of every CRD of every stored KubeRay version."""
    files = sorted(folder.glob("v*/*.gz"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [yaml.load(gzip.decompress(file.read_bytes()), loader)["spec"] for file in files]


def load_validators(folder: Path):
    """Return the validators of each kind of manifest, one for each KubeRay version. They reject unknown fields."""
    found: dict[str, list] = {}
    for spec in read_crds(folder):
        for version in spec["versions"]:
            if version["name"] == "v1":
                schema = _closed(version["schema"]["openAPIV3Schema"])
                found.setdefault(spec["names"]["kind"], []).append(Draft4Validator(schema))
    return found


def problems(validators, manifest):
    """Return the validation errors of a manifest."""
    return [error.message for each in validators[manifest["kind"]] for error in each.iter_errors(manifest)]


def _closed(schema):
    """Return a schema that validates manifests as Kubernetes does, but rejects unknown fields.

    Kubernetes silently drops unknown fields, adds defaults before it validates, and accepts both an integer and a
    string for an ``int-or-string``.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    schema = dict(schema)
    if "properties" in schema:
        defaults = {name for name, each in schema["properties"].items() if "default" in each}
        schema["required"] = [name for name in schema.get("required", []) if name not in defaults]
        schema.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
        schema["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        # A CRD omits the fields of the top-level metadata, because the API server defines them.
        schema["properties"].update({"metadata": {}} if "apiVersion" in schema["properties"] else {})
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _closed(schema[key])
    return schema
