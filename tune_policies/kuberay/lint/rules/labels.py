"""Rules for labels of groups, by which a trial finds the device type that it needs, and for who reads them."""

from collections.abc import Iterator
from typing import Final, Literal

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import VALUES, Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import (
    AUTOSCALER_V2,
    READS_GROUP_FIELDS,
    V2_BY_DEFAULT,
    VALIDATION,
    Group,
    groups_of,
    head_of,
    is_autoscaling,
    is_label_key,
    is_label_value,
    ray_version_of,
    workers_of,
)
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup
from tune_policies.kuberay.nodes.device_plugins import ray_resource
from tune_policies.values.value import suggest

_TAKES_PAIRS: Final = (2, 45)
"""From this Ray on ``ray start --labels`` takes ``key=value`` pairs, as KubeRay writes them; before, JSON alone
(https://github.com/ray-project/ray/pull/52085)."""

_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"


def _unknown_type(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        name = at.spec.labels.get(ACCELERATOR_TYPE)
        if name is None or name in ACCELERATOR_TYPES:
            continue
        # A name that is like none of them may be of a device that Ray has no name for.
        near = suggest(name.removeprefix("nvidia-").removeprefix("NVIDIA-"), ACCELERATOR_TYPES)
        if near:
            yield Found(
                (*at.path, "labels", ACCELERATOR_TYPE),
                f"{at.name} has the device type {name!r}, which Ray does not know{near}",
                "write the type as Ray does",
            )


def _no_type(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec):
        is_told = ACCELERATOR_TYPE in at.spec.labels or any(
            "accelerator_type:" in text for text in (*at.spec.resources, at.spec.rayStartParams.get("resources", ""))
        )
        # Ray's reader makes the resource of TPU slices from their node selectors.
        if is_autoscaling(cluster.spec) and not is_told and any(ray_resource(key) != "TPU" for key in at.devices):
            yield Found(
                at.path,
                f"the autoscaler is not told which device type {at.name} has",
                f"write labels: {{{ACCELERATOR_TYPE}: …}} with Ray's name of the type, if trials ask for it",
            )


def _labels_without_v2(cluster: ClusterInFile) -> Iterator[Found]:
    if not is_autoscaling(cluster.spec) or not _is_v1(cluster):
        return
    for at in workers_of(cluster.spec):
        if at.spec.labels and not _is_aborted(cluster):
            yield Found(
                (*at.path, "labels"),
                f"the autoscaler is not version 2, and does not go by the labels of {at.name}",
                "write version: v2 under autoscalerOptions",
            )


def _is_v1(cluster: ClusterInFile) -> bool:
    head = head_of(cluster.spec)
    told = cluster.spec.autoscalerOptions.version
    if told is not None or AUTOSCALER_V2 in head.environment:
        return told == "v1" or (head.environment.get(AUTOSCALER_V2) or "").lower() in ("0", "false")
    version = ray_version_of(cluster)
    return version is not None and version < V2_BY_DEFAULT


def _is_aborted(cluster: ClusterInFile) -> bool:
    """Return whether the pods of this Ray stop at labels."""
    version = ray_version_of(cluster)
    return version is not None and version < _TAKES_PAIRS


def _labels_abort(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec) if _is_aborted(cluster) else ():
        if at.spec.labels:
            numbers = ".".join(map(str, ray_version_of(cluster) or ()))
            yield Found(
                (*at.path, "labels"),
                f"{at.name} has labels, which KubeRay hands to ray start in a form that Ray {numbers} cannot read",
                "take Ray 2.51 or newer, whose autoscaler reads them too, or leave them out",
            )


def _is_of_older_ray(cluster: ClusterInFile) -> bool:
    """Return whether an autoscaler is to run that does not read the fields of groups."""
    version = ray_version_of(cluster)
    return is_autoscaling(cluster.spec) and version is not None and version < READS_GROUP_FIELDS


def _unread(at: Group[HeadGroup], name: Literal["resources", "labels"], cluster: ClusterInFile) -> Found:
    numbers = ".".join(map(str, ray_version_of(cluster) or ()))
    message = f"{at.name} has {name}, which the autoscaler of Ray {numbers} does not read"
    return Found((*at.path, name), message, "take Ray 2.51 or newer")


def _resources_unread(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec) if _is_of_older_ray(cluster) else ():
        if at.spec.resources:
            yield _unread(at, "resources", cluster)._replace(fix="take Ray 2.51 or newer, or write rayStartParams")


def _labels_unread(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec) if _is_of_older_ray(cluster) else ():
        if at.spec.labels and not _is_aborted(cluster):
            yield _unread(at, "labels", cluster)


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
            hint = "use at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
            yield Found((*path, "labels", key), message, hint)


RULES: RuleSet = (
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
        "labels-abort",
        "error",
        "Before Ray 2.45, ray start reads labels in JSON alone, and stops at others: no pod of the group gets ready.",
        "https://github.com/ray-project/ray/pull/52085",
        _labels_abort,
    ),
    Rule(
        "unknown-device-type",
        "warning",
        "A trial asks for the type by Ray's name, and no node of this group is ever added for it.",
        "ray.util.accelerators",
        _unknown_type,
    ),
    Rule(
        "device-type-not-told",
        "note",
        "A node tells its device type when it is there. A trial that asks for a type has no node added until the "
        "manifest tells it.",
        _LABELS,
        _no_type,
    ),
    Rule(
        "labels-without-v2",
        "warning",
        "Trials that ask for a label, such as a device type, have no node added.",
        _LABELS,
        _labels_without_v2,
    ),
    Rule(
        "group-labels-unread",
        "note",
        "The pods have them, but no node is added for a trial that asks for them.",
        "https://github.com/ray-project/ray/pull/57260",
        _labels_unread,
    ),
    Rule(
        "group-resources-unread",
        "warning",
        "The pods have them, and the autoscaler plans with others.",
        "https://github.com/ray-project/ray/pull/57260",
        _resources_unread,
    ),
)
