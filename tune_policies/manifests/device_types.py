"""Of which device type the nodes of a group are, as far as its file says."""

import re
from collections.abc import Mapping
from typing import Final

from tune_policies.accelerator_families import FAMILIES
from tune_policies.accelerators import ACCELERATOR_TYPES
from tune_policies.labels import ACCELERATOR_TYPE
from tune_policies.manifests.ray_counts import GKE_TPU_TYPE, TPU_TYPES
from tune_policies.probing.ray_totals import accelerator_type_of

_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",  # NVIDIA's GPU feature discovery
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
"""Labels of Kubernetes' nodes whose values name a model of NVIDIA's, such as ``NVIDIA-A100-SXM4-40GB``."""

_NVIDIA_TYPES: Final = sorted(
    {name for family in FAMILIES if family.vendor == "NVIDIA" for name in family.types},
    key=lambda name: (-len(name), name),
)


def device_type(amounts: Mapping[str, float], labels: Mapping[str, str], selector: Mapping[str, str]) -> str | None:
    """Return Ray's name of the device type; ``None``: the file does not say.

    Args:
        amounts: By Ray's resource, of which one may name the type.
        labels: Ray's node labels.
        selector: The node selector of the pods.
    """
    if (told := accelerator_type_of(amounts)) is not None:
        return told
    if labels.get(ACCELERATOR_TYPE) in ACCELERATOR_TYPES:
        return labels[ACCELERATOR_TYPE]
    if (tpu := TPU_TYPES.get(selector.get(GKE_TPU_TYPE, ""))) is not None:
        return tpu
    return next((found for key in _GPU_LABELS if (found := _named_in(selector.get(key, "")))), None)


def _named_in(model: str) -> str | None:
    """Return the longest name of a type that stands in the name of a model as a word."""
    return next(
        (name for name in _NVIDIA_TYPES if re.search(rf"(^|-){re.escape(name)}(-|$)", model, re.IGNORECASE)), None
    )
