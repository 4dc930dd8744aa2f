"""What the operator and Ray's autoscaler make of the groups: numbers, names, labels, and what is said twice."""

from collections.abc import Iterator

from tune_policies.lint.finding import Edit
from tune_policies.lint.kinds import VALUES
from tune_policies.lint.rule import Found, Rule, RuleSet
from tune_policies.lint.rules.parts import (
    AUTOSCALER_V2,
    V2_BY_DEFAULT,
    is_autoscaling,
    is_label_key,
    is_label_value,
    is_v2,
    version_of,
)
from tune_policies.lint.rules.pods import Group, groups_of, head_of, workers_of
from tune_policies.lint.rules.sources import READER, UTIL, VALIDATION
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.kuberay_models import WorkerGroupSpec

_COUNTED = ("num-cpus", "num-gpus", "memory", "resources")
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


def _resources_twice(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in groups_of(cluster.spec):
        if group.resources and (said := [key for key in _COUNTED if group.rayStartParams.get(key)]):
            yield Found(
                (*path, "rayStartParams", said[0]),
                f"{name} has resources and also rayStartParams {', '.join(said)}",
                "keep one of the two: resources, from KubeRay 1.5 on",
            )


def _labels_in_start_params(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in groups_of(cluster.spec):
        text = group.rayStartParams.get("labels")
        if text is None:
            continue
        where = (*path, "rayStartParams", "labels")
        pairs = [pair.split("=") for pair in text.strip("\"'").split(",")]
        labels = {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
        is_clear = not group.labels and len(labels) == len(pairs) and all(map(is_label_key, labels))
        is_clear = is_clear and cluster.kind != VALUES  # the chart has no place for a group's labels
        yield Found(
            where,
            f"{name} has its labels {text!r} in rayStartParams",
            "write them as the group's labels, beside rayStartParams (KubeRay 1.5 and later)",
            (Edit((*path, "labels"), labels), Edit(where, None)) if is_clear else (),
        )


def _label_syntax(cluster: ClusterInFile) -> Iterator[Found]:
    for name, path, group in groups_of(cluster.spec):
        for key, value in group.labels.items():
            if not is_label_key(key):
                message = f"{name} has a label with the key {key!r}, which is none for Kubernetes"
            elif not is_label_value(value):
                message = f"{name} has the label {key} with {value!r}, which is no value of a label for Kubernetes"
            else:
                continue
            way_out = "use at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
            yield Found((*path, "labels", key), message, way_out)


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
        "resources-twice",
        "error",
        "From KubeRay 1.5 on the operator refuses a group that says its resources in two places.",
        f"{VALIDATION} (validateRayGroupResources)",
        _resources_twice,
    ),
    Rule(
        "labels-in-start-params",
        "error",
        "From KubeRay 1.5 on the operator refuses them there, and Ray's autoscaler does not read them.",
        f"{VALIDATION} (validateRayGroupLabels)",
        _labels_in_start_params,
    ),
    Rule(
        "label-syntax",
        "error",
        "The operator refuses the cluster, and Ray's autoscaler cannot read it.",
        f"{VALIDATION} (validateRayGroupLabels)",
        _label_syntax,
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
)
