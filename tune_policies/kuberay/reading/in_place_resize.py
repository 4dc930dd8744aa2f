"""The sizes to which Ray's autoscaler can enlarge pods in place (annotation ``ray.io/ippr``).

The rules follow ``KubeRayIPPRProvider.validate_and_set_ippr_specs`` in
``ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.ippr_provider`` (Ray 2.60). If one group breaks a rule, the
autoscaler fails and resizes no pod.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tune_policies.files.plain_data import parse_json
from tune_policies.kuberay.reading.kuberay_models import HEAD_GROUP, ClusterInFile, HeadGroup
from tune_policies.kuberay.reading.kubernetes_quantities import parse_quantity
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

ANNOTATION: Final = "ray.io/ippr"

# The types of the fields in ``IPPRSpecsSchema`` of ``ray.autoscaler.v2.schema``.
_FIELDS: Final = {"max-cpu": (str, int, float), "max-memory": (str, int), "resize-timeout": (int,)}


class Resize(NamedTuple):
    """The largest size of a group's pods: the whole CPUs, and the host memory in bytes."""

    max_cpus: int
    max_memory_bytes: int


def resizes_of(cluster: ClusterInFile) -> dict[str, Resize]:
    """Return the largest sizes by group name. The result is empty if Ray refuses the annotation or does not read it."""
    if cluster.autoscaler_version != 2 or is_too_old(cluster) or any(resize_problems(cluster)):
        return {}
    return {
        name: Resize(math.floor(parse_quantity(limits["max-cpu"])), math.floor(parse_quantity(limits["max-memory"])))
        for name, limits in _listed(cluster).items()
        if name in groups_by_name(cluster)
    }


FIRST_RAY: Final = (2, 56)
"""The first version of Ray that resizes pods in place
(https://docs.ray.io/en/master/cluster/kubernetes/user-guides/configuring-ippr.html)."""


def is_too_old(cluster: ClusterInFile) -> bool:
    """Return whether the cluster's Ray does not read the annotation, according to ``rayVersion``."""
    return cluster.ray_version is not None and cluster.ray_version < FIRST_RAY


def resize_problems(cluster: ClusterInFile) -> Iterator[str]:
    """Yield the reasons why Ray refuses the annotation."""
    text = cluster.metadata.annotations.get(ANNOTATION)
    if not text:
        return
    try:
        data = parse_json(text)
    except ValueError:
        yield f"{ANNOTATION} is not JSON: {shorten(text)}"
        return
    listed = None
    if isinstance(data, Mapping):
        # Ray's schema does not require ``groups``. Without it, Ray resizes no pods.
        listed = data.get("groups", {})
    if not isinstance(listed, Mapping):
        yield f'{ANNOTATION} must be a JSON object such as {{"groups": {{…}}}}, got {shorten(text)}'
        return
    for name, limits in listed.items():
        yield from _wrong_limits(str(name), limits)
    for name, group in groups_by_name(cluster).items():
        if name in listed:
            yield from _wrong_pods(name, group)


def too_small(cluster: ClusterInFile) -> Iterator[tuple[str, str]]:
    """Yield each group whose pods already request as many CPUs and as much memory, with these requests."""
    if any(resize_problems(cluster)):
        return
    groups = groups_by_name(cluster)
    for name, limits in _listed(cluster).items():
        if name not in groups:
            continue
        requests = groups[name].template.spec.containers[0].resources.requests
        # A pod can grow if only one of the two amounts is larger, so both must be too small.
        pairs = (("cpu", "max-cpu"), ("memory", "max-memory"))
        if all(parse_quantity(limits[most]) <= parse_quantity(requests[key]) for key, most in pairs):
            yield name, f"{requests['cpu']} CPUs and {requests['memory']} of memory"


def unknown_groups(cluster: ClusterInFile) -> list[str]:
    """Return the groups in the annotation that the cluster does not have. Ray ignores them."""
    known = groups_by_name(cluster)
    return [name for name in _listed(cluster) if name not in known]


def groups_by_name(cluster: ClusterInFile) -> dict[str, HeadGroup]:
    """Return the groups by the names that the annotation uses."""
    workers = {group.groupName: group for group in cluster.spec.workerGroupSpecs}
    return {**workers, HEAD_GROUP: cluster.spec.headGroupSpec}


def _listed(cluster: ClusterInFile) -> Mapping[str, Any]:
    try:
        data = parse_json(cluster.metadata.annotations.get(ANNOTATION) or "{}")
    except ValueError:
        return {}
    if not isinstance(data, Mapping):
        return {}
    listed = data.get("groups", {})
    if isinstance(listed, Mapping):
        return listed
    return {}


def _wrong_limits(name: str, limits: object) -> Iterator[str]:
    if not isinstance(limits, Mapping):
        yield f"group {name!r} in {ANNOTATION} must be an object, got {shorten(limits)}"
        return
    for field, kinds in _FIELDS.items():
        if field not in limits:
            yield f"group {name!r} in {ANNOTATION} lacks {field}"
            continue
        value: Any = limits[field]
        has_type = isinstance(value, kinds) or _is_whole(value)
        # In Python, ``True`` is an ``int``, but JSON's ``true`` is no number.
        if isinstance(value, bool) or not has_type:
            expected = "a whole number" if kinds == (int,) else "a quantity such as '8' or '16Gi'"
            yield f"{field} of group {name!r} in {ANNOTATION} must be {expected}, got {shorten(value)}"
        elif field != "resize-timeout":
            try:
                parse_quantity(value)
            except InvalidResourcesError as error:
                yield f"{field} of group {name!r} in {ANNOTATION}: {error}"


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()  # JSON schema counts 8.0 as an integer


def _wrong_pods(name: str, group: HeadGroup) -> Iterator[str]:
    container = group.template.spec.containers[0]
    params = sorted({"num-cpus", "memory"} & group.rayStartParams.keys())
    if params:
        yield f"group {name!r} is resized in place, but sets {' and '.join(params)} in rayStartParams"
    missing = sorted({"cpu", "memory"} - container.resources.requests.keys())
    if missing:
        yield f"group {name!r} is resized in place, but its Ray container has no request of {' and '.join(missing)}"
    # The models do not declare this field, so its parts can have any type.
    policies = (container.model_extra or {}).get("resizePolicy")
    if not isinstance(policies, list):
        policies = []
    for policy in policies:
        if not isinstance(policy, Mapping) or policy.get("resourceName") not in ("cpu", "memory"):
            continue
        restart = policy.get("restartPolicy")
        # ``NotRequired`` is also Kubernetes' default for a missing restart policy.
        if restart not in (None, "NotRequired"):
            yield f"group {name!r} is resized in place, but restartPolicy of {policy['resourceName']} is {restart!r}"
