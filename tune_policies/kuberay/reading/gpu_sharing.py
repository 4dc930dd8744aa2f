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
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from tune_policies.cluster.accelerators import gpu_memory_of_type
from tune_policies.cluster.capacity import GpuDevice
from tune_policies.kuberay.design.catalog import parts_of_gpus
from tune_policies.kuberay.reading.kuberay_models import Container, PodTemplate, parse_quantity
from tune_policies.values.errors import InvalidResourcesError

KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"
KAI_DEVICES: Final = "gpu-fraction-num-devices"
KAI_CONTAINER: Final = "gpu-fraction-container-name"

HAMI_MEMORY: Final = re.compile(r"[\w.-]+/(gpumem|vgpu-memory)")
HAMI_PERCENTAGE: Final = re.compile(r"[\w.-]+/(gpumem|vgpu-memory)-percentage")
HAMI_CORES: Final = re.compile(r"[\w.-]+/(gpucores|vgpu-cores)")

_PRODUCT: Final = "nvidia.com/gpu.product"
_MIG_CONFIG: Final = "nvidia.com/mig.config"
_DEVICE_MEMORY: Final = "nvidia.com/gpu.memory"
_REPLICAS: Final = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
STRATEGIES: Final = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")

_MIB: Final = 2**20

Way = Literal["KAI", "HAMi", "time slices", "MPS", "MIG", "DRA"]


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
    memory = min(known) if len(known) == len(shares) else None
    if memory is not None and total is not None:
        memory = min(memory, total)  # a memory scaling factor of HAMi allows more than the GPU has
    return shares[0]._replace(memory_bytes=memory)


def devices_of_pod(template: PodTemplate, number: int, accelerator_type: str | None) -> tuple[GpuDevice, ...] | None:
    """Return the parts of GPUs in a pod, or ``None`` if its GPUs are whole. The result is empty if they are unknown.

    Args:
        template: The template of the pod.
        number: The number of GPUs that Ray counts.
        accelerator_type: Ray's name of the GPU type, or ``None``.
    """
    share = share_of_pod(template, accelerator_type)
    if share is None:
        return None
    if not share.memory_bytes:
        return ()
    name = share.name or f"{accelerator_type or 'GPU'} ({share.way})"
    return tuple(GpuDevice(index=at, name=name, memory_bytes=share.memory_bytes) for at in range(number))


def kai_gpus(template: PodTemplate) -> int:
    """Return the number of GPUs that KAI Scheduler gives to the Ray container of a pod, or 0."""
    annotations = template.metadata.annotations
    container = annotations.get(KAI_CONTAINER, template.spec.containers[0].name)
    if annotations.keys().isdisjoint({KAI_FRACTION, KAI_MEMORY}) or container != template.spec.containers[0].name:
        return 0
    number = annotations.get(KAI_DEVICES, "1")
    return int(number) if re.fullmatch(r"[1-9]\d{0,2}", number, re.ASCII) else 1


def kai_fraction(template: PodTemplate) -> float | None:
    """Return the fraction in the annotation ``gpu-fraction``, or ``None`` if it is missing or not between 0 and 1."""
    text = template.metadata.annotations.get(KAI_FRACTION, "")
    if not re.fullmatch(r"\d{0,9}(\.\d{0,99})?", text, re.ASCII) or not re.search(r"\d", text):
        return None
    fraction = float(text)
    return fraction if 0 < fraction < 1 else None


def kai_memory_mib(template: PodTemplate) -> int | None:
    """Return the amount in the annotation ``gpu-memory`` in MiB, or ``None`` if it is missing or invalid."""
    text = template.metadata.annotations.get(KAI_MEMORY, "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,9}", text, re.ASCII) else None


def claims_of(container: Container) -> list[str]:
    """Return the names of the resource claims that a container uses."""
    claims: Any = (container.resources.model_extra or {}).get("claims")
    entries = claims if isinstance(claims, list) else []
    return [str(entry.get("name")) for entry in entries if isinstance(entry, Mapping)]


def _shares(template: PodTemplate, total: int | None) -> Iterator[GpuShare]:
    annotations, container = template.metadata.annotations, template.spec.containers[0]
    amounts = {**container.resources.requests, **container.resources.limits}
    of_labels = list(_shares_of_labels(amounts, template.spec.nodeSelector, total))
    yield from of_labels
    base = of_labels[-1].memory_bytes if of_labels else total  # a fraction of a part is smaller
    if KAI_FRACTION in annotations or KAI_MEMORY in annotations:
        yield GpuShare("KAI", _kai_memory(template, base))
    if any(pattern.fullmatch(key) for key in amounts for pattern in (HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES)):
        yield GpuShare("HAMi", _hami_memory(amounts, base))
    if claims_of(container):
        yield GpuShare("DRA", None)


def _kai_memory(template: PodTemplate, total: int | None) -> int | None:
    annotations = template.metadata.annotations
    if kai_gpus(template) == 0:
        return None  # another container gets the GPU
    parts = []
    if KAI_FRACTION in annotations:
        fraction = kai_fraction(template)
        parts.append(None if fraction is None or total is None else int(total * fraction))
    if KAI_MEMORY in annotations:
        mib = kai_memory_mib(template)
        parts.append(None if mib is None else mib * _MIB)
    known = [part for part in parts if part is not None]
    return min(known) if len(known) == len(parts) else None


def _hami_memory(amounts: Mapping[str, str | int | float], total: int | None) -> int | None:
    mib = _amount(amounts, HAMI_MEMORY)
    if mib:
        return mib * _MIB
    percentage = _amount(amounts, HAMI_PERCENTAGE)
    if percentage and total is not None:
        return total * min(percentage, 100) // 100
    return None  # HAMi's administrator sets the default amount


def _amount(amounts: Mapping[str, str | int | float], pattern: re.Pattern[str]) -> int | None:
    for key, amount in amounts.items():
        if pattern.fullmatch(key):
            try:
                return math.floor(parse_quantity(amount))
            except InvalidResourcesError:
                return None
    return None


def _shares_of_labels(
    amounts: Mapping[str, object], selector: Mapping[str, str], total: int | None
) -> Iterator[GpuShare]:
    """Yield the parts that follow from the keys of a pod and the labels of its nodes: MIG first, then its slices."""
    product = selector.get(_PRODUCT, "")
    numbers = [selector[key] for key in _REPLICAS if re.fullmatch(r"[1-9]\d{0,5}", selector.get(key, ""), re.ASCII)]
    replicas = int(numbers[0]) if numbers else None
    strategy = next((selector[key] for key in STRATEGIES if key in selector), "")
    keys = [key.removesuffix(".shared") for key in amounts]
    in_label = re.search(r"-MIG-(\S+?)(-SHARED)?\Z", product) or re.fullmatch(
        r"all-(\d+g\..+)", selector.get(_MIG_CONFIG, "")
    )
    if in_label is not None:
        keys.append(f"nvidia.com/mig-{in_label[1]}")
    parts = parts_of_gpus(keys, {key: value for key, value in selector.items() if key not in STRATEGIES}, 1)
    memory = total
    if parts is not None:
        memory = parts[0].memory_bytes if parts else None
        yield GpuShare("MIG", memory, parts[0].name if parts else "")
    if re.fullmatch(r"[1-9]\d{0,9}", selector.get(_DEVICE_MEMORY, ""), re.ASCII):
        stated = int(selector[_DEVICE_MEMORY]) * _MIB
        memory = stated if memory is None else min(stated, memory)
    is_slice = any(key.endswith(".shared") for key in amounts) or product.endswith("-SHARED")
    if is_slice or strategy not in ("", "none") or (replicas or 1) > 1:
        part = None if replicas is None or memory is None else memory // replicas
        yield GpuShare("MPS" if strategy == "mps" else "time slices", part)
