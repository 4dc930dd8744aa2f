"""Rules for CPUs, host memory and ``rayStartParams``."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tune_policies.files.plain_data import parse_json
from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.lint.cluster_parts import (
    READER,
    START,
    VALIDATION,
    Group,
    exact,
    extra,
    groups_of,
    workers_of,
)
from tune_policies.kuberay.lint.pod_schema import as_list, as_mapping
from tune_policies.kuberay.lint.rule import Found, RuleBook
from tune_policies.kuberay.lint.template_rule import is_filled_in_later
from tune_policies.kuberay.reading.kuberay_models import HeadGroup, WorkerGroupSpec
from tune_policies.kuberay.reading.kubernetes_quantities import Quantity
from tune_policies.values.wording import shorten

RULES: Final = RuleBook()

_SHM: Final = "/dev/shm"  # noqa: S108 - a path in the pods

_WHOLE: Final = ("num-cpus", "num-gpus", "memory", "object-store-memory")


@RULES.of_each(groups_of, "cpus-missing", "error", f"{READER} (_get_num_cpus)")
def _cpus_missing(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's autoscaler stops with the error: Autoscaler failed to detect `CPU` resources."""
    if at.is_autoscaling and _counted_cpus(at) is None:
        fix = "set limits.cpu of the first container, or resources.CPU of the group"
        yield Found((*at.container_path, "resources"), f"the number of CPUs of {at} is missing", fix)


def _counted_cpus(at: Group[HeadGroup]) -> tuple[Path, Quantity] | None:
    """Return the path and the number of the CPUs that Ray's autoscaler counts, or ``None`` if the number is missing."""
    stated = at.amount("CPU", "num-cpus")
    if stated is not None:
        return stated
    asked = {**at.container.resources.requests, **at.container.resources.limits}
    if "cpu" in asked:
        return (at.key_path("cpu"), asked["cpu"])
    return None


@RULES.of_each(groups_of, "start-param-not-whole", "error", f"{READER} (_get_num_cpus, _get_num_gpus, _get_memory)")
def _not_whole(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's autoscaler and ray start expect a whole number and fail otherwise."""
    for name in _WHOLE:
        value = at.spec.rayStartParams.get(name)
        if value is None or _is_whole(value):
            continue
        # The shell of the pod replaces variables before `ray start`, but the autoscaler reads the manifest itself.
        if at.is_autoscaling or not is_filled_in_later(value):
            message = f"{at} has {name} {value!r}, which is not a whole number"
            fix = "write a whole number of bytes" if "memory" in name else 'write a whole number, such as "4"'
            yield Found((*at.path, "rayStartParams", name), message, fix)


def _is_whole(text: str) -> bool:
    try:
        return int(text) >= 0
    except ValueError:
        return False


START_PARAMS: Final = (
    *("address", "block", "dashboard-agent-grpc-port", "dashboard-agent-listen-port"),
    *(
        "dashboard-host",
        "dashboard-port",
        "disable-usage-stats",
        "enable-object-reconstruction",
        "head",
        "include-dashboard",
    ),
    *("labels", "labels-file", "max-worker-port", "memory", "metrics-export-port", "min-worker-port", "no-monitor"),
    *("node-ip-address", "node-manager-port", "node-name", "num-cpus", "num-gpus", "object-manager-port"),
    *("object-spilling-directory", "object-store-memory", "plasma-directory", "port", "ray-client-server-port"),
    *("ray-debugger-external", "redis-password", "redis-username", "resources", "runtime-env-agent-port"),
    *("system-config", "temp-dir", "worker-port-list"),
)
"""The options of ``ray start`` that clusters on Kubernetes use."""

_REMOVED_PARAMS: Final = ("dashboard-grpc-port",)
"""Options that ``ray start`` had before Ray 2.50 (https://github.com/ray-project/ray/pull/51956)."""

_NEAR_PARAM: Final = 0.85


@RULES.of_each(groups_of, "start-param-misspelled", "error", "ray.scripts.scripts.start")
def _param_misspelled(at: Group[HeadGroup]) -> Iterator[Found]:
    """KubeRay passes each parameter to ray start, which fails if it does not know an option."""
    for name in at.spec.rayStartParams:
        if name in _REMOVED_PARAMS:
            message = f"{at} has the rayStartParams {name!r}, which ray start no longer has"
            yield Found((*at.path, "rayStartParams", name), message, f"remove {name}")
            continue
        # ``numCpus``, ``num_cpus`` and ``--num-cpus`` all become ``num-cpus``.
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lstrip("-").replace("_", "-").lower()
        near = difflib.get_close_matches(plain, START_PARAMS, n=1, cutoff=_NEAR_PARAM)
        # A name unlike all of these may be an option of another version of Ray.
        if near and name not in START_PARAMS:
            message = f"{at} has the unknown rayStartParams {name!r}; did you mean {near[0]!r}?"
            fix = _LABELS_FIX if near[0] == "labels" else f"write {near[0]}"
            yield Found((*at.path, "rayStartParams", name), message, fix)


_LABELS_FIX: Final = "write the labels as a mapping in the field labels, next to rayStartParams"


@RULES.of_each(groups_of, "start-param-labels", "error", f"{VALIDATION} (validateRayGroupLabels)")
def _labels_in_params(at: Group[HeadGroup]) -> Iterator[Found]:
    """KubeRay refuses the cluster, because a group has a field for its labels, which the autoscaler reads."""
    if "labels" in at.spec.rayStartParams:
        yield Found((*at.path, "rayStartParams", "labels"), f"{at} has labels in rayStartParams", _LABELS_FIX)


@RULES.of_each(groups_of, "start-param-resources", "error", f"{READER} (_get_custom_resources)")
def _resources_quoted(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's autoscaler and the pod's shell each remove one pair of quotes before Ray reads the JSON."""
    text = at.spec.rayStartParams.get("resources")
    # Without an autoscaler, only the pod's shell removes quotes, and variants with one pair work.
    if text is None or not at.is_autoscaling:
        return
    problem = _problem_of_resources(text)
    if problem is None:
        return
    yield Found(
        (*at.path, "rayStartParams", "resources"),
        f"{at} has the rayStartParams resources {shorten(text)}: {problem}",
        "use the group's field resources (KubeRay 1.5 and later), or write a JSON mapping of names to whole numbers "
        'in two pairs of quotes: \'"{\\"Custom\\": 1}"\'',
    )


def _problem_of_resources(text: str) -> str | None:
    """Return why Ray's autoscaler cannot read ``text``, or ``None`` if it can.

    The autoscaler first removes the first and the last character and all backslashes.
    """
    try:
        found = parse_json(text[1:-1].replace("\\", ""))
    except ValueError:
        return "Ray's autoscaler cannot read this text"
    if not isinstance(found, dict):
        return "it is not a mapping"
    wrong = [f"{key} is {value!r}" for key, value in found.items() if not _is_amount(value)]
    if wrong:
        return f"amounts must be whole numbers of 0 or more, but {wrong[0]}"
    return None


def _is_amount(value: object) -> bool:
    # In Python, ``True`` is an ``int``, but JSON's ``true`` is no amount.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_CONFIG: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html#resources"


@RULES.of_each(groups_of, "cpus-rounded-up", "warning", f"{READER} (_round_up_k8s_quantity)")
def _cpus_rounded_up(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray rounds CPUs up to whole numbers, so trials share fewer CPUs than Ray counts."""
    path, amount = _counted_cpus(at) or ((), None)
    cpus = exact(amount)
    if cpus is not None and path[-1] != "num-cpus" and cpus.denominator != 1:
        yield Found(path, f"{at} has {amount} CPUs, which Ray counts as {math.ceil(cpus)}", "write whole CPUs")


@RULES.of_each(workers_of, "memory-not-reserved", "note", _CONFIG)
def _memory_not_reserved(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """If a node runs out of memory, Kubernetes first kills pods that use more memory than they requested."""
    resources = at.container.resources
    limit, request = resources.limits.get("memory"), resources.requests.get("memory")
    most, least = exact(limit), exact(request)
    # A missing request is no problem, because Kubernetes then requests the limit.
    if most is not None and least is not None and least < most:
        message = f"Ray counts {limit} of memory in {at}, but Kubernetes reserves only {request}"
        path = (*at.container_path, "resources", "requests", "memory")
        yield Found(path, message, f'request memory: "{limit}" too')


@RULES.of_each(workers_of, "memory-missing", "note", _CONFIG)
def _memory_missing(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """Ray counts the whole memory of the node, although other pods on the node use it too."""
    asked = at.container.resources
    if at.devices and not at.amount("memory", "memory") and "memory" not in {**asked.limits, **asked.requests}:
        path = (*at.container_path, "resources")
        yield Found(path, f"{at} has no memory limit", "write the memory under limits and requests")


@RULES.of_each(workers_of, "workers-without-cpus", "warning", START)
def _workers_without_cpus(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """A trial requests one CPU by default, so it never runs on these nodes, even if it needs the GPUs."""
    stated = at.amount("CPU", "num-cpus")
    if stated is not None and exact(stated[1]) == 0:
        fix = "remove this amount, because 0 is only useful for a head that should not run trials"
        yield Found(stated[0], f"{at} has 0 CPUs for Ray", fix)


def _shared_memory(at: Group[HeadGroup]) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the path and the fields of the ``emptyDir`` at ``/dev/shm``, or ``None`` if KubeRay mounts the volume."""
    mounts = map(as_mapping, as_list(extra(at.container, "volumeMounts")))
    names = [mount.get("name") for mount in mounts if str(mount.get("mountPath")).rstrip("/") == _SHM]
    volumes = map(as_mapping, as_list(extra(at.pod, "volumes")))
    for number, volume in enumerate(volumes):
        # Other kinds of volumes, such as a claim, are the user's choice.
        if names and volume.get("name") == names[0] and "emptyDir" in volume:
            return (*at.pod_path, "volumes", number), as_mapping(volume["emptyDir"])
    return None


@RULES.of_each(groups_of, "shm-on-disk", "warning", "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir")
def _shm_on_disk(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's object store and PyTorch's data loaders exchange data through /dev/shm, which is slow on a disk."""
    volume = _shared_memory(at)
    # The rule about invalid fields reports another spelling.
    if volume is not None and str(volume[1].get("medium")).lower() != "memory":
        message = f"{_SHM} of {at} is an emptyDir without medium: Memory, so it is on the node's disk"
        fix = "write emptyDir: {medium: Memory}, or remove the volume and its mount, because KubeRay adds both"
        yield Found(volume[0], message, fix)
