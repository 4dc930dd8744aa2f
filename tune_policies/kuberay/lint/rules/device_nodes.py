"""Rules for the nodes of pods with devices: their taints, labels and device types."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPE_PREFIX,
    KNOWN_TYPES,
    check_accelerator_type,
    misread_type,
)
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, TPU_KEY, ray_resource
from tune_policies.kuberay.lint.cluster_parts import (
    Group,
    exact,
    extra,
    groups_of,
    reads_group_fields,
    states_type,
    the_cluster,
    workers_of,
)
from tune_policies.kuberay.lint.rule import Found, RuleBook, Severity
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup, Toleration, WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import device_type, ray_counts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import suggest

RULES: Final = RuleBook()

_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"


@RULES.of_each(
    groups_of,
    "taint-not-tolerated",
    "note",
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration",
)
def _taint_not_tolerated(at: Group[HeadGroup]) -> Iterator[Found]:
    """Nodes with devices often have a taint named after the device. A pod that does not tolerate it stays pending.

    GKE and some other platforms add the toleration automatically.
    """
    tolerations, path = at.pod.tolerations, (*at.pod_path, "tolerations")
    for key in at.devices.keys() - {TPU_KEY}:  # only GKE has TPUs, and GKE adds the toleration
        usual = taint_of(at, key)
        taints = [usual]
        if usual.key != key:
            taints.append(Toleration(key=key))  # the taint of a part of a GPU may also be named after this part
        if any(tolerates(own, taint) for own in tolerations for taint in taints):
            continue
        # If the pod tolerates other taints, the user has probably considered the taints of the nodes.
        is_misspelled = suggest(str(usual.key), [toleration.key for toleration in tolerations if toleration.key])
        if tolerations and not is_misspelled:
            continue
        name, fields = f"{usual.key}:NoSchedule", f"key: {usual.key}, operator: Exists, effect: NoSchedule"
        if usual.value is not None:
            name = f"{usual.key}={usual.value}:NoSchedule"
        message = f"{at} has {key}, but does not tolerate the taint {name}"
        where = path if tolerations else at.pod_path
        yield Found(where, message, f"if its nodes have the taint, add to tolerations: {{{fields}}}")


def taint_of(at: Group[HeadGroup], key: str) -> Toleration:
    """Return a toleration for the usual taint of nodes with these devices. On GKE, its value is known."""
    domain = key.partition("/")[0]
    taints = (plugin.taint(key) for plugin in DEVICE_PLUGINS if (plugin.key or "").partition("/")[0] == domain)
    name = next(taints, key)
    is_on_gke = any(label.startswith("cloud.google.com/") for label in at.pod.nodeSelector)
    if is_on_gke and name == "nvidia.com/gpu":
        # https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
        return Toleration(key=name, value="present")
    return Toleration(key=name)


@RULES.of_each(
    the_cluster,
    "node-selector-missing",
    "note",
    "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
)
def _node_selector_missing(cluster: ClusterInFile) -> Iterator[Found]:
    """If nodes have different devices, the device that a trial gets is random.

    It is a warning if another group states a different device type.
    """
    groups_with: defaultdict[str, list[Group[HeadGroup]]] = defaultdict(list)
    for at in groups_of(cluster):
        for key in at.devices:
            groups_with[key].append(at)
    for key, groups in groups_with.items():
        types = {_stated_type(at) for at in groups} - {None}
        for at in groups:
            own = _stated_type(at)
            severity: Severity = "warning" if own and types != {own} else "note"
            # If only one group requests the device, all nodes with it are meant for this group.
            if len(groups) > 1 and not at.pod.nodeSelector and not extra(at.pod, "affinity"):
                message = f"the pods of {at} can run on any node with {key}, including nodes of other groups"
                fix = "add a nodeSelector for the device type of its nodes"
                yield Found(at.pod_path, message, fix, severity)


def _stated_type(at: Group[HeadGroup]) -> str | None:
    """Return the device type that a group states in its labels or resources, or ``None``."""
    try:
        counted = ray_counts(at.spec)
    except InvalidResourcesError:
        counted = {}
    return device_type(counted, at.spec.labels, {})


@RULES.of_each(groups_of, "device-type-contradicted", "warning", _LABELS)
def _type_contradicted(at: Group[HeadGroup]) -> Iterator[Found]:
    """Trials that request the type get nodes with another type."""
    stated = _stated_type(at)
    there = device_type({}, {}, at.pod.nodeSelector)
    if stated and there and not _is_kind_of(stated, there) and not _is_kind_of(there, stated):
        # The type may also be stated by a resource. Then the finding is about the whole group.
        path = (*at.path, "labels", ACCELERATOR_TYPE) if ACCELERATOR_TYPE in at.spec.labels else at.path
        message = f"{at} states the device type {stated}, but its node selector selects nodes with {there}"
        yield Found(path, message, "write the device type of the nodes in both places")


def _is_kind_of(name: str, of: str) -> bool:
    """Return whether a type equals another type or is a variant of it. For example, A100-80G is a variant of A100."""
    return f"{name}-".startswith(f"{of}-")


@RULES.of_each(groups_of, "unknown-device-type", "warning", "ray.util.accelerators")
def _unknown_type(at: Group[HeadGroup]) -> Iterator[Found]:
    """Trials request a type by Ray's name, so the autoscaler never adds a node of this group for them."""
    name = at.spec.labels.get(ACCELERATOR_TYPE)
    if name is not None and not _is_type(name):
        # Report only likely typos: a name unlike all of Ray's names may be a device that Ray does not support.
        near = suggest(name.removeprefix("nvidia-").removeprefix("NVIDIA-"), KNOWN_TYPES)
        if near:
            message = f"{at} has the device type {name!r}, which is not one of Ray's device types{near}"
            yield Found((*at.path, "labels", ACCELERATOR_TYPE), message, "use Ray's name of the type")


def _is_type(name: str) -> bool:
    try:
        check_accelerator_type(name)
    except InvalidResourcesError:
        return False
    return misread_type(name) is None


@RULES.of_each(workers_of, "device-type-missing", "note", _LABELS)
def _type_missing(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """Ray detects the device type of a node only after the node starts.

    If the manifest does not state the type, the autoscaler adds no node for a trial that requests it.
    """
    # Ray's autoscaler derives the resource of TPU slices from their node selectors.
    if at.is_autoscaling and not states_type(at) and any(ray_resource(key) != "TPU" for key in at.devices):
        resource = f"{ACCELERATOR_TYPE_PREFIX}A100"
        amount = f'resources: {{"{resource}": "1"}}'
        if at.needs_start_params:
            amount = f"1 as {resource} in the JSON of rayStartParams.resources"
        fields = f"{amount} for accelerator_type"
        if reads_group_fields(at.cluster):
            fields = f"labels: {{{ACCELERATOR_TYPE}: A100}} for label selectors and {fields}"
        fix = f"if trials request the type, write {fields}, with Ray's name of the type"
        yield Found(at.path, f"{at} does not state the device type of its nodes for the autoscaler", fix)


def tolerates(own: Toleration, taint: Toleration) -> bool:
    """Return whether a toleration matches a taint. ``taint`` is a toleration with the fields of this taint."""
    # A toleration without an effect matches all effects, and one without a key matches all keys:
    # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/.
    if own.effect not in (None, "", taint.effect or "NoSchedule"):
        return False
    if own.operator == "Exists":
        return own.key in (None, "", taint.key)
    return own.key == taint.key and taint.value in (None, own.value or "")


_MACHINE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

_GPUS_OF_MACHINES: Final = (
    (r"g(4dn|5|6|6e)\.([248]|16)?xlarge|p5\.4xlarge|g2-standard-(4|8|12|16|32)", 1),
    (r"g2-standard-24", 2),
    (r"g(4dn|5|6|6e)\.12xlarge|g(5|6|6e)\.24xlarge|g2-standard-48", 4),
    (r"g4dn\.metal|g(5|6|6e)\.48xlarge|p4de?\.24xlarge|p5(e|en)?\.48xlarge|g2-standard-96", 8),
    *((rf"a[23]-[a-z]+gpu-{number}g", number) for number in (1, 2, 4, 8, 16)),
)
"""Patterns of AWS and Google machine types, each with the number of GPUs."""


@RULES.of_each(
    groups_of,
    "more-gpus-than-machine",
    "warning",
    "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "
    "https://cloud.google.com/compute/docs/accelerator-optimized-machines",
)
def _more_gpus_than_machine(at: Group[HeadGroup]) -> Iterator[Found]:
    """The pod does not fit on the machine unless the device plugin counts each GPU several times."""
    machine = next((at.pod.nodeSelector[label] for label in _MACHINE_LABELS if label in at.pod.nodeSelector), "")
    there = next((number for pattern, number in _GPUS_OF_MACHINES if re.fullmatch(pattern, machine)), None)
    asked = exact(at.devices.get("nvidia.com/gpu"))
    if there is not None and asked is not None and asked > there:
        message = f"{at} requests {asked} GPUs on a {machine}, which has only {there}"
        fix = f"request at most {there}, or select a larger machine"
        yield Found(at.key_path("nvidia.com/gpu"), message, fix)
