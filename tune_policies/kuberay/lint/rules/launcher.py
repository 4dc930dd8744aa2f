"""Rules for Ray's own cluster YAML, the file of ``ray up``."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from jsonschema import Draft7Validator, ValidationError

from tune_policies.files.reading import UnreadableFileError, read_data
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.rule import CLUSTER_YAML, Found, RuleBook, Severity
from tune_policies.kuberay.lint.rules.cluster_parts import extra, mapping
from tune_policies.kuberay.lint.rules.devices import misspelled_resources
from tune_policies.kuberay.lint.rules.pods import MACHINES_SOURCE, has_cuda, machine_called
from tune_policies.kuberay.reading.cluster_yaml import (
    FILLS_RESOURCES,
    LOCAL,
    LOCAL_TYPE,
    NODE_TYPES,
    OLD_FIELDS,
    PROVIDERS,
    ClusterYaml,
    YamlNodeType,
    old_field_problems,
    provider_of,
    read_cluster_yaml,
)
from tune_policies.ray_compat.autoscaler_config import cluster_yaml_schema
from tune_policies.values.value import shorten, suggest

RULES: Final = RuleBook()

_REFERENCE: Final = "https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html"

_MACHINE_KEYS: Final = {"aws": "InstanceType", "gcp": "machineType"}
"""Where each cloud's ``node_config`` names the machine."""

_LONG_MIN: Final = 30


class _File(NamedTuple):
    """A file as it is written, and as Ray reads it with its defaults."""

    data: dict[str, Any]
    cluster: ClusterYaml

    @property
    def provider(self) -> str:
        return provider_of(self.data)

    @property
    def head(self) -> str | None:
        """The name of the head's type, which Ray may have filled in; ``None``: no type is the head's alone."""
        return None if self.provider == LOCAL else self.cluster.head_node_type

    @property
    def types(self) -> Iterator[tuple[Path, str, YamlNodeType]]:
        """Its node types, each with where it stands and its name."""
        return (((NODE_TYPES, name), name, each) for name, each in self.cluster.available_node_types.items())


_Check: TypeAlias = Callable[[_File], Iterator[Found]]


def _rule(name: str, severity: Severity, source: str) -> Callable[[_Check], _Check]:
    """Make a rule of a function that checks a file which can be read; of the others ``wrong-field`` tells."""

    def add(check: _Check) -> _Check:
        def of_document(document: Document) -> Iterator[Found]:
            cluster = read_cluster_yaml(document.data)[0]
            return iter(()) if cluster is None else check(_File(document.data, cluster))

        of_document.__doc__ = check.__doc__
        RULES.of_documents((CLUSTER_YAML,), f"launcher-{name}", severity, source)(of_document)
        return check

    return add


@RULES.of_documents(
    (CLUSTER_YAML,), "launcher-refused", "error", "prepare_config and validate_config in ray.autoscaler._private.util"
)
def _refused(document: Document) -> Iterator[Found]:
    """Ray refuses the file."""
    yield from _against_schema(document.data)
    for problem in old_field_problems(document.data):
        yield Found(problem.path, problem.message)
    provider = provider_of(document.data)
    if provider and provider not in PROVIDERS:
        message = f"Ray has no provider {provider!r}{suggest(provider, PROVIDERS)}"
        yield Found(("provider", "type"), message, f"write one of {', '.join(sorted(PROVIDERS))}")
    if provider == LOCAL:
        yield from _local_machines(document.data)
    if (cluster := read_cluster_yaml(document.data)[0]) is not None:
        yield from _numbers_and_names(document.data, cluster)


@cache
def _validator() -> Draft7Validator | None:
    """Return a validator by Ray's schema; ``None``: there is no Ray, or it has none."""
    file = cluster_yaml_schema()
    try:
        return None if file is None else Draft7Validator(read_data(file))
    except UnreadableFileError:
        return None


def _against_schema(given: dict[str, Any]) -> Iterator[Found]:
    known = [problem.path for problem in read_cluster_yaml(given)[1]]
    # Ray drops min_workers, and the fields of old where they are empty, before it checks the file.
    data = {key: value for key, value in given.items() if key not in ("min_workers", *OLD_FIELDS)}
    validator = _validator()
    for error in validator.iter_errors(data) if validator else ():
        for path, message in _explain(error):
            is_filled_in = provider_of(given) == FILLS_RESOURCES and message == "'resources' is missing"
            if not is_filled_in and not any(path[: len(each)] == each for each in known):
                yield Found(path, message, "see the reference of the file")


def _explain(error: ValidationError) -> Iterator[tuple[Path, str]]:
    path = tuple(error.absolute_path)
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        for key in sorted(instance.keys() - known.keys(), key=str):
            yield (*path, key), f"unknown field {shorten(key)}{suggest(str(key), known)}"
    elif error.validator == "required":
        yield path, error.message.replace("is a required property", "is missing")
    elif error.validator == "type":
        yield path, f"must be of type {error.validator_value}, got {shorten(instance)}"
    else:
        yield path, f"{shorten(instance)} is not allowed here: {error.validator} {error.validator_value}"


def _local_machines(data: dict[str, Any]) -> Iterator[Found]:
    """Check as ``prepare_local`` in ``ray.autoscaler._private.local.config`` does."""
    provider = mapping(data.get("provider"))
    if data.get(NODE_TYPES) and LOCAL_TYPE not in mapping(data[NODE_TYPES]):
        fix = "leave them out: Ray reads from each machine what it has"
        yield Found((NODE_TYPES,), "a cluster of your own machines has no node types", fix)
    if "coordinator_address" in provider:
        if "max_workers" not in data:
            message = "max_workers is missing, which a coordinator needs"
            yield Found((), message, "write how many machines the cluster may take")
    elif missing := [key for key in ("head_ip", "worker_ips") if key not in provider]:
        message = f"the provider has no {' and no '.join(missing)}"
        yield Found(("provider",), message, "write the addresses of the machines, or a coordinator_address")


def _numbers_and_names(data: dict[str, Any], cluster: ClusterYaml) -> Iterator[Found]:
    types, head = cluster.available_node_types, cluster.head_node_type
    if head not in types and data.get("head_node_type") is None:
        message = f"head_node_type is missing, and there is no {head!r}, which Ray takes then"
        yield Found(
            (NODE_TYPES,), message, f"name the node type of the head as head_node_type: one of {', '.join(types)}"
        )
    elif head not in types:
        message = f"there is no node type {head!r}{suggest(str(head), types)}"
        yield Found(("head_node_type",), message, f"write one of {', '.join(types)}")
    at_least, most = sum(each.min_workers for each in types.values()), cluster.max_workers
    if most is not None and at_least > most:
        message = f"all node types have {at_least} min_workers together, and max_workers is {most}"
        yield Found(("max_workers",), message, f"write max_workers: {at_least} or more")


@_rule("min-above-max", "error", _REFERENCE)
def _min_above_max(file: _File) -> Iterator[Found]:
    """The autoscaler cannot keep to both numbers."""
    for path, name, each in file.types:
        if each.max_workers is not None and each.min_workers > each.max_workers:
            message = f"{name!r} has min_workers: {each.min_workers} above max_workers: {each.max_workers}"
            yield Found((*path, "min_workers"), message, f"write {each.max_workers} at the most")


@_rule("limit-left-out", "warning", "ray/autoscaler/*/defaults.yaml")
def _limit_left_out(file: _File) -> Iterator[Found]:
    """Ray takes the default of the provider, 2 for most clouds, whatever the node types say."""
    if file.provider == LOCAL or "max_workers" in file.data:
        return
    most, head = file.cluster.max_workers, file.cluster.head_node_type
    workers = [each.max_workers for _, name, each in file.types if name != head or each.max_workers]
    wanted = sum(math.inf if number is None else number for number in workers)
    if most is None:
        yield Found((), "max_workers is missing, for which Ray has no default here", "write max_workers")
    elif NODE_TYPES in file.data and wanted > most:  # a file without node types leaves the number of nodes to Ray, too
        yield Found((), f"max_workers is missing, so that the cluster has {most} at the most", "write max_workers")


@_rule("resource-spelling", "error", _REFERENCE)
def _wrong_spelling(file: _File) -> Iterator[Found]:
    """Ray's names are CPU and GPU. Any other spelling is a resource of its own, for which no trial asks."""
    for path, name, each in file.types:
        yield from misspelled_resources(repr(name), (*path, "resources"), each.resources or {})


@_rule("image-without-cuda", "warning", "https://hub.docker.com/r/rayproject/ray")
def _image_without_cuda(file: _File) -> Iterator[Found]:
    """Ray hands out the GPUs, but a training without libraries of its own falls back to the CPU."""
    docker = mapping(file.data.get("docker"))
    for path, name, each in file.types:
        own = mapping(extra(each, "docker"))
        special = "head_image" if name == file.head else "worker_image"
        place = (*path, "docker", special) if special in own else ("docker", special if special in docker else "image")
        image = own.get(special) or docker.get(special) or docker.get("image")
        if (each.resources or {}).get("GPU") and isinstance(image, str) and has_cuda(image) is False:
            message = f"{name!r} has GPUs and the image {image!r}, which has no CUDA"
            yield Found(place, message, "use the image of the same version whose tag ends in -gpu")


@_rule("more-gpus-than-machine", "error", MACHINES_SOURCE)
def _more_gpus_than_machine(file: _File) -> Iterator[Found]:
    """Ray hands out devices that are not there, and the trials that get them fail."""
    for path, name, each in file.types:
        machine = machine_called(str(each.node_config.get(_MACHINE_KEYS.get(file.provider, ""))))
        told = (each.resources or {}).get("GPU", 0)
        if machine is not None and told > machine.gpus:
            message = f"Ray is told of {told:g} GPUs in {name!r}, whose {machine.name} has {machine.gpus}"
            yield Found((*path, "resources", "GPU"), message, f"write {machine.gpus}, or take a larger machine")


def _has_devices(each: YamlNodeType) -> bool:
    return any((each.resources or {}).get(name, 0) > 0 for name in ("GPU", "TPU", "HPU", "NPU", "neuron_cores"))


@_rule("goes-at-once", "warning", _REFERENCE)
def _goes_at_once(file: _File) -> Iterator[Found]:
    """The next trial waits until a node is there again."""
    if file.cluster.idle_timeout_minutes == 0:
        yield Found(("idle_timeout_minutes",), "an idle node is removed at once", "write 1 or more")
    for path, name, each in file.types:
        if each.idle_timeout_s == 0:
            yield Found((*path, "idle_timeout_s"), f"an idle node of {name!r} is removed at once", "write 60 or more")


@_rule("idles-long", "note", _REFERENCE)
def _idles_long(file: _File) -> Iterator[Found]:
    """An idle device costs as much as a busy one."""
    minutes = file.cluster.idle_timeout_minutes
    if minutes is not None and minutes > _LONG_MIN and any(_has_devices(each) for _, _, each in file.types):
        yield Found(("idle_timeout_minutes",), f"an idle node is removed after {minutes:g} min", "write a few minutes")


@_rule("devices-always-there", "note", _REFERENCE)
def _always_there(file: _File) -> Iterator[Found]:
    """Nodes with devices cost as much without work."""
    for path, name, each in file.types:
        if each.min_workers > 0 and _has_devices(each):
            message = f"{each.min_workers} of {name!r} with devices are there also without work"
            yield Found((*path, "min_workers"), message, "write min_workers: 0")


@_rule(
    "head-takes-trials",
    "note",
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
)
def _head_works(file: _File) -> Iterator[Found]:
    """A trial that takes too much memory there ends the whole cluster, and not only itself."""
    has_workers = any(_has_devices(each) for _, name, each in file.types if name != file.head)
    for path, name, each in file.types:
        if name == file.head and has_workers and (each.resources or {}).get("CPU") != 0:
            message = "the head takes trials and drivers, beside what holds the cluster together"
            yield Found(path, message, "write resources: {CPU: 0} for the type of the head")
