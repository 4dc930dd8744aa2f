"""Turns Ray's own dict of resource amounts into values: what a node has in total, and what of it is in use."""

import math
import re
from collections.abc import Mapping
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.values.resources import MOST, Resources

HEAD_RESOURCE: Final = "node:__internal_head__"
"""Ray gives it to the head node alone (``HEAD_NODE_RESOURCE_NAME``)."""

_NOT_CUSTOM: Final = ("CPU", "GPU", "memory", "object_store_memory")
# What a placement group holds appears again beside the node's own, as CPU_group_0_<36 hex digits>.
_OF_A_GROUP: Final = re.compile(r"_group_(\d+_)?[0-9a-f]{36}$")


def to_resources(totals: Mapping[str, float]) -> Resources:
    """Return what ``totals`` say of a node, without what Ray keeps there for itself.

    Of a custom resource it has at most what a trial may ask for: somebody's bytes of a disk are no reason to fail.
    """
    return Resources(
        cpus=totals.get("CPU", 0),
        gpus=totals.get("GPU", 0),
        memory_bytes=int(totals["memory"]) if totals.get("memory", 0) >= 1 else None,
        custom={name: min(amount, MOST) for name, amount in totals.items() if _is_custom(name)},
    )


def in_use(totals: Mapping[str, float], available: Mapping[str, float]) -> Resources:
    """Return what is reserved of ``totals``; never below zero.

    Above one GPU it is rounded up to whole ones, as an amount of GPUs is a fraction of one, or whole.
    """
    # Ray leaves out what is used up, and what is free may be news of a moment other than the total.
    used = {name: max(0.0, total - available.get(name, 0)) for name, total in totals.items()}
    if used.get("GPU", 0) > 1:
        used["GPU"] = math.ceil(round(used["GPU"], 4))
    return to_resources({name: round(amount, 4) for name, amount in used.items()})


def accelerator_type_of(totals: Mapping[str, float]) -> str | None:
    """Return Ray's name of the device type; the first by name where there are several."""
    types = sorted(name for name in totals if name.startswith(ACCELERATOR_TYPE_PREFIX))
    return types[0].removeprefix(ACCELERATOR_TYPE_PREFIX) if types else None


def _is_custom(name: str) -> bool:
    return (
        name not in _NOT_CUSTOM
        and not name.startswith(("node:", ACCELERATOR_TYPE_PREFIX))
        and not _OF_A_GROUP.search(name)
    )
