"""Reads values of KubeRay's chart ``ray-cluster`` as the RayCluster that the chart makes of them.

This follows the chart's template and default values
(https://github.com/ray-project/kuberay/tree/v1.7.0/helm-chart/ray-cluster). Values do not name the version of the
chart, so the defaults are those of 1.6 and 1.7. Older charts give the head 2G, and the groups 1G and at most 3
replicas. The chart has no ``resources`` and ``labels`` of groups, so only ``rayStartParams`` reach Ray.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.reading.kuberay_models import (
    ClusterInFile,
    FieldProblem,
    Metadata,
    RayClusterSpec,
    read_part,
)
from tune_policies.values.value import shorten, suggest

_GROUPS: Final = "additionalWorkerGroups"
_TOP: Final = ("head", "worker", _GROUPS)
_TOP_KEYS: Final = frozenset(
    {*_TOP, "common", "image", "nameOverride", "fullnameOverride", "imagePullSecrets", "gcsFaultTolerance", "service"}
    | {"podDisruptionBudget", "annotations", "labels", "headServiceSuffix"}
)


def _amounts(memory: str) -> dict[str, Any]:
    return {what: {"cpu": "1", "memory": memory} for what in ("limits", "requests")}


_HEAD_DEFAULTS: Final[dict[str, Any]] = {"resources": _amounts("5Gi")}
_GROUP_DEFAULTS: Final[dict[str, Any]] = {"maxReplicas": 5, "resources": _amounts("1Gi")}
_WORKER_DEFAULTS: Final = {"groupName": "workergroup", "replicas": 1, "minReplicas": 1, **_GROUP_DEFAULTS}
_SMALL_GROUP_DEFAULTS: Final = {"disabled": True, "replicas": 0, "minReplicas": 0, **_GROUP_DEFAULTS}

_OF_CLUSTER: Final = ("rayVersion", "enableInTreeAutoscaling", "autoscalerOptions")
"""Fields of the cluster that the chart has under ``head``."""

_OF_GROUP: Final = (
    *("replicas", "minReplicas", "maxReplicas", "numOfHosts", "idleTimeoutSeconds", "suspend", "headService"),
)
_OF_CONTAINER: Final = (
    *("volumeMounts", "resources", "securityContext", "envFrom", "ports", "lifecycle", "command", "args"),
)
_OF_POD: Final = (
    *("nodeSelector", "tolerations", "affinity", "volumes", "restartPolicy", "initContainers", "serviceAccountName"),
    *("priorityClassName", "priority", "dnsConfig", "topologySpreadConstraints", "runtimeClassName", "resourceClaims"),
)
_OTHERS: Final = (
    *("disabled", "groupName", "rayStartParams", "initArgs", "containerEnv", "image", "sidecarContainers"),
    *("podSecurityContext", "labels", "annotations"),
)
_KNOWN: Final = frozenset((*_OF_CLUSTER, *_OF_GROUP, *_OF_CONTAINER, *_OF_POD, *_OTHERS))

_WORKER: Final = "ray-worker"
"""The name of Ray's container in workers."""

_FOR_ZERO: Final = {"maxReplicas": 2147483647, "numOfHosts": 1}
"""What the chart writes for a 0, because Helm's ``default`` replaces it."""

_OF_RAY: Final = frozenset({"groupName", "rayStartParams", "initArgs", "minReplicas", "maxReplicas", "containerEnv"})


class _Group(NamedTuple):
    """A group of the values: its name, its path, and its values with the chart's defaults."""

    name: str
    path: Path
    values: dict[str, Any]


def is_chart_values(data: object) -> bool:
    """Return whether a document is values of the chart. Other charts have a ``worker`` without Ray's keys, too."""
    if not isinstance(data, dict) or "kind" in data:
        return False
    worker = data.get("worker")
    return (
        isinstance(data.get("head"), dict)
        or isinstance(data.get(_GROUPS), dict)
        or (isinstance(worker, dict) and not _OF_RAY.isdisjoint(worker))
    )


def read_chart_values(values: dict[str, Any]) -> tuple[list[ClusterInFile], list[FieldProblem]]:
    """Return the cluster that the chart makes of the values, and the wrong fields."""
    if wrong := _not_mappings(values):
        return [], wrong
    head = _Group("head", ("head",), _merged(_HEAD_DEFAULTS, values.get("head")))
    workers = _workers(values)
    places = _Places(head, workers, _common_env(values))
    spec, problems = read_part(RayClusterSpec, _spec(values, head, workers))
    problems = [FieldProblem(places.of(each.path), each.message) for each in problems]
    if spec is None:
        return [], problems
    names = {"name": values.get("fullnameOverride") or None, "annotations": values.get("annotations")}
    metadata, wrong = read_part(Metadata, {**names, "labels": values.get("labels")})
    return [ClusterInFile("values", metadata or Metadata(), spec, places.of)], [*problems, *wrong]


def _not_mappings(values: dict[str, Any]) -> list[FieldProblem]:
    groups = values.get(_GROUPS)
    parts: list[tuple[Path, object]] = [((key,), values.get(key)) for key in (*_TOP, "common", "image")]
    if isinstance(groups, dict):
        parts += [((_GROUPS, name), group) for name, group in groups.items()]
    return [
        FieldProblem(path, f"{path[-1]} must be a mapping, got {shorten(part)}")
        for path, part in parts
        if part is not None and not isinstance(part, dict)
    ]


def _workers(values: dict[str, Any]) -> list[_Group]:
    """Return the enabled groups in the order of the chart."""
    more = values.get(_GROUPS) or {}
    defaults = {"smallGroup": _SMALL_GROUP_DEFAULTS}
    groups = [_Group(name, (_GROUPS, name), _merged(defaults.get(name, {}), more[name])) for name in sorted(more)]
    worker = _merged(_WORKER_DEFAULTS, values.get("worker"))
    groups.append(_Group(worker.get("groupName", ""), ("worker",), worker))
    return [group for group in groups if group.values.get("disabled") is not True]


def _merged(defaults: dict[str, Any], given: object) -> dict[str, Any]:
    """Return the values as Helm merges them: mappings by key, with a null to drop a default."""
    if not isinstance(given, dict):
        return defaults
    found = dict(defaults)
    for key, value in given.items():
        is_deep = isinstance(value, dict) and isinstance(defaults.get(key), dict)
        found[key] = _merged(defaults[key], value) if is_deep else value
    return {key: value for key, value in found.items() if value is not None}


def _spec(values: dict[str, Any], head: _Group, workers: list[_Group]) -> dict[str, Any]:
    of_cluster: dict[str, Any] = {key: head.values[key] for key in _OF_CLUSTER if key in head.values}
    return {
        **of_cluster,
        "headGroupSpec": _group_spec(values, head, "ray-head"),
        "workerGroupSpecs": [{**_group_spec(values, group, _WORKER), "groupName": group.name} for group in workers],
    }


def _group_spec(values: dict[str, Any], group: _Group, container_name: str) -> dict[str, Any]:
    of = group.values
    container: dict[str, Any] = {key: of[key] for key in _OF_CONTAINER if key in of}
    container["name"] = container_name
    image = of.get("image") or values.get("image") or {}
    if isinstance(image, dict) and {"repository", "tag"} <= image.keys():
        container["image"] = f"{image['repository']}:{image['tag']}"
    own = of.get("containerEnv", [])
    container["env"] = [*_common_env(values), *own] if isinstance(own, list) else own
    sidecars = of.get("sidecarContainers") or []
    pod: dict[str, Any] = {key: of[key] for key in _OF_POD if key in of}
    if of.get("restartPolicy") == "":
        del pod["restartPolicy"]
    sizes: dict[str, Any] = {key: _unquoted(of[key]) for key in _OF_GROUP if key in of}
    sizes |= {key: value for key, value in _FOR_ZERO.items() if container_name == _WORKER and sizes.get(key) == 0}
    pod["containers"] = [container, *(sidecars if isinstance(sidecars, list) else [])]
    return {
        **sizes,
        "rayStartParams": _start_params(of),
        "template": {"metadata": {key: of.get(key) for key in ("labels", "annotations")}, "spec": pod},
    }


def _unquoted(value: Any) -> Any:
    # The chart writes counts without quotes.
    return int(value) if isinstance(value, str) and value.isdecimal() and value.isascii() else value


def _start_params(of: dict[str, Any]) -> Any:
    given = [of.get(key) or {} for key in ("rayStartParams", "initArgs")]  # the second is the old name of the first
    if not all(isinstance(params, dict) for params in given):
        return of.get("rayStartParams")
    # The chart quotes each of them.
    return {
        key: json.dumps(value) if isinstance(value, int | float) else value
        for params in given
        for key, value in params.items()
    }


def _common_env(values: dict[str, Any]) -> list[Any]:
    found = (values.get("common") or {}).get("containerEnv")
    return found if isinstance(found, list) else []


def unknown_keys(values: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the keys of groups that the chart does not read, and keys at the top that are nearly one of its own.

    Other charts may have values at the top.
    """
    for key in values.keys() - _TOP_KEYS:
        if near := suggest(key, _TOP_KEYS):
            yield (key,), near
    more = values.get(_GROUPS)
    places: list[tuple[Path, Any]] = [((key,), values.get(key)) for key in ("head", "worker")]
    places += [((_GROUPS, name), group) for name, group in (more.items() if isinstance(more, dict) else ())]
    for path, group in places:
        for key in group if isinstance(group, dict) else ():
            if key not in _KNOWN:
                yield (*path, key), suggest(key, _KNOWN)


class _Places:
    """The paths in the values from which the parts of the RayCluster come."""

    def __init__(self, head: _Group, workers: list[_Group], common_env: list[Any]) -> None:
        self._of: dict[Path, Path] = {
            ("workerGroupSpecs",): (_GROUPS,),
            **{(key,): ("head", key) for key in _OF_CLUSTER},
        }
        self._add(("headGroupSpec",), head, common_env)
        for number, group in enumerate(workers):
            self._add(("workerGroupSpecs", number), group, common_env)

    def of(self, part: Path) -> Path:
        """Return the path in the values of a part of the cluster's ``spec``."""
        for end in range(len(part), 0, -1):
            if (place := self._of.get(part[:end])) is not None:
                return (*place, *part[end:])
        return part

    def _add(self, top: Path, group: _Group, common_env: list[Any]) -> None:
        path, pod, num_common = group.path, (*top, "template", "spec"), len(common_env)
        ray = (*pod, "containers", 0)
        own_env, sidecars = group.values.get("containerEnv"), group.values.get("sidecarContainers")
        params = "initArgs" if "rayStartParams" not in group.values and "initArgs" in group.values else "rayStartParams"
        self._of |= dict.fromkeys((top, pod[:-1], pod, (*top, "template", "metadata"), (*pod, "containers"), ray), path)
        self._of |= {
            (*pod, "securityContext"): (*path, "podSecurityContext"),
            (*ray, "image"): (*path, "image", "tag") if group.values.get("image") else ("image", "tag"),
            (*ray, "env"): (*path, "containerEnv"),
            (*top, "rayStartParams"): (*path, params),
            # The chart has no fields for these.
            (*top, "resources"): (*path, "rayStartParams", "resources"),
            (*top, "labels"): (*path, "rayStartParams", "labels"),
        }
        if path[0] == _GROUPS:
            self._of[*top, "groupName"] = path
        for number in range(num_common):
            self._of[*ray, "env", number] = ("common", "containerEnv", number)
        for number in range(len(own_env) + 1 if isinstance(own_env, list) else 1):  # also the place to add one
            self._of[*ray, "env", num_common + number] = (*path, "containerEnv", number)
        for number in range(len(sidecars) if isinstance(sidecars, list) else 0):
            self._of[*pod, "containers", number + 1] = (*path, "sidecarContainers", number)
