"""GPUs in parts, as Kubernetes hands them out: what memory each part has."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tune_policies.capacity import GpuDevice

_KEY: Final = re.compile(r"nvidia\.com/mig-(.+)")
_PROFILE: Final = re.compile(r"\d+g\.(\d{1,9})gb\b.*")
"""A profile's name ends with its nominal memory: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/."""

_GKE_PROFILE: Final = "cloud.google.com/gke-gpu-partition-size"
_GKE_SHARING: Final = "cloud.google.com/gke-gpu-sharing-strategy"
"""GKE keeps the key ``nvidia.com/gpu`` and labels the nodes."""


def parts_of_gpus(keys: Iterable[str], selector: Mapping[str, str], number: int) -> tuple[GpuDevice, ...] | None:
    """Return what a pod with so many parts of GPUs has as its devices; ``None``: its GPUs are whole.

    Each part of MIG has memory of its own: the nominal size, less the 5 % that whole GPUs may hold back, too. Time
    slices share the memory of one GPU with other pods, so there are no devices to count on.

    Args:
        keys: Under which names Kubernetes counts what the pod asks for.
        selector: The node selector of the pod.
        number: How many parts.
    """
    if _GKE_SHARING in selector or any(key.endswith(".shared") for key in keys):
        return ()
    named = (match[1] for key in keys if (match := _KEY.fullmatch(key)))
    profile = next(named, selector.get(_GKE_PROFILE))
    if profile is None:
        return None
    if (size := _PROFILE.fullmatch(profile)) is None:
        return ()
    memory = int(size[1]) * 10**9 * 95 // 100
    return (
        tuple(GpuDevice(index=at, name=f"MIG {profile}", memory_bytes=memory) for at in range(number)) if memory else ()
    )
