"""Rules for the images of pods, for their nodes, and for the GPUs that are visible to their processes."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPE_PREFIX,
    FAMILIES,
    KNOWN_TYPES,
    check_accelerator_type,
    misread_type,
)
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS, TPU_KEY, ray_resource
from tune_policies.kuberay.lint.rule import Found, RuleBook, Severity
from tune_policies.kuberay.lint.rules.cluster_parts import (
    API,
    Group,
    devices_of,
    exact,
    extra,
    groups_of,
    head_of,
    ray_in_image,
    states_type,
    the_cluster,
    version_of,
    workers_of,
)
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup, Toleration, WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import device_type, ray_counts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.ray_versions import NEWEST_TRIED, OLDEST_TRIED, TRIED, is_tried
from tune_policies.values.wording import suggest

RULES: Final = RuleBook()

_IMAGES: Final = "https://hub.docker.com/r/rayproject/ray"


def has_cuda(image: str | None) -> bool | None:
    """Return whether one of Ray's own images has CUDA, or ``None`` if unknown."""
    name, _, tag = (image or "").partition("@")[0].rpartition(":")
    if not name.endswith(("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")):
        return None
    if re.search(r"-gpu\b|-cu\d+", tag):
        return True
    if re.fullmatch(r"[\w.]*(-py3\d+)?(-cpu|-tpu)?(-aarch64|-extra[\w-]*)?", tag) is None:
        return None  # it is not a tag of Ray's images
    # ray-ml and ray-llm images without a suffix have CUDA.
    return not name.endswith("/ray") and "-cpu" not in tag and "-tpu" not in tag


@RULES.of_each(
    groups_of,
    "ray-not-first",
    "error",
    "RayContainerIndex in KubeRay's ray-operator/controllers/ray/utils/constant.go",
)
def _ray_not_first(at: Group[HeadGroup]) -> Iterator[Found]:
    """KubeRay starts Ray in the first container, and Ray's autoscaler reads its resources."""
    first = at.container
    for number, (path, container) in enumerate(at.containers):
        is_ray = re.search(r"(^|/)ray(-ml|-llm)?(:|@|$)", container.image or "")
        if number and is_ray and "ray" not in f"{first.name} {first.image}":
            message = f"the first container of {at} is {first.name!r}, but the Ray container is number {number + 1}"
            yield Found(path, message, f"make {container.name!r} the first container")


@RULES.of_each(groups_of, "image-version-differs", "warning", f"{API} (RayClusterSpec.rayVersion)")
def _image_version_differs(at: Group[HeadGroup]) -> Iterator[Found]:
    """The operator and the autoscaler choose features by rayVersion."""
    wanted = at.cluster.spec.rayVersion
    if wanted is None or re.fullmatch(r"\d+\.\d+(\.\d+)?", wanted) is None:
        return
    head, there = ray_in_image(head_of(at.cluster).container.image), ray_in_image(at.container.image)
    is_same = there is None or f"{there}.".startswith(f"{wanted}.")
    if not is_same and head in (None, there):
        message = f"{at} has Ray {there} in its image, but rayVersion is {wanted}"
        as_image = f'write rayVersion: "{there}"'
        fix = as_image
        if not head:
            fix = f"use an image with Ray {wanted}, or, if the head has {there} too, {as_image}"
        yield Found((*at.container_path, "image"), message, fix)


@RULES.of_each(workers_of, "ray-versions-differ", "error", "check_version_info in ray._private.utils")
def _ray_versions_differ(at: Group[WorkerGroupSpec]) -> Iterator[Found]:
    """A worker cannot join a cluster whose head has another version of Ray."""
    head, own = ray_in_image(head_of(at.cluster).container.image), ray_in_image(at.container.image)
    if head and own and own != head:
        message = f"{at} has Ray {own}, but the head has {head}, according to the tags of their images"
        yield Found((*at.container_path, "image"), message, f"use an image with Ray {head}")


@RULES.of_each(groups_of, "image-without-cuda", "warning", _IMAGES)
def _image_without_cuda(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray assigns the GPUs, but training falls back to the CPU unless your code installs CUDA libraries."""
    if any(key.startswith("nvidia.com/") for key in at.devices) and has_cuda(at.container.image) is False:
        message = f"{at} has NVIDIA GPUs, but the image {at.container.image!r} has no CUDA"
        fix = "use the image of the same version whose tag ends in -gpu"
        yield Found((*at.container_path, "image"), message, fix)


@RULES.of_each(groups_of, "image-for-other-devices", "warning", _IMAGES)
def _image_for_other_devices(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's images only have libraries for NVIDIA GPUs and TPUs, so training falls back to the CPU or fails."""
    cuda, others = has_cuda(at.container.image), sorted(at.devices)
    if not others or cuda is None or any(key.startswith("nvidia.com/") for key in others):
        return
    if cuda or others != [TPU_KEY]:  # TPUs only need Python packages
        message = f"{at} has {others[0]}, but the image {at.container.image!r} has no libraries for it"
        fix = f"use an image for {others[0]} in which Ray is installed"
        yield Found((*at.container_path, "image"), message, fix)


TRIED_IMAGE: Final = f"use an image with Ray {TRIED}, such as rayproject/ray:{'.'.join(map(str, NEWEST_TRIED))}.0"


_MUCH_OLDER: Final = (OLDEST_TRIED[0], OLDEST_TRIED[1] - 10)
"""The version below which Ray lacks features that KubeRay and this package need, such as node labels."""


def severity_of_version(version: str) -> Severity | None:
    """Return ``"warning"`` for a Ray that is much too old, or ``None`` for the severity of the rule."""
    numbers = version_of(version)
    if numbers is not None and numbers[:2] < _MUCH_OLDER:
        return "warning"
    return None


@RULES.of_each(groups_of, "ray-not-supported", "note", "tune_policies.values.ray_versions")
def _ray_not_supported(at: Group[HeadGroup]) -> Iterator[Found]:
    """tune-policies was not tested with this version of Ray, so plans may be wrong and runs may fail.

    A much older version, below 2.40, is a warning.
    """
    image, stated = ray_in_image(at.container.image), at.cluster.spec.rayVersion
    if image is not None and not is_tried(image):
        message = f"{at} has Ray {image} in its image {at.container.image!r}"
        yield Found((*at.container_path, "image"), message, TRIED_IMAGE, severity_of_version(image))
    elif image is None and at.path == ("headGroupSpec",) and version_of(stated) and not is_tried(str(stated)):
        yield Found(("rayVersion",), f"rayVersion is {stated}", TRIED_IMAGE, severity_of_version(str(stated)))


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
        taint = _taint_of(at, key)
        is_misspelled = suggest(str(taint.key), [toleration.key for toleration in tolerations if toleration.key])
        # If the pod tolerates other taints, the user has probably considered the taints of the nodes.
        if any(_tolerates(own, taint) for own in tolerations) or (tolerations and not is_misspelled):
            continue
        name, fields = f"{taint.key}:NoSchedule", f"key: {taint.key}, operator: Exists, effect: NoSchedule"
        if taint.value is not None:
            name = f"{taint.key}={taint.value}:NoSchedule"
        message = f"{at} has {key}, but does not tolerate the taint {name}"
        where = path if tolerations else at.pod_path
        yield Found(where, message, f"if its nodes have the taint, add to tolerations: {{{fields}}}")


def _taint_of(at: Group[HeadGroup], key: str) -> Toleration:
    """Return a toleration for the usual taint of nodes with these devices. On GKE, its value is known."""
    domain = key.partition("/")[0]
    taints = (plugin.taint for plugin in DEVICE_PLUGINS if plugin.key and plugin.key.partition("/")[0] == domain)
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

    If a group and another group state different device types, it is a warning.
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
        fix = (
            f"if trials request the type, write labels: {{{ACCELERATOR_TYPE}: A100}} for label selectors and "
            f'resources: {{"{ACCELERATOR_TYPE_PREFIX}A100": "1"}} for accelerator_type, with Ray\'s name of the type'
        )
        yield Found(at.path, f"{at} does not state the device type of its nodes for the autoscaler", fix)


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
    if at.environment.get(_VISIBLE) == "all" or (at.pod.runtimeClassName or "").startswith("nvidia"):
        return True
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
    of_gke = _taint_of(other, "nvidia.com/gpu")
    if of_gke.value:
        taints.append(of_gke)
    return any(
        (taint.effect or "NoSchedule") in _REPELLING and not any(_tolerates(own, taint) for own in at.pod.tolerations)
        for taint in taints
    )


def _tolerates(own: Toleration, taint: Toleration) -> bool:
    """Return whether a toleration matches a taint. ``taint`` is a toleration with the fields of this taint."""
    if own.effect not in (None, "", taint.effect or "NoSchedule"):
        return False
    if own.operator == "Exists":
        return own.key in (None, "", taint.key)
    return own.key == taint.key and taint.value in (None, own.value or "")


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
        if name.startswith("RAY_EXPERIMENTAL_NOSET_") and (value or "").lower() in ("1", "true"):
            message = f"{at} sets {name}, so all devices of a node are visible to every trial"
            fix = f"remove {name}, unless the training code selects its device with ray.get_gpu_ids()"
            yield Found(at.variable_path(name), message, fix)


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
    for at in groups:
        if named and at.pod.runtimeClassName is None:
            message = f"{at} has NVIDIA GPUs, but no runtimeClassName; other groups have {named[0]!r}"
            yield Found(at.pod_path, message, f"write runtimeClassName: {named[0]} if its nodes need it too")
