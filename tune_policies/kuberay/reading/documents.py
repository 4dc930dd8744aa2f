"""Reads files, and finds the Ray clusters in KubeRay's manifests.

Documents of other kinds are ignored, because a file may also contain a ConfigMap, for example.
:mod:`tune_policies.kuberay.reading.cluster_yaml` reads Ray's cluster YAML.
"""

import gzip
import io
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

from tune_policies.files.reading import decode, read_bytes
from tune_policies.files.yaml_documents import MAX_CHARACTERS, Document, DocumentError, Path
from tune_policies.kuberay.reading.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.kuberay.reading.kuberay_models import (
    ClusterInFile,
    FieldProblem,
    Metadata,
    RayClusterSpec,
    read_part,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import kind_of, most_similar, shorten, suggest

_GZIP: Final = b"\x1f\x8b"
"""The first bytes of a gzipped file."""

# KubeRay's CRDs (1.5 to 1.7) still serve the older version.
_VERSIONS: Final = ("ray.io/v1", "ray.io/v1alpha1")

_PLACES: Final[dict[str, Path]] = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
"""The path of the cluster's specification in each of KubeRay's kinds."""


def read_text(path: str | FilePath, times: int = 1) -> str:
    """Return the text of a file, unpacked if it is gzipped.

    Args:
        path: The file; ``-`` is stdin.
        times: The maximum size, as a multiple of the maximum size of a manifest.

    Raises:
        DocumentError: The unpacked text is too long, or not UTF-8.
        InvalidResourcesError: The file cannot be read, or is too long.
    """
    source, max_bytes = str(path), MAX_CHARACTERS * times  # a string in UTF-8 has at least as many bytes as characters
    if source == "-":
        try:
            data = sys.stdin.buffer.read(max_bytes + 1)
        except (AttributeError, OSError, ValueError) as error:  # stdin is closed
            raise InvalidResourcesError("stdin is closed: pipe a file into the command") from error
    else:
        data = read_bytes(path, max_bytes=max_bytes)
    # A gzip file that was cut off at the limit cannot be unpacked. Its length is reported below.
    if data.startswith(_GZIP) and len(data) <= max_bytes:
        try:
            with gzip.open(io.BytesIO(data)) as file:  # read accepts a limit, unlike gzip.decompress
                data = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DocumentError(source, 1, f"the file cannot be unpacked as gzip: {error}") from error
    if len(data) > max_bytes:
        raise DocumentError(source, 1, f"the text has more than {max_bytes:,} bytes. Remove unneeded documents")
    return decode(data, source)


def manifests_in(document: Document) -> Iterator[tuple[Path, Document]]:
    """Yield a document, or the items of a ``List`` from ``kubectl get``, each with its path."""
    data = document.data
    items = None
    if isinstance(data, Mapping) and data.get("kind") == "List":
        items = data.get("items")
    if not isinstance(items, list):
        yield (), document
        return
    # Paths in a document start at the list, but paths in a manifest start at the item.
    lines, repeated = (_by_item(places) for places in (document.lines, document.repeated))
    for number, item in enumerate(items):
        if isinstance(item, dict):
            yield ("items", number), Document(item, lines[number], document.source, repeated[number])


def _by_item(places: Mapping[Path, int]) -> defaultdict[str | int, dict[Path, int]]:
    found = defaultdict[str | int, dict[Path, int]](dict)
    for path, line in places.items():
        if path[:1] == ("items",) and len(path) > 1:
            found[path[1]][path[2:]] = line
    return found


def clusters_in(manifest: Document) -> tuple[list[ClusterInFile], list[FieldProblem]]:
    """Return the cluster in a KubeRay manifest as a list, and the problems of its fields.

    The list is empty for a RayJob that selects a running cluster.
    """
    data = manifest.data
    if not isinstance(data, dict):
        return [], [FieldProblem((), f"a manifest must be a mapping, got {kind_of(data)}")]
    # This is no Kubernetes object, but a cluster YAML, whose problems count, or a file of another program.
    if "kind" not in data and "apiVersion" not in data:
        if not is_cluster_yaml(data):
            return [], []
        _, problems = read_cluster_yaml(data)
        return [], problems
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or kind not in _PLACES:
        if not isinstance(version, str) or not version.startswith("ray.io/"):
            return [], []  # a manifest of another program
        hint = suggest(str(kind), _PLACES) or f": {', '.join(_PLACES)}"
        return [], [FieldProblem(("kind",), f"kind {shorten(kind)} is not one of KubeRay's kinds{hint}")]
    found, problems = _cluster_of(kind, data)
    if version not in _VERSIONS:
        named = f"apiVersion is {shorten(version)}"
        if version is None:
            named = "apiVersion is missing"
        problems = [FieldProblem(("apiVersion",), f"{named}: use 'ray.io/v1' for a {kind}"), *problems]
    return found, problems


def with_intended_kind(manifest: Document) -> tuple[Document, list[FieldProblem]]:
    """Return a manifest of Ray with the kind that its author probably intended, and the problem of its own kind."""
    clusters, problems = clusters_in(manifest)
    if clusters or [problem.path for problem in problems] != [("kind",)]:
        return manifest, []
    near = most_similar(str(manifest.data.get("kind")), _PLACES)
    if near is None:
        return manifest, []
    return manifest._replace(data={**manifest.data, "kind": near}), problems


def _cluster_of(kind: str, manifest: dict[str, Any]) -> tuple[list[ClusterInFile], list[FieldProblem]]:
    # ``or`` also replaces an empty ``metadata:``, which YAML reads as null.
    metadata, wrong = read_part(Metadata, manifest.get("metadata") or {})
    problems = [problem.below(("metadata",)) for problem in wrong]
    place = _PLACES[kind]
    spec: Any = manifest
    for number, key in enumerate(place):
        if not isinstance(spec, dict):
            path = place[:number]
            return [], [*problems, FieldProblem(path, f"{path[-1]} must be a mapping, got {shorten(spec)}")]
        if spec.get(key) is None:
            if not spec.get("clusterSelector"):  # a job with a selector uses a running cluster
                problems.append(FieldProblem(place[: number + 1], f"{key} is missing: it must define the cluster"))
            return [], problems
        spec = spec[key]
    found, wrong = read_part(RayClusterSpec, spec)
    problems += [problem.below(place) for problem in wrong]
    if found is None:
        return [], problems
    return [ClusterInFile(metadata or Metadata(), found, place)], problems


def name_of(manifest: Document) -> str | None:
    """Return the name of a cluster, job or service (empty if missing), or ``None`` for other documents."""
    data = manifest.data
    if not isinstance(data, Mapping):
        return None
    found: object = None
    if data.get("kind") in _PLACES:
        metadata = data.get("metadata")
        if isinstance(metadata, Mapping):
            found = metadata.get("name")
    elif is_cluster_yaml(data):
        found = data.get("cluster_name")
    else:
        return None
    if isinstance(found, str):
        return found
    return ""


def check_name(name: str, manifests: Iterable[Document], source: str) -> None:
    """Raise :class:`InvalidResourcesError` unless one of the manifests has the name."""
    names = [found for found in map(name_of, manifests) if found]
    if name not in names:
        listed = ", ".join(map(shorten, names)) or "none"
        raise InvalidResourcesError(
            f"{source} has no cluster {shorten(name)}{suggest(name, names) or '.'} Available names: {listed}"
        )
