"""Checks a cluster YAML against the schema that the installed Ray brings along, without starting or importing Ray."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any

from jsonschema import Draft7Validator, ValidationError

from tune_policies.files.reading import UnreadableFileError, read_data
from tune_policies.manifests.documents import Path
from tune_policies.values import shorten, suggest


@cache
def _validator() -> Draft7Validator | None:
    """Return a validator by Ray's schema; ``None``: there is no Ray, or it has none."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        return None
    try:
        schema = read_data(FilePath(spec.origin).parent / "autoscaler" / "ray-schema.json")
    except UnreadableFileError:
        return None
    return Draft7Validator(schema)


def schema_problems(data: object) -> Iterator[tuple[Path, str]]:
    """Yield what Ray would refuse: where, and why. Without Ray nothing is known."""
    validator = _validator()
    for error in validator.iter_errors(data) if validator else ():
        yield from _explain(error)


def _explain(error: ValidationError) -> Iterator[tuple[Path, str]]:
    path = tuple(error.absolute_path)
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        for key in sorted(instance.keys() - known.keys(), key=str):
            yield (*path, key), f"unknown field {shorten(key)}{suggest(str(key), known)}"
    elif error.validator == "required":
        for key in schema["required"]:
            if key not in instance and f"{key!r} is a required property" == error.message:
                yield path, f"{key!r} is missing"
    elif error.validator == "type":
        yield path, f"must be of type {error.validator_value}, got {shorten(instance)}"
    else:
        yield path, f"{shorten(instance)} is not allowed here: {error.validator} {error.validator_value}"
