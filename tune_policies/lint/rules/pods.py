"""What the rules about pods have in common: the groups of a cluster, their Ray container, and its devices."""

from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

from tune_policies.clusters.device_plugins import ray_resource
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.documents import Path
from tune_policies.manifests.kuberay_models import (
    Container,
    HeadGroup,
    PodSpec,
    Quantity,
    RayClusterSpec,
    WorkerGroupSpec,
)
from tune_policies.manifests.quantities import parse_quantity

_SpecT_co = TypeVar("_SpecT_co", bound=HeadGroup, covariant=True)


def exact(quantity: Quantity | None) -> Fraction | None:
    """Return an amount as a number; ``None``: there is none, or that is another rule's business."""
    try:
        return None if quantity is None else parse_quantity(quantity)
    except InvalidResourcesError:
        return None


class Group(NamedTuple, Generic[_SpecT_co]):
    """The head or a group of workers.

    Attributes:
        name: How a message calls it.
        path: Where it stands, from the cluster's ``spec`` on.
        spec: What is said of it.
    """

    name: str
    path: Path
    spec: _SpecT_co

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

    def tolerates(self, taint: str) -> bool:
        """Return whether its pods may be put on nodes with such a taint."""
        return any(each.key in (None, taint) for each in self.pod.tolerations)

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


def head_of(spec: RayClusterSpec) -> Group[HeadGroup]:
    """Return the head."""
    return Group("the head", ("headGroupSpec",), spec.headGroupSpec)


def workers_of(spec: RayClusterSpec) -> list[Group[WorkerGroupSpec]]:
    """Return the groups of workers."""
    return [
        Group(f"group {group.groupName!r}", ("workerGroupSpecs", number), group)
        for number, group in enumerate(spec.workerGroupSpecs)
    ]


def groups_of(spec: RayClusterSpec) -> list[Group[HeadGroup]]:
    """Return the head and the groups of workers."""
    return [head_of(spec), *workers_of(spec)]


def is_on_gke(at: Group[HeadGroup]) -> bool:
    """Return whether pods go to Google's clusters, which taint nodes with devices by themselves.

    Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
    """
    return any(key.startswith("cloud.google.com/") for key in at.pod.nodeSelector)
