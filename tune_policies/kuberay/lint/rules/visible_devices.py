"""Rules for the devices that are visible to the processes of a pod."""

from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.kuberay.lint.cluster_parts import (
    Group,
    devices_of,
    exact,
    groups_of,
    the_cluster,
)
from tune_policies.kuberay.lint.rule import Found, RuleBook
from tune_policies.kuberay.lint.rules.device_nodes import taint_of, tolerates
from tune_policies.kuberay.lint.rules.images import has_cuda
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup

RULES: Final = RuleBook()

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

_REPELLING: Final = ("NoSchedule", "NoExecute")
"""The effects of taints that repel pods."""

_VARIABLES: Final = {
    name: family.visibility_variable
    for family in FAMILIES
    for name in (family.visibility_variable, family.former_variable and family.former_variable.name)
    if name is not None
}
"""The variables that hide devices, each with the variable that Ray sets for a trial."""


def _has_nvidia(at: Group[HeadGroup]) -> bool:
    return any(key.startswith("nvidia.com/") for container in at.pod.containers for key in devices_of(container))


def _beside_nvidia(cluster: ClusterInFile) -> Iterator[tuple[Group[HeadGroup], Sequence[Group[HeadGroup]]]]:
    """Yield the groups without NVIDIA GPUs, each with all groups that have NVIDIA GPUs."""
    groups = groups_of(cluster)
    with_gpus = [at for at in groups if _has_nvidia(at)]
    if not with_gpus:
        return
    for at in groups:
        if not _has_nvidia(at):
            yield at, with_gpus


@RULES.of_each(
    _beside_nvidia,
    "unrequested-gpus-visible",
    "warning",
    "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html#gpu-multi-tenancy",
)
def _unrequested_gpus_visible(beside: tuple[Group[HeadGroup], Sequence[Group[HeadGroup]]]) -> Iterator[Found]:
    """In an image with CUDA, a pod that requests no GPU can use all GPUs of the node, even the GPUs of other pods.

    Ray counts these GPUs and assigns them to trials.
    """
    at, with_gpus = beside
    # With both values, NVIDIA's container runtime exposes no GPU:
    # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html.
    if at.environment.get(_VISIBLE) in ("void", "none") or not _may_see(at, with_gpus):
        return
    where = at.variable_path(_VISIBLE) if _VISIBLE in at.environment else at.container_path
    yield Found(
        where,
        f"{at} requests no GPU, but all GPUs of its nodes may be visible in its pods",
        f"set the environment variable {_VISIBLE} to void",
    )


def _may_see(at: Group[HeadGroup], with_gpus: Sequence[Group[HeadGroup]]) -> bool:
    """Return whether the GPUs of the node may be visible in a pod without GPUs, so that Ray would count them."""
    # Both are explicit requests for the runtime that exposes GPUs.
    if at.environment.get(_VISIBLE) == "all" or (at.pod.runtimeClassName or "").startswith("nvidia"):
        return True
    # With a stated 0, Ray counts no GPUs. Images without CUDA do not set the variable, and without it, the runtime
    # exposes no GPU. CUDA's base images set it to ``all``.
    stated = at.amount("GPU", "num-gpus")
    if (stated is not None and exact(stated[1]) == 0) or has_cuda(at.container.image) is False:
        return False
    return not all(_is_elsewhere(at, other) or _is_tainted_against(at, other) for other in with_gpus)


def _is_elsewhere(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether the node selectors of two groups select different nodes."""
    ours, theirs = at.pod.nodeSelector, other.pod.nodeSelector
    return any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys())


def _is_tainted_against(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether the nodes of another group probably have a taint that this group's pods do not tolerate."""
    # A toleration implies that the nodes have the taint. GKE taints all nodes with GPUs.
    taints = [toleration for toleration in other.pod.tolerations if toleration.key]
    of_gke = taint_of(other, "nvidia.com/gpu")
    if of_gke.value:
        taints.append(of_gke)
    return any(
        (taint.effect or "NoSchedule") in _REPELLING and not any(tolerates(own, taint) for own in at.pod.tolerations)
        for taint in taints
    )


@RULES.of_each(groups_of, "visible-devices-set", "warning", "resolve in ray._private.resource_and_label_spec")
def _visible_devices_set(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray uses only the devices that the variable lists, and does not start if the group states more devices."""
    if not at.devices:
        return
    for name in sorted(_VARIABLES.keys() & at.environment.keys()):
        message = f"{at} sets {name}={at.environment[name]}"
        sets = "it" if _VARIABLES[name] == name else _VARIABLES[name]
        yield Found(at.variable_path(name), message, f"remove {name}, because Ray sets {sets} for each trial")


@RULES.of_each(
    groups_of,
    "devices-not-isolated",
    "warning",
    "set_current_process_visible_accelerator_ids in ray._private.accelerators",
)
def _devices_not_isolated(at: Group[HeadGroup]) -> Iterator[Found]:
    """All trials of a node use its first device, so its memory is exceeded while other devices are idle."""
    if not at.devices:
        return
    for name, value in at.environment.items():
        # Each device family has a variable of its own. Ray reads them with ``env_bool`` of ``ray._common.utils``.
        if name.startswith("RAY_EXPERIMENTAL_NOSET_") and (value or "").lower() in ("1", "true"):
            message = f"{at} sets {name}, so all devices of a node are visible to every trial"
            fix = f"remove {name}, unless the training code selects its device with ray.get_gpu_ids()"
            yield Found(at.variable_path(name), message, fix)


@RULES.of_each(
    groups_of, "gpus-visible-to-cpu-trials", "note", "ray._private.worker, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
)
def _gpus_visible_to_cpu_trials(at: Group[HeadGroup]) -> Iterator[Found]:
    """A trial without GPUs can use a GPU that is reserved for another trial, because Ray does not hide GPUs from it."""
    name = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    if at.devices and (at.environment.get(name) or "").lower() in ("0", "false"):
        message = f"in {at}, every GPU of a node is visible to trials without GPUs"
        fix = f"remove {name} if trials with and without GPUs share a node"
        yield Found(at.variable_path(name), message, fix)


@RULES.of_each(
    the_cluster,
    "runtime-class-missing",
    "note",
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html",
)
def _runtime_class_missing(cluster: ClusterInFile) -> Iterator[Found]:
    """If the nodes do not use NVIDIA's runtime by default, a pod without a runtimeClassName gets no GPU."""
    groups = [at for at in groups_of(cluster) if _has_nvidia(at)]
    named = sorted({at.pod.runtimeClassName for at in groups if at.pod.runtimeClassName})
    # If no group has a runtime class, the nodes probably use NVIDIA's runtime by default.
    for at in groups:
        if named and at.pod.runtimeClassName is None:
            message = f"{at} has NVIDIA GPUs, but no runtimeClassName; other groups have {named[0]!r}"
            yield Found(at.pod_path, message, f"write runtimeClassName: {named[0]} if its nodes need it too")
