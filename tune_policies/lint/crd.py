"""Checks manifests against KubeRay's official definitions, which the user gives.

They come with KubeRay's chart ``kuberay-operator``, and from ``kubectl get crd -o yaml``.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from jsonschema import ValidationError
from jsonschema.exceptions import UnknownType

from tune_policies.errors import InvalidResourcesError
from tune_policies.lint.crd_schema import CrdValidator, to_json_schema
from tune_policies.manifests.documents import Path, read_documents
from tune_policies.manifests.file_text import read_text
from tune_policies.values import shorten, suggest

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "nothing",
    "number": "a number",
    "object": "a mapping",
    "string": "a text",
}
_DEFINITION: Final = "CustomResourceDefinition"
_ROOM: Final = 10
"""A definition is a megabyte, and `kubectl get crd` writes all that a cluster has."""


class Crd(NamedTuple):
    """One kind by one version of KubeRay.

    Attributes:
        source: The folder, or the file, from which it comes.
        validators: By the version of the API.
    """

    source: str
    validators: Mapping[str, Any]


class CrdSet:
    """The definitions of one or several versions of KubeRay."""

    def __init__(self, by_kind: Mapping[str, tuple[Crd, ...]]) -> None:
        self._by_kind = by_kind

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is defined here."""
        return tuple(sorted(self._by_kind))

    def problems(self, manifest: object) -> list[tuple[Path, str]]:
        """Return where a manifest is not as it must be, and why; none where its kind is not defined here.

        Where there are several definitions of its kind, what not all of them say is told with its source.
        """
        if not isinstance(manifest, Mapping) or not isinstance(kind := manifest.get("kind"), str):
            return []
        crds = self._by_kind.get(kind, ())
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
            for definition in _definitions(file, file.stat().st_mtime_ns if file.exists() else 0):
                found.setdefault(definition[0], []).append(Crd(source, definition[1]))
    if not found:
        raise InvalidResourcesError(
            f"{path} has no custom resource definition of ray.io; KubeRay's chart has them in its folder crds, and so "
            "has `kubectl get crd -o yaml` of a cluster with KubeRay"
        )
    return CrdSet({kind: tuple(crds) for kind, crds in found.items()})


@lru_cache(maxsize=64)
def _definitions(file: FilePath, _: int) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the kinds that a file defines, each with its validators; read again only when it has changed."""
    try:
        return tuple(_defined(each) for each in _manifests(file) if _is_of_ray(each))
    except (AttributeError, LookupError, TypeError) as error:
        raise InvalidResourcesError(
            f"{file} has a custom resource definition that is not as Kubernetes writes it ({error!r})"
        ) from None


def _manifests(file: FilePath) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a file, also of a list; other files of a chart have none, as some are no YAML."""
    text = read_text(file, _ROOM)
    for document in read_documents(text, str(file), _ROOM) if _DEFINITION in text else ():
        data = document.data
        items = data.get("items") if isinstance(data, dict) and str(data.get("kind")).endswith("List") else None
        yield from (each for each in (items if isinstance(items, list) else [data]) if isinstance(each, dict))


def _is_of_ray(manifest: dict[str, Any]) -> bool:
    return manifest.get("kind") == _DEFINITION and manifest["spec"]["group"] == "ray.io"


def _defined(definition: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
    spec = definition["spec"]
    validators = {
        f"ray.io/{version['name']}": CrdValidator(to_json_schema(version["schema"]["openAPIV3Schema"]))
        for version in spec["versions"]
    }
    return str(spec["names"]["kind"]), validators


def _problems(crd: Crd, manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    version = manifest.get("apiVersion")
    if not isinstance(version, str) or version not in crd.validators:
        yield ("apiVersion",), f"apiVersion must be {' or '.join(crd.validators)}, got {shorten(version)}"
        return
    try:
        for error in crd.validators[version].iter_errors(_without_nulls(manifest)):
            yield from _explain(error)
    except (UnknownType, re.error, AttributeError, LookupError, TypeError):  # to check it first takes seconds
        raise InvalidResourcesError(f"{crd.source}: the definition of {manifest['kind']} is no valid schema") from None


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
            kinds = wanted if isinstance(wanted, list) else [wanted]
            yield path, f"{name} must be {' or '.join(_KINDS[kind] for kind in kinds)}, got {got}"
        case "enum":
            choices = [str(each) for each in wanted]
            yield path, f"{name} must be one of {', '.join(choices)}, got {got}{suggest(str(error.instance), choices)}"
        case "minimum":
            yield path, f"{name} must be at least {wanted}, got {got}"
        case "maximum":
            yield path, f"{name} must be at most {wanted}, got {got}"
        case "pattern":
            yield path, f"{name} is not written as it must be, got {got}"
        case "uniqueItems":
            yield path, f"{name} has an entry twice: {got}"
        case "uniqueKeys":
            yield path, str(error.message)
        case _:
            yield path, f"{name} breaks the definition's {error.validator}: {got}"
