"""The part of a GPU's memory that a pod gets if GPUs are shared below Ray.

Ray counts whole GPUs in a pod, although several pods may share one GPU. This module reads the parts of a pod:

* KAI Scheduler: the annotations ``gpu-fraction`` and ``gpu-memory`` (in MiB). KAI does not isolate the memory.
  https://github.com/kai-scheduler/KAI-Scheduler/blob/main/docs/gpu-sharing/README.md
* HAMi: the limits ``nvidia.com/gpumem`` (in MiB), ``gpumem-percentage`` and ``gpucores``, for each GPU. HAMi isolates
  the memory. https://github.com/Project-HAMi/HAMi/blob/master/docs/config.md
* Time slices and MPS of NVIDIA's device plugin: the labels that GPU feature discovery and GKE add to nodes. Only MPS
  isolates the memory. https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus
* MIG with the strategy ``single``: the label of the product contains the profile.
* Dynamic resource allocation (DRA): a claim can be for a GPU, a part of one, or another device, so the memory is
  unknown. https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
* Other schedulers, such as Koordinator and Aliyun's GPU share, have resources of their own for parts of GPUs, so the
  memory is unknown.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from tune_policies.cluster.accelerators import gpu_memory_of_type
from tune_policies.cluster.node import GpuDevice
from tune_policies.kuberay.design.catalog_file import parts_of_gpus
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.reading.kuberay_models import Container, Metadata, PodTemplate
from tune_policies.kuberay.reading.kubernetes_quantities import parse_quantity
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import MIB

KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"
KAI_DEVICES: Final = "gpu-fraction-num-devices"
KAI_CONTAINER: Final = "gpu-fraction-container-name"

HAMI_MEMORY: Final = re.compile(r"[\w.-]+/(gpumem|vgpu-memory)")
HAMI_PERCENTAGE: Final = re.compile(r"[\w.-]+/(gpumem|vgpu-memory)-percentage")
HAMI_CORES: Final = re.compile(r"[\w.-]+/(gpucores|vgpu-cores)")
_HAMI_NUMBER: Final = re.compile(r"volcano\.sh/v?gpu-number")
"""Matches the resources in which Volcano counts GPUs. The autoscaler does not count them."""

_OTHER_PART: Final = re.compile(r"[\w.-]+/.*(gpu|mem|core|ratio|percent|cuda).*")
"""Matches the resources in which other schedulers state a part of a GPU, such as ``aliyun.com/gpu-mem``."""

_OTHER_CLAIM: Final = re.compile(r"(?i)(^|[-_.])(nic|rdma|roce|ib|net|network|dranet|efa|cpu|disk|nvme)s?($|[-_.\d])")
"""Matches the names of claims for other devices than GPUs, such as network interfaces."""

GPU_PRODUCT: Final = "nvidia.com/gpu.product"
_MIG_CONFIG: Final = "nvidia.com/mig.config"
_DEVICE_MEMORY: Final = "nvidia.com/gpu.memory"
_REPLICAS: Final = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
STRATEGIES: Final = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
_IS_MPS: Final = "nvidia.com/mps.capable"
"""The label of nodes on which NVIDIA's device plugin runs MPS."""

Way = Literal["KAI", "HAMi", "time slices", "MPS", "MIG", "DRA", "another scheduler"]


class GpuShare(NamedTuple):
    """The part of each GPU that a pod gets.

    Attributes:
        way: How the GPU is shared.
        memory_bytes: The memory of each part in bytes, or ``None`` if it is unknown.
        name: The name of the MIG profile, or an empty string.
    """

    way: Way
    memory_bytes: int | None
    name: str = ""


def share_of_pod(template: PodTemplate, accelerator_type: str | None) -> GpuShare | None:
    """Return the part of each GPU that the Ray container of a pod gets, or ``None`` if its GPUs are not shared.

    If several ways apply, the smallest part counts. An unknown part counts as unknown.

    Args:
        template: The template of the pod.
        accelerator_type: Ray's name of the GPU type, from which a fraction of the memory is computed.
    """
    total = gpu_memory_of_type(accelerator_type)
    shares = list(_shares(template, total))
    if not shares:
        return None
    known = [share.memory_bytes for share in shares if share.memory_bytes is not None]
    if len(known) < len(shares):
        return shares[0]._replace(memory_bytes=None)
    if total is not None:
        known.append(total)  # a memory scaling factor of HAMi allows more than the GPU has
    return shares[0]._replace(memory_bytes=min(known))


def devices_of_pod(template: PodTemplate, number: int, accelerator_type: str | None) -> tuple[GpuDevice, ...] | None:
    """Return the parts of GPUs in a pod, or ``None`` if its GPUs are whole. The result is empty if they are unknown.

    If Ray counts more GPUs than the pod has, the GPUs of the pod are divided among them, so that their memory counts
    once.

    Args:
        template: The template of the pod.
        number: The number of GPUs that Ray counts.
        accelerator_type: Ray's name of the GPU type, or ``None``.
    """
    share, given = share_of_pod(template, accelerator_type), gpus_given(template)
    is_divided = given is not None and 0 < given < number
    if share is None and not is_divided:
        return None
    if share is None:
        memory, name = gpu_memory_of_type(accelerator_type), ""
        way = "shared"
    else:
        memory, name = share.memory_bytes, share.name
        way = share.way
    if not memory:
        return ()
    if is_divided:
        memory = memory * (given or 0) // number
    name = name or f"{accelerator_type or 'GPU'} ({way})"
    return tuple(GpuDevice(index=at, name=name, memory_bytes=memory) for at in range(number))


def gpus_given(template: PodTemplate) -> int | None:
    """Return the number of GPUs, or parts of GPUs, that Kubernetes gives to the Ray container of a pod.

    The result is 0 if the container requests none, and ``None`` if the number is unknown, such as for claims.
    """
    container = template.spec.containers[0]
    amounts = {**container.resources.requests, **container.resources.limits}
    numbers = [_whole(amount) for key, amount in amounts.items() if _is_number_of_gpus(key)]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or any(_claims_of_gpus(template)):
        return None
    if not any(known) and any(_is_other_part(key) for key in amounts):
        return None
    # A pod of KAI Scheduler requests no GPU from Kubernetes. Its annotation replaces the request.
    return sum(known) or kai_gpus(template)


def has_misplaced_kai_part(template: PodTemplate, cluster: Metadata) -> bool:
    """Return whether annotations of KAI Scheduler are at the cluster, or are labels, where KAI does not read them."""
    own = template.metadata
    elsewhere = {*own.labels, *cluster.annotations, *cluster.labels}
    return not elsewhere.isdisjoint(KAI_PARTS) and own.annotations.keys().isdisjoint(KAI_PARTS)


def kai_gpus(template: PodTemplate) -> int:
    """Return the number of GPUs that KAI Scheduler gives to the Ray container of a pod, or 0."""
    annotations = template.metadata.annotations
    # By default, KAI gives the GPU to the first container, in which Ray runs (docs/gpu-sharing/README.md of KAI
    # Scheduler).
    container = annotations.get(KAI_CONTAINER, template.spec.containers[0].name)
    if annotations.keys().isdisjoint({KAI_FRACTION, KAI_MEMORY}) or container != template.spec.containers[0].name:
        return 0
    number = annotations.get(KAI_DEVICES, "1")
    if re.fullmatch(r"[1-9]\d{0,2}", number, re.ASCII):
        return int(number)
    return 1


def kai_fraction(template: PodTemplate) -> float | None:
    """Return the fraction in the annotation ``gpu-fraction``, or ``None`` if it is missing or not between 0 and 1."""
    text = template.metadata.annotations.get(KAI_FRACTION, "")
    if not re.fullmatch(r"\d{0,9}(\.\d{0,99})?", text, re.ASCII) or not re.search(r"\d", text):
        return None
    fraction = float(text)
    if 0 < fraction < 1:
        return fraction
    return None


def kai_memory_mib(template: PodTemplate) -> int | None:
    """Return the amount in the annotation ``gpu-memory`` in MiB, or ``None`` if it is missing or invalid."""
    text = template.metadata.annotations.get(KAI_MEMORY, "")
    if re.fullmatch(r"[1-9]\d{0,9}", text, re.ASCII):
        return int(text)
    return None


KAI_PARTS: Final = frozenset({KAI_FRACTION, KAI_MEMORY})


def claims_of(container: Container) -> list[str]:
    """Return the names of the resource claims that a container uses."""
    return _names_in((container.resources.model_extra or {}).get("claims"))


def _names_in(entries: object) -> list[str]:
    """Return the names of the entries of a list that is not validated."""
    if not isinstance(entries, list):
        return []
    return [str(entry.get("name")) for entry in entries if isinstance(entry, Mapping)]


def may_be_gpu_claim(name: str) -> bool:
    """Return whether a resource claim may be for a GPU, based on its name."""
    return not _OTHER_CLAIM.search(name)


def node_labels_of(template: PodTemplate) -> dict[str, str]:
    """Return the labels of the nodes on which a pod can run, from its node selector and its required node affinity.

    If several values are allowed, the result contains the one with the smallest parts of GPUs, or else the first one.
    """
    labels: dict[str, str] = {}
    for expression in _required_expressions(template):
        key, values = expression.get("key"), expression.get("values")
        if isinstance(key, str) and expression.get("operator") == "In" and isinstance(values, list) and values:
            texts = [str(value) for value in values]
            if key in _REPLICAS:
                # Whole numbers are sorted by their length and then by their digits, so that texts that are no numbers
                # need no check.
                texts.sort(key=lambda text: (len(text), text), reverse=True)  # the largest number first
            shared = [text for text in texts if re.search(r"-SHARED$|-MIG-", text)]
            labels.setdefault(key, (shared or texts)[0])
    return labels | template.spec.nodeSelector


def _required_expressions(template: PodTemplate) -> list[Mapping[str, Any]]:
    """Return the expressions that every node of a pod fulfills. Alternatives are omitted."""
    part: Any = (template.spec.model_extra or {}).get("affinity")
    for field in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        if not isinstance(part, Mapping):
            return []
        part = part.get(field)
    # A node must meet one of the terms, but all expressions of a term:
    # https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity. Several terms are
    # therefore alternatives.
    if not isinstance(part, list) or len(part) != 1 or not isinstance(part[0], Mapping):
        return []
    found = part[0].get("matchExpressions")
    if isinstance(found, list):
        return [item for item in found if isinstance(item, Mapping)]
    return []


def _shares(template: PodTemplate, total: int | None) -> Iterator[GpuShare]:
    annotations, container = template.metadata.annotations, template.spec.containers[0]
    amounts = {**container.resources.requests, **container.resources.limits}
    of_labels = list(_shares_of_labels(amounts, node_labels_of(template), total))
    yield from of_labels
    base = total
    if of_labels:
        base = of_labels[-1].memory_bytes  # a fraction of a part is smaller than a fraction of the GPU
    if KAI_FRACTION in annotations or KAI_MEMORY in annotations:
        yield GpuShare("KAI", _kai_memory(template, base))
    if any(pattern.fullmatch(key) for key in amounts for pattern in (HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES)):
        yield GpuShare("HAMi", _hami_memory(amounts, base))
    if any(_claims_of_gpus(template)):
        yield GpuShare("DRA", None)
    if any(_is_other_part(key) for key in amounts):
        yield GpuShare("another scheduler", None)


def _claims_of_gpus(template: PodTemplate) -> Iterator[str]:
    """Yield the claims that may give GPUs to the Ray container. A GPU under limits is not from a claim of the pod."""
    container = template.spec.containers[0]
    names = claims_of(container)
    has_gpu = any(ray_resource(key) == "GPU" for key in container.resources.limits)
    if not names and not has_gpu:
        names = _names_in((template.spec.model_extra or {}).get("resourceClaims"))
    yield from filter(may_be_gpu_claim, names)


def _is_number_of_gpus(key: str) -> bool:
    return ray_resource(key) == "GPU" or _HAMI_NUMBER.fullmatch(key) is not None


def _is_other_part(key: str) -> bool:
    of_hami = any(pattern.fullmatch(key) for pattern in (HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES))
    is_known = of_hami or _is_number_of_gpus(key) or ray_resource(key) is not None
    return not is_known and _OTHER_PART.fullmatch(key) is not None


def _kai_memory(template: PodTemplate, total: int | None) -> int | None:
    annotations = template.metadata.annotations
    if kai_gpus(template) == 0:
        return None  # another container gets the GPU
    parts = []
    if KAI_FRACTION in annotations:
        fraction = kai_fraction(template)
        if fraction is None or total is None:
            return None
        parts.append(int(total * fraction))
    if KAI_MEMORY in annotations:
        mib = kai_memory_mib(template)
        if mib is None:
            return None
        parts.append(mib * MIB)
    return min(parts)


def _hami_memory(amounts: Mapping[str, str | int | float], total: int | None) -> int | None:
    mib = _amount(amounts, HAMI_MEMORY)
    if mib:
        return mib * MIB
    percentage = _amount(amounts, HAMI_PERCENTAGE)
    if percentage and total is not None:
        return total * min(percentage, 100) // 100
    return None  # HAMi's administrator sets the default amount


def _amount(amounts: Mapping[str, str | int | float], pattern: re.Pattern[str]) -> int | None:
    return next((_whole(amount) for key, amount in amounts.items() if pattern.fullmatch(key)), None)


def _whole(amount: str | int | float) -> int | None:
    try:
        return math.floor(parse_quantity(amount))
    except InvalidResourcesError:
        return None


def _shares_of_labels(
    amounts: Mapping[str, object], selector: Mapping[str, str], total: int | None
) -> Iterator[GpuShare]:
    """Yield the parts that follow from the keys of a pod and the labels of its nodes: MIG first, then its slices."""
    product = selector.get(GPU_PRODUCT, "")
    numbers = [selector[key] for key in _REPLICAS if re.fullmatch(r"[1-9]\d{0,5}", selector.get(key, ""), re.ASCII)]
    replicas = int(numbers[0]) if numbers else None
    strategy = next((selector[key] for key in STRATEGIES if key in selector), "")
    if not strategy and selector.get(_IS_MPS) == "true":
        strategy = "mps"
    keys = [key.removesuffix(".shared") for key in amounts]
    in_label = re.search(r"-MIG-(\S+?)(-SHARED)?\Z", product) or re.fullmatch(
        r"all-(\d+g\..+)", selector.get(_MIG_CONFIG, "")
    )
    if in_label is not None:
        keys.append(f"nvidia.com/mig-{in_label[1]}")
    # Without the labels for sharing, the result is the MIG instance itself, which the time slices below divide further.
    parts = parts_of_gpus(keys, {key: value for key, value in selector.items() if key not in STRATEGIES}, 1)
    memory = total
    if parts is not None:
        share = GpuShare("MIG", None)
        if parts:
            share = GpuShare("MIG", parts[0].memory_bytes, parts[0].name)
        memory = share.memory_bytes
        yield share
    if re.fullmatch(r"[1-9]\d{0,9}", selector.get(_DEVICE_MEMORY, ""), re.ASCII):
        # The label may state the memory of the whole GPU or of a part, so the smaller amount counts.
        stated = int(selector[_DEVICE_MEMORY]) * MIB
        memory = stated if memory is None else min(stated, memory)
    is_slice = any(key.endswith(".shared") for key in amounts) or product.endswith("-SHARED")
    # Each of these signs is enough, because platforms set different ones. One replica means that the GPU is not shared.
    if is_slice or strategy not in ("", "none") or (replicas or 1) > 1:
        part = None
        if replicas is not None and memory is not None:
            part = memory // replicas
        yield GpuShare("MPS" if strategy == "mps" else "time slices", part)
