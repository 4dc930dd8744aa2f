"""What several rules ask of a cluster: its groups, their containers and devices; and the sources that they share."""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.reading.kuberay_models import (
    ClusterInFile,
    Container,
    HeadGroup,
    PodSpec,
    Quantity,
    Toleration,
    WorkerGroupSpec,
    parse_quantity,
)
from tune_policies.values.errors import InvalidResourcesError

VALIDATION = "https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/validation.go"
"""What KubeRay's operator refuses."""

READER = "https://github.com/ray-project/ray/blob/master/python/ray/autoscaler/_private/kuberay/autoscaling_config.py"
"""How Ray's autoscaler reads a RayCluster."""

START = "https://docs.ray.io/en/latest/cluster/cli.html#ray-start"

API = "https://ray-project.github.io/kuberay/reference/api/"

AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"

READS_GROUP_FIELDS = (2, 51)
"""From this Ray on the autoscaler reads ``resources`` and ``labels`` of a group."""

_RAY_IMAGE = re.compile(r"(?:.*/)?ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)(?:[-.].*)?")


def extra(part: BaseModel, name: str) -> Any:
    """Return a field that the models do not know; ``None``: it is not there."""
    return (part.model_extra or {}).get(name)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value where it is a mapping, else an empty one: that it should be one another rule says."""
    return value if isinstance(value, Mapping) else {}


def version_of(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers with which a version begins, such as ``(2, 47, 1)``; ``None``: there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def ray_in_image(image: str | None) -> str | None:
    """Return the version of Ray that the tag of an image names; ``None``: it is no image of Ray's, or names none."""
    found = _RAY_IMAGE.fullmatch(image or "")
    # An image of one's own that is called ray may count versions of its own.
    is_version = found is not None and ("rayproject/" in found[0] or found[1].startswith("2."))
    return found[1] if found and is_version else None


def ray_version_of(cluster: ClusterInFile) -> tuple[int, ...] | None:
    """Return the Ray that the head runs, by ``rayVersion``, else by its image; ``None``: neither tells."""
    image = cluster.spec.headGroupSpec.template.spec.containers[0].image
    return version_of(cluster.spec.rayVersion) or version_of(ray_in_image(image))


def at(value: object, path: Path) -> Any:
    """Return what stands at a path of plain data; ``None``: nothing."""
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
    """Return an amount as a number; ``None``: there is none, or that is another rule's business."""
    try:
        return None if quantity is None else parse_quantity(quantity)
    except InvalidResourcesError:
        return None


class Taint(NamedTuple):
    """A taint of nodes.

    Attributes:
        key: Its key.
        value: Its value; ``None``: not known, so that whoever names one is right.
        effect: What becomes of pods that do not tolerate it.
    """

    key: str
    value: str | None = None
    effect: str = "NoSchedule"


def _matches(toleration: Toleration, taint: Taint) -> bool:
    """Compare as Kubernetes does: by effect, key, and unless any value will do by value."""
    if toleration.effect not in (None, "", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in (None, "", taint.key)
    return toleration.key == taint.key and taint.value in (None, toleration.value or "")


class Group(NamedTuple, Generic[_SpecT_co]):
    """The head or a group of workers.

    Attributes:
        name: How a message calls it.
        path: Where it stands, from the cluster's ``spec`` on.
        spec: What is said of it.
        cluster: Whose it is.
    """

    name: str
    path: Path
    spec: _SpecT_co
    cluster: ClusterInFile

    def __str__(self) -> str:
        return self.name

    @property
    def pod(self) -> PodSpec:
        """Of what its pods are made."""
        return self.spec.template.spec

    @property
    def pod_path(self) -> Path:
        """Where that stands."""
        return (*self.path, "template", "spec")

    @property
    def container(self) -> Container:
        """The container that Ray runs in: KubeRay takes the first."""
        return self.pod.containers[0]

    @property
    def container_path(self) -> Path:
        """Where that stands."""
        return (*self.pod_path, "containers", 0)

    @property
    def containers(self) -> Iterator[tuple[Path, Container]]:
        """All containers of a pod, each with where it stands."""
        return (((*self.pod_path, "containers", number), each) for number, each in enumerate(self.pod.containers))

    @property
    def is_autoscaling(self) -> bool:
        """Whether the operator starts an autoscaler."""
        return is_autoscaling(self.cluster)

    @property
    def devices(self) -> dict[str, Quantity]:
        """The devices of the Ray container by Kubernetes' key; those of which there are none are left out."""
        return devices_of(self.container)

    def key_path(self, key: str) -> Path:
        """Return where the Ray container asks for ``key``."""
        section = "limits" if key in self.container.resources.limits else "requests"
        return (*self.container_path, "resources", section, key)

    @property
    def environment(self) -> dict[str, str | None]:
        """The variables of the Ray container."""
        return {each.name: each.value for each in self.container.env}

    def variable_path(self, name: str) -> Path:
        """Return where a variable of the Ray container stands."""
        names = [each.name for each in self.container.env]
        return (*self.container_path, "env", names.index(name))

    def tolerates(self, taint: Taint) -> bool:
        """Return whether its pods may be put on nodes with such a taint."""
        return any(_matches(each, taint) for each in self.pod.tolerations)

    def amount(self, resource: str, parameter: str) -> tuple[Path, Quantity] | None:
        """Return where Ray is told how much it has of a resource, and how much; ``None``: it is to find out."""
        if resource in self.spec.resources:
            return (*self.path, "resources", resource), self.spec.resources[resource]
        if parameter in self.spec.rayStartParams:
            return (*self.path, "rayStartParams", parameter), self.spec.rayStartParams[parameter]
        return None


def devices_of(container: Container) -> dict[str, Quantity]:
    """Return the devices that a container asks for by Kubernetes' key, limits before requests."""
    asked = {**container.resources.requests, **container.resources.limits}
    return {key: amount for key, amount in asked.items() if ray_resource(key) and exact(amount) != 0}


def is_autoscaling(cluster: ClusterInFile) -> bool:
    """Return whether the operator starts an autoscaler."""
    return bool(cluster.spec.enableInTreeAutoscaling)


def the_cluster(cluster: ClusterInFile) -> tuple[ClusterInFile]:
    """Return the cluster, for rules that check it as a whole."""
    return (cluster,)


def head_of(cluster: ClusterInFile) -> Group[HeadGroup]:
    """Return the head."""
    return Group("the head", ("headGroupSpec",), cluster.spec.headGroupSpec, cluster)


def workers_of(cluster: ClusterInFile) -> list[Group[WorkerGroupSpec]]:
    """Return the groups of workers."""
    return [
        Group(f"group {group.groupName!r}", ("workerGroupSpecs", number), group, cluster)
        for number, group in enumerate(cluster.spec.workerGroupSpecs)
    ]


def groups_of(cluster: ClusterInFile) -> list[Group[HeadGroup]]:
    """Return the head and the groups of workers."""
    return [head_of(cluster), *workers_of(cluster)]


def tells_type(at: Group[HeadGroup]) -> bool:
    """Return whether the autoscaler is told the type of its devices, which Ray counts as a resource of a node."""
    names = (*at.spec.resources, at.spec.rayStartParams.get("resources", ""))
    return ACCELERATOR_TYPE in at.spec.labels or any(ACCELERATOR_TYPE_PREFIX in text for text in names)


def is_on_gke(at: Group[HeadGroup]) -> bool:
    """Return whether pods go to Google's clusters, which taint nodes with devices by themselves.

    Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
    """
    return any(key.startswith("cloud.google.com/") for key in at.pod.nodeSelector)
