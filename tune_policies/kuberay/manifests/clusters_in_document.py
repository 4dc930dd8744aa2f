"""Finds the Ray clusters in a document, whichever of KubeRay's kinds it is.

Kinds that are not Ray's are let through: a file may hold a ConfigMap beside its cluster. Ray's own cluster YAML is read
by :mod:`tune_policies.kuberay.manifests.cluster_yaml`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.manifests.chart_values import is_chart_values, read_chart_values
from tune_policies.kuberay.manifests.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.kuberay.manifests.field_problems import read_part
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, FieldProblem, Metadata, RayClusterSpec
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import kind_of, shorten, suggest

_GROUP: Final = "ray.io"
_VERSIONS: Final = ("ray.io/v1", "ray.io/v1alpha1")

_PLACES: Final[dict[str, Path]] = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
"""Where each kind of KubeRay's has the specification of its cluster."""

Reading = tuple[list[ClusterInFile], list[FieldProblem]]


def clusters_in(document: Document) -> Reading:
    """Return the clusters of KubeRay's in a document, and the fields that are not as they must be.

    A list, as ``kubectl get -o yaml`` writes it, may hold several. A RayJob that chooses a cluster that runs has none.
    """
    data = document.data
    if not isinstance(data, dict):
        return [], [FieldProblem(path=(), message=f"a manifest must be a mapping, got {kind_of(data)}")]
    if "kind" not in data and "apiVersion" not in data:
        return _without_kind(document)
    if data.get("kind") != "List":
        return _in_manifest(document, data, ())
    clusters, problems = [], []
    items = data.get("items")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        found, wrong = _in_manifest(document, item, ("items", number)) if isinstance(item, dict) else ([], [])
        clusters += found
        problems += wrong
    return clusters, problems


def manifests_in(document: Document) -> Iterator[tuple[Path, Document]]:
    """Yield the document, or what is in it where it is a list as of ``kubectl get``, each with where it stands."""
    data = document.data
    items = data.get("items") if isinstance(data, Mapping) and data.get("kind") == "List" else None
    if not isinstance(items, list):
        yield (), document
        return
    lines: list[dict[Path, int]] = [{} for _ in items]
    for path, line in document.lines.items():
        if path[:1] == ("items",) and isinstance(number := path[1] if len(path) > 1 else None, int):
            lines[number][path[2:]] = line
    for number, item in enumerate(items):
        yield ("items", number), Document(item, lines[number], document.source)


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


def _without_kind(document: Document) -> Reading:
    if is_cluster_yaml(document.data):
        return [], read_cluster_yaml(document.data)[1]
    return read_chart_values(document) if is_chart_values(document.data) else ([], [])


def _in_manifest(document: Document, manifest: dict[str, Any], top: Path) -> Reading:
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    is_of_ray = isinstance(version, str) and version.partition("/")[0] == _GROUP
    if not isinstance(kind, str) or kind not in _PLACES:
        return [], _unknown_kind(kind, top) if is_of_ray else []
    if version not in _VERSIONS:
        named = "apiVersion is missing" if version is None else f"apiVersion is {shorten(version)}"
        problem = FieldProblem(path=(*top, "apiVersion"), message=f"{named}: of a {kind} it is 'ray.io/v1'")
        found, problems = _cluster_of(document, kind, manifest, top)
        return found, [problem, *problems]
    return _cluster_of(document, kind, manifest, top)


def _unknown_kind(kind: object, top: Path) -> list[FieldProblem]:
    hint = suggest(kind, _PLACES) if isinstance(kind, str) else ""
    message = f"kind {shorten(kind)} is none of KubeRay's{hint or ': it has ' + ', '.join(_PLACES)}"
    return [FieldProblem(path=(*top, "kind"), message=message)]


def _cluster_of(document: Document, kind: str, manifest: dict[str, Any], top: Path) -> Reading:
    metadata, wrong = read_part(Metadata, manifest.get("metadata") or {})
    problems = [_at((*top, "metadata"), each) for each in wrong]
    place = _PLACES[kind]
    spec: Any = manifest
    for number, key in enumerate(place):
        if not isinstance(spec, dict):
            path = (*top, *place[:number])
            return [], [
                *problems,
                FieldProblem(path=path, message=f"{path[-1]} must be a mapping, got {shorten(spec)}"),
            ]
        if spec.get(key) is None:
            if spec.get("clusterSelector"):  # a job for a cluster that runs
                return [], problems
            path = (*top, *place[: number + 1])
            return [], [*problems, FieldProblem(path=path, message=f"{key} is missing: it says what the cluster is")]
        spec = spec[key]
    path = (*top, *place)
    found, wrong = read_part(RayClusterSpec, spec)
    problems += [_at(path, each) for each in wrong]
    if found is None:
        return [], problems
    return [
        ClusterInFile(
            document=document,
            document_type=kind,
            manifest=manifest,
            metadata=metadata or Metadata(),
            spec=found,
            path=path,
            path_of=lambda part: (*path, *part),
        )
    ], problems


def _at(path: Path, problem: FieldProblem) -> FieldProblem:
    return FieldProblem(path=(*path, *problem.path), message=problem.message)
