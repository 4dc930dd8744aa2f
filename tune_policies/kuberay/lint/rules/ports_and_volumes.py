"""Rules of Kubernetes for duplicate names, missing volumes, ports and probes of pods.

They follow ``pkg/apis/core/validation/validation.go`` of Kubernetes. Its definitions do not contain these rules.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.pod_schema import PodTemplate, as_list, as_mapping, cluster_of
from tune_policies.kuberay.lint.rule import Found, Rule
from tune_policies.kuberay.lint.template_rule import VALIDATION, template_rule
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile
from tune_policies.values.wording import shorten, suggest

RULES: Final[list[Rule]] = []


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
    # Initial containers and containers share their names.
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
                # A host port of 0 is the same as none. The container port is required.
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

_PORT_OF_KUBERAY: Final = "metrics"
"""The port that KubeRay adds to Ray's container (``DefaultHeadPodTemplate`` in its ``common/pod.go``)."""

_MUST_SUCCEED_ONCE: Final = ("livenessProbe", "startupProbe")


@template_rule(RULES, "probe-invalid", "error", f"{VALIDATION} (validateProbe, validateHandler)")
def _probe_invalid(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod, or restarts the container because the probe never succeeds."""
    for path, container in template.containers:
        names = [as_mapping(port).get("name") for port in as_list(container.get("ports"))]
        # A probe may name a port that only exists after KubeRay has completed the container.
        if path == template.ray_container_path:
            names.append(_PORT_OF_KUBERAY)
        for field in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = container.get(field)
            if isinstance(probe, Mapping):
                for key, message, fix in _problems_of_probe(field, probe, names):
                    yield Found((*path, field, *key), f"the {field} of {template.name} {message}", fix)


def _problems_of_probe(
    field: str, probe: Mapping[str, Any], names: Sequence[object]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the keys that lead to a problem of a probe, a message that continues the name of the probe, and a fix."""
    # ``validateHandler`` refuses a probe without a handler, and one with several.
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
    # 0 is the same as a missing field, for which Kubernetes uses 1.
    if field in _MUST_SUCCEED_ONCE and probe.get("successThreshold") not in (None, 0, 1):
        yield ("successThreshold",), f"has successThreshold {probe['successThreshold']}", "write successThreshold: 1"
    for name in ("periodSeconds", "timeoutSeconds", "failureThreshold", "initialDelaySeconds"):
        value = probe.get(name)
        if isinstance(value, int) and value < 0:
            yield (name,), f"has {name} {value}", "write a number of 0 or more"


def _autoscaler_volumes(document: Document, _: Sequence[ClusterInFile]) -> Iterator[Found]:
    # KubeRay copies these mounts to the autoscaler's container in the pod of the head, so the volumes must be those of
    # the head.
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
