"""Rules of Kubernetes for pods that its OpenAPI definitions do not contain.

They follow ``pkg/apis/core/validation/validation.go`` of Kubernetes. The definitions themselves are checked in
:mod:`tune_policies.kuberay.lint.pod_schema`, and names, variables, volumes, tolerations and affinities in
:mod:`tune_policies.kuberay.lint.rules.pod_parts`.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.lint.pod_schema import PodTemplate, as_list, as_mapping, cluster_of, templates_of
from tune_policies.kuberay.lint.rule import Found, Rule, Severity, why
from tune_policies.kuberay.lint.rules.cluster_parts import exact
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile
from tune_policies.kuberay.reading.shared_gpu_memory import HAMI_CORES, HAMI_MEMORY, HAMI_PERCENTAGE
from tune_policies.values.wording import shorten, suggest

RULES: Final[list[Rule]] = []

VALIDATION: Final = "https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/validation.go"

_Check: TypeAlias = Callable[[PodTemplate], Iterator[Found]]


def template_rule(rules: list[Rule], name: str, severity: Severity, source: str) -> Callable[[_Check], _Check]:
    """Return a decorator that adds a rule for each pod template of a manifest to a list of rules."""

    def add(check: _Check) -> _Check:
        def of_document(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
            for template in templates_of(document):
                yield from check(template)

        rules.append(Rule(name, severity, why(check), source, of_document))
        return check

    return add


def _amounts(template: PodTemplate) -> Iterator[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the path of the resources of each container, its limits and its requests."""
    containers = list(template.containers)
    if template.autoscaler is not None:
        containers.append(template.autoscaler)
    for path, container in containers:
        resources = as_mapping(container.get("resources"))
        limits, requests = as_mapping(resources.get("limits")), as_mapping(resources.get("requests"))
        yield (*path, "resources"), limits, requests


def _number(amount: object) -> Fraction | None:
    """Return an amount as a number, or ``None`` if it is missing or invalid."""
    if isinstance(amount, bool) or not isinstance(amount, str | int | float):
        return None
    return exact(amount)


def is_filled_in_later(value: str) -> bool:
    """Return whether a value contains a variable such as ``${GPU_TYPE}``, which another program replaces."""
    return "$" in value or "{{" in value


def _is_device(key: str) -> bool:
    """Return whether Kubernetes treats a resource as an extended resource, which it never overcommits."""
    domain = key.partition("/")[0]
    return "/" in key and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


@template_rule(RULES, "device-limit-differs", "error", f"{VALIDATION} (ValidateResourceRequirements)")
def _device_limit_differs(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod: the request and the limit of a device must be equal, and the limit is required."""
    for path, limits, requests in _amounts(template):
        for key, amount in requests.items():
            if not _is_device(key) and not key.startswith("hugepages-"):
                continue
            where, fix = (*path, "requests", key), f"write {key}: {shorten(amount)} under limits"
            if limits.get(key) is None:
                if _number(amount) != 0:
                    yield Found(where, f"{template.name} has {key} under requests, but not under limits", fix)
                continue
            asked, limit = _number(amount), _number(limits[key])
            if asked is not None and limit is not None and asked != limit:
                message = f"{template.name} requests {amount} {key}, but its limit is {limits[key]}"
                yield Found(where, message, "write the same amount under requests and limits")


@template_rule(RULES, "device-fraction", "error", f"{VALIDATION} (ValidateResourceQuantityValue)")
def _device_fraction(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes allocates whole devices only, and refuses the pod."""
    for path, limits, requests in _amounts(template):
        for key, amount in {**requests, **limits}.items():
            number = _number(amount)
            if _is_device(key) and number is not None and number.denominator != 1:
                section = "limits" if key in limits else "requests"
                fix = "request whole devices here; a trial can request a fraction of a GPU from Ray"
                if any(name.fullmatch(key) for name in (HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES)):
                    fix = "write a whole number"
                yield Found((*path, section, key), f"{template.name} requests {amount} {key}", fix)


@template_rule(RULES, "request-above-limit", "error", f"{VALIDATION} (ValidateResourceRequirements)")
def _request_above_limit(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    for path, limits, requests in _amounts(template):
        for key, amount in requests.items():
            asked, limit = _number(amount), _number(limits.get(key))
            if not _is_device(key) and asked is not None and limit is not None and asked > limit:
                message = f"{template.name} requests {amount} of {key}, but its limit is {limits[key]}"
                yield Found((*path, "requests", key), message, f"raise the limit, or request at most {limits[key]}")


_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")

_MEANT: Final = {
    "gpu": "nvidia.com/gpu",
    "gpus": "nvidia.com/gpu",
    "nvidia-gpu": "nvidia.com/gpu",
    "tpu": "google.com/tpu",
    "cpus": "cpu",
    "mem": "memory",
    "ram": "memory",
    "storage": "ephemeral-storage",
    "disk": "ephemeral-storage",
}
"""The resources that are probably meant by other names, in lower case."""


@template_rule(RULES, "resource-unknown", "error", f"{VALIDATION} (validateContainerResourceName)")
def _resource_unknown(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod: a resource without a domain must be cpu, memory, ephemeral-storage or hugepages-…."""
    for path, limits, requests in _amounts(template):
        for section, amounts in (("limits", limits), ("requests", requests)):
            for key in amounts:
                if "/" in key or key in _STANDARD or key.startswith("hugepages-"):
                    continue
                message = f"{template.name} has the unknown resource {key!r}"
                near = difflib.get_close_matches(key.lower(), _STANDARD, n=1, cutoff=0.7)
                meant = _MEANT.get(key.lower()) or "".join(near)
                if meant:
                    message += f"; did you mean {meant!r}?"
                yield Found((*path, section, key), message)


_LEAST_MEMORY: Final = 2**20
"""The least memory of a container in bytes. Container runtimes need more than this to start one."""

_MOST_CPUS: Final = 10_000


@template_rule(
    RULES,
    "amount-without-unit",
    "warning",
    "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
)
def _amount_without_unit(template: PodTemplate) -> Iterator[Found]:
    """Memory without a unit is in bytes, and m stands for thousandths. No node can start the container."""
    for path, limits, requests in _amounts(template):
        for section, amounts in (("limits", limits), ("requests", requests)):
            memory, cpus = _number(amounts.get("memory")), _number(amounts.get("cpu"))
            if memory is not None and 0 < memory < _LEAST_MEMORY:
                message = f"{template.name} has {amounts['memory']} of memory, which is less than 1 MiB"
                yield Found((*path, section, "memory"), message, "write the memory with a unit, such as 16Gi")
            if cpus is not None and cpus > _MOST_CPUS:
                message = f"{template.name} has {amounts['cpu']} CPUs, which no node has"
                yield Found((*path, section, "cpu"), message, "write CPUs without a unit, such as 4 or 500m")


def _repeated(names: Sequence[object]) -> Iterator[tuple[int, str]]:
    """Yield the index and the name of each text that an earlier item has too."""
    seen = set()
    for number, name in enumerate(names):
        if isinstance(name, str) and name:
            if name in seen:
                yield number, name
            seen.add(name)


@template_rule(RULES, "duplicate-name", "error", f"{VALIDATION} (validateContainers, ValidateVolumes)")
def _duplicate_name(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    containers = list(template.containers)
    for number, name in _repeated([container.get("name") for _, container in containers]):
        path = (*containers[number][0], "name")
        yield Found(path, f"{template.name} has two containers named {name!r}", "give each container its own name")
    volumes = [as_mapping(volume) for volume in as_list(template.spec.get("volumes"))]
    for number, name in _repeated([volume.get("name") for volume in volumes]):
        path = (*template.path, "spec", "volumes", number, "name")
        yield Found(path, f"{template.name} has two volumes named {name!r}", "give each volume its own name")
    for path, container in containers:
        for field, key in (("ports", "name"), ("volumeMounts", "mountPath")):
            items = [as_mapping(item) for item in as_list(container.get(field))]
            for number, name in _repeated([item.get(key) for item in items]):
                message = f"{template.name} has two {field} with {key} {name!r} in one container"
                yield Found((*path, field, number, key), message, "remove one of them")


_VOLUMES_OF_KUBERAY: Final = ("shared-mem", "ray-logs", "ray-tls", "ray-token", "gcs-storage")
"""Volumes that KubeRay adds itself (``ray-operator/controllers/ray/utils/constant.go`` and ``common/pod.go``)."""


@template_rule(RULES, "volume-missing", "error", f"{VALIDATION} (ValidateVolumeMounts)")
def _volume_missing(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    names = [as_mapping(volume).get("name") for volume in as_list(template.spec.get("volumes"))]
    volumes = [name for name in names if isinstance(name, str)]
    for path, container in template.containers:
        for field in ("volumeMounts", "volumeDevices"):
            for number, mount in enumerate(as_list(container.get(field))):
                name = as_mapping(mount).get("name")
                if not isinstance(name, str) or name in volumes or name in _VOLUMES_OF_KUBERAY:
                    continue
                message = f"{template.name} mounts {name!r}, but has no volume of this name{suggest(name, volumes)}"
                yield Found((*path, field, number, "name"), message, f"add the volume {name!r} to spec.volumes")


_PORT_NAME: Final = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
"""An IANA service name: at most 15 lower-case letters, digits and single dashes, with at least one letter."""


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


@template_rule(RULES, "port-invalid", "error", f"{VALIDATION} (validateContainerPorts)")
def _port_invalid(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    for path, container in template.containers:
        for number, port in enumerate(as_list(container.get("ports"))):
            where, port = (*path, "ports", number), as_mapping(port)
            for field in ("containerPort", "hostPort"):
                value = port.get(field)
                is_unset = value is None or (field == "hostPort" and value == 0)
                if not is_unset and isinstance(value, int) and not _is_port(value):
                    message = f"{template.name} has {field} {value}, which is not between 1 and 65535"
                    yield Found((*where, field), message, "write a number between 1 and 65535")
            name = port.get("name")
            if isinstance(name, str) and name and not _PORT_NAME.fullmatch(name):
                message = f"{template.name} has the port name {shorten(name)}, which is not valid"
                fix = "use at most 15 lower-case letters, digits and single dashes, with at least one letter"
                yield Found((*where, "name"), message, fix)


_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")

_MUST_SUCCEED_ONCE: Final = ("livenessProbe", "startupProbe")


@template_rule(RULES, "probe-invalid", "error", f"{VALIDATION} (validateProbe, validateHandler)")
def _probe_invalid(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod, or restarts the container because the probe never succeeds."""
    for path, container in template.containers:
        names = [as_mapping(port).get("name") for port in as_list(container.get("ports"))]
        for field in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = container.get(field)
            if isinstance(probe, Mapping):
                for key, message, fix in _problems_of_probe(field, probe, names):
                    yield Found((*path, field, *key), f"the {field} of {template.name} {message}", fix)


def _problems_of_probe(
    field: str, probe: Mapping[str, Any], names: Sequence[object]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the keys that lead to a problem of a probe, a message that continues the name of the probe, and a fix."""
    handlers = [name for name in _HANDLERS if probe.get(name) is not None]
    if len(handlers) != 1:
        message = f"has {' and '.join(handlers)}" if handlers else "does not state what it checks"
        yield (), message, f"write exactly one of {', '.join(_HANDLERS)}"
    for name in handlers:
        handler = as_mapping(probe[name])
        if name == "exec" and isinstance(probe[name], Mapping) and not handler.get("command"):
            yield (name,), "has no command", "write command: [sh, -c, …]"
        port = handler.get("port")
        if isinstance(port, int) and not _is_port(port):
            yield (name, "port"), f"checks the port {port}", "write a number between 1 and 65535"
        if isinstance(port, str) and port not in names:
            fix = f"write port: {port}" if port.isdecimal() else "add a port of this name to the container's ports"
            yield (name, "port"), f"checks the port {port!r}, but the container has no port of this name", fix
    if field in _MUST_SUCCEED_ONCE and probe.get("successThreshold") not in (None, 0, 1):
        yield ("successThreshold",), f"has successThreshold {probe['successThreshold']}", "write successThreshold: 1"
    for name in ("periodSeconds", "timeoutSeconds", "failureThreshold", "initialDelaySeconds"):
        value = probe.get(name)
        if isinstance(value, int) and value < 0:
            yield (name,), f"has {name} {value}", "write a number of 0 or more"


def _autoscaler_volumes(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
    place, cluster = cluster_of(document)
    head = as_mapping(as_mapping(as_mapping(cluster.get("headGroupSpec")).get("template")).get("spec"))
    names = [as_mapping(volume).get("name") for volume in as_list(head.get("volumes"))]
    mounts = as_list(as_mapping(cluster.get("autoscalerOptions")).get("volumeMounts"))
    for number, mount in enumerate(mounts):
        name = as_mapping(mount).get("name")
        if isinstance(name, str) and name not in names and name not in _VOLUMES_OF_KUBERAY:
            path = (*place, "autoscalerOptions", "volumeMounts", number, "name")
            message = f"autoscalerOptions mounts {name!r}, but the head has no volume of this name"
            yield Found(path, message, f"add the volume {name!r} to the volumes of the head")


RULES.append(
    Rule(
        "autoscaler-volume-missing",
        "error",
        "The autoscaler runs in the pod of the head, which Kubernetes refuses.",
        f"{VALIDATION} (ValidateVolumeMounts)",
        _autoscaler_volumes,
    )
)
