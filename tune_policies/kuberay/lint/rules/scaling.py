"""Rules for the sizes of groups, for the autoscaler, and for idle nodes."""

from collections.abc import Iterator
from typing import Final

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.lint.cluster_parts import (
    API,
    READER,
    READS_GROUP_FIELDS,
    VALIDATION,
    Group,
    exact,
    groups_of,
    head_of,
    is_autoscaling,
    ray_version_of,
    the_cluster,
    workers_of,
)
from tune_policies.kuberay.lint.rule import Found, RuleBook
from tune_policies.kuberay.reading.kuberay_models import HEAD_GROUP, ClusterInFile, HeadGroup, WorkerGroupSpec
from tune_policies.values.wording import counted

RULES: Final = RuleBook()

_AUTOSCALING: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/configuring-autoscaling.html"

_IGNORED_BEFORE: Final = "https://github.com/ray-project/ray/pull/57260"

_NO_LIMIT: Final = 2147483647
"""The default of ``maxReplicas``."""

_LONG_S: Final = 1800
"""The longest idle timeout that is not reported, in seconds. A node takes less time to start."""


@RULES.of_each(workers_of, "min-above-max", "error", f"{VALIDATION} (ValidateRayClusterSpec)")
def _min_above_max(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """KubeRay 1.6 and newer refuse the cluster. Older versions start maxReplicas pods and only log the problem."""
    least, most = at.spec.minReplicas, at.spec.maxReplicas
    if least > most:
        message = f"{at} has minReplicas {least} above maxReplicas {most}"
        yield Found((*at.path, "minReplicas"), message, f"raise maxReplicas to {least}, or lower minReplicas to {most}")


@RULES.of_each(workers_of, "group-never-starts", "warning", f"{API} (WorkerGroupSpec)")
def _never_starts(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """No node of the group ever starts, and trials that need such a node wait indefinitely."""
    # Only a stated 0 counts. A suspended group is not meant to start.
    if "maxReplicas" in at.spec.model_fields_set and at.spec.maxReplicas == 0 and not at.spec.suspend:
        yield Found(
            (*at.path, "maxReplicas"),
            f"{at} has maxReplicas 0",
            "set maxReplicas to the largest number that you want to pay for",
        )


@RULES.of_each(
    workers_of,
    "replicas-out-of-range",
    "warning",
    "GetWorkerGroupDesiredReplicas in KubeRay's controllers/ray/utils/util.go",
)
def _replicas_out_of_range(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """The operator limits replicas to the range from minReplicas to maxReplicas."""
    if at.spec.suspend:
        return  # the operator starts no pods of the group
    # If the limits contradict each other, ``min-above-max`` reports them.
    replicas, least, most = at.spec.replicas, at.spec.minReplicas, at.spec.maxReplicas
    if "replicas" in at.spec.model_fields_set and least <= most and not least <= replicas <= most:
        becomes, path = min(max(replicas, least), most), (*at.path, "replicas")
        limits = f"the range of minReplicas and maxReplicas ({least} to {most})"
        message = f"{at} sets replicas to {replicas}, outside {limits}, so the operator starts {becomes}"
        yield Found(path, message, f"write replicas: {becomes}")


@RULES.of_each(
    the_cluster,
    "duplicate-group-name",
    "error",
    f"{READER} (_generate_available_node_types_from_ray_cr_spec, _HEAD_GROUP_NAME)",
)
def _duplicate_name(cluster: ClusterInFile) -> Iterator[Found]:
    """Pods and node types are identified by the group's name, so the autoscaler ignores one of the two groups."""
    seen = set()
    for at in workers_of(cluster):
        name, path = at.spec.groupName, (*at.path, "groupName")
        if name in seen:
            yield Found(path, f"duplicate group name {name!r}", "give each group a unique name")
        # The autoscaler gives the head's node type this name, so the group would replace the head.
        elif name == HEAD_GROUP:
            yield Found(path, f"the group name {HEAD_GROUP!r} is reserved for the head", "give the group another name")
        seen.add(name)


@RULES.of_each(the_cluster, "autoscaler-options-unused", "note", f"{API} (RayClusterSpec.enableInTreeAutoscaling)")
def _options_unused(cluster: ClusterInFile) -> Iterator[Found]:
    """Without an autoscaler, these options have no effect and the numbers of pods stay constant."""
    options = cluster.spec.autoscalerOptions
    names = sorted(options.model_fields_set | set(options.model_extra or {}))
    if names and not is_autoscaling(cluster):
        message = f"autoscalerOptions contains {', '.join(names)}, but enableInTreeAutoscaling is not true"
        fix = "write enableInTreeAutoscaling: true, or remove autoscalerOptions"
        yield Found(("autoscalerOptions",), message, fix)


@RULES.of_each(workers_of, "devices-always-on", "note", _AUTOSCALING)
def _always_on(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """You pay for nodes with devices even if no trial uses them."""
    if at.is_autoscaling and at.devices and at.spec.minReplicas > 0:
        nodes = counted(at.spec.minReplicas * at.spec.numOfHosts, "node")
        fix = "write minReplicas: 0, so that the autoscaler adds nodes only for waiting trials"
        yield Found((*at.path, "minReplicas"), f"{at} always keeps {nodes} with devices", fix)


@RULES.of_each(the_cluster, "long-idle-timeout", "note", _AUTOSCALING)
def _long_idle_timeout(cluster: ClusterInFile) -> Iterator[Found]:
    """An idle device costs as much as a busy device."""
    if not is_autoscaling(cluster):
        return
    workers = [at for at in workers_of(cluster) if at.devices]
    # The timeout of a group takes precedence, so the cluster's timeout counts only if a group has none.
    timeouts: list[tuple[Path, int | None]] = [(at.path, at.spec.idleTimeoutSeconds) for at in workers]
    if any(seconds is None for _, seconds in timeouts):
        timeouts.append((("autoscalerOptions",), cluster.spec.autoscalerOptions.idleTimeoutSeconds))
    for path, seconds in timeouts:
        if seconds is not None and seconds > _LONG_S:
            path = (*path, "idleTimeoutSeconds")
            yield Found(
                path,
                f"an idle node with devices is removed after {seconds} s",
                "set idleTimeoutSeconds to a few minutes, such as 300",
            )


@RULES.of_each(workers_of, "never-scales-up", "note", _AUTOSCALING)
def _never_scales_up(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """Without an autoscaler, KubeRay keeps the number of replicas and never reaches maxReplicas."""
    # ``GetWorkerGroupDesiredReplicas`` of KubeRay's operator raises the replicas to the minimum.
    replicas, most = max(at.spec.replicas, at.spec.minReplicas), at.spec.maxReplicas
    is_missed = bool(at.devices) or replicas == 0  # a group with some CPU nodes may be meant to keep its size
    if not at.is_autoscaling and is_missed and "maxReplicas" in at.spec.model_fields_set and replicas < most:
        message = f"{at} has replicas {replicas} and maxReplicas {most}, but no autoscaler adds the missing replicas"
        fix = "write enableInTreeAutoscaling: true, or set replicas, minReplicas and maxReplicas to the same number"
        yield Found((*at.path, "maxReplicas"), message, fix)


@RULES.of_each(workers_of, "no-upper-bound", "warning", f"{API} (WorkerGroupSpec)")
def _no_upper_bound(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """The autoscaler adds nodes for all waiting trials, so a mistake in one run can be expensive."""
    # Only groups with devices are checked, because a mistake is most expensive with them.
    if at.is_autoscaling and at.devices and at.spec.maxReplicas >= _NO_LIMIT:
        message = f"{at} can grow to {at.spec.maxReplicas} replicas"
        yield Found(
            (*at.path, "maxReplicas"), message, "set maxReplicas to the largest number that you want to pay for"
        )


@RULES.of_each(
    the_cluster,
    "head-runs-trials",
    "note",
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
)
def _head_runs_trials(cluster: ClusterInFile) -> Iterator[Found]:
    """A trial that uses too much memory on the head can stop the whole cluster."""
    at = head_of(cluster)
    stated = at.amount("CPU", "num-cpus")
    if any(worker.devices for worker in workers_of(cluster)) and (stated is None or exact(stated[1]) != 0):
        message = "the head runs trials and drivers in addition to the processes that manage the cluster"
        where = stated[0] if stated else at.path
        fix = 'write num-cpus: "0" under the rayStartParams of the head'
        if at.spec.resources:  # KubeRay refuses amounts in both fields
            fix = 'write CPU: "0" under the resources of the head'
        yield Found(where, message, fix)


def _ignored(cluster: ClusterInFile) -> Iterator[tuple[Group[HeadGroup], str]]:
    """Yield each group whose ``resources`` and ``labels`` the autoscaler ignores, and the last part of the message."""
    version = ray_version_of(cluster)
    if is_autoscaling(cluster) and version is not None and version < READS_GROUP_FIELDS:
        for at in groups_of(cluster):
            yield at, f"which the autoscaler of Ray {'.'.join(map(str, version))} ignores"


@RULES.of_each(_ignored, "group-labels-ignored", "note", _IGNORED_BEFORE)
def _labels_ignored(ignored: tuple[Group[HeadGroup], str]) -> Iterator[Found]:
    """The nodes get the labels, but the autoscaler adds no node for a trial that selects them."""
    at, why = ignored
    # The autoscaler never adds the head, so it needs no labels of the head.
    if at.spec.labels and at.path[0] != "headGroupSpec":
        yield Found((*at.path, "labels"), f"{at} has labels, {why}", "use Ray 2.51 or newer")


@RULES.of_each(_ignored, "group-resources-ignored", "warning", _IGNORED_BEFORE)
def _resources_ignored(ignored: tuple[Group[HeadGroup], str]) -> Iterator[Found]:
    """The nodes get these resources, but the autoscaler does not count them."""
    at, why = ignored
    if at.spec.resources:
        fix = "use Ray 2.51 or newer, or state the amounts in rayStartParams"
        yield Found((*at.path, "resources"), f"{at} has resources, {why}", fix)


_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_KUEUE_CLUSTERS: Final = "https://kueue.sigs.k8s.io/docs/tasks/run/rayclusters/#d-limitations"


@RULES.of_each(groups_of, "kueue-no-requests", "warning", _KUEUE_CLUSTERS)
def _no_requests(at: Group[HeadGroup]) -> Iterator[Found]:
    """Kueue counts the requests of pods, so pods without requests can exceed the quota."""
    asked = at.container.resources
    # Kubernetes uses a limit as the request if a container has no request.
    if at.cluster.metadata.labels.get(_QUEUE) and not asked.requests and not asked.limits:
        yield Found(at.container_path, f"{at} requests no resources", "add requests for CPU and memory")
