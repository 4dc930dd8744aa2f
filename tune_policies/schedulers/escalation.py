"""What a trial that ran out of memory gets next: decisions only, no I/O.

A share of a GPU grows in equal parts 1/k, as the planner deals them, up to a whole GPU; from there in whole GPUs. Host
memory grows in bytes. Both end at what a node of the cluster has, since a trial that no node can hold waits for ever.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.capacity import NodeCapacity
from tune_policies.errors import InfeasibleRequestError
from tune_policies.oom import OutOfMemory
from tune_policies.packing import DRIVER_BYTES, equal_device_share
from tune_policies.resources import TICKS, Count, UsedBytes, format_amount, from_ticks, to_ticks
from tune_policies.units import GIB, format_bytes
from tune_policies.values import Value

Bundle = Mapping[str, float]
"""What Ray reserves in one place, by Ray's names of the resources: GPUs in units, ``memory`` in bytes."""

FIRST_MEMORY_BYTES: Final = 2 * GIB
"""The host memory that a trial is taken to have used where neither a reservation nor the error tells."""

NUM_SAME_SHARE: Final = 2
"""How often a trial goes back with the share that it had, because a neighbour had taken what it was to have."""


class MemoryFloor(Value):
    """What a trial gets at least of the resources that hold memory.

    Attributes:
        gpu_ticks: Of a GPU, or GPUs, in ticks, in each bundle that holds one.
        memory_bytes: Host memory in the first bundle, which is the trainable's own.
    """

    gpu_ticks: Count = 0
    memory_bytes: UsedBytes = 0

    def __or__(self, other: "MemoryFloor") -> "MemoryFloor":
        """Return the floor that keeps both."""
        return MemoryFloor(
            gpu_ticks=max(self.gpu_ticks, other.gpu_ticks), memory_bytes=max(self.memory_bytes, other.memory_bytes)
        )

    def __str__(self) -> str:
        gpus = [f"{format_amount(self.gpu_ticks / TICKS)} GPU"] if self.gpu_ticks else []
        memory = [f"{format_bytes(self.memory_bytes)} of host memory"] if self.memory_bytes else []
        return ", ".join(gpus + memory) or "no memory of its own"

    def lift(self, bundles: Sequence[Bundle]) -> list[dict[str, float]]:
        """Return ``bundles`` with no less memory than this; everything else stays."""
        lifted = [dict(bundle) for bundle in bundles]
        for bundle in lifted:
            if 0 < to_ticks(bundle.get("GPU", 0)) < self.gpu_ticks:
                bundle["GPU"] = from_ticks(self.gpu_ticks)
        if lifted[0].get("memory", 0) < self.memory_bytes:
            lifted[0]["memory"] = self.memory_bytes
        return lifted


def floor_of(bundles: Sequence[Bundle]) -> MemoryFloor:
    """Return the memory that ``bundles`` hold: of several shares the smallest."""
    shares = [to_ticks(bundle["GPU"]) for bundle in bundles if to_ticks(bundle.get("GPU", 0)) > 0]
    return MemoryFloor(gpu_ticks=min(shares, default=0), memory_bytes=int(bundles[0].get("memory", 0)))


def next_floor(
    bundles: Sequence[Bundle],
    out_of_memory: OutOfMemory,
    *,
    growth: float,
    max_gpus: float,
    nodes: Sequence[NodeCapacity],
) -> MemoryFloor:
    """Return what a trial that ran out of memory with ``bundles`` gets next: more than it had.

    Args:
        bundles: What the trial reserved.
        out_of_memory: What its error says; its kind is not ``"none"``.
        growth: How many times as much it gets, rounded up to the next part that a GPU is divided into.
        max_gpus: The most GPUs in a bundle.
        nodes: The nodes that it could run on.

    Raises:
        InfeasibleRequestError: It has as much as it may have, or as a node has.
    """
    had = floor_of(bundles)
    if out_of_memory.kind == "host":
        return _next_memory(bundles, had, out_of_memory, growth, nodes)
    if not had.gpu_ticks:
        raise InfeasibleRequestError(
            asked="more GPU memory than it has",
            offered="it holds no GPU of its own",
            short_of="GPU memory",
            suggestion="Plan a share of a GPU for it",
        )
    most_devices = max((node.resources.gpus for node in nodes), default=0)
    most = min(max_gpus, max(1.0, most_devices))
    share = next_share(had.gpu_ticks, growth=growth, max_gpus=most, most_devices=most_devices)
    limit = f"max_gpus={format_amount(max_gpus)}" if most == max_gpus else f"no node has more than {most:g} GPU"
    floor = MemoryFloor(gpu_ticks=share or 0)
    if share is None or not _fits(floor.lift(bundles), nodes):
        raise InfeasibleRequestError(
            asked=f"more GPU memory than {had} gave it",
            offered=limit if share is None else f"no node has {floor} beside the rest of what it reserves",
            short_of="GPU memory",
            suggestion="Raise max_gpus, take a GPU with more memory, or ask for less with a smaller batch or model",
        )
    return floor


def next_share(share_ticks: int, *, growth: float, max_gpus: float, most_devices: float) -> int | None:
    """Return the share after ``share_ticks``, in ticks; ``None``: it is as large as it may be.

    Args:
        share_ticks: The share that was too small.
        growth: How many times as much the next one is at least, unless that is more than a GPU or than ``max_gpus``.
        max_gpus: The most GPUs.
        most_devices: GPUs of the node that has the most.
    """
    wanted = max(share_ticks + 1, math.ceil(round(share_ticks * growth, 6)))
    most = to_ticks(max_gpus)
    if share_ticks >= TICKS:  # a share becomes a whole GPU before it becomes several
        share = min(-(-wanted // TICKS), most // TICKS) * TICKS
    else:
        share = equal_device_share(max(1, TICKS // wanted), most_devices)
        if share > most:
            share = equal_device_share(-(-TICKS // most), most_devices)
    return share if share_ticks < share <= most else None


def _next_memory(
    bundles: Sequence[Bundle],
    had: MemoryFloor,
    out_of_memory: OutOfMemory,
    growth: float,
    nodes: Sequence[NodeCapacity],
) -> MemoryFloor:
    # A reservation holds nobody to it, and a Train driver's is a formality.
    reserved = had.memory_bytes if had.memory_bytes > DRIVER_BYTES else 0
    used = max(reserved, out_of_memory.requested_bytes or 0) or FIRST_MEMORY_BYTES
    most = max((node.resources.memory_bytes or 0 for node in nodes), default=0)
    floor = MemoryFloor(memory_bytes=min(math.ceil(used * growth), most))
    if floor.memory_bytes <= had.memory_bytes or not _fits(floor.lift(bundles), nodes):
        raise InfeasibleRequestError(
            asked=f"more host memory than the {format_bytes(used)} that it had",
            offered=f"the largest node has {format_bytes(most)}",
            short_of="memory",
            suggestion="Add a node with more host memory, or load less of the data at once",
        )
    return floor


def _fits(bundles: Iterable[Bundle], nodes: Sequence[NodeCapacity]) -> bool:
    return all(any(_holds(node, bundle) for node in nodes) for bundle in bundles)


def _holds(node: NodeCapacity, bundle: Bundle) -> bool:
    has = node.resources.ticks
    for name, amount in bundle.items():
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            if node.accelerator_type != name.removeprefix(ACCELERATOR_TYPE_PREFIX):
                return False
        elif (amount if name == "memory" else to_ticks(amount)) > has.get(name, 0):
            return False
    return True


def what_next(
    bundles: Sequence[Bundle], out_of_memory: OutOfMemory, num_same_share: int
) -> Literal["leave", "same", "more"]:
    """Return what becomes of a trial that failed: it is left to Tune, or goes back with the same, or with more.

    One that holds no GPU reports what others ran out of, such as its Train workers, whose share is not its own. Memory
    that a neighbour has taken is no reason for a larger share: within its own the trial had room. So it goes back with
    the same. Where that does not help, more is the way to have fewer neighbours.

    Args:
        bundles: What the trial reserved.
        out_of_memory: What its error says.
        num_same_share: How often it went back with the same share.
    """
    holds_gpu = floor_of(bundles).gpu_ticks > 0
    if out_of_memory.kind == "none" or (out_of_memory.kind == "accelerator" and not holds_gpu):
        return "leave"
    return "same" if out_of_memory.cause == "neighbour" and num_same_share < NUM_SAME_SHARE else "more"
