"""Rules for Ray's cluster YAML. Most of them find mistakes that ``ray up`` accepts."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.cluster_parts import extra, ray_in_image
from tune_policies.kuberay.lint.pod_schema import as_mapping
from tune_policies.kuberay.lint.rule import Found, Rule, Severity, why
from tune_policies.kuberay.lint.rules.device_amounts import misspelled_resources
from tune_policies.kuberay.lint.rules.images import TRIED_IMAGE, has_cuda, severity_of_version
from tune_policies.kuberay.reading.cluster_yaml import (
    LOCAL,
    NODE_TYPES,
    ClusterYaml,
    YamlNodeType,
    is_cluster_yaml,
    provider_of,
    read_cluster_yaml,
)
from tune_policies.values.ray_versions import is_tried

RULES: Final[list[Rule]] = []

_REFERENCE: Final = "https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html"


class _File(NamedTuple):
    """The data of a file, and the cluster with Ray's defaults."""

    data: dict[str, Any]
    cluster: ClusterYaml

    @property
    def provider(self) -> str:
        return provider_of(self.data)

    @property
    def head(self) -> str | None:
        """The name of the head's type, or ``None`` if workers have the same type."""
        if self.provider == LOCAL:
            return None
        return self.cluster.head_node_type

    @property
    def types(self) -> Iterator[tuple[Path, str, YamlNodeType]]:
        """The path, the name and the fields of each node type."""
        for name, node_type in self.cluster.available_node_types.items():
            yield (NODE_TYPES, name), name, node_type


_Check: TypeAlias = Callable[[_File], Iterator[Found]]


def _rule(name: str, severity: Severity, source: str) -> Callable[[_Check], _Check]:
    """Return a decorator that adds a rule for valid files. ``invalid-field`` reports invalid files."""

    def add(check: _Check) -> _Check:
        def of_document(document: Document, _: object) -> Iterator[Found]:
            if not is_cluster_yaml(document.data):
                return iter(())
            cluster, _ = read_cluster_yaml(document.data)
            if cluster is None:
                return iter(())
            return check(_File(document.data, cluster))

        RULES.append(Rule(f"launcher-{name}", severity, why(check), source, of_document))
        return check

    return add


@_rule("min-above-max", "error", _REFERENCE)
def _min_above_max(file: _File) -> Iterator[Found]:
    """The autoscaler cannot satisfy both limits."""
    for path, name, node_type in file.types:
        least, most = node_type.min_workers, node_type.max_workers
        if most is not None and least > most:
            message = f"{name!r} has min_workers: {least} above max_workers: {most}"
            yield Found((*path, "min_workers"), message, f"write at most {most}")


_WRITE_LIMIT: Final = "write the maximum number of workers at the top level of the file, such as max_workers: 8"


@_rule("limit-missing", "warning", "ray/autoscaler/*/defaults.yaml")
def _limit_missing(file: _File) -> Iterator[Found]:
    """Ray uses the default of the provider, 2 for most clouds, regardless of the node types."""
    # For existing machines, Ray's default is their number.
    if file.provider == LOCAL or "max_workers" in file.data:
        return
    most, head = file.cluster.max_workers, file.cluster.head_node_type
    # The head's type has workers only if its own ``max_workers`` is set, because the default is 0 for this type.
    workers = [node_type.max_workers for _, name, node_type in file.types if name != head or node_type.max_workers]
    # A type without a limit may have as many workers as the cluster, so any limit of the cluster is too low for it.
    wanted = sum(math.inf if number is None else number for number in workers)
    if most is None:
        yield Found((), "max_workers is missing, and Ray has no default for this provider", _WRITE_LIMIT)
    elif NODE_TYPES in file.data and wanted > most:  # a file without node types relies on all of Ray's defaults
        yield Found((), f"max_workers is missing, so the cluster has at most {most} workers", _WRITE_LIMIT)


@_rule("resource-spelling", "error", _REFERENCE)
def _wrong_spelling(file: _File) -> Iterator[Found]:
    """Ray's names are CPU and GPU. Any other spelling is a custom resource, which no trial requests."""
    for path, name, node_type in file.types:
        yield from misspelled_resources(repr(name), (*path, "resources"), node_type.resources or {})


def _images(file: _File) -> Iterator[tuple[Path, str, YamlNodeType, str]]:
    """Yield the path of the image of each node type, the type's name and fields, and the image."""
    docker = as_mapping(file.data.get("docker"))
    for path, name, node_type in file.types:
        # The image of a node type comes first, then that of the head or of all workers, then the image for all nodes.
        own = as_mapping(extra(node_type, "docker"))
        special = "head_image" if name == file.head else "worker_image"
        place: Path = ("docker", "image")
        if special in own:
            place = (*path, "docker", special)
        elif special in docker:
            place = ("docker", special)
        image = own.get(special) or docker.get(special) or docker.get("image")
        if isinstance(image, str):
            yield place, name, node_type, image


@_rule("image-without-cuda", "warning", "https://hub.docker.com/r/rayproject/ray")
def _image_without_cuda(file: _File) -> Iterator[Found]:
    """Ray assigns the GPUs, but training falls back to the CPU unless your code installs CUDA libraries."""
    for path, name, node_type, image in _images(file):
        if (node_type.resources or {}).get("GPU") and has_cuda(image) is False:
            message = f"{name!r} has GPUs, but the image {image!r} has no CUDA"
            yield Found(path, message, "use the image of the same version whose tag ends in -gpu")


@_rule("ray-not-supported", "note", "tune_policies.values.ray_versions")
def _ray_not_supported(file: _File) -> Iterator[Found]:
    """tune-policies was not tested with this version of Ray, so plans may be wrong and runs may fail.

    A much older version, below 2.40, is a warning.
    """
    for path, image in {path: image for path, _, _, image in _images(file)}.items():
        version = ray_in_image(image)
        if version is not None and not is_tried(version):
            yield Found(path, f"the image {image!r} has Ray {version}", TRIED_IMAGE, severity_of_version(version))


def _has_devices(node_type: YamlNodeType) -> bool:
    resources = node_type.resources or {}
    return any(resources.get(name, 0) > 0 for name in ("GPU", "TPU", "HPU", "NPU", "neuron_cores"))


@_rule(
    "head-runs-trials",
    "note",
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
)
def _head_runs_trials(file: _File) -> Iterator[Found]:
    """A trial that uses too much memory on the head can stop the whole cluster."""
    has_workers = any(_has_devices(node_type) for _, name, node_type in file.types if name != file.head)
    for path, name, node_type in file.types:
        # Without stated CPUs, Ray detects those of the machine.
        if name == file.head and has_workers and (node_type.resources or {}).get("CPU") != 0:
            message = "the head runs trials and drivers in addition to the processes that manage the cluster"
            yield Found(path, message, "write resources: {CPU: 0} for the head's node type")
