"""The fields of KubeRay's manifests that decide what Ray sees of a cluster; all others are let through.

Written after KubeRay's API reference (https://ray-project.github.io/kuberay/reference/api/) and Kubernetes' own. Names
are those of the manifests. Amounts stay as they are written: see :mod:`tune_policies.kuberay.manifests.quantities`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.manifests.quantities import parse_quantity


def _check_quantity(value: object) -> object:
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("must be an amount, such as '4', '500m' or '16Gi'")
    if isinstance(value, float) and not value.is_integer():
        # The definition has x-kubernetes-int-or-string, which a fraction is not.
        raise ValueError(f'must be a whole number or a text, got {value!r}: write "{value!r}", in quotes')
    parse_quantity(value)
    return value


Quantity = Annotated[str | int | float, BeforeValidator(_check_quantity)]
"""An amount as Kubernetes writes it, such as ``"500m"`` or ``"64Gi"``."""


class Part(BaseModel):
    """A part of a manifest, of which only some fields are known here."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_nothing(cls, data: object) -> object:
        # Kubernetes drops a null where the definition allows none, and fills in its default.
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class ContainerResources(Part):
    """What a container may use at the most, and what is kept for it."""

    limits: dict[str, Quantity] = Field(default_factory=dict)
    requests: dict[str, Quantity] = Field(default_factory=dict)


class EnvironmentVariable(Part):
    """A variable of a container."""

    name: str
    value: str | None = None


class Container(Part):
    """A container; in a pod of Ray's, the first is the one that Ray runs in."""

    name: str
    image: str | None = None
    env: list[EnvironmentVariable] = Field(default_factory=list)
    resources: ContainerResources = Field(default_factory=ContainerResources)


class Toleration(Part):
    """A taint that a pod tolerates."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PodSpec(Part):
    """A pod."""

    containers: list[Container] = Field(min_length=1)
    nodeSelector: dict[str, str] = Field(default_factory=dict)  # noqa: N815 - KubeRay's and Kubernetes' names
    tolerations: list[Toleration] = Field(default_factory=list)
    restartPolicy: str | None = None  # noqa: N815
    runtimeClassName: str | None = None  # noqa: N815


class Metadata(Part):
    """Names, labels and annotations."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodTemplate(Part):
    """Of what the pods of a group are made."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PodSpec


class HeadGroup(Part):
    """The head node."""

    rayStartParams: dict[str, str] = Field(default_factory=dict)  # noqa: N815
    resources: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    template: PodTemplate


class WorkerGroupSpec(HeadGroup):
    """Workers of one kind; defaults are those of the definition."""

    groupName: str  # noqa: N815
    replicas: int = 0
    minReplicas: int = 0  # noqa: N815
    maxReplicas: int = 2147483647  # noqa: N815
    numOfHosts: int = 1  # noqa: N815
    idleTimeoutSeconds: int | None = None  # noqa: N815
    priority: int | None = None
    suspend: bool | None = None


class AutoscalerOptions(Part):
    """How the autoscaler works."""

    version: str | None = None
    idleTimeoutSeconds: int | None = None  # noqa: N815
    upscalingMode: str | None = None  # noqa: N815


class RayClusterSpec(Part):
    """A RayCluster, or what a RayJob or a RayService starts."""

    rayVersion: str | None = None  # noqa: N815
    enableInTreeAutoscaling: bool | None = None  # noqa: N815
    autoscalerOptions: AutoscalerOptions = Field(default_factory=AutoscalerOptions)  # noqa: N815
    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroupSpec] = Field(default_factory=list)  # noqa: N815
    suspend: bool | None = None


class FieldProblem(BaseModel):
    """A field that is not as it must be: where, and why."""

    path: tuple[str | int, ...]
    message: str


Manifest = dict[str, Any]
"""A whole document, with ``apiVersion``, ``kind``, ``metadata`` and ``spec``."""


class ClusterInFile(NamedTuple):
    """A RayCluster in a document, by itself or in a RayJob or a RayService, or made of the values of the chart.

    Attributes:
        document: Where it stands.
        document_type: ``"RayCluster"``, ``"RayJob"``, ``"RayService"`` or ``"values"``.
        manifest: The whole document.
        metadata: Of the document.
        spec: Of the cluster.
        path: Where the cluster's specification stands in the document, as ``("spec", "rayClusterSpec")``.
        path_of: Where a part of the specification stands, by where it would stand in a RayCluster's ``spec``: the
            chart's values have other places.
        assumptions: What the file leaves open, and what it was taken for, a sentence each.
    """

    document: Document
    document_type: str
    manifest: Manifest
    metadata: Metadata
    spec: RayClusterSpec
    path: Path
    path_of: Callable[[Path], Path]
    assumptions: tuple[str, ...] = ()
