"""Reads the documents of a file, and finds the Ray clusters in them, whichever of KubeRay's kinds they are.

Kinds that are not Ray's are let through: a file may hold a ConfigMap beside its cluster. Ray's own cluster YAML is read
by :mod:`tune_policies.kuberay.reading.cluster_yaml`.
"""

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

from tune_policies.files.reading import decode, read_bytes
from tune_policies.files.yaml_documents import MAX_CHARACTERS, Document, DocumentError, Path
from tune_policies.kuberay.reading.chart_values import is_chart_values, read_chart_values
from tune_policies.kuberay.reading.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.kuberay.reading.kuberay_models import (
    ClusterInFile,
    FieldProblem,
    Metadata,
    RayClusterSpec,
    read_part,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import kind_of, shorten, suggest

GZIP: Final = b"\x1f\x8b"
"""How a gzipped file begins."""

_MAX_BYTES: Final = MAX_CHARACTERS  # UTF-8 has no fewer bytes than characters

_GROUP: Final = "ray.io"
_VERSIONS: Final = ("ray.io/v1", "ray.io/v1alpha1")

_PLACES: Final[dict[str, Path]] = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
"""Where each kind of KubeRay's has the specification of its cluster."""


def read_text(path: str | FilePath, times: int = 1) -> str:
    """Return the text of a file, unpacked if it is gzipped.

    Args:
        path: The file; ``-`` is what is piped in.
        times: How many times as large as a manifest it may be.

    Raises:
        DocumentError: It is too long unpacked, is no text in UTF-8, or does not unpack.
        InvalidResourcesError: It cannot be read, or is too long.
    """
    source, max_bytes = str(path), _MAX_BYTES * times
    if source == "-":
        try:
            data = sys.stdin.buffer.read(max_bytes + 1)
        except (AttributeError, OSError, ValueError) as error:  # it was closed, before this program began or since
            raise InvalidResourcesError("nothing is piped in to read") from error
    else:
        data = read_bytes(path, max_bytes=max_bytes)
    if data.startswith(GZIP) and len(data) <= max_bytes:
        try:
            with gzip.open(io.BytesIO(data)) as file:  # which takes a limit, as gzip.decompress does not
                data = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:  # no gzip, cut off, or spoilt
            raise DocumentError(source, 1, f"cannot be unpacked as gzip: {error}") from error
    if len(data) > max_bytes:
        raise DocumentError(source, 1, f"more than {max_bytes:,} bytes: keep only what is needed")
    return decode(data, source)


def manifests_in(document: Document) -> Iterator[tuple[Path, Document]]:
    """Yield the document, or what is in it where it is a list as of ``kubectl get``, each with where it stands."""
    data = document.data
    items = data.get("items") if isinstance(data, Mapping) and data.get("kind") == "List" else None
    if not isinstance(items, list):
        yield (), document
        return
    parts: list[tuple[dict[Path, int], dict[Path, int]]] = [({}, {}) for _ in items]
    for which, places in enumerate((document.lines, document.repeated)):
        for path, line in places.items():
            if path[:1] == ("items",) and isinstance(number := path[1] if len(path) > 1 else None, int):
                parts[number][which][path[2:]] = line
    for number, (item, (lines, repeated)) in enumerate(zip(items, parts, strict=True)):
        if isinstance(item, dict):
            yield ("items", number), Document(item, lines, document.source, repeated)


def clusters_in(manifest: Document) -> tuple[list[ClusterInFile], list[FieldProblem]]:
    """Return the cluster of KubeRay's in a manifest, and the fields that are not as they must be.

    There is none in a RayJob that chooses a cluster that runs.
    """
    data = manifest.data
    if not isinstance(data, dict):
        return [], [FieldProblem((), f"a manifest must be a mapping, got {kind_of(data)}")]
    if "kind" not in data and "apiVersion" not in data:
        if is_cluster_yaml(data):
            return [], read_cluster_yaml(data)[1]
        return read_chart_values(data) if is_chart_values(data) else ([], [])
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or kind not in _PLACES:
        is_of_ray = isinstance(version, str) and version.partition("/")[0] == _GROUP
        hint = suggest(kind, _PLACES) if isinstance(kind, str) else ""
        message = f"kind {shorten(kind)} is not one of KubeRay's{hint or ': it has ' + ', '.join(_PLACES)}"
        return [], [FieldProblem(("kind",), message)] if is_of_ray else []
    found, problems = _cluster_of(kind, data)
    if version not in _VERSIONS:
        named = "apiVersion is missing" if version is None else f"apiVersion is {shorten(version)}"
        problems = [FieldProblem(("apiVersion",), f"{named}: of a {kind} it is 'ray.io/v1'"), *problems]
    return found, problems


def _cluster_of(kind: str, manifest: dict[str, Any]) -> tuple[list[ClusterInFile], list[FieldProblem]]:
    metadata, wrong = read_part(Metadata, manifest.get("metadata") or {})
    problems = [each.below(("metadata",)) for each in wrong]
    place = _PLACES[kind]
    spec: Any = manifest
    for number, key in enumerate(place):
        if not isinstance(spec, dict):
            path = place[:number]
            return [], [*problems, FieldProblem(path, f"{path[-1]} must be a mapping, got {shorten(spec)}")]
        if spec.get(key) is None:
            if not spec.get("clusterSelector"):  # else a job for a cluster that runs
                problems.append(FieldProblem(place[: number + 1], f"{key} is missing: it says what the cluster is"))
            return [], problems
        spec = spec[key]
    found, wrong = read_part(RayClusterSpec, spec)
    problems += [each.below(place) for each in wrong]
    if found is None:
        return [], problems
    return [ClusterInFile(kind, metadata or Metadata(), found, lambda part: (*place, *part))], problems


def name_of(manifest: Document) -> str | None:
    """Return the name of a cluster, job or service; empty: it has none; ``None``: the manifest is of something else."""
    data = manifest.data
    if not isinstance(data, Mapping):
        return None
    if data.get("kind") in _PLACES:
        metadata = data.get("metadata")
        found = metadata.get("name") if isinstance(metadata, Mapping) else None
    elif is_cluster_yaml(data):
        found = data.get("cluster_name")
    elif is_chart_values(data):
        found = data.get("fullnameOverride")
    else:
        return None
    return found if isinstance(found, str) else ""


def check_name(name: str, manifests: Iterable[Document], source: str) -> None:
    """Make sure that one of the manifests has the name.

    Raises:
        InvalidResourcesError: None has; the message lists the names that there are.
    """
    names = [found for each in manifests if (found := name_of(each))]
    if name not in names:
        listed = ", ".join(map(shorten, names)) or "none with a name"
        raise InvalidResourcesError(
            f"{source} has no cluster {shorten(name)}{suggest(name, names) or '.'} It has {listed}"
        )
