"""Rules for the nodes on which pods land, and for how a trial finds the device type that it needs."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from tune_policies.accelerators import ACCELERATOR_TYPES
from tune_policies.clusters.device_plugins import DEVICE_PLUGINS, ray_resource
from tune_policies.labels import ACCELERATOR_TYPE
from tune_policies.lint.finding import Edit
from tune_policies.lint.rule import Found, Rule
from tune_policies.lint.rules.parts import AUTOSCALER_V2, V2_BY_DEFAULT, extra, is_autoscaling, version_of
from tune_policies.lint.rules.pods import Group, groups_of, head_of, workers_of
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.kuberay_models import HeadGroup
from tune_policies.values import suggest

_READS_GROUP_FIELDS: Final = (2, 51)
"""From this Ray on the autoscaler reads ``resources`` and ``labels`` of a group."""

_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"
_EXTENDED: Final = (
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration"
)


def _taint_not_tolerated(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for key in at.devices:
            if key == "google.com/tpu":
                continue  # only Google's clusters have them, and those add the toleration
            taint = _taint_of(key)
            known = at.pod.tolerations
            near = suggest(taint, [each.key for each in known if each.key])
            # Whoever tolerates another taint knows the taints of the nodes, unless the name is nearly the same.
            if at.tolerates(taint) or (known and not near):
                continue
            toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
            path = (*at.pod_path, "tolerations")
            yield Found(
                path if known else at.pod_path,
                f"{at.name} has {key} and does not tolerate the taint {taint}",
                f"add a toleration for {taint}, if its nodes have the taint",
                (Edit((*path, len(known)), toleration) if known else Edit(path, [toleration]),),
            )


def _taint_of(key: str) -> str:
    maker = key.partition("/")[0]
    plugins = (each for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == maker)
    return next((each.taint for each in plugins if each.taint), key)


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


def _any_node(cluster: ClusterInFile) -> Iterator[Found]:
    groups = list(workers_of(cluster.spec))
    keys = Counter(key for at in groups for key in at.devices)
    for at in groups:
        for key in at.devices:
            has_place = at.pod.nodeSelector or extra(at.pod, "affinity")
            if keys[key] > 1 and not has_place:
                yield Found(
                    at.pod_path,
                    f"{at.name} takes any node with {key}, those of other groups too",
                    "add a nodeSelector for the device type of its nodes",
                )


def _labels_without_v2(cluster: ClusterInFile) -> Iterator[Found]:
    if not is_autoscaling(cluster.spec) or not _is_v1(cluster):
        return
    for at in workers_of(cluster.spec):
        if at.spec.labels:
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
    version = version_of(cluster.spec.rayVersion)
    return version is not None and version < V2_BY_DEFAULT


def _is_of_older_ray(cluster: ClusterInFile) -> bool:
    """Return whether an autoscaler is to run that does not read the fields of groups."""
    version = version_of(cluster.spec.rayVersion)
    return is_autoscaling(cluster.spec) and version is not None and version < _READS_GROUP_FIELDS


def _unread(at: Group[HeadGroup], name: Literal["resources", "labels"], cluster: ClusterInFile) -> Found:
    message = f"{at.name} has {name}, which the autoscaler of Ray {cluster.spec.rayVersion} does not read"
    return Found((*at.path, name), message, "take Ray 2.51 or newer")


def _resources_unread(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec) if _is_of_older_ray(cluster) else ():
        if at.spec.resources:
            yield _unread(at, "resources", cluster)._replace(fix="take Ray 2.51 or newer, or write rayStartParams")


def _labels_unread(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster.spec) if _is_of_older_ray(cluster) else ():
        if at.spec.labels:
            yield _unread(at, "labels", cluster)


RULES: Final = (
    Rule(
        "taint-not-tolerated",
        "note",
        "Nodes with devices are often tainted with the name of the device, so that pods without toleration wait for "
        "ever. Google's and some other clusters add the toleration by themselves.",
        _EXTENDED,
        _taint_not_tolerated,
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
        "any-node-with-devices",
        "note",
        "Where nodes have different devices, trials get now these, now those.",
        "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
        _any_node,
    ),
    Rule(
        "group-resources-unread",
        "warning",
        "The pods have them, and the autoscaler plans with others.",
        "https://github.com/ray-project/ray/pull/57260",
        _resources_unread,
    ),
    Rule(
        "group-labels-unread",
        "note",
        "The pods have them, but no node is added for a trial that asks for them.",
        "https://github.com/ray-project/ray/pull/57260",
        _labels_unread,
    ),
    Rule(
        "labels-without-v2",
        "warning",
        "Trials that ask for a label, such as a device type, have no node added.",
        _LABELS,
        _labels_without_v2,
    ),
)
