"""Reads the one cluster of a file, whichever kind of file it is."""

from pathlib import Path as FilePath
from typing import Final

from tune_policies.clusters.catalog import NodeCatalog
from tune_policies.clusters.cluster_spec import ClusterSpec
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.cluster_specs import to_cluster_spec, yaml_to_cluster_spec
from tune_policies.manifests.cluster_yaml import assumptions, is_cluster_yaml, old_field_problems, read_cluster_yaml
from tune_policies.manifests.documents import Document, read_documents
from tune_policies.manifests.file_text import read_text
from tune_policies.manifests.kuberay_models import FieldProblem
from tune_policies.manifests.reading import check_name, clusters_in, manifests_in, name_of
from tune_policies.text_out import one_line
from tune_policies.values import kind_of, shorten

_MOST_PROBLEMS: Final = 10


def load_cluster(path: str | FilePath, *, name: str | None = None, catalog: NodeCatalog | None = None) -> ClusterSpec:
    """Return the cluster that a manifest, values of KubeRay's chart or a cluster YAML describes, as Ray counts it.

    Args:
        path: The file, plain or gzipped; ``-`` is what is piped in.
        name: Of the cluster, job or service, where the file has several; ``None``: it has one.
        catalog: Has what machines are of which a cluster YAML names the instance type alone.

    Raises:
        InvalidResourcesError: The file cannot be read, holds no cluster or several, or a field is wrong; the message
            names the file and the line.
    """
    found = find_cluster(path, name)
    try:
        if isinstance(found, ClusterInFile):
            return to_cluster_spec(found)
        cluster, problems = read_cluster_yaml(found.data)
        problems += old_field_problems(found.data)
        if cluster is None or problems:
            raise _wrong([(found, problem) for problem in problems])
        return yaml_to_cluster_spec(cluster, catalog, assumptions(found.data))
    except InvalidResourcesError as error:
        message = str(error)
        raise InvalidResourcesError(message if message.startswith(str(path)) else f"{path}: {message}") from error


def find_cluster(path: str | FilePath, name: str | None = None) -> ClusterInFile | Document:
    """Return the one cluster of a file, or that of a name: of KubeRay's as it is read, of a cluster YAML its document.

    Raises:
        InvalidResourcesError: The file cannot be read, holds no cluster or several, or a field of KubeRay's is wrong;
            the message names the file and the line.
    """
    documents = read_documents(read_text(path), str(path))
    manifests = [each for document in documents for _, each in manifests_in(document)]
    if name is not None:
        check_name(name, manifests, str(path))
        manifests = [each for each in manifests if name_of(each) == name]
    found: list[ClusterInFile | Document] = []
    problems = []
    for manifest in manifests:
        if is_cluster_yaml(manifest.data):
            found.append(manifest)
        elif isinstance(manifest.data, dict):
            clusters, wrong = clusters_in(manifest)
            found += clusters
            problems += [(manifest, problem) for problem in wrong]
    if len(found) > 1:
        raise InvalidResourcesError(
            f"{path} holds {len(found)} clusters ({_listed(manifests)}): pick one by its name (plan --name), or "
            "give it a file of its own"
        )
    if problems:
        raise _wrong(problems)
    if len(found) != 1:
        raise InvalidResourcesError(
            f"{path} must hold one Ray cluster YAML (available_node_types), one KubeRay RayCluster, RayJob or "
            f"RayService, or values of its chart, but holds {len(found)} (found: {_listed(manifests) or 'nothing'})"
        )
    return found[0]


def _listed(manifests: list[Document]) -> str:
    return ", ".join(dict.fromkeys(map(_described, manifests)))


def _described(manifest: Document) -> str:
    if not isinstance(manifest.data, dict):
        return kind_of(manifest.data)
    kind = str(manifest.data.get("kind", "no kind"))
    return f"{kind} {shorten(found)}" if (found := name_of(manifest)) else kind


def _wrong(problems: list[tuple[Document, FieldProblem]]) -> InvalidResourcesError:
    lines = [f"{document.source}, line {document.line(each.path)}: {each.message}" for document, each in problems]
    more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
    return InvalidResourcesError("\n".join(map(one_line, [*lines[:_MOST_PROBLEMS], *more])))
