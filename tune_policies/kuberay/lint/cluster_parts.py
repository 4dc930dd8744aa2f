"""The groups of a cluster with their containers and devices, and other helpers for several rules."""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, Container, HeadGroup, PodSpec, WorkerGroupSpec
from tune_policies.kuberay.reading.kubernetes_quantities import Quantity, parse_quantity
from tune_policies.values.errors import InvalidResourcesError

VALIDATION = "https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/validation.go"
"""The source of the checks in KubeRay's operator."""

READER = "https://github.com/ray-project/ray/blob/master/python/ray/autoscaler/_private/kuberay/autoscaling_config.py"
"""The module in which Ray's autoscaler reads a RayCluster."""

START = "https://docs.ray.io/en/latest/cluster/cli.html#ray-start"

API = "https://ray-project.github.io/kuberay/reference/api/"


READS_GROUP_FIELDS = (2, 51)
"""The first Ray version whose autoscaler reads ``resources`` and ``labels`` of a group."""

_RAY_IMAGE = re.compile(r"(?:.*/)?ray(?:-ml|-llm)?:(\d{1,9}\.\d{1,9}\.\d{1,9})(?:[-.].*)?")


def extra(part: BaseModel, name: str) -> Any:
    """Return a field that the model does not declare, or ``None`` if it is missing."""
    return (part.model_extra or {}).get(name)


def version_of(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers at the start of a version, such as ``(2, 47, 1)``, or ``None`` if the text has no version."""
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text or "")
    if found:
        return tuple(int(part) for part in found.groups() if part is not None)
    return None


def ray_in_image(image: str | None) -> str | None:
    """Return the version of Ray from the tag of one of Ray's images, or ``None`` for other images."""
    found = _RAY_IMAGE.fullmatch(image or "")
    # The tag of a private image named ray may be a version of that image and not of Ray.
    is_version = found is not None and ("rayproject/" in found[0] or found[1].startswith("2."))
    if found and is_version:
        return found[1]
    return None


def ray_version_of(cluster: ClusterInFile) -> tuple[int, ...] | None:
    """Return the version of Ray from ``rayVersion`` or the head's image, or ``None`` if unknown."""
    # ``rayVersion`` comes first, because KubeRay and the autoscaler choose their features by it, not by the image.
    image = cluster.spec.headGroupSpec.template.spec.containers[0].image
    return version_of(cluster.spec.rayVersion) or version_of(ray_in_image(image))


def reads_group_fields(cluster: ClusterInFile) -> bool:
    """Return whether Ray's autoscaler reads ``resources`` and ``labels`` of a group, or its version is unknown."""
    version = ray_version_of(cluster)
    return version is None or version >= READS_GROUP_FIELDS


def at(value: object, path: Path) -> Any:
    """Return the part of plain data at a path, or ``None`` if it is missing."""
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


_SpecT_co = TypeVar("_SpecT_co", bound=HeadGroup, covariant=True)


def exact(quantity: Quantity | None) -> Fraction | None:
    """Return an amount as a number, or ``None`` if it is missing or invalid. Another rule reports invalid amounts."""
    try:
        if quantity is None:
            return None
        return parse_quantity(quantity)
    except InvalidResourcesError:
        return None


class Group(NamedTuple, Generic[_SpecT_co]):
    """The head or a worker group, with its name for messages and its path below the cluster's ``spec``."""

    name: str
    path: Path
    spec: _SpecT_co
    cluster: ClusterInFile

    def __str__(self) -> str:
        return self.name

    @property
    def pod(self) -> PodSpec:
        """The specification of its pods."""
        return self.spec.template.spec

    @property
    def pod_path(self) -> Path:
        """The path of the pods' specification."""
        return (*self.path, "template", "spec")

    @property
    def container(self) -> Container:
        """The container in which KubeRay starts Ray."""
        return self.pod.containers[0]

    @property
    def container_path(self) -> Path:
        """The path of Ray's container."""
        return (*self.pod_path, "containers", 0)

    @property
    def containers(self) -> Iterator[tuple[Path, Container]]:
        """All containers of a pod, each with its path."""
        for number, container in enumerate(self.pod.containers):
            yield (*self.pod_path, "containers", number), container

    @property
    def is_autoscaling(self) -> bool:
        """Whether the operator starts an autoscaler for the cluster."""
        return is_autoscaling(self.cluster)

    @property
    def devices(self) -> dict[str, Quantity]:
        """The number of devices that Ray's container requests, by Kubernetes resource. Numbers of 0 are omitted."""
        return devices_of(self.container)

    def key_path(self, key: str) -> Path:
        """Return the path at which Ray's container requests ``key``."""
        section = "limits" if key in self.container.resources.limits else "requests"
        return (*self.container_path, "resources", section, key)

    @property
    def environment(self) -> dict[str, str | None]:
        """The environment variables of Ray's container."""
        return {variable.name: variable.value for variable in self.container.env}

    def variable_path(self, name: str) -> Path:
        """Return the path of an environment variable of Ray's container."""
        names = [variable.name for variable in self.container.env]
        return (*self.container_path, "env", names.index(name))

    @property
    def needs_start_params(self) -> bool:
        """Whether the group can state the amount of a further resource only in ``rayStartParams.resources``.

        KubeRay refuses ``resources`` next to amounts in ``rayStartParams``, and older versions of Ray do not read it.
        """
        return self.spec.has_start_amounts or not reads_group_fields(self.cluster)

    def amount(self, resource: str, parameter: str) -> tuple[Path, Quantity] | None:
        """Return the path and the amount of a resource that the group passes to Ray, or ``None`` if Ray detects it."""
        if resource in self.spec.resources:
            return (*self.path, "resources", resource), self.spec.resources[resource]
        if parameter in self.spec.rayStartParams:
            return (*self.path, "rayStartParams", parameter), self.spec.rayStartParams[parameter]
        return None


def devices_of(container: Container) -> dict[str, Quantity]:
    """Return how many devices a container requests, by Kubernetes resource. Limits take precedence over requests."""
    # An invalid amount (``exact`` returns ``None``) counts as a device, so that the rules about devices still check the
    # group.
    asked = {**container.resources.requests, **container.resources.limits}
    return {key: amount for key, amount in asked.items() if ray_resource(key) and exact(amount) != 0}


def is_autoscaling(cluster: ClusterInFile) -> bool:
    """Return whether the operator starts an autoscaler."""
    return bool(cluster.spec.enableInTreeAutoscaling)


def the_cluster(cluster: ClusterInFile) -> tuple[ClusterInFile]:
    """Return the cluster as its only part, for rules that check the whole cluster."""
    return (cluster,)


def head_of(cluster: ClusterInFile) -> Group[HeadGroup]:
    """Return the head as a group."""
    return Group("the head", ("headGroupSpec",), cluster.spec.headGroupSpec, cluster)


def workers_of(cluster: ClusterInFile) -> list[Group[WorkerGroupSpec]]:
    """Return the worker groups."""
    return [
        Group(f"group {group.groupName!r}", ("workerGroupSpecs", number), group, cluster)
        for number, group in enumerate(cluster.spec.workerGroupSpecs)
    ]


def groups_of(cluster: ClusterInFile) -> list[Group[HeadGroup]]:
    """Return the head and the worker groups."""
    return [head_of(cluster), *workers_of(cluster)]


def states_type(at: Group[HeadGroup]) -> bool:
    """Return whether the group states its device type for the autoscaler, with a label or a resource."""
    # The parameter is JSON in one or two pairs of quotes. For this question, a search in its text is enough.
    names = (*at.spec.resources, at.spec.rayStartParams.get("resources", ""))
    return ACCELERATOR_TYPE in at.spec.labels or any(ACCELERATOR_TYPE_PREFIX in text for text in names)
