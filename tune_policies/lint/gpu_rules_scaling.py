"""Rules for how groups grow and shrink, on which nodes they land, and what an idle GPU costs."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tune_policies.accelerator_families import FAMILIES
from tune_policies.lint.finding import Edit
from tune_policies.lint.parts import AUTOSCALER_V2, V2_BY_DEFAULT, extra, is_autoscaling, version_of
from tune_policies.lint.pods import GroupAt, exact, groups_of, ray_resource, workers_of
from tune_policies.lint.rule import ClusterInFile, Found, Rule
from tune_policies.manifests.kuberay_models import WorkerGroupSpec
from tune_policies.values import suggest

_TYPE_LABEL: Final = "ray.io/accelerator-type"
_TYPES: Final = frozenset(name for family in FAMILIES for name in family.types)
_NO_LIMIT: Final = 2147483647
"""What KubeRay's definition writes where ``maxReplicas`` is left out."""

_LONG_S: Final = 1800
"""An idle GPU costs as much as a busy one; half an hour is longer than any node takes to start."""

_AUTOSCALING: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/configuring-autoscaling.html"
_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"
_EXTENDED: Final = (
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration"
)


def _workers(cluster: ClusterInFile) -> Iterator[tuple[GroupAt, WorkerGroupSpec]]:
    for at in workers_of(cluster):
        if isinstance(at.group, WorkerGroupSpec):
            yield at, at.group


def _taint_not_tolerated(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster):
        for key in at.devices:
            if key == "google.com/tpu":
                continue  # only Google has them, and tolerates for its users
            maker = key.partition("/")[0]
            taint = "nvidia.com/gpu" if maker == "nvidia.com" else key
            if not at.tolerates(taint):
                toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
                path = (*at.pod_path, "tolerations")
                known = at.pod.tolerations
                yield Found(
                    at.pod_path,
                    f"{at.title} has {key} and does not tolerate the taint {taint}",
                    f"add a toleration for {taint}, if its nodes have the taint",
                    (Edit((*path, len(known)), toleration) if known else Edit(path, [toleration]),),
                )


def _unknown_type(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster):
        name = at.group.labels.get(_TYPE_LABEL)
        if name is None or name in _TYPES:
            continue
        # A name that is like none of them may be of a device that Ray has no name for.
        near = suggest(name.removeprefix("nvidia-").removeprefix("NVIDIA-"), _TYPES)
        if near:
            yield Found(
                (*at.path, "labels", _TYPE_LABEL),
                f"{at.title} has the device type {name!r}, which Ray does not know{near}",
                "write the type as Ray does",
            )


def _no_type(cluster: ClusterInFile) -> Iterator[Found]:
    for at in workers_of(cluster):
        is_told = _TYPE_LABEL in at.group.labels or any(
            "accelerator_type:" in text for text in (*at.group.resources, at.group.rayStartParams.get("resources", ""))
        )
        # Ray's reader makes the resource of TPU slices from their node selectors.
        if is_autoscaling(cluster.spec) and not is_told and any(ray_resource(key) != "TPU" for key in at.devices):
            yield Found(
                at.path,
                f"the autoscaler is not told which device type {at.title} has",
                f"write labels: {{{_TYPE_LABEL}: …}} with Ray's name of the type, if trials ask for it",
            )


def _any_node(cluster: ClusterInFile) -> Iterator[Found]:
    groups = list(workers_of(cluster))
    keys = Counter(key for at in groups for key in at.devices)
    for at in groups:
        for key in at.devices:
            has_place = at.pod.nodeSelector or extra(at.pod, "affinity")
            if keys[key] > 1 and not has_place:
                yield Found(
                    at.pod_path,
                    f"{at.title} takes any node with {key}, those of other groups too",
                    "add a nodeSelector for the device type of its nodes",
                )


def _always_there(cluster: ClusterInFile) -> Iterator[Found]:
    for at, group in _workers(cluster):
        if is_autoscaling(cluster.spec) and at.devices and group.minReplicas > 0:
            nodes = group.minReplicas * group.numOfHosts
            yield Found(
                (*at.path, "minReplicas"),
                f"{at.title} keeps {nodes} {'node' if nodes == 1 else 'nodes'} with devices, also without work",
                "write minReplicas: 0, and the autoscaler adds them when trials ask",
            )


def _never_grows(cluster: ClusterInFile) -> Iterator[Found]:
    for at, group in _workers(cluster):
        is_range = "maxReplicas" in group.model_fields_set and group.replicas < group.maxReplicas
        if not is_autoscaling(cluster.spec) and at.devices and is_range:
            yield Found(
                (*at.path, "maxReplicas"),
                f"{at.title} has {group.replicas} replicas and may have {group.maxReplicas}, but nothing adds them",
                "write enableInTreeAutoscaling: true, or the same number three times",
            )


def _no_upper_bound(cluster: ClusterInFile) -> Iterator[Found]:
    for at, group in _workers(cluster):
        if is_autoscaling(cluster.spec) and at.devices and group.maxReplicas >= _NO_LIMIT:
            yield Found(
                (*at.path, "maxReplicas"),
                f"{at.title} may grow to {group.maxReplicas} replicas",
                "write the most that you want to pay for",
            )


def _timeouts(cluster: ClusterInFile) -> Iterator[tuple[Found, int]]:
    """Return a finding to fill in for each idle time-out of nodes, and the seconds."""
    if not is_autoscaling(cluster.spec):
        return
    of_all = cluster.spec.autoscalerOptions.idleTimeoutSeconds
    if of_all is not None:
        yield Found(("autoscalerOptions", "idleTimeoutSeconds"), f"an idle node goes after {of_all} s", ""), of_all
    for at, group in _workers(cluster):
        if (own := group.idleTimeoutSeconds) is not None:
            yield Found((*at.path, "idleTimeoutSeconds"), f"an idle node of {at.title} goes after {own} s", ""), own


def _goes_at_once(cluster: ClusterInFile) -> Iterator[Found]:
    for found, seconds in _timeouts(cluster):
        if seconds < 10:
            yield found._replace(fix="write 60, or as long as trials take to follow one another")


def _idles_long(cluster: ClusterInFile) -> Iterator[Found]:
    for found, seconds in _timeouts(cluster):
        is_paid = any(at.devices for at in workers_of(cluster) if found.path[: len(at.path)] == at.path)
        is_of_all = found.path[0] == "autoscalerOptions" and any(at.devices for at in workers_of(cluster))
        if seconds > _LONG_S and (is_paid or is_of_all):
            yield found._replace(fix="write a few minutes")


def _slow_growth(cluster: ClusterInFile) -> Iterator[Found]:
    if is_autoscaling(cluster.spec) and cluster.spec.autoscalerOptions.upscalingMode == "Conservative":
        yield Found(
            ("autoscalerOptions", "upscalingMode"),
            "the autoscaler starts no more nodes at a time than there are",
            "leave upscalingMode out",
        )


def _labels_without_v2(cluster: ClusterInFile) -> Iterator[Found]:
    if not is_autoscaling(cluster.spec) or not _is_v1(cluster):
        return
    for at in workers_of(cluster):
        if at.group.labels:
            yield Found(
                (*at.path, "labels"),
                f"the autoscaler is not version 2, and does not go by the labels of {at.title}",
                "write version: v2 under autoscalerOptions",
            )


def _is_v1(cluster: ClusterInFile) -> bool:
    head = GroupAt(("headGroupSpec",), cluster.spec.headGroupSpec)
    told = cluster.spec.autoscalerOptions.version
    if told is not None or AUTOSCALER_V2 in head.environment:
        return told == "v1" or (head.environment.get(AUTOSCALER_V2) or "").lower() in ("0", "false")
    version = version_of(cluster.spec.rayVersion)
    return version is not None and version < V2_BY_DEFAULT


def _equal_groups(cluster: ClusterInFile) -> Iterator[Found]:
    seen: dict[str, str] = {}
    for at, group in _workers(cluster):
        pod, resources = at.pod, at.container.resources
        place = (sorted(pod.nodeSelector.items()), extra(pod, "affinity"), group.priority)
        counted = (sorted(resources.limits.items()), sorted(resources.requests.items()), group.numOfHosts)
        told = (sorted(group.resources.items()), sorted(group.labels.items()), sorted(group.rayStartParams.items()))
        shape = repr((place, counted, told))
        if is_autoscaling(cluster.spec) and shape in seen:
            yield Found(
                (*at.path, "groupName"),
                f"{at.title} has the same nodes as {seen[shape]}",
                "make it one group, or tell them apart by labels or a priority",
            )
        seen.setdefault(shape, at.title)


def _head_works(cluster: ClusterInFile) -> Iterator[Found]:
    at = GroupAt(("headGroupSpec",), cluster.spec.headGroupSpec)
    told = at.amount("CPU", "num-cpus")
    if any(worker.devices for worker in workers_of(cluster)) and (told is None or exact(told[1]) != 0):
        yield Found(
            told[0] if told else at.path,
            "the head takes trials and drivers, beside what holds the cluster together",
            'write num-cpus: "0" under the rayStartParams of the head',
        )


def _head_with_devices(cluster: ClusterInFile) -> Iterator[Found]:
    at = GroupAt(("headGroupSpec",), cluster.spec.headGroupSpec)
    for key, amount in at.devices.items() if cluster.spec.workerGroupSpecs else ():
        yield Found(
            at.key_path(key),
            f"the head holds {amount} {key} as long as the cluster is there",
            "move the devices to a group of workers, which can shrink to nothing",
        )


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
        "labels-without-v2",
        "warning",
        "Trials that ask for a label, such as a device type, have no node added.",
        _LABELS,
        _labels_without_v2,
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
