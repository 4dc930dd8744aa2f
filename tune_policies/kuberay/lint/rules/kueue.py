"""Rules of Kueue, for clusters and jobs that it queues: those with its label."""

from collections.abc import Iterator
from typing import Final

from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import DocumentRule, Found, Rule
from tune_policies.kuberay.lint.rules.cluster_parts import groups_of, is_autoscaling, mapping
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile

QUEUE: Final = "kueue.x-k8s.io/queue-name"
ELASTIC: Final = "kueue.x-k8s.io/elastic-job"

_MOST_GROUPS: Final = 17
"""A workload has 18 sets of pods at the most, of which the head is one; before, it had 8."""

_CLUSTERS: Final = "https://kueue.sigs.k8s.io/docs/tasks/run/rayclusters/#d-limitations"
_JOBS: Final = "https://kueue.sigs.k8s.io/docs/tasks/run/rayjobs/#c-limitations"
_WEBHOOK: Final = "ValidateCreate in Kueue's pkg/controller/jobs/raycluster/common.go"


def _is_queued(cluster: ClusterInFile) -> bool:
    return bool(cluster.metadata.labels.get(QUEUE))


def _too_many_groups(cluster: ClusterInFile) -> Iterator[Found]:
    number = len(cluster.spec.workerGroupSpecs)
    if _is_queued(cluster) and number > _MOST_GROUPS:
        yield Found(
            ("workerGroupSpecs", _MOST_GROUPS),
            f"there are {number} groups of workers, and Kueue takes {_MOST_GROUPS}",
            "put nodes of one kind into one group, or make two clusters",
        )


def _autoscaling(cluster: ClusterInFile) -> Iterator[Found]:
    is_elastic = cluster.metadata.annotations.get(ELASTIC) == "true"
    if _is_queued(cluster) and is_autoscaling(cluster.spec) and not is_elastic:
        yield Found(
            ("enableInTreeAutoscaling",),
            "the autoscaler is on in a cluster that Kueue queues",
            f'write the annotation {ELASTIC}: "true", where Kueue has ElasticJobsViaWorkloadSlices, or turn it off',
        )


def _named_head(cluster: ClusterInFile) -> Iterator[Found]:
    for number, group in enumerate(cluster.spec.workerGroupSpecs):
        if _is_queued(cluster) and group.groupName == "head":
            yield Found(("workerGroupSpecs", number, "groupName"), "a group of workers is called 'head'", "rename it")


def _nothing_asked(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        asked = at.container.resources
        if _is_queued(cluster) and not asked.requests and not asked.limits:
            yield Found(at.container_path, f"{at.name} asks for nothing", "write requests of CPU and memory")


def _job(document: Document) -> dict[str, object] | None:
    """Return the ``spec`` of a job that is queued; ``None``: it is not."""
    labels = mapping(mapping(mapping(document.data).get("metadata")).get("labels"))
    spec = mapping(document.data).get("spec")
    return spec if labels.get(QUEUE) and isinstance(spec, dict) else None


def _cluster_stays(document: Document) -> Iterator[Found]:
    spec = _job(document)
    if spec is not None and "clusterSelector" not in spec and spec.get("shutdownAfterJobFinishes") is not True:
        path = ("spec", "shutdownAfterJobFinishes")
        yield Found(
            path, "the cluster stays when the job is done", "write shutdownAfterJobFinishes: true", (Edit(path, True),)
        )


def _other_cluster(document: Document) -> Iterator[Found]:
    spec = _job(document)
    if spec is not None and spec.get("clusterSelector") and spec.get("rayClusterSpec"):
        yield Found(
            ("spec", "clusterSelector"), "the job is for a cluster that runs already", "leave out one of the two"
        )


RULES: Final[tuple[Rule | DocumentRule, ...]] = (
    Rule(
        "kueue-too-many-groups",
        "error",
        "Kueue's webhook refuses it; older versions took 7.",
        _CLUSTERS,
        _too_many_groups,
    ),
    Rule(
        "kueue-autoscaling",
        "error",
        "Kueue keeps a place for what the manifest says, and refuses clusters that change by themselves.",
        _CLUSTERS,
        _autoscaling,
    ),
    Rule("kueue-group-head", "error", "Kueue calls the head so, and refuses the cluster.", _WEBHOOK, _named_head),
    Rule(
        "kueue-no-requests",
        "warning",
        "Kueue counts what pods ask for: one that asks for nothing takes its node past the quota.",
        _CLUSTERS,
        _nothing_asked,
    ),
    DocumentRule(
        "kueue-cluster-stays",
        "error",
        "A cluster without work would keep its place in the queue, so Kueue refuses the job.",
        _JOBS,
        ("RayJob",),
        _cluster_stays,
    ),
    DocumentRule(
        "kueue-other-cluster",
        "error",
        "Kueue queues jobs with the cluster that they start, and refuses one that names another.",
        _JOBS,
        ("RayJob",),
        _other_cluster,
    ),
)
