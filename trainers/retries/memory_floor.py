"""The minimum memory of a trial, and the largest amounts that fit the nodes. This module does no I/O.

A GPU fraction grows to a larger fraction 1/k or to a whole GPU, because the planner divides GPUs into equal parts. A
trial with whole GPUs gets more whole GPUs. Host memory can grow to any amount. Neither amount grows beyond the capacity
of the nodes, because otherwise the trial would stay pending indefinitely. In this module, "GPU" means every device that
several processes can share.
"""

import math
from collections.abc import Sequence
from typing import Final

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.bundles import BundleAmounts, BundleGroup, is_held
from tune_policies.placement.count_trials import largest
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.values.resources import TICKS, Count, UsedBytes, amount_of, from_ticks, to_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

SHARED_DEVICES: Final = frozenset(family.resource for family in FAMILIES if family.can_be_split)
"""Ray's resource names of the devices that trials can share. A retry never adds other devices, such as TPUs."""


class MemoryFloor(Value):
    """The minimum memory of a trial.

    Attributes:
        gpu_ticks: The minimum number or fraction of GPUs in each bundle with a GPU, in ticks.
        memory_bytes: The minimum host memory in the first bundle, which runs the trainable, in bytes.
    """

    gpu_ticks: Count = 0
    memory_bytes: UsedBytes = 0

    def __or__(self, other: "MemoryFloor") -> "MemoryFloor":
        """Return the maximum of each amount."""
        return MemoryFloor(
            gpu_ticks=max(self.gpu_ticks, other.gpu_ticks), memory_bytes=max(self.memory_bytes, other.memory_bytes)
        )

    def __str__(self) -> str:
        amounts = []
        if self.gpu_ticks:
            amounts.append(amount_of(self.gpu_ticks / TICKS, "GPU"))
        if self.memory_bytes:
            amounts.append(f"{format_bytes(self.memory_bytes)} of host memory")
        return ", ".join(amounts) or "no reserved memory"

    def apply_to(self, bundles: Sequence[BundleAmounts]) -> list[dict[str, float]]:
        """Return ``bundles`` with their memory raised to at least this minimum."""
        raised = [dict(bundle) for bundle in bundles]
        for bundle in raised:
            for device in SHARED_DEVICES & bundle.keys():
                # A bundle without a GPU stays without one.
                if 0 < to_ticks(bundle[device]) < self.gpu_ticks:
                    bundle[device] = from_ticks(self.gpu_ticks)
        if raised[0].get("memory", 0) < self.memory_bytes:
            raised[0]["memory"] = self.memory_bytes
        return raised


def floor_of(bundles: Sequence[BundleAmounts]) -> MemoryFloor:
    """Return the memory that ``bundles`` reserve. If their GPU fractions differ, the smallest fraction is returned."""
    shares = [to_ticks(bundle[device]) for bundle in bundles for device in SHARED_DEVICES & bundle.keys()]
    return MemoryFloor(
        gpu_ticks=min((share for share in shares if share > 0), default=0),
        memory_bytes=int(bundles[0].get("memory", 0)),
    )


def largest_that_fits(wish: MemoryFloor, reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> MemoryFloor:
    """Return the largest amounts, up to ``wish``, with which the trial still fits on ``nodes``.

    An amount is 0 if the trial cannot get more than the amount in ``reservation``.
    """

    def is_satisfied_by(floor: MemoryFloor) -> bool:
        return is_held(reservation.with_bundles(floor.apply_to(reservation.bundles)), nodes)

    had = floor_of(reservation.bundles)
    share = 0
    if had.gpu_ticks:
        shares = _shares_up_to(wish.gpu_ticks, had.gpu_ticks, most_devices(reservation, nodes))
        # The GPU fraction comes first, and then as much host memory as fits beside it.
        share = next((ticks for ticks in shares if is_satisfied_by(MemoryFloor(gpu_ticks=ticks))), 0)
    memory_bytes = largest(
        had.memory_bytes,
        max(had.memory_bytes, wish.memory_bytes),
        lambda amount: is_satisfied_by(MemoryFloor(gpu_ticks=share, memory_bytes=amount)),
    )
    if memory_bytes <= had.memory_bytes:
        memory_bytes = 0
    return MemoryFloor(gpu_ticks=share, memory_bytes=memory_bytes)


def limit_gpus(
    floor: MemoryFloor, reservation: BundleGroup, *, max_gpus: float, nodes: Sequence[NodeCapacity] | None
) -> MemoryFloor:
    """Return ``floor``, limited to ``max_gpus`` in a bundle."""
    most_ticks = _largest_share(max_gpus, most_devices(reservation, nodes or ()))
    return floor.model_copy(update={"gpu_ticks": min(floor.gpu_ticks, most_ticks)})


def limit_to_nodes(floor: MemoryFloor, reservation: BundleGroup, nodes: Sequence[NodeCapacity] | None) -> MemoryFloor:
    """Return ``floor``, limited to the amounts with which the trial fits on the nodes.

    The nodes are ignored if they are not known (``None``). They are also ignored if even ``reservation`` does not fit
    on them, because then more nodes are expected.
    """
    # Most trials have not run out of memory, and it takes time to find out what fits in a large cluster.
    if floor == MemoryFloor() or nodes is None or not is_held(reservation, nodes):
        return floor
    if is_held(reservation.with_bundles(floor.apply_to(reservation.bundles)), nodes):
        return floor
    return largest_that_fits(floor, reservation, nodes)


def next_share(share_ticks: int, *, growth: float, max_gpus: float, num_devices: float) -> int | None:
    """Return the next larger fraction or number of GPUs in ticks, or ``None`` if ``share_ticks`` is the maximum.

    The result is at least ``growth`` times ``share_ticks``, but at most ``max_gpus``. A fraction grows to at most one
    GPU. ``num_devices`` is the number of devices of the largest node.
    """
    wanted = max(share_ticks + 1, math.ceil(round(share_ticks * growth, 6)))  # 100 * 1.1 is slightly more than 110
    if share_ticks >= TICKS:  # only a trial with whole GPUs gets several GPUs
        share = -(-wanted // TICKS) * TICKS
    else:
        share = equal_device_fraction(max(1, TICKS // wanted), num_devices)
    share = min(share, _largest_share(max_gpus, num_devices))
    if share > share_ticks:
        return share
    return None


def _largest_share(max_gpus: float, num_devices: float) -> int:
    most = to_ticks(max_gpus)
    if most >= TICKS:
        return most // TICKS * TICKS
    return equal_device_fraction(-(-TICKS // most), num_devices)


def _shares_up_to(most_ticks: int, above_ticks: int, num_devices: float) -> list[int]:
    """Return the GPU amounts above ``above_ticks`` and up to ``most_ticks``, in ticks, largest first.

    The amounts are equal parts of a GPU, whole GPUs, and ``most_ticks`` itself.
    """
    parts = range(2, TICKS // max(1, above_ticks) + 1)
    shares = {
        most_ticks,
        *range(TICKS, most_ticks, TICKS),
        *(equal_device_fraction(part, num_devices) for part in parts),
    }
    return sorted((share for share in shares if above_ticks < share <= most_ticks), reverse=True)


def most_devices(reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> float:
    """Return the number of devices of the largest node, for the devices that the trial reserves."""
    devices: set[str] = set()
    for bundle in reservation.bundles:
        devices |= SHARED_DEVICES & bundle.keys()
    amounts = [node.resources.ticks.get(device, 0) for node in nodes for device in devices]
    return max(amounts, default=0) / TICKS
