"""What the rules about pods have in common: the groups of a cluster, their Ray container, and its devices."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.documents import Path
from tune_policies.manifests.kuberay_models import Container, HeadGroup, PodSpec, Quantity, WorkerGroupSpec
from tune_policies.manifests.quantities import parse_quantity

_RAY_RESOURCES: Final = (
    (r".*gpu", "GPU"),
    (r"nvidia\.com/gpu\.shared|nvidia\.com/mig-.+", "GPU"),
    (r"gpu\.intel\.com/(i915|xe)", "GPU"),
    (r"google\.com/tpu", "TPU"),
    (r"habana\.ai/gaudi", "HPU"),
    (r"aws\.amazon\.com/neuron(core|device)?", "neuron_cores"),
    (r"huawei\.com/(Ascend|npu).*", "NPU"),
    (r"rebellions\.ai/.+", "RBLN"),
    (r"furiosa\.ai/.+", "FURIOSA"),
)
"""Under which names device plugins count their devices (patterns), and Ray's resource for them.

Sources: the device plugins' own pages, and for the first ``_get_num_gpus`` in Ray's reader of RayClusters.
"""


def exact(quantity: Quantity | None) -> Fraction | None:
    """Return an amount as a number; ``None``: there is none, or that is another rule's business."""
    try:
        return None if quantity is None else parse_quantity(quantity)
    except InvalidResourcesError:
        return None


def ray_resource(key: str) -> str | None:
    """Return Ray's resource of devices that Kubernetes counts as ``key``; ``None``: they are no known devices."""
    return next((resource for pattern, resource in _RAY_RESOURCES if re.fullmatch(pattern, key)), None)


class GroupAt(NamedTuple):
    """The head, or a group of workers, and where it stands from the cluster's ``spec`` on."""

    path: Path
    group: HeadGroup

    @property
    def is_head(self) -> bool:
        """Whether it is the head."""
        return not isinstance(self.group, WorkerGroupSpec)

    @property
    def title(self) -> str:
        """It in words."""
        return f"the group {self.group.groupName!r}" if isinstance(self.group, WorkerGroupSpec) else "the head"

    @property
    def pod(self) -> PodSpec:
        """Of what its pods are made."""
        return self.group.template.spec

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
        if resource in self.group.resources:
            return (*self.path, "resources", resource), self.group.resources[resource]
        if parameter in self.group.rayStartParams:
            return (*self.path, "rayStartParams", parameter), self.group.rayStartParams[parameter]
        return None


def devices_of(container: Container) -> dict[str, Quantity]:
    """Return the devices that a container asks for by Kubernetes' key, limits before requests."""
    asked = {**container.resources.requests, **container.resources.limits}
    return {key: amount for key, amount in asked.items() if ray_resource(key) and exact(amount) != 0}


def groups_of(cluster: ClusterInFile) -> Iterator[GroupAt]:
    """Return the head and the groups of workers."""
    yield GroupAt(("headGroupSpec",), cluster.spec.headGroupSpec)
    yield from workers_of(cluster)


def workers_of(cluster: ClusterInFile) -> Iterator[GroupAt]:
    """Return the groups of workers."""
    for number, group in enumerate(cluster.spec.workerGroupSpecs):
        yield GroupAt(("workerGroupSpecs", number), group)


def is_on_gke(at: GroupAt) -> bool:
    """Return whether pods go to Google's clusters, which taint nodes with devices by themselves.

    Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
    """
    return any(key.startswith("cloud.google.com/") for key in at.pod.nodeSelector)
