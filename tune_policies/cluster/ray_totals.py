"""The resources of a node, from the amounts that Ray reports."""

import math
import re
from collections.abc import Mapping
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.values.resources import MOST, Resources

HEAD_RESOURCE: Final = "node:__internal_head__"
"""The resource that only the head node has (``HEAD_NODE_RESOURCE_NAME`` in Ray)."""

# Reservations of placement groups appear as additional resources such as CPU_group_0_<36 hex digits>.
_NOT_CUSTOM: Final = re.compile(
    rf"(CPU|GPU|memory|object_store_memory)\Z|node:|{ACCELERATOR_TYPE_PREFIX}|.*_group_(\d+_)?[0-9a-f]{{36}}$",
    re.DOTALL,
)


def to_resources(totals: Mapping[str, float]) -> Resources:
    """Return the resources of a node from Ray's totals, without Ray's internal resources.

    Amounts of custom resources are capped at the maximum amount of a request.
    """
    memory = totals.get("memory", 0)
    return Resources(
        cpus=totals.get("CPU", 0),
        gpus=totals.get("GPU", 0),
        memory_bytes=int(memory) if memory >= 1 else None,
        custom={name: min(amount, MOST) for name, amount in totals.items() if not _NOT_CUSTOM.match(name)},
    )


def in_use(totals: Mapping[str, float], available: Mapping[str, float]) -> Resources:
    """Return the reserved resources of a node. A number of GPUs above 1 is rounded up to a whole number."""
    # Ray omits fully used resources. The free amounts and the totals can come from different moments.
    used = {name: max(0.0, total - available.get(name, 0)) for name, total in totals.items()}
    # ``Resources`` accepts only whole GPUs above 1, but the sum of fractions on several GPUs need not be whole.
    if used.get("GPU", 0) > 1:
        used["GPU"] = math.ceil(round(used["GPU"], 4))
    return to_resources({name: round(amount, 4) for name, amount in used.items()})


def accelerator_type_of(totals: Mapping[str, float]) -> str | None:
    """Return a node's device type, or ``None``. If it has several types, return the first in alphabetical order."""
    types = sorted(name for name in totals if name.startswith(ACCELERATOR_TYPE_PREFIX))
    if types:
        return types[0].removeprefix(ACCELERATOR_TYPE_PREFIX)
    return None
