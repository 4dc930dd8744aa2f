"""Rules for Ray's own cluster YAML, the file of ``ray up``."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from jsonschema import Draft7Validator, ValidationError

from tune_policies.files.reading import UnreadableFileError, read_data
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import CLUSTER_YAML, DocumentRule, Found
from tune_policies.kuberay.lint.rules.cluster_parts import extra, mapping
from tune_policies.kuberay.lint.rules.devices import SPELLINGS
from tune_policies.kuberay.lint.rules.images import has_cuda
from tune_policies.kuberay.lint.rules.nodes import MACHINES_SOURCE, machine_called
from tune_policies.kuberay.manifests.cluster_yaml import (
    FILLS_RESOURCES,
    LOCAL,
    LOCAL_TYPE,
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


@cache
def _validator() -> Draft7Validator | None:
    """Return a validator by Ray's schema; ``None``: there is no Ray, or it has none."""
    file = cluster_yaml_schema()
    if file is None:
        return None
    try:
        schema = read_data(file)
    except UnreadableFileError:
        return None
    return Draft7Validator(schema)


def schema_problems(data: object) -> Iterator[tuple[Path, str]]:
    """Yield what Ray would refuse: where, and why. Without Ray nothing is known."""
    validator = _validator()
    for error in validator.iter_errors(data) if validator else ():
        yield from _explain(error)


def _explain(error: ValidationError) -> Iterator[tuple[Path, str]]:
    path = tuple(error.absolute_path)
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        for key in sorted(instance.keys() - known.keys(), key=str):
            yield (*path, key), f"unknown field {shorten(key)}{suggest(str(key), known)}"
    elif error.validator == "required":
        for key in schema["required"]:
            if key not in instance and f"{key!r} is a required property" == error.message:
                yield path, f"{key!r} is missing"
    elif error.validator == "type":
        yield path, f"must be of type {error.validator_value}, got {shorten(instance)}"
    else:
        yield path, f"{shorten(instance)} is not allowed here: {error.validator} {error.validator_value}"


_TYPES: Final = "available_node_types"
_REFERENCE: Final = "https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html"
_UTIL: Final = "ray.autoscaler._private.util"
_FILLED: Final = f"fillout_defaults in {_UTIL}"
_MACHINE_KEYS: Final = {"aws": "InstanceType", "gcp": "machineType", "azure": "azure_arm_parameters"}
"""Where each cloud's ``node_config`` names the machine."""

_LONG_MIN: Final = 30


def _read(document: Document) -> ClusterYaml | None:
    return read_cluster_yaml(document.data)[0]


def _types(document: Document) -> Iterator[tuple[Path, str, YamlNodeType]]:
    if (cluster := _read(document)) is not None:
        for name, each in cluster.available_node_types.items():
            yield (_TYPES, name), name, each


def _provider(document: Document) -> str:
    return provider_of(mapping(document.data))


def _head_of(document: Document) -> str | None:
    """Return the name of the head's type, which Ray may have filled in; ``None``: no type is the head's alone."""
    cluster = _read(document)
    return cluster.head_node_type if cluster and _provider(document) != LOCAL else None


def _has_devices(each: YamlNodeType) -> bool:
    return any((each.resources or {}).get(name, 0) > 0 for name in ("GPU", "TPU", "HPU", "NPU", "neuron_cores"))


def _against_schema(document: Document) -> Iterator[Found]:
    given = mapping(document.data)
    known = [problem.path for problem in read_cluster_yaml(given)[1]]
    # Ray drops min_workers, and the fields of old where they are empty, before it checks the file.
    data = {key: value for key, value in given.items() if key not in ("min_workers", *OLD_FIELDS)}
    for path, message in schema_problems(data):
        is_filled_in = _provider(document) == FILLS_RESOURCES and message == "'resources' is missing"
        if not is_filled_in and not any(path[: len(each)] == each for each in known):
            yield Found(path, message, "see the reference of the file")


def _old_fields(document: Document) -> Iterator[Found]:
    for problem in old_field_problems(mapping(document.data)):
        yield Found(problem.path, problem.message, "")


def _unknown_provider(document: Document) -> Iterator[Found]:
    provider = _provider(document)
    if provider and provider not in PROVIDERS:
        known = ", ".join(sorted(PROVIDERS))
        near = suggest(provider, PROVIDERS)
        yield Found(("provider", "type"), f"Ray has no provider {provider!r}{near}", f"write one of {known}")


def _local_machines(document: Document) -> Iterator[Found]:
    data = mapping(document.data)
    provider = mapping(data.get("provider"))
    if _provider(document) != LOCAL:
        return
    if data.get(_TYPES) and LOCAL_TYPE not in mapping(data[_TYPES]):
        yield Found(
            (_TYPES,),
            "a cluster of machines that are there has no node types",
            "leave them out: Ray reads from each machine what it has",
        )
    if "coordinator_address" in provider:
        if "max_workers" not in data:
            message = "max_workers is missing, which a coordinator needs"
            yield Found((), message, "write how many machines the cluster may take")
    elif missing := [key for key in ("head_ip", "worker_ips") if key not in provider]:
        message = f"the provider has no {' and no '.join(missing)}"
        yield Found(("provider",), message, "write the addresses of the machines, or a coordinator_address")


def _head_missing(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    if cluster is None or cluster.head_node_type in cluster.available_node_types:
        return
    named = ", ".join(cluster.available_node_types)
    if mapping(document.data).get("head_node_type") is None:
        message = f"head_node_type is missing, and there is no {cluster.head_node_type!r}, which Ray takes then"
        yield Found((_TYPES,), message, f"name the node type of the head as head_node_type: one of {named}")
    else:
        near = suggest(str(cluster.head_node_type), cluster.available_node_types)
        message = f"there is no node type {cluster.head_node_type!r}{near}"
        yield Found(("head_node_type",), message, f"write one of {named}")


def _min_above_max(document: Document) -> Iterator[Found]:
    for path, name, each in _types(document):
        if each.max_workers is not None and each.min_workers > each.max_workers:
            message = f"{name!r} has min_workers: {each.min_workers} above max_workers: {each.max_workers}"
            yield Found((*path, "min_workers"), message, f"write {each.max_workers} at the most")


def _too_many_at_least(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    if cluster is None or cluster.max_workers is None:
        return
    at_least = sum(each.min_workers for each in cluster.available_node_types.values())
    if at_least > cluster.max_workers:
        message = f"all node types have {at_least} min_workers together, and max_workers is {cluster.max_workers}"
        yield Found(("max_workers",), message, f"write max_workers: {at_least} or more")


def _never_reached(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    for path, name, each in _types(document):
        most = cluster.max_workers if cluster else None
        if most is not None and each.max_workers is not None and each.max_workers > most >= each.min_workers:
            message = f"{name!r} may have {each.max_workers} workers, and the cluster {most} in all"
            yield Found((*path, "max_workers"), message, "raise the cluster's max_workers, or lower this one")


def _limit_left_out(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    data = mapping(document.data)
    # A file without node types takes Ray's, and leaves the number of nodes to Ray, too.
    if cluster is None or _provider(document) == LOCAL or "max_workers" in data:
        return
    most = cluster.max_workers
    if most is None:
        message = "max_workers is missing, for which Ray has no default here"
        yield Found((), message, "write max_workers")
    elif _TYPES in data and _wanted(cluster) > most:
        yield Found((), f"max_workers is missing, so that the cluster has {most} at the most", "write max_workers")


def _wanted(cluster: ClusterYaml) -> float:
    """Return how many workers the node types may have together; one that does not say may have any number."""
    types = cluster.available_node_types.items()
    workers = [each for name, each in types if name != cluster.head_node_type or each.max_workers]
    return sum(math.inf if each.max_workers is None else each.max_workers for each in workers)


def _wrong_spelling(document: Document) -> Iterator[Found]:
    for path, name, each in _types(document):
        for key, amount in (each.resources or {}).items():
            right = SPELLINGS.get(key.lower(), key)
            if right != key:
                edits = (Edit((*path, "resources", key), None), Edit((*path, "resources", right), amount))
                yield Found(
                    (*path, "resources", key),
                    f"{name!r} has the resource {key!r}, which for Ray is another one than {right!r}",
                    f"write {right}",
                    () if right in (each.resources or {}) else edits,
                )


def _no_machine(document: Document) -> Iterator[Found]:
    key = _MACHINE_KEYS.get(_provider(document))
    for path, name, each in _types(document):
        if key is not None and "node_config" in each.model_fields_set and key not in each.node_config:
            has_template = "LaunchTemplate" in each.node_config
            # A TPU of Google's is no machine type of its own.
            is_tpu = not each.node_config.keys().isdisjoint({"acceleratorType", "acceleratorConfig"})
            if not has_template and not is_tpu:
                near = suggest(key, each.node_config)
                message = f"the node_config of {name!r} has no {key}{near and f' ({near[2:]})'}"
                yield Found((*path, "node_config"), message, f"write {key}")


def _image_without_cuda(document: Document) -> Iterator[Found]:
    docker = mapping(mapping(document.data).get("docker"))
    head = _head_of(document)
    for path, name, each in _types(document):
        own = mapping(extra(each, "docker"))
        special = "head_image" if name == head else "worker_image"
        place = (*path, "docker", special) if special in own else ("docker", special if special in docker else "image")
        image = own.get(special) or docker.get(special) or docker.get("image")
        if (each.resources or {}).get("GPU") and isinstance(image, str) and has_cuda(image) is False:
            message = f"{name!r} has GPUs and the image {image!r}, which has no CUDA"
            yield Found(place, message, "use the image of the same version whose tag ends in -gpu")


def _goes_at_once(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    if cluster is not None and cluster.idle_timeout_minutes == 0:
        yield Found(("idle_timeout_minutes",), "an idle node goes at once", "write 1 or more")
    for path, name, each in _types(document):
        if each.idle_timeout_s == 0:
            yield Found((*path, "idle_timeout_s"), f"an idle node of {name!r} goes at once", "write 60 or more")


def _idles_long(document: Document) -> Iterator[Found]:
    cluster = _read(document)
    minutes = cluster.idle_timeout_minutes if cluster else None
    if minutes is not None and minutes > _LONG_MIN and any(_has_devices(each) for _, _, each in _types(document)):
        yield Found(("idle_timeout_minutes",), f"an idle node goes after {minutes:g} min", "write a few minutes")


def _always_there(document: Document) -> Iterator[Found]:
    for path, name, each in _types(document):
        if each.min_workers > 0 and _has_devices(each):
            message = f"{each.min_workers} of {name!r} with devices are there also without work"
            yield Found((*path, "min_workers"), message, "write min_workers: 0")


def _head_as_worker(document: Document) -> Iterator[Found]:
    head = _head_of(document)
    for path, name, each in _types(document):
        if name == head and each.max_workers:
            message = f"{name!r}, the type of the head, may have {each.max_workers} workers too"
            yield Found((*path, "max_workers"), message, "write max_workers: 0, or give workers a type of their own")


def _head_works(document: Document) -> Iterator[Found]:
    head = _head_of(document)
    rows = list(_types(document))
    has_workers = any(_has_devices(each) for _, name, each in rows if name != head)
    for path, name, each in rows:
        if name == head and has_workers and (each.resources or {}).get("CPU") != 0:
            message = "the head takes trials and drivers, beside what holds the cluster together"
            yield Found(path, message, "write resources: {CPU: 0} for the type of the head")


def _more_gpus_than_machine(document: Document) -> Iterator[Found]:
    key = str(_MACHINE_KEYS.get(_provider(document)))
    for path, name, each in _types(document):
        machine = machine_called(str(each.node_config.get(key)))
        told = (each.resources or {}).get("GPU", 0)
        if machine is not None and told > machine.gpus:
            message = f"Ray is told of {told:g} GPUs in {name!r}, whose {machine.name} has {machine.gpus}"
            yield Found((*path, "resources", "GPU"), message, f"write {machine.gpus}, or take a larger machine")


def _rule(name: str, severity: Any, why: str, source: str, check: Any) -> DocumentRule:
    return DocumentRule(f"launcher-{name}", severity, why, source, (CLUSTER_YAML,), check)


RULES: Final = (
    _rule("schema", "error", "Ray refuses the file.", "ray/autoscaler/ray-schema.json", _against_schema),
    _rule("old-fields", "error", "Ray refuses the file: it knows node types alone.", _FILLED, _old_fields),
    _rule("provider-unknown", "error", "Ray refuses the file.", "ray.autoscaler._private.providers", _unknown_provider),
    _rule(
        "local-machines",
        "error",
        "Ray refuses the file.",
        "prepare_local in ray.autoscaler._private.local.config",
        _local_machines,
    ),
    _rule("head-missing", "error", "Ray refuses the file.", f"validate_config in {_UTIL}", _head_missing),
    _rule("min-above-max", "error", "The autoscaler cannot keep both.", _REFERENCE, _min_above_max),
    _rule("too-many-at-least", "error", "Ray refuses the file.", f"validate_config in {_UTIL}", _too_many_at_least),
    _rule("never-reached", "note", "The limit of the cluster counts for all its types.", _REFERENCE, _never_reached),
    _rule(
        "limit-left-out",
        "warning",
        "Ray takes the default of the provider, 2 for most clouds, whatever the node types say.",
        "ray/autoscaler/*/defaults.yaml",
        _limit_left_out,
    ),
    _rule(
        "resource-spelling",
        "error",
        "Ray's names are CPU and GPU. Any other spelling is a resource of its own, for which no trial asks.",
        _REFERENCE,
        _wrong_spelling,
    ),
    _rule("no-machine", "warning", "The cloud starts its smallest machine, or none.", _REFERENCE, _no_machine),
    _rule(
        "image-without-cuda",
        "warning",
        "Ray hands out the GPUs, but a training without libraries of its own falls back to the CPU.",
        "https://hub.docker.com/r/rayproject/ray",
        _image_without_cuda,
    ),
    _rule(
        "more-gpus-than-machine",
        "error",
        "Ray hands out devices that are not there, and the trials that get them fail.",
        MACHINES_SOURCE,
        _more_gpus_than_machine,
    ),
    _rule("goes-at-once", "warning", "The next trial waits until a node is there again.", _REFERENCE, _goes_at_once),
    _rule("idles-long", "note", "An idle device costs as much as a busy one.", _REFERENCE, _idles_long),
    _rule("devices-always-there", "note", "Nodes with devices cost as much without work.", _REFERENCE, _always_there),
    _rule("head-as-worker", "note", "The default is 0 for the head's type.", f"{_UTIL}", _head_as_worker),
    _rule(
        "head-takes-trials",
        "note",
        "A trial that takes too much memory there ends the whole cluster, and not only itself.",
        "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
        _head_works,
    ),
)
