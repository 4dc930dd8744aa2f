"""Reads the one cluster of a file, whichever kind of file it is."""

from pathlib import Path as FilePath
from typing import Final

from tune_policies.clusters.cluster_spec import ClusterSpec
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.cluster_specs import to_cluster_spec, yaml_to_cluster_spec
from tune_policies.manifests.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.manifests.documents import Document, read_documents
from tune_policies.manifests.file_text import read_text
from tune_policies.manifests.kuberay_models import FieldProblem
from tune_policies.manifests.reading import clusters_in
from tune_policies.text_out import one_line
from tune_policies.values import kind_of

_MOST_PROBLEMS: Final = 10


def load_cluster(path: str | FilePath) -> ClusterSpec:
    """Return the cluster that a manifest, values of KubeRay's chart or a cluster YAML describes, as Ray counts it.

    Raises:
        InvalidResourcesError: The file cannot be read, holds no cluster or several, or a field is wrong; the message
            names the file and the line.
    """
    found = find_cluster(path)
    try:
        if isinstance(found, ClusterInFile):
            return to_cluster_spec(found)
        cluster, problems = read_cluster_yaml(found.data)
        if cluster is None or problems:
            raise _wrong([(found, problem) for problem in problems])
        return yaml_to_cluster_spec(cluster)
    except InvalidResourcesError as error:
        message = str(error)
        raise InvalidResourcesError(message if message.startswith(str(path)) else f"{path}: {message}") from error


def find_cluster(path: str | FilePath) -> ClusterInFile | Document:
    """Return the one cluster of a file: of KubeRay's as it is read, of a cluster YAML its document.

    Raises:
        InvalidResourcesError: The file cannot be read, holds no cluster or several, or a field of KubeRay's is wrong;
            the message names the file and the line.
    """
    documents = read_documents(read_text(path), str(path))
    found: list[ClusterInFile | Document] = []
    problems = []
    for document in documents:
        if is_cluster_yaml(document.data):
            found.append(document)
        elif isinstance(document.data, dict):
            clusters, wrong = clusters_in(document)
            found += clusters
            problems += [(document, problem) for problem in wrong]
    if problems:
        raise _wrong(problems)
    if len(found) != 1:
        kinds = sorted({_kind(document.data) for document in documents}) or ["nothing"]
        raise InvalidResourcesError(
            f"{path} must hold one Ray cluster YAML (available_node_types), one KubeRay RayCluster, RayJob or "
            f"RayService, or values of its chart, but holds {len(found)} (found: {', '.join(kinds)})"
        )
    return found[0]


def _kind(data: object) -> str:
    return str(data.get("kind", "no kind")) if isinstance(data, dict) else kind_of(data)


def _wrong(problems: list[tuple[Document, FieldProblem]]) -> InvalidResourcesError:
    lines = [f"{document.source}, line {document.line(each.path)}: {each.message}" for document, each in problems]
    more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
    return InvalidResourcesError("\n".join(map(one_line, [*lines[:_MOST_PROBLEMS], *more])))
