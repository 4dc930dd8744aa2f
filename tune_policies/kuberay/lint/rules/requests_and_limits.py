"""Rules of Kubernetes for the requests and limits of pods.

They follow ``pkg/apis/core/validation/validation.go`` of Kubernetes. Its definitions do not contain these rules.
"""

import difflib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.lint.cluster_parts import exact
from tune_policies.kuberay.lint.pod_schema import PodTemplate, as_mapping
from tune_policies.kuberay.lint.rule import Found, Rule
from tune_policies.kuberay.lint.template_rule import VALIDATION, template_rule
from tune_policies.kuberay.reading.shared_gpu_memory import HAMI_CORES, HAMI_MEMORY, HAMI_PERCENTAGE
from tune_policies.values.wording import shorten

RULES: Final[list[Rule]] = []


def _amounts(template: PodTemplate) -> Iterator[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the path of the resources of each container, its limits and its requests."""
    containers = list(template.containers)
    # KubeRay adds the autoscaler's container to the pod of the head, with these resources.
    if template.autoscaler is not None:
        containers.append(template.autoscaler)
    for path, container in containers:
        resources = as_mapping(container.get("resources"))
        limits, requests = as_mapping(resources.get("limits")), as_mapping(resources.get("requests"))
        yield (*path, "resources"), limits, requests


def _number(amount: object) -> Fraction | None:
    """Return an amount as a number, or ``None`` if it is missing or invalid."""
    if isinstance(amount, bool) or not isinstance(amount, str | int | float):
        return None
    return exact(amount)


def _is_device(key: str) -> bool:
    """Return whether Kubernetes treats a resource as an extended resource, which it never overcommits."""
    # ``IsExtendedResourceName`` in pkg/apis/core/v1/helper/helpers.go of Kubernetes. Names without a domain are
    # Kubernetes' own.
    domain = key.partition("/")[0]
    return "/" in key and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _must_equal_limit(key: str) -> bool:
    # ``IsOvercommitAllowed`` in the same file allows a request below the limit for all other resources.
    return _is_device(key) or key.startswith("hugepages-")


@template_rule(RULES, "device-limit-differs", "error", f"{VALIDATION} (ValidateResourceRequirements)")
def _device_limit_differs(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod: the request and the limit of a device must be equal, and the limit is required."""
    for path, limits, requests in _amounts(template):
        for key, amount in requests.items():
            if not _must_equal_limit(key):
                continue
            where, fix = (*path, "requests", key), f"write {key}: {shorten(amount)} under limits"
            # The limit is required even for a request of 0.
            if limits.get(key) is None:
                yield Found(where, f"{template.name} has {key} under requests, but not under limits", fix)
                continue
            asked, limit = _number(amount), _number(limits[key])
            if asked is not None and limit is not None and asked != limit:
                message = f"{template.name} requests {amount} {key}, but its limit is {limits[key]}"
                yield Found(where, message, "write the same amount under requests and limits")


@template_rule(RULES, "device-fraction", "error", f"{VALIDATION} (ValidateResourceQuantityValue)")
def _device_fraction(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes allocates whole devices only, and refuses the pod."""
    for path, limits, requests in _amounts(template):
        # If both exist, the limit counts. ``device-limit-differs`` reports different amounts.
        for key, amount in {**requests, **limits}.items():
            number = _number(amount)
            if _is_device(key) and number is not None and number.denominator != 1:
                section = "limits" if key in limits else "requests"
                fix = "request whole devices here; a trial can request a fraction of a GPU from Ray"
                if any(name.fullmatch(key) for name in (HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES)):
                    fix = "write a whole number"
                yield Found((*path, section, key), f"{template.name} requests {amount} {key}", fix)


@template_rule(RULES, "request-above-limit", "error", f"{VALIDATION} (ValidateResourceRequirements)")
def _request_above_limit(template: PodTemplate) -> Iterator[Found]:
    """The API server accepts the cluster, but then Kubernetes refuses its pods, so the cluster stays empty."""
    for path, limits, requests in _amounts(template):
        for key, amount in requests.items():
            asked, limit = _number(amount), _number(limits.get(key))
            if not _must_equal_limit(key) and asked is not None and limit is not None and asked > limit:
                message = f"{template.name} requests {amount} of {key}, but its limit is {limits[key]}"
                yield Found((*path, "requests", key), message, f"raise the limit, or request at most {limits[key]}")


_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")

_MEANT: Final = {
    "gpu": "nvidia.com/gpu",
    "gpus": "nvidia.com/gpu",
    "nvidia-gpu": "nvidia.com/gpu",
    "tpu": "google.com/tpu",
    "cpus": "cpu",
    "mem": "memory",
    "ram": "memory",
    "storage": "ephemeral-storage",
    "disk": "ephemeral-storage",
}
"""The resources that are probably meant by other names, in lower case."""


@template_rule(RULES, "resource-unknown", "error", f"{VALIDATION} (validateContainerResourceName)")
def _resource_unknown(template: PodTemplate) -> Iterator[Found]:
    """Kubernetes refuses the pod: a resource without a domain must be cpu, memory, ephemeral-storage or hugepages-…."""
    for path, limits, requests in _amounts(template):
        for section, amounts in (("limits", limits), ("requests", requests)):
            for key in amounts:
                # ``device-resource-misspelled`` checks names with a domain.
                if "/" in key or key in _STANDARD or key.startswith("hugepages-"):
                    continue
                message = f"{template.name} has the unknown resource {key!r}"
                # An abbreviation, such as ``mem``, is not similar enough to its name, so it is looked up first.
                near = difflib.get_close_matches(key.lower(), _STANDARD, n=1, cutoff=0.7)
                meant = _MEANT.get(key.lower()) or "".join(near)
                if meant:
                    message += f"; did you mean {meant!r}?"
                yield Found((*path, section, key), message)


_LEAST_MEMORY: Final = 2**20
"""The least memory of a container in bytes. Container runtimes need more than this to start one."""

_MOST_CPUS: Final = 10_000


@template_rule(
    RULES,
    "amount-without-unit",
    "warning",
    "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
)
def _amount_without_unit(template: PodTemplate) -> Iterator[Found]:
    """Memory without a unit is in bytes, and m stands for thousandths. No node can start the container."""
    for path, limits, requests in _amounts(template):
        for section, amounts in (("limits", limits), ("requests", requests)):
            memory, cpus = _number(amounts.get("memory")), _number(amounts.get("cpu"))
            if memory is not None and 0 < memory < _LEAST_MEMORY:
                message = f"{template.name} has {amounts['memory']} of memory, which is less than 1 MiB"
                yield Found((*path, section, "memory"), message, "write the memory with a unit, such as 16Gi")
            if cpus is not None and cpus > _MOST_CPUS:
                message = f"{template.name} has {amounts['cpu']} CPUs, which no node has"
                yield Found((*path, section, "cpu"), message, "write CPUs without a unit, such as 4 or 500m")
