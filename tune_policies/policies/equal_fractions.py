"""Computes equal fractions of a device, such as thirds, and the GPU memory of a fraction."""

from collections.abc import Iterable

from tune_policies.cluster.node import NodeGroup
from tune_policies.values.resources import TICKS, to_ticks


def equal_device_fraction(most_per_device: int, most_devices: float) -> int:
    """Return the smallest valid fraction, in ticks, with at most ``most_per_device`` workers on a device.

    Ray's scheduler and autoscaler only add up the fractions on a node, but each fraction must fit on one device. If all
    workers have the fraction ``floor(10,000 / k)``, the number of workers that fit by sum equals the number that fit on
    the devices. With other fractions, Ray can admit a trial that fits on no device and stays pending indefinitely. On a
    node with many devices and a large k, the rounding losses could add up to one more fraction, so k is reduced.
    ``most_devices`` is the largest number of devices on a node.
    """
    devices = to_ticks(most_devices) // TICKS
    for k in range(min(most_per_device, TICKS), 0, -1):
        share = TICKS // k
        lost_on_node = max(1, devices) * (TICKS - k * share)
        if lost_on_node < share:  # checked even for one device: k = 141 gives 70 ticks, and 142 such fractions fit
            return share
    return TICKS


def fraction_of_gpu_memory(groups: Iterable[NodeGroup], share_ticks: int) -> int | None:
    """Return the GPU memory, in bytes, of a device fraction on the smallest device.

    If the memory of any device is unknown, return ``None``.
    """
    memories = [node.smallest_gpu_memory_bytes for node, _ in groups]
    known = [memory for memory in memories if memory is not None]
    # Divide by the number of workers per device, because Ray's rounded fraction, such as 0.3333, would waste memory.
    if known and len(known) == len(memories):
        return min(known) // max(1, TICKS // share_ticks)
    return None
