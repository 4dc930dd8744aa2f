"""Rules for which GPUs a process sees: those of its trial, and no others."""

from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import Group, Taint, devices_of, exact, groups_of, is_on_gke
from tune_policies.kuberay.lint.rules.images import has_cuda
from tune_policies.kuberay.lint.rules.nodes import taint_of
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

_HIDDEN: Final = ("void", "none")

_TAINT: Final = "nvidia.com/gpu"

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods from a node; with the third it is only taken last."""

_VARIABLES: Final = frozenset(each.visibility_variable for each in FAMILIES if each.visibility_variable)

_TENANCY: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html#gpu-multi-tenancy"


def _has_nvidia(at: Group[HeadGroup]) -> bool:
    return any(key.startswith("nvidia.com/") for each in at.pod.containers for key in devices_of(each))


def _sees_every_gpu(cluster: ClusterInFile) -> Iterator[Found]:
    with_gpus = [at for at in groups_of(cluster.spec) if _has_nvidia(at)]
    for at in groups_of(cluster.spec) if with_gpus else ():
        if _has_nvidia(at) or at.environment.get(_VISIBLE) in _HIDDEN or not _may_see(at, with_gpus):
            continue
        hides = {"name": _VISIBLE, "value": "void"}
        env = at.container.env
        path = (*at.container_path, "env")
        yield Found(
            at.variable_path(_VISIBLE) if _VISIBLE in at.environment else at.container_path,
            f"{at.name} has no GPU, and may see every GPU of the node that it is put on",
            f"set the variable {_VISIBLE} to void",
            () if _VISIBLE in at.environment else (Edit((*path, len(env)), hides) if env else Edit(path, [hides]),),
        )


def _may_see(at: Group[HeadGroup], with_gpus: Sequence[Group[HeadGroup]]) -> bool:
    """Return whether pods without GPU are shown all of a node, and Ray would count them."""
    if at.environment.get(_VISIBLE) == "all" or (at.pod.runtimeClassName or "").startswith("nvidia"):
        return True
    told = at.amount("GPU", "num-gpus")
    if (told is not None and exact(told[1]) == 0) or has_cuda(at.container.image) is False:
        return False
    return not all(_is_elsewhere(at, other) or _is_tainted_against(at, other) for other in with_gpus)


def _is_elsewhere(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether node selectors keep the pods of two groups on different nodes."""
    ours, theirs = at.pod.nodeSelector, other.pod.nodeSelector
    return any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys())


def _is_tainted_against(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether the nodes of another group seem to have a taint that keeps this one's pods off."""
    # Whoever tolerates a taint says that its nodes have it.
    taints = [Taint(each.key, each.value, each.effect or "NoSchedule") for each in other.pod.tolerations if each.key]
    taints += [taint_of(other, _TAINT)] if is_on_gke(other) else []
    return any(taint.effect in _KEEPS_OFF and not at.tolerates(taint) for taint in taints)


def _devices_by_hand(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for name in sorted(_VARIABLES & at.environment.keys()) if at.devices else ():
            yield Found(
                at.variable_path(name),
                f"{at.name} sets {name}={at.environment[name]} by hand",
                "leave it out: Ray sets it for each trial",
            )


def _devices_not_set(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for name, value in at.environment.items():
            is_on = (value or "").lower() in ("1", "true")
            if name.startswith("RAY_EXPERIMENTAL_NOSET_") and is_on and at.devices:
                yield Found(
                    at.variable_path(name),
                    f"{at.name} sets {name}, so that every trial sees every device of its node",
                    "leave it out, unless the training code picks its device by ray.get_gpu_ids()",
                )


def _visible_on_zero(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        if at.devices and (at.environment.get("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO") or "").lower() in ("0", "false"):
            yield Found(
                at.variable_path("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"),
                f"in {at.name} a trial without GPU sees every GPU of its node",
                "leave the variable out where trials with and without GPU share a node",
            )


def _runtime_class_missing(cluster: ClusterInFile) -> Iterator[Found]:
    groups = [at for at in groups_of(cluster.spec) if _has_nvidia(at)]
    named = sorted({at.pod.runtimeClassName for at in groups if at.pod.runtimeClassName})
    for at in groups:
        if named and at.pod.runtimeClassName is None:
            yield Found(
                at.pod_path,
                f"{at.name} has NVIDIA GPUs and no runtimeClassName, where others have {named[0]!r}",
                f"write runtimeClassName: {named[0]}, if its nodes need it too",
            )


RULES: RuleSet = (
    Rule(
        "sees-every-gpu",
        "warning",
        "In an image with CUDA, a pod that asks for no GPU sees all of the node's, those of other pods too. Ray "
        "counts them and hands them out.",
        _TENANCY,
        _sees_every_gpu,
    ),
    Rule(
        "devices-by-hand",
        "warning",
        "Ray takes what the variable names for all that the node has, and refuses to start where it is told of more.",
        "resolve in ray._private.resource_and_label_spec",
        _devices_by_hand,
    ),
    Rule(
        "devices-not-set",
        "warning",
        "All trials of a node start on its first device, and its memory overflows while others are idle.",
        "set_current_process_visible_accelerator_ids in ray._private.accelerators",
        _devices_not_set,
    ),
    Rule(
        "visible-on-zero",
        "note",
        "Such a trial may use the GPU of another one, without being counted.",
        "ray._private.worker, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        _visible_on_zero,
    ),
    Rule(
        "runtime-class-missing",
        "note",
        "Where NVIDIA's runtime is not the default of the nodes, a pod without the class gets no GPU.",
        "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html",
        _runtime_class_missing,
    ),
)
