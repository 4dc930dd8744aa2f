"""Rules for images: which Ray, which Python, and libraries for which devices are in them."""

import re
from collections.abc import Iterator
from typing import Final

from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import (
    API,
    Group,
    groups_of,
    head_of,
    ray_in_image,
    version_of,
    workers_of,
)
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup

_IMAGES: Final = "https://hub.docker.com/r/rayproject/ray"

_RAY_ML: Final = re.compile(r"(?:docker\.io/)?rayproject/ray-ml(?::([^@]*))?(@.*)?")

_LAST_RAY_ML: Final = (2, 30)


def has_cuda(image: str | None) -> bool | None:
    """Return whether one of Ray's own images has CUDA; ``None``: it is another image, or its tag does not tell."""
    name, _, tag = (image or "").partition("@")[0].rpartition(":")
    repository = name.rpartition("/")[2]
    if not name.endswith(("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")):
        return None
    if re.search(r"-gpu\b|-cu\d+", tag):
        return True
    if re.fullmatch(r"[\w.]*(-py3\d+)?(-cpu|-tpu)?(-aarch64|-extra[\w-]*)?", tag) is None:
        return None  # somebody's own tag
    # Without a suffix, images of ray-ml and ray-llm have CUDA.
    return repository != "ray" and "-cpu" not in tag and "-tpu" not in tag


def _ray_not_first(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for number, each in enumerate(at.pod.containers[1:], start=1):
            if _looks_like_ray(each.image) and "ray" not in f"{at.container.name} {at.container.image}":
                yield Found(
                    (*at.pod_path, "containers", number),
                    f"the first container of {at.name} is {at.container.name!r}, and Ray's is number {number + 1}",
                    f"put {each.name!r} first",
                )


def _looks_like_ray(image: str | None) -> bool:
    return re.search(r"(^|/)ray(-ml|-llm)?(:|@|$)", image or "") is not None


def _version_of_image(cluster: ClusterInFile) -> Iterator[Found]:
    wanted = cluster.spec.rayVersion
    if wanted is None or re.fullmatch(r"\d+\.\d+\.\d+", wanted) is None:
        return
    head = ray_in_image(head_of(cluster.spec).container.image)
    for at in groups_of(cluster.spec):
        there = ray_in_image(at.container.image)
        if there not in (None, wanted) and head in (None, there):
            yield Found(
                (*at.container_path, "image"),
                f"{at.name} has Ray {there} in its image, but rayVersion is {wanted}",
                "write the image's version in rayVersion",
            )


def _ray_versions_differ(cluster: ClusterInFile) -> Iterator[Found]:
    head = ray_in_image(head_of(cluster.spec).container.image)
    for at in workers_of(cluster.spec):
        if head and (other := ray_in_image(at.container.image)) and other != head:
            yield Found(
                (*at.container_path, "image"),
                f"{at.name} has Ray {other} and the head has {head}, by the tags of their images",
                f"use an image with Ray {head}",
            )


def _python_versions_differ(cluster: ClusterInFile) -> Iterator[Found]:
    head = _python_of(cluster.spec.headGroupSpec.template.spec.containers[0].image)
    for at in workers_of(cluster.spec):
        if head and (other := _python_of(at.container.image)) and other != head:
            yield Found(
                (*at.container_path, "image"),
                f"{at.name} has Python {other} and the head has {head}, by the tags of their images",
                f"use an image with py{head.replace('.', '')}",
            )


def _python_of(image: str | None) -> str | None:
    match = re.search(r"-py3(\d+)", image or "")
    return f"3.{match[1]}" if match else None


def _image_without_cuda(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        if any(key.startswith("nvidia.com/") for key in at.devices) and has_cuda(at.container.image) is False:
            yield Found(
                (*at.container_path, "image"),
                f"{at.name} has NVIDIA GPUs and the image {at.container.image!r}, which has no CUDA",
                "use the image of the same version whose tag ends in -gpu",
            )


def _image_for_other_devices(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        others = sorted(key for key in at.devices if not key.startswith("nvidia.com/"))
        if others == sorted(at.devices) and others and has_cuda(at.container.image):
            yield Found(
                (*at.container_path, "image"),
                f"{at.name} has {others[0]} and the image {at.container.image!r}, which is for NVIDIA's GPUs",
                f"use an image for the maker of {others[0]}",
            )


def _image_gone(cluster: ClusterInFile) -> Iterator[Found]:
    for at, tag in _of_ray_ml(cluster):
        found = re.fullmatch(r"(\d+\.\d+\.\d+)(-.*)?", tag)
        if found and (version_of(found[1]) or ())[:2] > _LAST_RAY_ML:
            yield _without_ray_ml(at, f"{at.name} has the image {at.container.image!r}, which there is not")


def _image_frozen(cluster: ClusterInFile) -> Iterator[Found]:
    for at, tag in _of_ray_ml(cluster):
        if re.fullmatch("|latest(-.*)?", tag):
            yield _without_ray_ml(at, f"{at.name} has the image {at.container.image!r}, which is Ray 2.30 for ever")


def _of_ray_ml(cluster: ClusterInFile) -> Iterator[tuple[Group[HeadGroup], str]]:
    """Yield the groups with an image of ``ray-ml`` from Docker Hub, which is not told by its digest, and its tag."""
    for at in groups_of(cluster.spec):
        found = _RAY_ML.fullmatch(at.container.image or "")
        if found and found[2] is None:
            yield at, found[1] or ""


def _without_ray_ml(at: Group[HeadGroup], message: str) -> Found:
    fix = "take rayproject/ray, with a tag that ends in -gpu, and add what else you need by runtime_env or an image"
    return Found((*at.container_path, "image"), message, fix)


RULES: RuleSet = (
    Rule(
        "ray-not-first",
        "error",
        "KubeRay starts Ray in the first container, and Ray's autoscaler reads that one's resources.",
        "RayContainerIndex in KubeRay's ray-operator/controllers/ray/utils/constant.go",
        _ray_not_first,
    ),
    Rule(
        "version-of-image",
        "warning",
        "The operator and the autoscaler decide by rayVersion what they may use.",
        f"{API} (RayClusterSpec.rayVersion)",
        _version_of_image,
    ),
    Rule(
        "ray-versions-differ",
        "error",
        "Ray lets no worker into a cluster whose head has another version of Ray.",
        "check_version_info in ray._private.utils",
        _ray_versions_differ,
    ),
    Rule(
        "image-gone",
        "error",
        "No tag of ray-ml is published from Ray 2.31 on, so that the pods never start.",
        "https://github.com/ray-project/ray/issues/46378, https://github.com/ray-project/ray/pull/65388",
        _image_gone,
    ),
    Rule(
        "image-frozen",
        "warning",
        "The tag latest of ray-ml stays at Ray 2.30, of June 2024, which no other image of the cluster has.",
        "https://github.com/ray-project/ray/pull/65388",
        _image_frozen,
    ),
    Rule(
        "python-versions-differ",
        "error",
        "Ray lets no worker into a cluster whose head has another version of Python.",
        "check_version_info in ray._private.utils",
        _python_versions_differ,
    ),
    Rule(
        "image-without-cuda",
        "warning",
        "Ray starts and hands out the GPUs, but a training without libraries of its own falls back to the CPU.",
        _IMAGES,
        _image_without_cuda,
    ),
    Rule(
        "image-for-other-devices",
        "warning",
        "Its libraries do not find devices of another maker, and the training falls back to the CPU.",
        _IMAGES,
        _image_for_other_devices,
    ),
)
