"""Models of the fields in KubeRay's manifests that determine Ray's view of a cluster, and messages about wrong fields.

The models follow the API references of KubeRay (https://ray-project.github.io/kuberay/reference/api/) and Kubernetes,
and accept all other fields. Amounts are kept unchanged, and ``kubernetes_quantities.py`` converts them.
"""

import json
import re
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tune_policies.cluster.capacity import DEFAULT_AUTOSCALER, AutoscalerVersion
from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.reading.kubernetes_quantities import Quantity
from tune_policies.values.wording import shorten


class Part(BaseModel):
    """A part of a manifest, with the fields that matter for Ray's view of the cluster."""

    # ``strict``, because the API server does not convert types either: it refuses a number where it expects a string.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object) -> object:
        # Kubernetes replaces null with the default.
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


class ContainerResources(Part):
    """The limits and requests of a container."""

    limits: dict[str, Quantity] = Field(default_factory=dict)
    requests: dict[str, Quantity] = Field(default_factory=dict)


class EnvironmentVariable(Part):
    """An environment variable of a container."""

    name: str
    value: str | None = None


class Container(Part):
    """A container. Ray runs in the first container of a pod."""

    name: str
    image: str | None = None
    env: list[EnvironmentVariable] = Field(default_factory=list)
    resources: ContainerResources = Field(default_factory=ContainerResources)


class Toleration(Part):
    """A toleration of a pod."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PodSpec(Part):
    """The specification of a pod."""

    containers: list[Container] = Field(min_length=1)
    nodeSelector: dict[str, str] = Field(default_factory=dict)  # noqa: N815 - KubeRay's and Kubernetes' names
    tolerations: list[Toleration] = Field(default_factory=list)
    restartPolicy: str | None = None  # noqa: N815
    runtimeClassName: str | None = None  # noqa: N815


class Metadata(Part):
    """The name, the namespace, the labels and the annotations of a Kubernetes object."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodTemplate(Part):
    """The template of the pods of a group."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PodSpec


_AMOUNT_PARAMETERS: Final = frozenset({"num-cpus", "num-gpus", "memory", "resources"})
"""The parameters of ``ray start`` that state amounts (``validateRayGroupResources`` in KubeRay's operator)."""


class HeadGroup(Part):
    """The fields that the head group and the worker groups have in common."""

    rayStartParams: dict[str, str] = Field(default_factory=dict)  # noqa: N815
    resources: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    template: PodTemplate

    @property
    def has_start_amounts(self) -> bool:
        """Whether ``rayStartParams`` states amounts. KubeRay refuses such a group if it also has ``resources``."""
        return not _AMOUNT_PARAMETERS.isdisjoint(self.rayStartParams)


class WorkerGroupSpec(HeadGroup):
    """A worker group with the defaults of the CRD."""

    groupName: str  # noqa: N815
    replicas: int = 0
    minReplicas: int = 0  # noqa: N815
    maxReplicas: int = 2147483647  # noqa: N815
    numOfHosts: int = 1  # noqa: N815
    idleTimeoutSeconds: int | None = None  # noqa: N815
    suspend: bool | None = None


class AutoscalerOptions(Part):
    """The options of the autoscaler."""

    version: str | None = None
    idleTimeoutSeconds: int | None = None  # noqa: N815


class RayClusterSpec(Part):
    """The specification of a RayCluster, or of the cluster of a RayJob or a RayService."""

    rayVersion: str | None = None  # noqa: N815
    enableInTreeAutoscaling: bool | None = None  # noqa: N815
    autoscalerOptions: AutoscalerOptions = Field(default_factory=AutoscalerOptions)  # noqa: N815
    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroupSpec] = Field(default_factory=list)  # noqa: N815
    suspend: bool | None = None


class FieldProblem(NamedTuple):
    """A wrong field: its path and a message."""

    path: Path
    message: str

    def below(self, top: Path) -> "FieldProblem":
        """Return the problem with ``top`` prepended to its path."""
        return self._replace(path=(*top, *self.path))


class ClusterInFile(NamedTuple):
    """A RayCluster in a manifest.

    Attributes:
        path: The path of the RayCluster's ``spec`` in the document.
    """

    metadata: Metadata
    spec: RayClusterSpec
    path: Path

    @property
    def ray_version(self) -> tuple[int, int] | None:
        """The first two numbers of ``rayVersion``, or ``None`` if it contains no version."""
        version = re.match(r"(\d{1,9})\.(\d{1,9})", self.spec.rayVersion or "")
        if version is None:
            return None
        return (int(version[1]), int(version[2]))

    @property
    def autoscaler_version(self) -> AutoscalerVersion:
        """The version of the autoscaler that KubeRay starts.

        ``autoscalerOptions.version`` or the head's environment variable ``RAY_enable_autoscaler_v2`` determine it.
        Without both, Ray starts version 2 since Ray 2.48.
        """
        if self.spec.autoscalerOptions.version is not None:
            if self.spec.autoscalerOptions.version == "v1":
                return 1
            return 2
        # The option comes first. KubeRay turns it into this variable, and refuses a cluster that sets both
        # (``setAutoscalerV2EnvVars`` and ``ValidateRayClusterSpec`` in its operator).
        for variable in self.spec.headGroupSpec.template.spec.containers[0].env:
            if variable.name == "RAY_enable_autoscaler_v2" and variable.value is not None:
                # Ray reads booleans of its configuration like this (``ConvertValue<bool>`` in
                # ``ray/common/ray_config.h``). All other values are false.
                if variable.value.lower() in ("1", "true"):
                    return 2
                return 1
        is_old = self.ray_version is not None and self.ray_version < _FIRST_WITH_AUTOSCALER_V2
        if is_old:
            return 1
        return DEFAULT_AUTOSCALER


_FIRST_WITH_AUTOSCALER_V2: Final = (2, 48)
"""The first Ray version that starts autoscaler v2 on KubeRay unless another version is requested."""


HEAD_GROUP: Final = "headgroup"
"""The name of the head's group in KubeRay, and of its node type in Ray's autoscaler."""

WHOLE_NUMBER: Final = re.compile("-?(0|[1-9][0-9]{0,18})")
"""Matches whole numbers without a leading 0, because YAML may read numbers with a leading 0 as octal."""

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_part(model: type[_ModelT], data: object) -> tuple[_ModelT | None, list[FieldProblem]]:
    """Validate a part, and return its model (``None`` if a field is wrong) and the problems.

    If a string is required, a number without quotes is reported as a problem, but is read as a string.
    """
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        details = error.errors()
    problems = []
    for detail in details:
        names = [part for part in detail["loc"] if isinstance(part, str)]
        subject = names[-1] if names else "the document"
        problems.append(FieldProblem(detail["loc"], f"{subject} {_explain(detail)}"))
    texts = {tuple(detail["loc"]) for detail in details if _lacks_quotes(detail)}
    # Only missing quotes can be corrected. All problems are reported in any case.
    if len(texts) < len(problems):
        return None, problems
    # The recursion ends, because a corrected value is a string, and strings do not lack quotes.
    return read_part(model, _with_texts(data, texts, ()))[0], problems


def _lacks_quotes(detail: Any) -> bool:
    """Return whether the value needs quotes: a number instead of a string, or a quantity such as ``cpu: 0.5``."""
    if detail["type"] == "value_error":
        return isinstance(detail["input"], float)
    return detail["type"] == "string_type" and isinstance(detail["input"], int | float)


def _with_texts(data: Any, texts: set[Path], path: Path) -> Any:
    if path in texts:
        return json.dumps(data)
    if isinstance(data, dict):
        return {key: _with_texts(value, texts, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_texts(value, texts, (*path, number)) for number, value in enumerate(data)]
    return data


_EXPECTED: Final = {
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
}
"""A description of the expected value, by pydantic's error type."""


def _explain(detail: Any) -> str:
    kind, value, got = detail["type"], detail["input"], shorten(detail["input"])
    if kind == "missing":
        return "is missing"
    if kind == "too_short":
        return "must have at least one entry"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "string_type" and _lacks_quotes(detail):
        what = "truth value" if isinstance(value, bool) else "number"
        return f'must be a string, got the {what} {got}: write "{json.dumps(value)}", in quotes'
    if kind == "int_type" and isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
        return f"must be a whole number, got the string {got}: remove the quotes"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, got {got}"
    return f"{detail['msg'].lower()}, got {got}"
