"""Rules for the images of pods, and for the versions of Ray in them."""

import re
from collections.abc import Iterator
from typing import Final

from tune_policies.kuberay.design.device_plugins import TPU_KEY
from tune_policies.kuberay.lint.cluster_parts import (
    API,
    Group,
    groups_of,
    head_of,
    ray_in_image,
    version_of,
    workers_of,
)
from tune_policies.kuberay.lint.rule import Found, RuleBook, Severity
from tune_policies.kuberay.reading.kuberay_models import HeadGroup, WorkerGroupSpec
from tune_policies.values.ray_versions import NEWEST_TRIED, OLDEST_TRIED, TRIED, is_tried

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
        # A private image of Ray can have any name, so the first container counts as Ray's if its name says so.
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
    # If the head has yet another version, ``ray-versions-differ`` reports the group.
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
    # Only Ray's own images are checked, because the content of other images is unknown.
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
