"""Rules for the images of pods, for their nodes, and for the GPUs that their processes see."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, FAMILIES
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, ray_resource
from tune_policies.kuberay.lint.rule import Found, RuleBook
from tune_policies.kuberay.lint.rules.cluster_parts import (
    API,
    Group,
    devices_of,
    exact,
    extra,
    groups_of,
    head_of,
    ray_in_image,
    tells_type,
    the_cluster,
    version_of,
    workers_of,
)
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup, Toleration, WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import device_type, ray_counts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.ray_versions import NEWEST_TRIED, TRIED, is_tried
from tune_policies.values.value import suggest

RULES: Final = RuleBook()

_IMAGES: Final = "https://hub.docker.com/r/rayproject/ray"

_TPU: Final = "google.com/tpu"


def has_cuda(image: str | None) -> bool | None:
    """Return whether one of Ray's own images has CUDA, or ``None`` if unknown."""
    name, _, tag = (image or "").partition("@")[0].rpartition(":")
    if not name.endswith(("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")):
        return None
    if re.search(r"-gpu\b|-cu\d+", tag):
        return True
    if re.fullmatch(r"[\w.]*(-py3\d+)?(-cpu|-tpu)?(-aarch64|-extra[\w-]*)?", tag) is None:
        return None  # a private tag
    # Without a suffix, images of ray-ml and ray-llm have CUDA.
    return not name.endswith("/ray") and "-cpu" not in tag and "-tpu" not in tag


@RULES.of_each(
    groups_of,
    "ray-not-first",
    "error",
    "RayContainerIndex in KubeRay's ray-operator/controllers/ray/utils/constant.go",
)
def _ray_not_first(at: Group[HeadGroup]) -> Iterator[Found]:
    """KubeRay starts Ray in the first container, and Ray's autoscaler reads that one's resources."""
    first = at.container
    for number, (path, each) in enumerate(at.containers):
        is_ray = re.search(r"(^|/)ray(-ml|-llm)?(:|@|$)", each.image or "")
        if number and is_ray and "ray" not in f"{first.name} {first.image}":
            message = f"the first container of {at} is {first.name!r}, and Ray's is number {number + 1}"
            yield Found(path, message, f"put {each.name!r} first")


@RULES.of_each(groups_of, "version-of-image", "warning", f"{API} (RayClusterSpec.rayVersion)")
def _version_of_image(at: Group[HeadGroup]) -> Iterator[Found]:
    """The operator and the autoscaler decide by rayVersion what they may use."""
    wanted = at.cluster.spec.rayVersion
    if wanted is None or re.fullmatch(r"\d+\.\d+\.\d+", wanted) is None:
        return
    head, there = ray_in_image(head_of(at.cluster).container.image), ray_in_image(at.container.image)
    if there not in (None, wanted) and head in (None, there):
        message = f"{at} has Ray {there} in its image, but rayVersion is {wanted}"
        as_image = "write the image's version in rayVersion"
        fix = as_image if head else f"use an image with Ray {wanted}; or, if the head has {there} too, {as_image}"
        yield Found((*at.container_path, "image"), message, fix)


@RULES.of_each(workers_of, "ray-versions-differ", "error", "check_version_info in ray._private.utils")
def _ray_versions_differ(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """Ray lets no worker into a cluster whose head has another version of Ray."""
    head, own = (ray_in_image(each.container.image) for each in (head_of(at.cluster), at))
    if head and own and own != head:
        message = f"{at} has Ray {own} and the head has {head}, by the tags of their images"
        yield Found((*at.container_path, "image"), message, f"use an image with Ray {head}")


@RULES.of_each(groups_of, "image-without-cuda", "warning", _IMAGES)
def _image_without_cuda(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray hands out the GPUs, but a training without libraries of its own falls back to the CPU."""
    if any(key.startswith("nvidia.com/") for key in at.devices) and has_cuda(at.container.image) is False:
        message = f"{at} has NVIDIA GPUs and the image {at.container.image!r}, which has no CUDA"
        fix = "use the image of the same version whose tag ends in -gpu"
        yield Found((*at.container_path, "image"), message, fix)


@RULES.of_each(groups_of, "image-for-other-devices", "warning", _IMAGES)
def _image_for_other_devices(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's images have libraries for NVIDIA's GPUs and for TPUs only. A training falls back to the CPU, or fails."""
    cuda, others = has_cuda(at.container.image), sorted(at.devices)
    if not others or cuda is None or any(key.startswith("nvidia.com/") for key in others):
        return
    if cuda or others != [_TPU]:  # an image without CUDA needs nothing but packages of Python for TPUs
        message = f"{at} has {others[0]} and the image {at.container.image!r}, which has no libraries for it"
        fix = f"use an image for {others[0]}, with Ray installed in it"
        yield Found((*at.container_path, "image"), message, fix)


TRIED_IMAGE: Final = f"use an image with Ray {TRIED}, such as rayproject/ray:{'.'.join(map(str, NEWEST_TRIED))}.0"


@RULES.of_each(groups_of, "ray-not-supported", "note", "tune_policies.values.ray_versions")
def _ray_not_supported(at: Group[HeadGroup]) -> Iterator[Found]:
    """This project was not tested with this version of Ray, so plans may be wrong and runs may fail."""
    image, told = ray_in_image(at.container.image), at.cluster.spec.rayVersion
    if image is not None and not is_tried(image):
        message = f"{at} has Ray {image} in its image {at.container.image!r}"
        yield Found((*at.container_path, "image"), message, TRIED_IMAGE)
    elif image is None and at.path == ("headGroupSpec",) and version_of(told) and not is_tried(str(told)):
        yield Found(("rayVersion",), f"rayVersion is {told}", TRIED_IMAGE)


_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"


@RULES.of_each(
    groups_of,
    "taint-not-tolerated",
    "note",
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration",
)
def _taint_not_tolerated(at: Group[HeadGroup]) -> Iterator[Found]:
    """Nodes with devices often have a taint named after the device, and a pod without the toleration stays pending.

    GKE and some other clusters add the toleration themselves.
    """
    tolerations, path = at.pod.tolerations, (*at.pod_path, "tolerations")
    for key in at.devices.keys() - {_TPU}:  # only GKE has TPUs, and it adds the toleration
        taint = _taint_of(at, key)
        is_misspelled = suggest(str(taint.key), [each.key for each in tolerations if each.key])
        # Tolerations of other taints show that the user knows the taints of the nodes.
        if any(_tolerates(own, taint) for own in tolerations) or (tolerations and not is_misspelled):
            continue
        name = f"{taint.key}{'' if taint.value is None else f'={taint.value}'}:NoSchedule"
        yield Found(
            path if tolerations else at.pod_path,
            f"{at} has {key} and does not tolerate the taint {name}",
            f"add a toleration for {name}, if its nodes have the taint",
        )


def _taint_of(at: Group[HeadGroup], key: str) -> Toleration:
    """Return a toleration for the usual taint of nodes with such devices. On GKE, its value is known."""
    maker = key.partition("/")[0]
    taints = (each.taint for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == maker)
    name = next(taints, key)
    # https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
    is_on_gke = any(each.startswith("cloud.google.com/") for each in at.pod.nodeSelector)
    return Toleration(key=name, value="present" if is_on_gke and name == "nvidia.com/gpu" else None)


@RULES.of_each(
    the_cluster,
    "any-node-with-devices",
    "note",
    "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
)
def _any_node(cluster: ClusterInFile) -> Iterator[Found]:
    """If nodes have different devices, chance decides which of them a trial gets."""
    keys = Counter(key for at in workers_of(cluster) for key in at.devices)
    for at in workers_of(cluster):
        for key in at.devices:
            if keys[key] > 1 and not at.pod.nodeSelector and not extra(at.pod, "affinity"):
                message = f"{at} takes any node with {key}, those of other groups too"
                yield Found(at.pod_path, message, "add a nodeSelector for the device type of its nodes")


@RULES.of_each(groups_of, "device-type-contradicted", "warning", _LABELS)
def _type_contradicted(at: Group[HeadGroup]) -> Iterator[Found]:
    """Trials that ask for the type get nodes with another type."""
    try:
        counted = ray_counts(at.spec)
    except InvalidResourcesError:
        counted = {}
    told = device_type(counted, at.spec.labels, {})
    there = device_type({}, {}, at.pod.nodeSelector)
    if told and there and not _is_kind_of(told, there) and not _is_kind_of(there, told):
        path = (*at.path, "labels", ACCELERATOR_TYPE) if ACCELERATOR_TYPE in at.spec.labels else at.path
        message = f"Ray is told that {at} has {told}, and its node selector takes nodes with {there}"
        yield Found(path, message, "write the type that its nodes have in both places")


def _is_kind_of(name: str, of: str) -> bool:
    """Return whether a type is the same as another or a variant of it, such as A100-80G of A100."""
    return f"{name}-".startswith(f"{of}-")


@RULES.of_each(groups_of, "unknown-device-type", "warning", "ray.util.accelerators")
def _unknown_type(at: Group[HeadGroup]) -> Iterator[Found]:
    """A trial asks for the type by Ray's name, and no node of this group is ever added for it."""
    name = at.spec.labels.get(ACCELERATOR_TYPE)
    if name is not None and name not in ACCELERATOR_TYPES:
        # Other names may be of devices that Ray does not know.
        near = suggest(name.removeprefix("nvidia-").removeprefix("NVIDIA-"), ACCELERATOR_TYPES)
        if near:
            message = f"{at} has the device type {name!r}, which Ray does not know{near}"
            yield Found((*at.path, "labels", ACCELERATOR_TYPE), message, "write the type as Ray does")


@RULES.of_each(workers_of, "device-type-not-told", "note", _LABELS)
def _no_type(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """A node tells its device type only once it runs.

    If the manifest does not tell it, no node is added for a trial that asks for the type.
    """
    # Ray's reader makes the resource of TPU slices from their node selectors.
    if at.is_autoscaling and not tells_type(at) and any(ray_resource(key) != "TPU" for key in at.devices):
        fix = f"write labels: {{{ACCELERATOR_TYPE}: …}} with Ray's name of the type, if trials ask for it"
        yield Found(at.path, f"the autoscaler is not told which device type {at} has", fix)


_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods off a node."""

_VARIABLES: Final = {
    name: each.visibility_variable
    for each in FAMILIES
    for name in (each.visibility_variable, each.former_variable and each.former_variable.name)
    if name is not None
}
"""The variables that hide devices, and for each the one that Ray sets for a trial."""


def _has_nvidia(at: Group[HeadGroup]) -> bool:
    return any(key.startswith("nvidia.com/") for each in at.pod.containers for key in devices_of(each))


def _beside_nvidia(cluster: ClusterInFile) -> Iterator[tuple[Group[HeadGroup], Sequence[Group[HeadGroup]]]]:
    """Yield the groups without NVIDIA GPUs of their own, each with all groups that have some."""
    groups = groups_of(cluster)
    with_gpus = [at for at in groups if _has_nvidia(at)]
    for at in groups if with_gpus else ():
        if not _has_nvidia(at):
            yield at, with_gpus


@RULES.of_each(
    _beside_nvidia,
    "sees-every-gpu",
    "warning",
    "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html#gpu-multi-tenancy",
)
def _sees_every_gpu(beside: tuple[Group[HeadGroup], Sequence[Group[HeadGroup]]]) -> Iterator[Found]:
    """In an image with CUDA, a pod that asks for no GPU sees all of the node's, those of other pods too.

    Ray counts them and hands them out.
    """
    at, with_gpus = beside
    if at.environment.get(_VISIBLE) in ("void", "none") or not _may_see(at, with_gpus):
        return
    yield Found(
        at.variable_path(_VISIBLE) if _VISIBLE in at.environment else at.container_path,
        f"{at} has no GPU, and may see every GPU of the node that it is put on",
        f"set the variable {_VISIBLE} to void",
    )


def _may_see(at: Group[HeadGroup], with_gpus: Sequence[Group[HeadGroup]]) -> bool:
    """Return whether a pod without GPUs may see the GPUs of its node, and Ray would count them."""
    if at.environment.get(_VISIBLE) == "all" or (at.pod.runtimeClassName or "").startswith("nvidia"):
        return True
    told = at.amount("GPU", "num-gpus")
    if (told is not None and exact(told[1]) == 0) or has_cuda(at.container.image) is False:
        return False
    return not all(_is_elsewhere(at, other) or _is_tainted_against(at, other) for other in with_gpus)


def _is_elsewhere(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether the node selectors of two groups select different nodes."""
    ours, theirs = at.pod.nodeSelector, other.pod.nodeSelector
    return any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys())


def _is_tainted_against(at: Group[HeadGroup], other: Group[HeadGroup]) -> bool:
    """Return whether the nodes of another group seem to have a taint that the pods of this group do not tolerate."""
    # A toleration implies that the nodes have the taint. GKE taints all nodes with GPUs.
    taints = [each for each in other.pod.tolerations if each.key]
    if (of_gke := _taint_of(other, "nvidia.com/gpu")).value:
        taints.append(of_gke)
    return any(
        (taint.effect or "NoSchedule") in _KEEPS_OFF and not any(_tolerates(own, taint) for own in at.pod.tolerations)
        for taint in taints
    )


def _tolerates(own: Toleration, taint: Toleration) -> bool:
    """Return whether Kubernetes matches a toleration with the taint that another toleration names."""
    if own.effect not in (None, "", taint.effect or "NoSchedule"):
        return False
    if own.operator == "Exists":
        return own.key in (None, "", taint.key)
    return own.key == taint.key and taint.value in (None, own.value or "")


@RULES.of_each(groups_of, "devices-by-hand", "warning", "resolve in ray._private.resource_and_label_spec")
def _devices_by_hand(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray takes the devices that are named for all that the node has, and refuses to start if it is told of more."""
    for name in sorted(_VARIABLES.keys() & at.environment.keys()) if at.devices else ():
        message = f"{at} sets {name}={at.environment[name]} by hand"
        sets = "it" if _VARIABLES[name] == name else _VARIABLES[name]
        yield Found(at.variable_path(name), message, f"leave it out: Ray sets {sets} for each trial")


@RULES.of_each(
    groups_of, "devices-not-set", "warning", "set_current_process_visible_accelerator_ids in ray._private.accelerators"
)
def _devices_not_set(at: Group[HeadGroup]) -> Iterator[Found]:
    """All trials of a node start on its first device, and its memory overflows while others are idle."""
    for name, value in at.environment.items() if at.devices else ():
        if name.startswith("RAY_EXPERIMENTAL_NOSET_") and (value or "").lower() in ("1", "true"):
            message = f"{at} sets {name}, so that every trial sees every device of its node"
            fix = "leave it out, unless the training code picks its device by ray.get_gpu_ids()"
            yield Found(at.variable_path(name), message, fix)


_MACHINE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

_GPUS_OF_MACHINES: Final = (
    (r"g(4dn|5|6|6e)\.([248]|16)?xlarge|p5\.4xlarge|g2-standard-(4|8|12|16|32)", 1),
    (r"g2-standard-24", 2),
    (r"g(4dn|5|6|6e)\.12xlarge|g(5|6|6e)\.24xlarge|g2-standard-48", 4),
    (r"g4dn\.metal|g(5|6|6e)\.48xlarge|p4de?\.24xlarge|p5(e|en)?\.48xlarge|g2-standard-96", 8),
    *((rf"a[23]-[a-z]+gpu-{number}g", number) for number in (1, 2, 4, 8, 16)),
)
"""Patterns of machine types of AWS and Google, with the number of their GPUs."""


@RULES.of_each(
    groups_of,
    "more-gpus-than-machine",
    "warning",
    "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "
    "https://cloud.google.com/compute/docs/accelerator-optimized-machines",
)
def _more_gpus_than_machine(at: Group[HeadGroup]) -> Iterator[Found]:
    """No such machine has room for the pod, unless its device plugin counts each GPU several times."""
    machine = next((at.pod.nodeSelector[label] for label in _MACHINE_LABELS if label in at.pod.nodeSelector), "")
    there = next((number for pattern, number in _GPUS_OF_MACHINES if re.fullmatch(pattern, machine)), None)
    asked = exact(at.devices.get("nvidia.com/gpu"))
    if there is not None and asked is not None and asked > there:
        message = f"{at} asks for {asked} GPUs on a {machine}, which has {there}"
        fix = f"ask for at most {there}, or select a larger machine"
        yield Found(at.key_path("nvidia.com/gpu"), message, fix)


@RULES.of_each(groups_of, "visible-on-zero", "note", "ray._private.worker, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
def _visible_on_zero(at: Group[HeadGroup]) -> Iterator[Found]:
    """A trial without GPUs may then use the GPU of another trial, and Ray does not count it."""
    name = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    if at.devices and (at.environment.get(name) or "").lower() in ("0", "false"):
        message = f"in {at}, a trial without GPUs sees every GPU of its node"
        fix = "leave the variable out if trials with and without GPUs share a node"
        yield Found(at.variable_path(name), message, fix)


@RULES.of_each(
    the_cluster,
    "runtime-class-missing",
    "note",
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html",
)
def _runtime_class_missing(cluster: ClusterInFile) -> Iterator[Found]:
    """If NVIDIA's runtime is not the default of the nodes, a pod without the class gets no GPU."""
    groups = [at for at in groups_of(cluster) if _has_nvidia(at)]
    named = sorted({at.pod.runtimeClassName for at in groups if at.pod.runtimeClassName})
    for at in groups:
        if named and at.pod.runtimeClassName is None:
            message = f"{at} has NVIDIA GPUs and no runtimeClassName, and other groups have {named[0]!r}"
            yield Found(at.pod_path, message, f"write runtimeClassName: {named[0]}, if its nodes need it too")
