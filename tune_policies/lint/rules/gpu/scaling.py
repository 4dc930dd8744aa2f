"""Rules for how groups grow and shrink, for what stays, and for what an idle device costs."""

from collections.abc import Iterator
from typing import Final

from tune_policies.lint.rule import Found, Rule
from tune_policies.lint.rules.parts import extra, is_autoscaling
from tune_policies.lint.rules.pods import exact, head_of, workers_of
from tune_policies.manifests.cluster_in_file import ClusterInFile

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


RULES: Final = (
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
