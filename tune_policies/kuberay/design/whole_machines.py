"""The part of a machine that Kubernetes leaves to pods, for catalogs that contain the amounts of whole machines."""

from collections.abc import Iterator, Sequence
from math import floor
from typing import Final

from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.values.units import GIB, MIB

_RESERVED_CPUS: Final = ((1, 0.06), (1, 0.01), (2, 0.005))
_RESERVED_OF_OTHER_CPUS: Final = 0.0025
_RESERVED_MEMORY: Final = ((4 * GIB, 0.25), (4 * GIB, 0.20), (8 * GIB, 0.10), (112 * GIB, 0.06))
_RESERVED_OF_OTHER_MEMORY: Final = 0.02
"""The parts of the CPUs and of the memory that GKE reserves on a node, of the first amount, of the next one, and so on.

Source: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes. EKS reserves the same part of the
CPUs, and 255 MiB plus 11 MiB for each possible pod, which is less on most nodes with GPUs.
"""

_EVICTION_BYTES: Final = 100 * MIB
"""The free memory below which the kubelet evicts pods by default, so pods cannot request it."""


def allocatable(cpus: float, memory_bytes: int) -> tuple[int, int]:
    """Return the whole CPUs and the bytes of memory, in whole GiB, that GKE leaves to pods on a machine."""
    left_cpus = cpus - _reserved(cpus, _RESERVED_CPUS, _RESERVED_OF_OTHER_CPUS)
    left_bytes = memory_bytes - _reserved(memory_bytes, _RESERVED_MEMORY, _RESERVED_OF_OTHER_MEMORY) - _EVICTION_BYTES
    # Rounded down, because a pod that requests a little too much stays pending.
    return max(0, floor(left_cpus)), max(0, floor(left_bytes / GIB)) * GIB


def about_whole_machines(catalog: NodeCatalog) -> Iterator[str]:
    """Yield a sentence for each node type whose amounts seem to be those of a whole machine."""
    for node_type in catalog.nodes:
        if not _is_whole_machine(node_type):
            continue
        memory_bytes = node_type.resources.memory_bytes or 0
        cpus, left_bytes = allocatable(node_type.cpus, memory_bytes)
        machine = f"{node_type.cpus:g} CPUs and {memory_bytes // GIB} GiB of memory"
        yield (
            f"{node_type.name} has {machine}, like a whole machine. Kubernetes leaves only a part to pods, and pods "
            "that request more stay pending. In the catalog, write what pods can use, about "
            f"cpus: {cpus}, memory: {left_bytes // GIB}GiB on GKE"
        )


def _reserved(amount: float, steps: Sequence[tuple[float, float]], of_the_rest: float) -> float:
    reserved = 0.0
    for size, part in steps:
        reserved += part * min(amount, size)
        amount -= min(amount, size)
    return reserved + of_the_rest * amount


def _is_whole_machine(node_type: NodeType) -> bool:
    """Return whether the CPUs are even and the memory is a whole multiple of them, as in price lists of providers."""
    memory_bytes = node_type.resources.memory_bytes
    if memory_bytes is None or node_type.cpus < 2 or node_type.cpus % 2 != 0:
        return False
    # What Kubernetes leaves to pods is not such a multiple, because it reserves CPUs and memory at different rates.
    return memory_bytes % (int(node_type.cpus) * GIB) == 0
