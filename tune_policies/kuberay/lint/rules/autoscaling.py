"""Rules for how groups grow and shrink: their numbers, the autoscaler's versions, and what an idle device costs."""

from collections.abc import Iterator
from typing import Final

from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import (
    API,
    AUTOSCALER_V2,
    READER,
    UTIL,
    V2_BY_DEFAULT,
    VALIDATION,
    Group,
    exact,
    extra,
    groups_of,
    head_of,
    is_autoscaling,
    is_v2,
    version_of,
    workers_of,
)
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, WorkerGroupSpec

_PRIORITY_FROM = (2, 56)


def _min_above_max(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        if group.minReplicas > group.maxReplicas:
            yield Found(
                (*path, "minReplicas"),
                f"{name} has minReplicas {group.minReplicas} above maxReplicas {group.maxReplicas}",
                f"raise maxReplicas to {group.minReplicas}, or lower minReplicas to {group.maxReplicas}",
            )


def _negative(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        for field in ("minReplicas", "maxReplicas", "replicas", "idleTimeoutSeconds"):
            value = getattr(group, field)
            if value is not None and value < 0:
                yield Found((*path, field), f"{name} has {field} {value}", "write 0 or more")
        if group.numOfHosts < 1:
            yield Found((*path, "numOfHosts"), f"{name} has numOfHosts {group.numOfHosts}", "write 1 or more")
    idle = cluster.spec.autoscalerOptions.idleTimeoutSeconds
    if idle is not None and idle < 0:
        path = ("autoscalerOptions", "idleTimeoutSeconds")
        yield Found(path, f"autoscalerOptions has idleTimeoutSeconds {idle}", "write 0 or more")


def _never_starts(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        if "maxReplicas" in group.model_fields_set and group.maxReplicas == 0 and not group.suspend:
            yield Found((*path, "maxReplicas"), f"{name} has maxReplicas 0", "write the most that you want to pay for")


def _replicas_outside(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        least, most = group.minReplicas, group.maxReplicas
        if "replicas" in group.model_fields_set and least <= most and not least <= group.replicas <= most:
            becomes = min(max(group.replicas, least), most)
            yield Found(
                (*path, "replicas"),
                f"{name} has replicas {group.replicas}, outside {least} to {most}: the operator starts {becomes}",
                f"write replicas: {becomes}",
                (Edit((*path, "replicas"), becomes),),
                is_safe=True,
            )


def _name_twice(cluster: ClusterInFile) -> Iterator[Found]:
    seen = set()
    for _, path, group in workers_of(cluster.spec):
        if group.groupName in seen:
            yield Found(
                (*path, "groupName"),
                f"the group name {group.groupName!r} comes twice",
                "give each group a name of its own",
            )
        elif group.groupName == "headgroup":
            yield Found((*path, "groupName"), "the group name 'headgroup' is the head's", "give the group another name")
        seen.add(group.groupName)


def _suspended(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        if group.suspend and is_autoscaling(cluster.spec):
            yield Found(
                (*path, "suspend"),
                f"{name} is suspended while the autoscaler is on",
                "set maxReplicas and minReplicas to 0 instead, or turn the autoscaler off",
            )


def _restart_policy(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in groups_of(cluster.spec):
        policy = group.template.spec.restartPolicy
        if is_v2(cluster.spec) and policy not in (None, "", "Never"):
            where = (*path, "template", "spec", "restartPolicy")
            yield Found(
                where,
                f"{name} has restartPolicy {policy} under autoscaler v2",
                "write restartPolicy: Never, or leave it out",
                (Edit(where, "Never"),),
                is_safe=True,
            )


def _idle_without_v2(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in workers_of(cluster.spec):
        if group.idleTimeoutSeconds is not None and not _has_v2(cluster):
            yield Found(
                (*path, "idleTimeoutSeconds"),
                f"{name} has an idleTimeoutSeconds of its own, but autoscalerOptions.version is not v2",
                _way_to_v2(cluster),
                _edits_to_v2(cluster),
            )


def _priority_without_v2(cluster: ClusterInFile) -> Iterator[Found]:
    for group in workers_of(cluster.spec):
        if group.spec.priority:
            yield from _priority(cluster, group)


def _priority(cluster: ClusterInFile, group: Group[WorkerGroupSpec]) -> Iterator[Found]:
    where, said = (*group.path, "priority"), f"{group.name} has priority {group.spec.priority}"
    version = version_of(cluster.spec.rayVersion)
    if version is None or version[:2] < _PRIORITY_FROM:
        told = "no rayVersion is given" if version is None else f"rayVersion is {cluster.spec.rayVersion}"
        yield Found(
            where, f"{said}, but {told}", "use Ray 2.56 or later and name it in rayVersion, or leave priority out"
        )
    if not _has_v2(cluster):
        message = f"{said}, but autoscalerOptions.version is not v2"
        yield Found(where, message, _way_to_v2(cluster), _edits_to_v2(cluster))


def _has_v2(cluster: ClusterInFile) -> bool:
    if cluster.spec.autoscalerOptions.version == "v2":
        return True
    env = head_of(cluster.spec).container.env
    return any(each.name == AUTOSCALER_V2 and each.value in ("1", "true") for each in env)


def _way_to_v2(cluster: ClusterInFile) -> str:
    return "write autoscalerOptions.version: v2" + (
        "" if is_autoscaling(cluster.spec) else " and enableInTreeAutoscaling: true"
    )


def _edits_to_v2(cluster: ClusterInFile) -> tuple[Edit, ...]:
    """Say v2 where Ray would take it anyway."""
    spec = cluster.spec
    is_anyway = is_autoscaling(spec) and (version_of(spec.rayVersion) or (0,))[:2] >= V2_BY_DEFAULT
    if not is_anyway or spec.autoscalerOptions.version or AUTOSCALER_V2 in head_of(spec).environment:
        return ()
    return (Edit(("autoscalerOptions", "version"), "v2"),)


def _v2_in_environment(cluster: ClusterInFile) -> Iterator[Found]:
    head = head_of(cluster.spec)
    for number, variable in enumerate(head.container.env):
        if variable.name != AUTOSCALER_V2:
            continue
        if not is_autoscaling(cluster.spec) and variable.value in ("1", "true"):
            message = f"the head has {AUTOSCALER_V2}={variable.value}, but enableInTreeAutoscaling is not true"
            yield Found((*head.container_path, "env", number), message, "write enableInTreeAutoscaling: true")
        elif is_autoscaling(cluster.spec) and cluster.spec.autoscalerOptions.version:
            message = f"autoscalerOptions.version is said, and {AUTOSCALER_V2} in the head's environment too"
            yield Found((*head.container_path, "env", number), message, "keep autoscalerOptions.version alone")


def _options_unused(cluster: ClusterInFile) -> Iterator[Found]:
    options = cluster.spec.autoscalerOptions
    if not is_autoscaling(cluster.spec) and (said := sorted(options.model_fields_set | set(options.model_extra or {}))):
        yield Found(
            ("autoscalerOptions",),
            f"autoscalerOptions has {', '.join(said)}, but enableInTreeAutoscaling is not true",
            "write enableInTreeAutoscaling: true, or leave autoscalerOptions out",
        )


_NO_LIMIT: Final = 2147483647
"""What KubeRay's definition writes where ``maxReplicas`` is left out."""

_LONG_S: Final = 1800
"""An idle GPU costs as much as a busy one; half an hour is longer than any node takes to start."""

_AUTOSCALING: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/configuring-autoscaling.html"


def _always_there(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        if is_autoscaling(cluster.spec) and at.devices and at.spec.minReplicas > 0:
            nodes = at.spec.minReplicas * at.spec.numOfHosts
            yield Found(
                (*at.path, "minReplicas"),
                f"{at.name} keeps {nodes} {'node' if nodes == 1 else 'nodes'} with devices, also without work",
                "write minReplicas: 0, and the autoscaler adds them when trials ask",
            )


def _never_grows(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        is_range = "maxReplicas" in at.spec.model_fields_set and at.spec.replicas < at.spec.maxReplicas
        if not is_autoscaling(cluster.spec) and at.devices and is_range:
            yield Found(
                (*at.path, "maxReplicas"),
                f"{at.name} has {at.spec.replicas} replicas and may have {at.spec.maxReplicas}, but nothing adds them",
                "write enableInTreeAutoscaling: true, or the same number three times",
            )


def _no_upper_bound(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        if is_autoscaling(cluster.spec) and at.devices and at.spec.maxReplicas >= _NO_LIMIT:
            yield Found(
                (*at.path, "maxReplicas"),
                f"{at.name} may grow to {at.spec.maxReplicas} replicas",
                "write the most that you want to pay for",
            )


def _timeouts(cluster: ClusterInFile) -> Iterator[tuple[Found, int]]:
    """Return a finding to fill in for each idle time-out of nodes, and the seconds."""
    if not is_autoscaling(cluster.spec):
        return
    of_all = cluster.spec.autoscalerOptions.idleTimeoutSeconds
    if of_all is not None:
        yield Found(("autoscalerOptions", "idleTimeoutSeconds"), f"an idle node goes after {of_all} s", ""), of_all
    for at in workers_of(cluster.spec):
        if (own := at.spec.idleTimeoutSeconds) is not None:
            yield Found((*at.path, "idleTimeoutSeconds"), f"an idle node of {at.name} goes after {own} s", ""), own


def _goes_at_once(cluster: ClusterInFile) -> Iterator[Found]:
    for found, seconds in _timeouts(cluster):
        if seconds < 10:
            yield found._replace(fix="write 60, or as long as trials take to follow one another")


def _idles_long(cluster: ClusterInFile) -> Iterator[Found]:
    for found, seconds in _timeouts(cluster):
        is_paid = any(at.devices for at in workers_of(cluster.spec) if found.path[: len(at.path)] == at.path)
        is_of_all = found.path[0] == "autoscalerOptions" and any(at.devices for at in workers_of(cluster.spec))
        if seconds > _LONG_S and (is_paid or is_of_all):
            yield found._replace(fix="write a few minutes")


def _slow_growth(cluster: ClusterInFile) -> Iterator[Found]:
    if is_autoscaling(cluster.spec) and cluster.spec.autoscalerOptions.upscalingMode == "Conservative":
        yield Found(
            ("autoscalerOptions", "upscalingMode"),
            "the autoscaler starts no more nodes at a time than there are",
            "leave upscalingMode out",
        )


def _equal_groups(cluster: ClusterInFile) -> Iterator[Found]:
    seen: dict[str, str] = {}
    for at in workers_of(cluster.spec):
        pod, resources = at.pod, at.container.resources
        place = (sorted(pod.nodeSelector.items()), extra(pod, "affinity"), at.spec.priority)
        counted = (sorted(resources.limits.items()), sorted(resources.requests.items()), at.spec.numOfHosts)
        told = (
            sorted(at.spec.resources.items()),
            sorted(at.spec.labels.items()),
            sorted(at.spec.rayStartParams.items()),
        )
        shape = repr((place, counted, told))
        if is_autoscaling(cluster.spec) and shape in seen:
            yield Found(
                (*at.path, "groupName"),
                f"{at.name} has the same nodes as {seen[shape]}",
                "make it one group, or tell them apart by labels or a priority",
            )
        seen.setdefault(shape, at.name)


def _head_works(cluster: ClusterInFile) -> Iterator[Found]:
    at = head_of(cluster.spec)
    told = at.amount("CPU", "num-cpus")
    if any(worker.devices for worker in workers_of(cluster.spec)) and (told is None or exact(told[1]) != 0):
        yield Found(
            told[0] if told else at.path,
            "the head takes trials and drivers, beside what holds the cluster together",
            'write num-cpus: "0" under the rayStartParams of the head',
        )


def _head_with_devices(cluster: ClusterInFile) -> Iterator[Found]:
    at = head_of(cluster.spec)
    for key, amount in at.devices.items() if cluster.spec.workerGroupSpecs else ():
        yield Found(
            at.key_path(key),
            f"the head holds {amount} {key} as long as the cluster is there",
            "move the devices to a group of workers, which can shrink to nothing",
        )


RULES: RuleSet = (
    Rule(
        "min-above-max",
        "error",
        "From KubeRay 1.6 on the operator refuses the cluster; before, it starts maxReplicas and only logs it.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _min_above_max,
    ),
    Rule(
        "negative-number",
        "error",
        "The operator refuses the cluster.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _negative,
    ),
    Rule(
        "group-never-starts",
        "warning",
        "No node of the group ever starts, and trials that need one wait for ever.",
        f"{API} (WorkerGroupSpec)",
        _never_starts,
    ),
    Rule(
        "replicas-outside",
        "warning",
        "The operator keeps to minReplicas and maxReplicas, whatever replicas says.",
        f"{UTIL} (GetWorkerGroupDesiredReplicas)",
        _replicas_outside,
    ),
    Rule(
        "group-name-twice",
        "error",
        "Pods and node types go by the group's name: one of the two groups hides the other from the autoscaler.",
        f"{READER} (_generate_available_node_types_from_ray_cr_spec, _HEAD_GROUP_NAME)",
        _name_twice,
    ),
    Rule(
        "group-suspended",
        "error",
        "The operator refuses it: the autoscaler would start the group's pods again.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _suspended,
    ),
    Rule(
        "restart-policy-v2",
        "error",
        "Autoscaler v2 counts a pod as one node for good, so the operator refuses pods that start again by themselves.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _restart_policy,
    ),
    Rule(
        "group-idle-without-v2",
        "error",
        "Only autoscaler v2 knows a group's own idle time-out, and KubeRay 1.6 and later refuse it unless the "
        "version is said: that v2 is Ray's default from 2.47 on does not count.",
        f"{VALIDATION} (validateWorkerGroupIdleTimeout)",
        _idle_without_v2,
    ),
    Rule(
        "priority-without-v2",
        "error",
        "KubeRay 1.7 refuses a priority without autoscaler v2 and Ray 2.56 or later; earlier KubeRays drop the field.",
        f"{VALIDATION} (validateWorkerGroupPriority)",
        _priority_without_v2,
    ),
    Rule(
        "autoscaler-v2-twice",
        "error",
        "The operator refuses the variable without an autoscaler, and beside autoscalerOptions.version.",
        f"{VALIDATION} (ValidateRayClusterSpec)",
        _v2_in_environment,
    ),
    Rule(
        "autoscaler-options-unused",
        "note",
        "Without an autoscaler nobody reads them: the numbers of pods stay as they are.",
        f"{API} (RayClusterSpec.enableInTreeAutoscaling)",
        _options_unused,
    ),
    Rule(
        "devices-always-there",
        "note",
        "Nodes with devices cost as much without work.",
        _AUTOSCALING,
        _always_there,
    ),
    Rule(
        "never-grows",
        "note",
        "Without the autoscaler, KubeRay keeps the number of replicas, and maxReplicas is never reached.",
        _AUTOSCALING,
        _never_grows,
    ),
    Rule(
        "no-upper-bound",
        "warning",
        "The autoscaler adds a node for every trial that asks: a wrong number in one run is paid in full.",
        "https://ray-project.github.io/kuberay/reference/api/ (WorkerGroupSpec)",
        _no_upper_bound,
    ),
    Rule(
        "goes-at-once",
        "warning",
        "A node goes in the moment between two trials, and the next one waits until it is there again.",
        _AUTOSCALING,
        _goes_at_once,
    ),
    Rule(
        "idles-long",
        "note",
        "An idle device costs as much as a busy one.",
        _AUTOSCALING,
        _idles_long,
    ),
    Rule(
        "slow-growth",
        "note",
        "A run that needs many nodes at once gets them in many rounds.",
        _AUTOSCALING,
        _slow_growth,
    ),
    Rule(
        "equal-groups",
        "note",
        "The autoscaler takes either of them, so that the limits of both count as one.",
        "ray.autoscaler.v2.scheduler",
        _equal_groups,
    ),
    Rule(
        "head-takes-trials",
        "note",
        "A trial that takes too much memory there ends the whole cluster, and not only itself.",
        "https://docs.ray.io/en/latest/cluster/vms/user-guides/large-cluster-best-practices.html",
        _head_works,
    ),
    Rule(
        "head-with-devices",
        "note",
        "The head never goes while the cluster is there, so its devices are paid without a pause.",
        _AUTOSCALING,
        _head_with_devices,
    ),
)
