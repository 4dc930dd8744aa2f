"""Rules for CPUs and host memory: what Ray counts, and what Kubernetes keeps."""

from collections.abc import Iterator
from typing import Final

from tune_policies.lint.rule import Found, Rule
from tune_policies.lint.rules.pods import Group, exact, groups_of, workers_of
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.documents import Path
from tune_policies.manifests.kuberay_models import HeadGroup, Quantity

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


RULES: Final = (
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
)
