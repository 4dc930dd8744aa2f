"""Rules for pods: what is in their images, on which nodes they land, and which GPUs their processes see."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, FAMILIES
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, ray_resource
from tune_policies.kuberay.lint.rule import Edit, Found, RuleBook
from tune_policies.kuberay.lint.rules.cluster_parts import (
    API,
    Group,
    Taint,
    devices_of,
    exact,
    extra,
    groups_of,
    head_of,
    is_on_gke,
    ray_in_image,
    tells_type,
    the_cluster,
    version_of,
    workers_of,
)
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup, WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import device_type, ray_counts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import suggest

RULES: Final = RuleBook()

_IMAGES: Final = "https://hub.docker.com/r/rayproject/ray"

_RAY_ML: Final = re.compile(r"(?:docker\.io/)?rayproject/ray-ml(?::([^@]*))?")

_LAST_RAY_ML: Final = (2, 30)

_NOT_RAY_ML: Final = (
    "take rayproject/ray, with a tag that ends in -gpu, and add what else you need by runtime_env or an image"
)


def has_cuda(image: str | None) -> bool | None:
    """Return whether one of Ray's own images has CUDA; ``None``: it is another image, or its tag does not tell."""
    name, _, tag = (image or "").partition("@")[0].rpartition(":")
    if not name.endswith(("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")):
        return None
    if re.search(r"-gpu\b|-cu\d+", tag):
        return True
    if re.fullmatch(r"[\w.]*(-py3\d+)?(-cpu|-tpu)?(-aarch64|-extra[\w-]*)?", tag) is None:
        return None  # somebody's own tag
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


@RULES.of_each(groups_of, "image-gone", "error", "https://github.com/ray-project/ray/issues/46378")
def _image_gone(at: Group[HeadGroup]) -> Iterator[Found]:
    """No tag of ray-ml is published from Ray 2.31 on, so the pods never start."""
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(-.*)?", _tag_of_ray_ml(at) or "")
    if found and (version_of(found[1]) or ())[:2] > _LAST_RAY_ML:
        message = f"{at} has the image {at.container.image!r}, which does not exist"
        yield Found((*at.container_path, "image"), message, _NOT_RAY_ML)


@RULES.of_each(groups_of, "image-frozen", "warning", "https://github.com/ray-project/ray/pull/65388")
def _image_frozen(at: Group[HeadGroup]) -> Iterator[Found]:
    """The tag latest of ray-ml stays at Ray 2.30, of June 2024, which no other image of the cluster has."""
    tag = _tag_of_ray_ml(at)
    if tag is not None and re.fullmatch("|latest(-.*)?", tag):
        message = f"{at} has the image {at.container.image!r}, which stays at Ray 2.30"
        yield Found((*at.container_path, "image"), message, _NOT_RAY_ML)


def _tag_of_ray_ml(at: Group[HeadGroup]) -> str | None:
    """Return the tag of an image of ``ray-ml`` from Docker Hub; ``None``: it is another, or told by its digest."""
    found = _RAY_ML.fullmatch(at.container.image or "")
    return None if found is None else found[1] or ""


@RULES.of_each(workers_of, "python-versions-differ", "error", "check_version_info in ray._private.utils")
def _python_versions_differ(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """Ray lets no worker into a cluster whose head has another version of Python."""
    head, own = (_pythons_of(each.container.image or "") for each in (head_of(at.cluster), at))
    if head and own and not head & own:
        message = f"{at} has Python {_newest(own)} and the head has {_newest(head)}, by the tags of their images"
        fix = f"use an image with py3{max(head)}" if len(head) == 1 else f"use one with py3{max(own)} for the head, too"
        yield Found((*at.container_path, "image"), message, fix)


_WITHOUT_PYTHON: Final = re.compile(r"(docker\.io/)?rayproject/ray:\d+\.\d+\.\d+(-(cpu|gpu|tpu|cu\d+))?(-aarch64)?")

_UNTOLD_PYTHONS: Final = frozenset(range(7, 11))
"""What such images have: the newest 3.10 (ray-images.yaml in ray-project/ray)."""


def _pythons_of(image: str) -> frozenset[int]:
    """Return which versions 3.x of Python an image may have, by its tag; empty: that does not tell."""
    if found := re.search(r"-py3(\d+)", image):
        return frozenset([int(found[1])])
    return _UNTOLD_PYTHONS if _WITHOUT_PYTHON.fullmatch(image) else frozenset()


def _newest(minor_versions: frozenset[int]) -> str:
    return f"3.{max(minor_versions)}{' or older' if len(minor_versions) > 1 else ''}"


@RULES.of_each(groups_of, "image-without-cuda", "warning", _IMAGES)
def _image_without_cuda(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray hands out the GPUs, but a training without libraries of its own falls back to the CPU."""
    if any(key.startswith("nvidia.com/") for key in at.devices) and has_cuda(at.container.image) is False:
        message = f"{at} has NVIDIA GPUs and the image {at.container.image!r}, which has no CUDA"
        fix = "use the image of the same version whose tag ends in -gpu"
        yield Found((*at.container_path, "image"), message, fix)


@RULES.of_each(groups_of, "image-for-other-devices", "warning", _IMAGES)
def _image_for_other_devices(at: Group[HeadGroup]) -> Iterator[Found]:
    """Its libraries do not find devices of another maker, and the training falls back to the CPU."""
    others = sorted(at.devices)
    if others and not any(key.startswith("nvidia.com/") for key in others) and has_cuda(at.container.image):
        message = f"{at} has {others[0]} and the image {at.container.image!r}, which is for NVIDIA's GPUs"
        yield Found((*at.container_path, "image"), message, f"use an image for the maker of {others[0]}")


# On which nodes.

_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"

_MACHINE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

MACHINES_SOURCE: Final = (
    "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "
    "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
)

_G = {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_AWS: Final = {
    "g4dn": ("T4", {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "metal": 8}),
    "g5": ("A10G", _G),
    "g6": ("L4", _G),
    "g6e": ("L40S", _G),
    "p3": ("V100", {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8}),
    "p3dn": ("V100", {"24xlarge": 8}),
    "p4d": ("A100-40G", {"24xlarge": 8}),
    "p4de": ("A100-80G", {"24xlarge": 8}),
    "p5": ("H100", {"4xlarge": 1, "48xlarge": 8}),
    "p5e": ("H200", {"48xlarge": 8}),
    "p5en": ("H200", {"48xlarge": 8}),
}
_G2: Final = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""GPUs of Google's ``g2-standard`` by its CPUs."""
_GOOGLE: Final = {
    "a2-highgpu": "A100-40G",
    "a2-megagpu": "A100-40G",
    "a2-ultragpu": "A100-80G",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100",
    "a3-edgegpu": "H100",
    "a3-ultragpu": "H200",
}
"""Types by family; the number of GPUs ends the name, as in ``a2-highgpu-4g``."""


class Machine(NamedTuple):
    """A type of machine.

    Attributes:
        name: As its cloud calls it.
        gpus: How many it has.
        accelerator_type: Ray's name of their type.
    """

    name: str
    gpus: int
    accelerator_type: str


def machine_called(name: str) -> Machine | None:
    """Return the machine of a name, such as ``g5.12xlarge``; ``None``: it is none of these."""
    family, _, size = name.partition(".")
    if family in _AWS and size in _AWS[family][1]:
        return Machine(name, _AWS[family][1][size], _AWS[family][0])
    if (found := re.fullmatch(r"(a[23]-[a-z]+gpu)-(\d{1,2})g", name)) and found[1] in _GOOGLE:
        return Machine(name, int(found[2]), _GOOGLE[found[1]])
    if (found := re.fullmatch(r"g2-standard-(\d{1,2})", name)) and int(found[1]) in _G2:
        return Machine(name, _G2[int(found[1])], "L4")
    return None


@RULES.of_each(
    groups_of,
    "taint-not-tolerated",
    "note",
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration",
)
def _taint_not_tolerated(at: Group[HeadGroup]) -> Iterator[Found]:
    """Nodes with devices are often tainted with the name of the device, so that pods without toleration wait for ever.

    Google's and some other clusters add the toleration by themselves.
    """
    for key in at.devices:
        if key == "google.com/tpu":
            continue  # only Google's clusters have them, and those add the toleration
        taint = _taint_of(at, key)
        known = at.pod.tolerations
        near = suggest(taint.key, [each.key for each in known if each.key])
        # Whoever tolerates another taint knows the taints of the nodes, unless the name is nearly the same.
        if at.tolerates(taint) or (known and not near):
            continue
        toleration = {"key": taint.key, "operator": "Exists", "effect": "NoSchedule"}
        path = (*at.pod_path, "tolerations")
        told = f"{taint.key}{'' if taint.value is None else f'={taint.value}'}:{taint.effect}"
        yield Found(
            path if known else at.pod_path,
            f"{at} has {key} and does not tolerate the taint {told}",
            f"add a toleration for {told}, if its nodes have the taint",
            (Edit((*path, len(known)), toleration) if known else Edit(path, [toleration]),),
        )


def _taint_of(at: Group[HeadGroup], key: str) -> Taint:
    """Return the taint that nodes with such devices have by custom; on Google's clusters its value is known."""
    maker = key.partition("/")[0]
    plugins = (each for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == maker)
    name = next((each.taint for each in plugins if each.taint), key)
    return Taint(name, "present" if is_on_gke(at) and name == "nvidia.com/gpu" else None)


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
    machine = _machine_of(at)
    told = device_type(counted, at.spec.labels, {})
    there = device_type({}, {}, at.pod.nodeSelector) or (machine.accelerator_type if machine else None)
    if told and there and not _is_kind_of(told, there) and not _is_kind_of(there, told):
        path = (*at.path, "labels", ACCELERATOR_TYPE) if ACCELERATOR_TYPE in at.spec.labels else at.path
        message = f"Ray is told that {at} has {told}, and its node selector takes nodes with {there}"
        yield Found(path, message, "write the type that its nodes have in both places")


def _is_kind_of(name: str, of: str) -> bool:
    """Return whether a type is another one, or a variant of it, as A100-80G is one of A100."""
    return f"{name}-".startswith(f"{of}-")


def _machine_of(at: Group[HeadGroup]) -> Machine | None:
    names = [at.pod.nodeSelector.get(key, "") for key in _MACHINE_LABELS]
    return next((found for name in names if (found := machine_called(name))), None)


@RULES.of_each(groups_of, "more-gpus-than-machine", "warning", MACHINES_SOURCE)
def _more_gpus_than_machine(at: Group[HeadGroup]) -> Iterator[Found]:
    """No such machine holds the pod, unless its device plugin counts a GPU several times."""
    machine, asked = _machine_of(at), exact(at.devices.get("nvidia.com/gpu"))
    if machine is not None and asked is not None and asked > machine.gpus:
        message = f"{at} asks for {asked} GPUs on a {machine.name}, which has {machine.gpus}"
        fix = f"ask for {machine.gpus} at the most, or select a larger machine"
        yield Found(at.key_path("nvidia.com/gpu"), message, fix)


@RULES.of_each(groups_of, "unknown-device-type", "warning", "ray.util.accelerators")
def _unknown_type(at: Group[HeadGroup]) -> Iterator[Found]:
    """A trial asks for the type by Ray's name, and no node of this group is ever added for it."""
    name = at.spec.labels.get(ACCELERATOR_TYPE)
    if name is not None and name not in ACCELERATOR_TYPES:
        # A name that is like none of them may be of a device that Ray has no name for.
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


# A process is to see the GPUs of its trial, and no others.

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods from a node; with the third it is only taken last."""

_VARIABLES: Final = frozenset(each.visibility_variable for each in FAMILIES if each.visibility_variable)


def _has_nvidia(at: Group[HeadGroup]) -> bool:
    return any(key.startswith("nvidia.com/") for each in at.pod.containers for key in devices_of(each))


@RULES.of_each(
    groups_of,
    "sees-every-gpu",
    "warning",
    "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html#gpu-multi-tenancy",
)
def _sees_every_gpu(at: Group[HeadGroup]) -> Iterator[Found]:
    """In an image with CUDA, a pod that asks for no GPU sees all of the node's, those of other pods too.

    Ray counts them and hands them out.
    """
    with_gpus = [group for group in groups_of(at.cluster) if _has_nvidia(group)]
    is_hidden = _has_nvidia(at) or at.environment.get(_VISIBLE) in ("void", "none")
    if not with_gpus or is_hidden or not _may_see(at, with_gpus):
        return
    env, path = at.container.env, (*at.container_path, "env")
    hides = {"name": _VISIBLE, "value": "void"}
    yield Found(
        at.variable_path(_VISIBLE) if _VISIBLE in at.environment else at.container_path,
        f"{at} has no GPU, and may see every GPU of the node that it is put on",
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
    taints += [_taint_of(other, "nvidia.com/gpu")] if is_on_gke(other) else []
    return any(taint.effect in _KEEPS_OFF and not at.tolerates(taint) for taint in taints)


@RULES.of_each(groups_of, "devices-by-hand", "warning", "resolve in ray._private.resource_and_label_spec")
def _devices_by_hand(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray takes the devices that are named for all that the node has, and refuses to start if it is told of more."""
    for name in sorted(_VARIABLES & at.environment.keys()) if at.devices else ():
        message = f"{at} sets {name}={at.environment[name]} by hand"
        yield Found(at.variable_path(name), message, "leave it out: Ray sets it for each trial")


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


@RULES.of_each(groups_of, "visible-on-zero", "note", "ray._private.worker, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
def _visible_on_zero(at: Group[HeadGroup]) -> Iterator[Found]:
    """A trial without GPUs may then use the GPU of another trial, without being counted."""
    name = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    if at.devices and (at.environment.get(name) or "").lower() in ("0", "false"):
        message = f"in {at} a trial without GPU sees every GPU of its node"
        fix = "leave the variable out where trials with and without GPU share a node"
        yield Found(at.variable_path(name), message, fix)


@RULES.of_each(
    the_cluster,
    "runtime-class-missing",
    "note",
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html",
)
def _runtime_class_missing(cluster: ClusterInFile) -> Iterator[Found]:
    """Where NVIDIA's runtime is not the default of the nodes, a pod without the class gets no GPU."""
    groups = [at for at in groups_of(cluster) if _has_nvidia(at)]
    named = sorted({at.pod.runtimeClassName for at in groups if at.pod.runtimeClassName})
    for at in groups:
        if named and at.pod.runtimeClassName is None:
            message = f"{at} has NVIDIA GPUs and no runtimeClassName, where others have {named[0]!r}"
            yield Found(at.pod_path, message, f"write runtimeClassName: {named[0]}, if its nodes need it too")
