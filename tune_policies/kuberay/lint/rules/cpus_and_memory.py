"""Rules for CPUs, host memory and ``rayStartParams``: what Ray counts, and what Kubernetes keeps."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from tune_policies.files.plain_data import parse_json
from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import (
    READER,
    START,
    VALIDATION,
    Group,
    exact,
    extra,
    groups_of,
    is_autoscaling,
    mapping,
    workers_of,
)
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup, Quantity
from tune_policies.kuberay.manifests.shell_quoting import is_resource_name, quoted_amounts
from tune_policies.kuberay.manifests.start_command import read_start_resources
from tune_policies.values.value import shorten, suggest

_SHM: Final = "/dev/shm"  # noqa: S108 - a place in the pods

_ALLOWS_SLOW: Final = "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"

_WHOLE = ("num-cpus", "num-gpus", "memory", "object-store-memory")

OPTIONS = frozenset(
    {"address", "autoscaling-config", "block", "cgroup-path", "dashboard-agent-grpc-port"}
    | {"dashboard-agent-listen-port", "dashboard-host", "dashboard-port", "disable-usage-stats"}
    | {"enable-object-reconstruction", "enable-resource-isolation", "head", "include-dashboard"}
    | {"include-log-monitor", "labels", "labels-file", "log-color", "log-style", "max-worker-port", "memory"}
    | {"metrics-export-port", "min-worker-port", "no-monitor", "no-redirect-output", "node-ip-address"}
    | {"node-manager-port", "node-name", "num-cpus", "num-gpus", "object-manager-port", "object-spilling-directory"}
    | {"object-store-memory", "plasma-directory", "port", "proxy-server-url", "ray-client-server-port"}
    | {"ray-debugger-external", "redis-password", "redis-shard-ports", "redis-username", "resources"}
    | {"runtime-env-agent-port", "system-config", "system-reserved-cpu", "system-reserved-memory", "temp-dir"}
    | {"tracing-startup-hook", "verbose", "worker-port-list"}
)
"""All options of ``ray start``, those that its help hides too, of Ray 2.50 to 2.60."""


def _no_cpus(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec) if is_autoscaling(cluster.spec) else ():
        amounts = group.container.resources
        is_said = "CPU" in group.spec.resources or "num-cpus" in group.spec.rayStartParams
        if not is_said and "cpu" not in amounts.limits and "cpu" not in amounts.requests:
            yield Found(
                (*group.container_path, "resources"),
                f"{group.name} says nowhere how many CPUs it has",
                "give the first container a limit for cpu, or the group resources.CPU",
            )


def _not_whole(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        for name in _WHOLE:
            value = group.spec.rayStartParams.get(name)
            if value is not None and not _is_whole(value):
                yield Found(
                    (*group.path, "rayStartParams", name),
                    f"{group.name} has {name} {value!r}, which is no whole number",
                    "write a whole number of bytes" if "memory" in name else 'write a whole number, such as "4"',
                )


def _is_whole(text: str) -> bool:
    try:
        return int(text) >= 0
    except ValueError:
        return False


def _resources_quoted(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        text = group.spec.rayStartParams.get("resources")
        if text is None or (problem := _problem_of_resources(text, is_autoscaling(cluster.spec))) is None:
            continue
        where = (*group.path, "rayStartParams", "resources")
        amounts = _plain_amounts(text)
        right = None if amounts is None else quoted_amounts(amounts)
        yield Found(
            where,
            f"{group.name} has the resources {shorten(text)}: {problem}",
            "write the group's resources beside rayStartParams (KubeRay 1.5 and later), or a mapping to whole numbers "
            'in JSON with two pairs of quotes: \'"{\\"Custom\\": 1}"\'',
            () if right is None else (Edit(where, right),),
            is_safe=True,
        )


def _problem_of_resources(text: str, has_autoscaler: bool) -> str | None:
    """Read it as Ray's autoscaler does: without its first and last character, and without backslashes.

    Without an autoscaler only the shell and ``ray start`` read it.
    """
    if not has_autoscaler:
        return None if read_start_resources(text) is not None else "the shell and ray start make nothing of it"
    try:
        found = parse_json(text[1:-1].replace("\\", ""))
    except ValueError:
        return "Ray's autoscaler cannot read it"
    if not isinstance(found, dict):
        return "it is no mapping"
    wrong = [f"{key} is {value!r}" for key, value in found.items() if not _is_amount(value)]
    return f"amounts must be whole and not negative, but {wrong[0]}" if wrong else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _plain_amounts(text: str) -> dict[str, int] | None:
    """Return what is meant where only the outer pair of quotes is missing, and no name could be a command."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    is_sound = isinstance(found, dict) and all(map(_is_amount, found.values())) and all(map(is_resource_name, found))
    return found if is_sound else None


def _unknown(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        for name in group.spec.rayStartParams:
            if name not in OPTIONS:
                yield Found(
                    (*group.path, "rayStartParams", name),
                    f"{group.name} has {name!r} in rayStartParams{suggest(name.replace('_', '-'), OPTIONS)}",
                    "write an option of ray start without its dashes in front",
                )


_COUNTED = ("num-cpus", "num-gpus", "memory", "resources")


def _resources_twice(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in groups_of(cluster.spec):
        if group.resources and (said := [key for key in _COUNTED if group.rayStartParams.get(key)]):
            yield Found(
                (*path, "rayStartParams", said[0]),
                f"{name} has resources and also rayStartParams {', '.join(said)}",
                "keep one of the two: resources, from KubeRay 1.5 on",
            )


_CONFIG: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html#resources"

_READER: Final = "_round_up_k8s_quantity in ray.autoscaler._private.kuberay.autoscaling_config"

_STORE_AT_MOST: Final = 0.8
"""More of a node's memory than this is none left for trials; Ray's own default is 0.3."""


def _counted_cpus(at: Group[HeadGroup]) -> tuple[Path, Quantity] | None:
    """Return what Ray counts CPUs by, as its reader does."""
    if told := at.amount("CPU", "num-cpus"):
        return told
    for section, amounts in (("limits", at.container.resources.limits), ("requests", at.container.resources.requests)):
        if "cpu" in amounts:
            return (*at.container_path, "resources", section, "cpu"), amounts["cpu"]
    return None


def _cpus_rounded_up(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        if counted := _counted_cpus(at):
            path, amount = counted
            if path[-1] != "num-cpus" and (cpus := exact(amount)) is not None and cpus.denominator != 1:
                yield Found(
                    path,
                    f"Ray counts {-(-cpus // 1)} for the CPUs of {at.name}, which has {amount}",
                    "give whole CPUs",
                )


def _memory_not_kept(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        limit = at.container.resources.limits.get("memory")
        request = at.container.resources.requests.get("memory")
        most, least = exact(limit), exact(request)
        if most is not None and least is not None and least < most:
            yield Found(
                (*at.container_path, "resources", "requests", "memory"),
                f"Ray counts {limit} of memory in {at.name}, of which Kubernetes keeps {request}",
                f'request memory: "{limit}" too',
            )


def _memory_not_told(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        asked = at.container.resources
        is_told = at.amount("memory", "memory") or "memory" in {**asked.limits, **asked.requests}
        if at.devices and not is_told:
            yield Found(
                (*at.container_path, "resources"),
                f"{at.name} has no limit of memory",
                "write the memory under limits and requests",
            )


def _store_too_large(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        store = exact(at.spec.rayStartParams.get("object-store-memory"))
        limit = at.container.resources.limits.get("memory")
        memory = exact(limit)
        if store is not None and memory is not None and store > _STORE_AT_MOST * float(memory):
            yield Found(
                (*at.path, "rayStartParams", "object-store-memory"),
                f"the object store of {at.name} may take {int(store):,} bytes of its {limit}",
                f"give it {int(memory * 3 / 10)} bytes or so, or leave it to Ray",
            )


def _request_above_limit(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for path, limits, requests in _amounts_of_containers(at):
            for key in sorted(key for key in limits.keys() & requests.keys() if ray_resource(key) is None):
                most, asked = exact(limits[key]), exact(requests[key])
                if most is not None and asked is not None and asked > most:
                    yield Found(
                        (*path, "resources", "requests", key),
                        f"{at.name} requests {requests[key]} {key} with a limit of {limits[key]}",
                        "raise the limit, or lower the request",
                    )


def _amounts_of_containers(at: Group[HeadGroup]) -> Iterator[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield where each container of a pod stands, with its limits and its requests; also those that run first."""
    for number, container in enumerate(at.pod.containers):
        yield (*at.pod_path, "containers", number), container.resources.limits, container.resources.requests
    first = extra(at.pod, "initContainers")
    for number, each in enumerate(first if isinstance(first, list) else ()):
        asked = mapping(mapping(each).get("resources"))
        limits, requests = (_readable(asked.get(section)) for section in ("limits", "requests"))
        yield (*at.pod_path, "initContainers", number), limits, requests


def _readable(amounts: object) -> Mapping[str, Any]:
    """Return the amounts that may be quantities, where no model has checked them."""
    return {
        key: amount
        for key, amount in mapping(amounts).items()
        if isinstance(key, str) and isinstance(amount, str | int | float) and not isinstance(amount, bool)
    }


def _workers_without_cpus(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        told = at.amount("CPU", "num-cpus")
        if told is not None and exact(told[1]) == 0:
            yield Found(
                told[0],
                f"{at.name} tells Ray of no CPUs",
                "leave it out: 0 is for the head, which is to take no trials",
            )


def _shared_memory(at: Group[HeadGroup]) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the volume that a group mounts at ``/dev/shm``, where it is an ``emptyDir``; KubeRay mounts one else."""
    mounts = extra(at.container, "volumeMounts")
    names = [
        mapping(each).get("name")
        for each in (mounts if isinstance(mounts, list) else ())
        if str(mapping(each).get("mountPath")).rstrip("/") == _SHM
    ]
    volumes = extra(at.pod, "volumes")
    for number, each in enumerate(volumes if isinstance(volumes, list) else ()):
        volume = mapping(each)
        if names and volume.get("name") == names[0] and "emptyDir" in volume:
            return (*at.pod_path, "volumes", number), mapping(volume["emptyDir"])
    return None


def _shm_on_disk(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        volume = _shared_memory(at)
        if volume is not None and volume[1].get("medium") != "Memory":
            yield Found(
                volume[0],
                f"{_SHM} of {at.name} is an emptyDir without medium: Memory, which is on the node's disk",
                "write emptyDir: {medium: Memory}, or leave the volume and its mount to KubeRay",
            )


def _shm_too_small(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        volume = _shared_memory(at)
        if volume is None or "plasma-directory" in at.spec.rayStartParams or _ALLOWS_SLOW in at.environment:
            continue
        path, directory = volume
        limit = directory.get("sizeLimit")
        size = exact(limit) if isinstance(limit, str | int) else None
        store = _object_store(at, size) if size is not None and directory.get("medium") == "Memory" else None
        if size is not None and store is not None and store > size:
            yield Found(
                (*path, "emptyDir", "sizeLimit"),
                f"{_SHM} of {at.name} has {limit}, and Ray's object store takes {int(store):,} bytes",
                "leave sizeLimit out: the memory limit of the pod bounds it too",
            )


def _object_store(at: Group[HeadGroup], shared: Fraction) -> Fraction | None:
    """Return how large Ray makes its object store, in bytes; ``None``: that depends on the node."""
    if (told := exact(at.spec.rayStartParams.get("object-store-memory"))) is not None:
        return told
    memory = exact(at.container.resources.limits.get("memory"))
    return None if memory is None else default_object_store(memory, shared)


def default_object_store(memory: Fraction, shared: Fraction) -> Fraction:
    """Return how large Ray makes its object store where nobody says, in bytes.

    Source: ``resolve_object_store_memory`` in ``ray._private.utils``. Up to 10 GB it does not look at what is shared.

    Args:
        memory: Of the container, in bytes.
        shared: In ``/dev/shm``, in bytes.
    """
    return min(memory * 3 / 10, Fraction(200 * 10**9), max(Fraction(10**10), shared * 95 / 100))


RULES: RuleSet = (
    Rule(
        "no-cpus",
        "error",
        "Ray's autoscaler stops with: Autoscaler failed to detect `CPU` resources.",
        f"{READER} (_get_num_cpus)",
        _no_cpus,
    ),
    Rule(
        "start-param-not-whole",
        "error",
        "Ray's autoscaler and ray start read a whole number there, and stop at anything else.",
        f"{READER} (_get_num_cpus, _get_num_gpus, _get_memory)",
        _not_whole,
    ),
    Rule(
        "start-param-resources",
        "error",
        "Ray's autoscaler and the shell of the pod each take quotes away before they read the JSON.",
        f"{READER} (_get_custom_resources)",
        _resources_quoted,
    ),
    Rule(
        "start-param-unknown",
        "warning",
        "ray start stops at an option that it does not know, so that no pod of the group gets ready.",
        START,
        _unknown,
    ),
    Rule(
        "resources-twice",
        "error",
        "From KubeRay 1.5 on the operator refuses a group that says its resources in two places.",
        f"{VALIDATION} (validateRayGroupResources)",
        _resources_twice,
    ),
    Rule(
        "cpus-rounded-up",
        "warning",
        "Ray counts whole CPUs, rounded up: trials share fewer CPUs than they were promised.",
        _READER,
        _cpus_rounded_up,
    ),
    Rule(
        "memory-not-kept",
        "note",
        "Where a node is full, pods that take more than they requested are killed first, with all trials in them.",
        _CONFIG,
        _memory_not_kept,
    ),
    Rule(
        "memory-not-told",
        "note",
        "Ray takes the whole memory of the node for its own, and so do the other pods on it.",
        _CONFIG,
        _memory_not_told,
    ),
    Rule(
        "store-too-large",
        "warning",
        "The object store is shared memory and counts against the limit: when it fills, the pod is killed.",
        "https://docs.ray.io/en/latest/ray-core/scheduling/memory-management.html",
        _store_too_large,
    ),
    Rule(
        "request-above-limit",
        "error",
        "Kubernetes refuses the pod.",
        "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
        _request_above_limit,
    ),
    Rule(
        "workers-without-cpus",
        "warning",
        "A trial asks for a CPU unless it says otherwise, so that it never runs there, not even for the GPUs.",
        START,
        _workers_without_cpus,
    ),
    Rule(
        "shm-on-disk",
        "warning",
        "Ray's object store and PyTorch's data loaders exchange data there: on a disk everything waits for it.",
        "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir",
        _shm_on_disk,
    ),
    Rule(
        "shm-too-small",
        "warning",
        "Ray's object store then goes to /tmp, on the disk, and above 10 GB ray start stops instead.",
        "determine_plasma_store_config in ray._private.services",
        _shm_too_small,
    ),
)
