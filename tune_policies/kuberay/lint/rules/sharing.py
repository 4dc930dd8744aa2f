"""Rules for GPUs that pods share below Ray, and for pods that Ray resizes in place."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.cluster_parts import Group, exact, extra, groups_of
from tune_policies.kuberay.lint.pod_schema import as_list
from tune_policies.kuberay.lint.rule import Found, Rule, RuleBook, why
from tune_policies.kuberay.reading.in_place_resize import (
    ANNOTATION,
    FIRST_RAY,
    groups_by_name,
    is_too_old,
    resize_problems,
    too_small,
    unknown_groups,
)
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup
from tune_policies.kuberay.reading.ray_counts import ray_counts
from tune_policies.kuberay.reading.shared_gpu_memory import (
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_PERCENTAGE,
    KAI_CONTAINER,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_MEMORY,
    KAI_PARTS,
    claims_of,
    gpus_given,
    has_misplaced_kai_part,
    kai_fraction,
    kai_memory_mib,
    may_be_gpu_claim,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import suggest

RULES: Final = RuleBook()

_KAI: Final = "https://github.com/kai-scheduler/KAI-Scheduler/blob/main/docs/gpu-sharing/README.md"
_HAMI: Final = "https://github.com/Project-HAMi/HAMi/blob/master/docs/config.md"
_DRA: Final = "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/"
_READER: Final = "_get_num_gpus in ray.autoscaler._private.kuberay.autoscaling_config"
_IPPR: Final = "ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.ippr_provider"

_STATE: Final = 'write resources: {GPU: "1"} next to groupName and template, or num-gpus: "1" under rayStartParams'


_KAI_BY_PLAIN_NAME: Final = {"gpufraction": KAI_FRACTION, "gpumemory": KAI_MEMORY}
_OF_KAI: Final = (KAI_FRACTION, KAI_MEMORY, KAI_DEVICES, KAI_CONTAINER)


@RULES.of_each(groups_of, "kai-gpu-memory-not-isolated", "note", _KAI)
def _kai_does_not_isolate(at: Group[HeadGroup]) -> Iterator[Found]:
    """KAI Scheduler only counts the memory. A pod that uses more than its part makes other pods fail."""
    key = _kai_key(at)
    if key is not None:
        message = f"{at} gets a part of a GPU ({key}), but KAI Scheduler does not isolate its memory"
        fix = (
            "limit each trial with gpu_memory of the policy. Newer versions of KAI set GPU_MEMORY_LIMIT in the "
            "container, in bytes, after the pod is bound"
        )
        yield Found(_annotation_path(at, key), message, fix)


@RULES.of_each(groups_of, "kai-invalid-part", "error", _KAI)
def _kai_invalid(at: Group[HeadGroup]) -> Iterator[Found]:
    """KAI Scheduler refuses the pod, does not schedule it, or gives it no part of a GPU."""
    annotations, template = at.spec.template.metadata.annotations, at.spec.template
    yield from _kai_misplaced(at)
    if KAI_FRACTION in annotations and kai_fraction(template) is None:
        message = f"{KAI_FRACTION} of {at} is {annotations[KAI_FRACTION]!r}"
        yield Found(_annotation_path(at, KAI_FRACTION), message, 'write a number between 0 and 1, such as "0.5"')
    if KAI_MEMORY in annotations and kai_memory_mib(template) is None:
        message = f"{KAI_MEMORY} of {at} is {annotations[KAI_MEMORY]!r}"
        yield Found(_annotation_path(at, KAI_MEMORY), message, 'write a whole number of MiB, such as "4000"')
    # The following mistakes do not exclude each other, so each has its own finding.
    number = annotations.get(KAI_DEVICES, "1")
    if not re.fullmatch(r"[1-9]\d{0,2}", number, re.ASCII):
        message = f"{KAI_DEVICES} of {at} is {number!r}"
        yield Found(_annotation_path(at, KAI_DEVICES), message, 'write a whole number, such as "2"')
    names = [container.name for _, container in at.containers]
    name = annotations.get(KAI_CONTAINER)
    if name is not None and name not in names:
        message = f"{KAI_CONTAINER} of {at} is {name!r}, but its pods have no such container{suggest(name, names)}"
        yield Found(_annotation_path(at, KAI_CONTAINER), message, f"write {at.container.name}, the Ray container")
    if annotations.keys() >= {KAI_FRACTION, KAI_MEMORY}:
        message = f"{at} has both {KAI_FRACTION} and {KAI_MEMORY}"
        yield Found(_annotation_path(at, KAI_MEMORY), message, "keep one of them")
    for name in annotations:
        plain = re.sub("[-_]", "", name).lower()
        near = difflib.get_close_matches(plain, _KAI_BY_PLAIN_NAME, n=1, cutoff=0.85)
        # The other annotations of KAI Scheduler are similar to these names, but correct.
        if near and name not in _OF_KAI:
            message = f"{at} has the unknown annotation {name!r}; did you mean {_KAI_BY_PLAIN_NAME[near[0]]!r}?"
            yield Found(_annotation_path(at, name), message, f"write {_KAI_BY_PLAIN_NAME[near[0]]}")
    key = _kai_key(at)
    if key is not None and "nvidia.com/gpu" in at.devices:
        message = f"{at} requests a part of a GPU ({key}) and whole GPUs (nvidia.com/gpu)"
        yield Found(at.key_path("nvidia.com/gpu"), message, "remove nvidia.com/gpu from the limits and the requests")


def _kai_misplaced(at: Group[HeadGroup]) -> Iterator[Found]:
    """Yield a finding if a group that counts GPUs has its part of a GPU where KAI Scheduler does not read it."""
    template, cluster = at.spec.template, at.cluster.metadata
    # A pod that requests GPUs in another way, or whose group passes no GPUs to Ray, does not need the annotation.
    if not has_misplaced_kai_part(template, cluster) or gpus_given(template) or not _counts_devices(at):
        return
    fix = f"write the part under template.metadata.annotations of {at}"
    for key in sorted(KAI_PARTS):
        if key in template.metadata.labels:
            path = (*at.path, "template", "metadata", "labels", key)
            yield Found(path, f"{key} is a label of {at}, but KAI Scheduler reads only annotations", fix)
        elif key in {**cluster.annotations, **cluster.labels}:
            message = f"{key} is set at the cluster, but KAI Scheduler reads only the annotations of pods"
            yield Found((*at.path, "template"), message, fix)


_KAI_QUEUES: Final = ("kai.scheduler/queue", "runai/queue")
"""Labels for which KubeRay or an admission webhook sets the scheduler of the pods."""


@RULES.of_each(groups_of, "kai-scheduler-missing", "note", _KAI)
def _kai_scheduler_missing(at: Group[HeadGroup]) -> Iterator[Found]:
    """Without KAI Scheduler, Kubernetes ignores the annotation, so the pod gets no part of a GPU."""
    key, scheduler = _kai_key(at), extra(at.pod, "schedulerName")
    labels = {*at.cluster.metadata.labels, *at.spec.template.metadata.labels}
    # Any other scheduler may be KAI Scheduler under a name that the administrator chose.
    if key is not None and scheduler in (None, "default-scheduler") and labels.isdisjoint(_KAI_QUEUES):
        message = f"{at} has the annotation {key}, but no scheduler that reads it"
        fix = "write schedulerName: kai-scheduler, or the label kai.scheduler/queue if KubeRay uses KAI Scheduler"
        yield Found(_annotation_path(at, key), message, fix)


@RULES.of_each(groups_of, "shared-gpu-not-counted", "warning", _READER)
def _not_counted(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's autoscaler reads neither annotations nor resource claims, so it adds no node for a trial with a GPU."""
    if not at.is_autoscaling:
        return  # Ray detects the GPU when the node starts
    if _counts_devices(at):
        return
    key = _kai_key(at)
    if key is not None:
        message = f"Ray counts no GPU in {at}, although KAI Scheduler gives it a part of a GPU ({key})"
        yield Found(_annotation_path(at, key), message, _STATE)


@RULES.of_each(groups_of, "claim-not-counted", "warning", _DRA)
def _claim_not_counted(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray does not read resource claims: its autoscaler counts no device, so it adds no node for a trial with a GPU."""
    if not at.is_autoscaling:
        return  # Ray detects the GPU when the node starts
    # Only the name of a claim is in the manifest. The device is in a ResourceClaim, which may be in another file.
    names = [name for name in claims_of(at.container) if may_be_gpu_claim(name)]
    if names and not _counts_devices(at):
        message = f"Ray counts no GPU in {at}, although its Ray container uses the resource claim {names[0]!r}"
        yield Found((*at.container_path, "resources", "claims"), message, f"if the claim is for a GPU, {_STATE}")


@RULES.of_each(groups_of, "claim-not-used", "warning", _DRA)
def _claim_not_used(at: Group[HeadGroup]) -> Iterator[Found]:
    """A container sees the device of a claim only if its own resources list the claim."""
    claims = as_list(extra(at.pod, "resourceClaims"))
    listed = [claim.get("name") for claim in claims if isinstance(claim, dict)]
    used = {name for _, container in at.containers for name in claims_of(container)}
    # Not only the Ray container counts, because a claim can also be for a device of a sidecar.
    for name in listed:
        if name not in used:
            message = f"no container of {at} uses the resource claim {name!r}"
            fix = f"write claims: [{{name: {name}}}] under resources of the Ray container"
            yield Found((*at.pod_path, "resourceClaims"), message, fix)


@RULES.of_each(groups_of, "hami-memory-not-stated", "note", _HAMI)
def _hami_memory_not_stated(at: Group[HeadGroup]) -> Iterator[Found]:
    """HAMi then gives the pod the administrator's default amount of GPU memory, so plans do not know the amount."""
    asked = {**at.container.resources.requests, **at.container.resources.limits}
    cores = next((key for key in asked if HAMI_CORES.fullmatch(key)), None)
    states_memory = any(HAMI_MEMORY.fullmatch(key) or HAMI_PERCENTAGE.fullmatch(key) for key in asked)
    if cores is not None and not states_memory:
        message = f"{at} states its part of the GPU's cores ({cores}), but not its GPU memory"
        yield Found(at.key_path(cores), message, "write nvidia.com/gpumem (in MiB) under limits")


_MOST_MIB: Final = 2**20
"""More GPU memory in MiB than any GPU has (1 TiB)."""


@RULES.of_each(groups_of, "hami-invalid-amount", "error", _HAMI)
def _hami_invalid(at: Group[HeadGroup]) -> Iterator[Found]:
    """No GPU has so much, so HAMi never schedules the pod."""
    for key, quantity in {**at.container.resources.requests, **at.container.resources.limits}.items():
        amount = exact(quantity)
        if amount is None:
            continue
        is_share = HAMI_PERCENTAGE.fullmatch(key) or HAMI_CORES.fullmatch(key)
        # Shares of memory and cores are in percent of one GPU.
        if is_share and amount > 100:
            yield Found(at.key_path(key), f"{at} requests {quantity} % ({key})", "write at most 100")
        elif HAMI_MEMORY.fullmatch(key) and amount > _MOST_MIB:
            message = f"{at} requests {key}: {quantity}, but the amount is in MiB"
            yield Found(at.key_path(key), message, 'write a number of MiB without a unit, such as "10240"')


@RULES.of_each(groups_of, "hami-gpus-missing", "error", _HAMI)
def _hami_gpus_missing(at: Group[HeadGroup]) -> Iterator[Found]:
    """The amounts are for each GPU. Without a number of GPUs, Ray's autoscaler counts none."""
    if not at.is_autoscaling:
        return  # HAMi assumes one GPU, and Ray detects it when the node starts
    asked = {**at.container.resources.requests, **at.container.resources.limits}
    keys = [key for key in asked if HAMI_MEMORY.fullmatch(key) or HAMI_PERCENTAGE.fullmatch(key)]
    if keys and not _counts_devices(at):
        message = f"{at} requests {keys[0]}, but Ray counts no GPU"
        fix = f'write nvidia.com/gpu: "1" under limits, or {_STATE}'
        # Volcano's own device plugin registers no ``nvidia.com/gpu``.
        if keys[0].startswith("volcano.sh/"):
            fix = _STATE
        yield Found(at.key_path(keys[0]), message, fix)


def _resize_refused(_: Document, clusters: Sequence[ClusterInFile]) -> Iterator[Found]:
    """Ray's autoscaler fails when it reads the annotation, so it neither resizes pods nor adds nodes."""
    fix = (
        "give each group max-cpu, max-memory and resize-timeout (seconds), requests of cpu and memory, no num-cpus or "
        "memory in rayStartParams, and restartPolicy: NotRequired in resizePolicy"
    )
    for cluster in clusters:
        for problem in resize_problems(cluster):
            yield Found(_RESIZE_PATH, problem, fix)


def _resize_ignored(_: Document, clusters: Sequence[ClusterInFile]) -> Iterator[Found]:
    """Ray's autoscaler resizes pods in place only in version v2, and only pods of groups that the cluster has.

    It reads the annotation of the cluster since Ray 2.56.
    """
    for cluster in clusters:
        yield from _resize_misplaced(cluster)
        if ANNOTATION not in cluster.metadata.annotations:
            continue
        if not cluster.spec.enableInTreeAutoscaling or cluster.autoscaler_version != 2:
            message = f"{ANNOTATION} has no effect, because the cluster does not use version v2 of the autoscaler"
            fix = "write enableInTreeAutoscaling: true and autoscalerOptions: {version: v2}"
            yield Found(_RESIZE_PATH, message, fix)
        if is_too_old(cluster):
            message = f"{ANNOTATION} has no effect, because Ray {cluster.spec.rayVersion} does not resize pods"
            yield Found(_RESIZE_PATH, message, f"use Ray {'.'.join(map(str, FIRST_RAY))} or newer")
        for name, larger in too_small(cluster):
            message = f"{ANNOTATION} does not enlarge the pods of group {name!r}, which already request {larger}"
            yield Found(_RESIZE_PATH, message, "write larger amounts for max-cpu and max-memory")
        for name in unknown_groups(cluster):
            near = suggest(name, groups_by_name(cluster))
            message = f"{ANNOTATION} names the group {name!r}, which the cluster does not have{near}"
            yield Found(_RESIZE_PATH, message, "use a groupName, or headgroup for the head")


def _resize_misplaced(cluster: ClusterInFile) -> Iterator[Found]:
    fix = f"write {ANNOTATION} under metadata.annotations of the cluster"
    for name in cluster.metadata.annotations:
        if name != ANNOTATION and difflib.SequenceMatcher(None, name.lower(), ANNOTATION).ratio() >= _NEAR_ANNOTATION:
            message = f"the cluster has the unknown annotation {name!r}; did you mean {ANNOTATION!r}?"
            yield Found(("metadata", "annotations", name), message, fix)
    for at in groups_of(cluster):
        # Ray reads only the metadata of the RayCluster (``validate_and_set_ippr_specs``).
        if ANNOTATION in at.spec.template.metadata.annotations:
            path = (*cluster.path, *_annotation_path(at, ANNOTATION))
            yield Found(path, f"{ANNOTATION} is an annotation of the pods of {at}, where Ray does not read it", fix)


_NEAR_ANNOTATION: Final = 0.85

_RESIZE_PATH: Final = ("metadata", "annotations", ANNOTATION)

RULES.append(Rule("resize-refused", "error", why(_resize_refused), _IPPR, _resize_refused))
RULES.append(Rule("resize-ignored", "warning", why(_resize_ignored), _IPPR, _resize_ignored))


def _kai_key(at: Group[HeadGroup]) -> str | None:
    annotations = at.spec.template.metadata.annotations
    return next((key for key in (KAI_FRACTION, KAI_MEMORY) if key in annotations), None)


def _annotation_path(at: Group[HeadGroup], key: str) -> tuple[str | int, ...]:
    return (*at.path, "template", "metadata", "annotations", key)


def _counts_devices(at: Group[HeadGroup]) -> bool:
    try:
        counted = ray_counts(at.spec)
    except InvalidResourcesError:
        return True  # another rule reports the wrong amount
    return any(amount > 0 for name, amount in counted.items() if name in DEVICE_RESOURCES)
