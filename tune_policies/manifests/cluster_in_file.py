"""A cluster on Kubernetes where it stands: in a manifest by itself, in that of a job or a service, or in values."""

from collections.abc import Callable
from typing import NamedTuple

from tune_policies.manifests.documents import Document, Path
from tune_policies.manifests.kuberay_models import Manifest, Metadata, RayClusterSpec


class ClusterInFile(NamedTuple):
    """A RayCluster in a document, by itself or in a RayJob or a RayService, or made of the values of the chart.

    Attributes:
        document: Where it stands.
        kind: ``"RayCluster"``, ``"RayJob"``, ``"RayService"`` or ``"values"``.
        manifest: The whole document.
        metadata: Of the document.
        spec: Of the cluster.
        path: Where the cluster's specification stands in the document, as ``("spec", "rayClusterSpec")``.
        path_of: Where a part of the specification stands, by where it would stand in a RayCluster's ``spec``: the
            chart's values have other places.
        assumptions: What the file leaves open, and what it was taken for, a sentence each.
    """

    document: Document
    kind: str
    manifest: Manifest
    metadata: Metadata
    spec: RayClusterSpec
    path: Path
    path_of: Callable[[Path], Path]
    assumptions: tuple[str, ...] = ()
