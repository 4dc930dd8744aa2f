"""Rules for whole documents: field names with a typo, values of Ray's retired operator, and drivers of jobs.

The API server refuses an unknown field or drops it without an error. Only the official definitions list all fields. But
a name that is nearly one of the fields below, which decide what Ray sees of a cluster, is wrong in any case. No field
of the official definitions is reported as a typo.
"""

import difflib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Final, TypeAlias, Union, get_args

from tune_policies.files.plain_data import parse_json
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.lint.rule import (
    RAY_CLUSTER,
    RAY_CRON_JOB,
    RAY_JOB,
    RAY_SERVICE,
    RETIRED_VALUES,
    VALUES,
    Found,
    RuleBook,
    document_type,
)
from tune_policies.kuberay.lint.rules.cluster_parts import API, Group, at, exact, groups_of, mapping
from tune_policies.kuberay.lint.rules.devices import has_other_gpus
from tune_policies.kuberay.reading.chart_values import unknown_keys
from tune_policies.kuberay.reading.documents import clusters_in
from tune_policies.kuberay.reading.kuberay_models import (
    AutoscalerOptions,
    ClusterInFile,
    Container,
    ContainerResources,
    HeadGroup,
    Part,
    PodSpec,
    RayClusterSpec,
    Toleration,
    WorkerGroupSpec,
)
from tune_policies.kuberay.reading.ray_counts import quoted_amounts, ray_counts
from tune_policies.kuberay.writing.block_yaml import dump
from tune_policies.values.errors import InvalidResourcesError

RULES: Final = RuleBook()

_NEAR: Final = 0.88
"""The similarity of two names that differ by a typo: an ending, an additional letter, or two that changed places."""

_Fields: TypeAlias = Mapping[str, Union[type[Part], "_Fields", None]]
"""The known fields of a part, each with the type of its own parts."""

_OTHER_FIELDS: Final[dict[type[Part], tuple[str, ...]]] = {
    AutoscalerOptions: ("resources", "env", "envFrom", "upscalingMode"),
    Container: ("command", "args", "volumeMounts", "envFrom", "ports", "lifecycle"),
    ContainerResources: ("claims",),
    PodSpec: (
        *("affinity", "volumes", "initContainers", "serviceAccountName", "priorityClassName", "imagePullSecrets"),
    ),
    Toleration: ("tolerationSeconds",),
    WorkerGroupSpec: ("scaleStrategy", "priority"),
}
"""Fields that the models do not declare."""

_JOB: Final[_Fields] = {
    **dict.fromkeys(("entrypoint", "runtimeEnvYAML", "submissionMode", "clusterSelector", "shutdownAfterJobFinishes")),
    **dict.fromkeys(("ttlSecondsAfterFinished", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources")),
    **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "submitterPodTemplate", "suspend")),
    "rayClusterSpec": RayClusterSpec,
}
_SPECS: Final[dict[str, type[Part] | _Fields]] = {
    RAY_CLUSTER: RayClusterSpec,
    RAY_JOB: _JOB,
    RAY_CRON_JOB: {"schedule": None, "suspend": None, "jobTemplate": _JOB},
    RAY_SERVICE: {"serveConfigV2": None, "rayClusterConfig": RayClusterSpec},
}


def misspelled_fields(manifest: Document) -> Iterator[tuple[Path, str]]:
    """Yield the path of each field with a typo, and a message that names the field that is meant."""
    spec = _SPECS.get(document_type(manifest) or "")
    if spec is not None:
        yield from _misspelled(manifest.data.get("spec"), spec, ("spec",))


def _misspelled(data: Any, part: type[Part] | _Fields, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, list):
        for number, each in enumerate(data):
            yield from _misspelled(each, part, (*path, number))
    elif isinstance(data, Mapping):
        fields = _fields_of(part) if isinstance(part, type) else part
        for key, value in data.items():
            if (inner := fields.get(key)) is not None:
                yield from _misspelled(value, inner, (*path, key))
            elif key not in fields and (meant := _meant(key, fields)):
                yield (*path, key), f"unknown field {key!r}; did you mean {meant!r}?"


@cache
def _fields_of(model: type[Part]) -> _Fields:
    fields: dict[str, type[Part] | None] = dict.fromkeys(_OTHER_FIELDS.get(model, ()))
    for name, field in model.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        fields[name] = next((each for each in types if isinstance(each, type) and issubclass(each, Part)), None)
    return fields


def _meant(name: str, fields: _Fields) -> str | None:
    by_plain = {_plain(field): field for field in sorted(fields)}
    near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=_NEAR)
    return by_plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@RULES.of_documents(
    (VALUES,), "chart-key-unknown", "note", "https://github.com/ray-project/kuberay/tree/v1.7.0/helm-chart/ray-cluster"
)
def _unknown_key(document: Document) -> Iterator[Found]:
    """Helm ignores values that no template names. This rule knows the keys of the chart's versions up to 1.7."""
    for path, near in unknown_keys(document.data):
        yield Found(path, f"{path[-1]} is nothing that the chart reads{near}", "leave it out, or correct the name")


_MOVED: Final = {
    "headPodType": "write the values of this pod type under head",
    "idleTimeoutMinutes": "write the seconds as idleTimeoutSeconds under head, autoscalerOptions",
    "upscalingSpeed": "write upscalingMode: Default or Aggressive under head, autoscalerOptions",
    **dict.fromkeys(
        ("operatorOnly", "clusterOnly", "namespacedOperator", "operatorNamespace", "operatorImage"),
        "leave it out: the chart kuberay-operator installs KubeRay's operator",
    ),
}
"""What replaces other values of the retired chart."""


@RULES.of_documents(
    (RETIRED_VALUES, VALUES, RAY_CLUSTER),
    "retired-operator",
    "error",
    "KubeRay vs. the Legacy Ray Operator, a page of Ray's documentation up to 2.2",
)
def _retired_operator(document: Document) -> Iterator[Found]:
    """KubeRay has replaced Ray's own operator, and reads none of its fields."""
    data = document.data
    if document_type(document) == RAY_CLUSTER:
        if mapping(data.get("spec")).get("podTypes"):
            message = "podTypes are of Ray's retired operator (cluster.ray.io)"
            fix = "write headGroupSpec and workerGroupSpecs, with minReplicas, maxReplicas and a pod template in each"
            yield Found(("spec", "podTypes"), message, fix)
        return
    types = mapping(data.get("podTypes"))
    head = data.get("headPodType", "rayHeadType")
    for name, values in types.items():
        place = "head" if name == head else f"additionalWorkerGroups.{name}"
        group = dump(_as_group(mapping(values), is_head=name == head), is_flow=True)
        yield Found(
            ("podTypes", name),
            f"the pod type {name!r} is of the chart of Ray's retired operator",
            f"use KubeRay's chart ray-cluster, and write {place}: {group}",
        )
    for key in sorted(_MOVED.keys() & data.keys()) if types else ():
        yield Found((key,), f"{key} is of the chart of Ray's retired operator", _MOVED[key])
    more = mapping(data.get("additionalWorkerGroups"))
    for path in (("head",), ("worker",), *(("additionalWorkerGroups", name) for name in more)):
        if (amounts := mapping(at(data, path)).get("rayResources")) is not None:
            fix = f"write rayStartParams: {dump(_start_params(mapping(amounts)), is_flow=True)}"
            yield Found((*path, "rayResources"), "rayResources is of the chart of Ray's retired operator", fix)


def _as_group(values: Mapping[str, Any], *, is_head: bool) -> dict[str, Any]:
    """Return the values of a group in KubeRay's chart for a pod type of the retired chart."""
    keys = {"CPU": "cpu", "memory": "memory", "GPU": "nvidia.com/gpu"}
    amounts = {key: values[name] for name, key in keys.items() if values.get(name)}
    least = values.get("minWorkers", 0)
    numbers = {"replicas": least, "minReplicas": least, "maxReplicas": values.get("maxWorkers", least)}
    return {
        **({"enableInTreeAutoscaling": True} if is_head else {"disabled": False, **numbers}),
        "rayStartParams": _start_params(mapping(values.get("rayResources"))),
        "resources": {"limits": amounts, "requests": amounts},
        **{name: values[name] for name in ("nodeSelector", "tolerations") if values.get(name)},
    }


def _start_params(amounts: Mapping[str, Any]) -> dict[str, str]:
    names = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "memory"}
    custom = {name: each for name, each in amounts.items() if name not in names and isinstance(each, int)}
    params = {names[name]: str(each) for name, each in amounts.items() if name in names}
    return params | ({"resources": quoted_amounts(custom)} if custom else {})


@RULES.of_documents(
    (RAY_JOB, RAY_CRON_JOB), "job-entrypoint-too-large", "error", f"{API} (RayJobSpec.entrypointNumGpus)"
)
def _entrypoint_too_large(document: Document) -> Iterator[Found]:
    """The job waits indefinitely for a node with room for its driver, and no trial starts."""
    path: Path = ("spec", "jobTemplate") if document_type(document) == RAY_CRON_JOB else ("spec",)
    job = mapping(at(document.data, path))
    fields = {"CPU": "entrypointNumCpus", "GPU": "entrypointNumGpus"}
    given = job.get("entrypointResources")
    try:
        custom = mapping(parse_json(given)) if isinstance(given, str) else {}
    except ValueError:
        custom = {}  # the operator reports it
    asked = {
        name: Fraction(amount)
        for name, amount in {**{name: job.get(field) for name, field in fields.items()}, **custom}.items()
        # Ray adds resources with such names when a node starts.
        if ":" not in name and not name.endswith("-head")
        if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < 2**60
    }
    for cluster in clusters_in(document)[0] if asked else ():
        if short := _short_of(asked, cluster):
            field = next((field for name, field in fields.items() if name in asked), "entrypointResources")
            amounts = ", ".join(f"{float(amount):g} {name}" for name, amount in asked.items())
            fix = "request at most what one node has for the driver: trials request their own resources"
            yield Found((*path, field), f"the entrypoint requests {amounts}, and {short}", fix)


def _short_of(asked: Mapping[str, Fraction], cluster: ClusterInFile) -> str | None:
    """Return which amount no node has, or ``None`` if a node has all amounts or some nodes are unknown."""
    nodes = [_node(group) for group in groups_of(cluster)]
    known = [node for node in nodes if node is not None]
    if len(known) < len(nodes) or any(all(node.get(name, 0) >= asked[name] for name in asked) for node in known):
        return None
    for name, amount in asked.items():
        most = max(node.get(name, Fraction(0)) for node in known)
        if most < amount:
            return f"no node has more than {float(most):g} {name}"
    return "no node has all of it"


def _node(group: Group[HeadGroup]) -> dict[str, Fraction] | None:
    """Return the most that Ray counts on a node of a group, or ``None`` if unknown."""
    shows_gpus = group.environment.get("NVIDIA_VISIBLE_DEVICES") or group.pod.runtimeClassName
    try:
        found = {name: Fraction(amount) for name, amount in ray_counts(group.spec).items()}
    except InvalidResourcesError:
        return None
    if "GPU" not in found and (has_other_gpus(group) or (shows_gpus and shows_gpus not in ("void", "none"))):
        return None
    for key, amount in group.devices.items():  # Ray may detect devices that the autoscaler does not count
        resource = ray_resource(key)
        if resource is not None and resource not in found:
            found[resource] = exact(amount) or Fraction(0)
    return found
