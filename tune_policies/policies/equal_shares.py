"""What a worker gets: an equal share of a device, and the CPUs beside it where the user leaves them to the policy.

CPUs must not strand a device: a GPU for which its node has no CPU left serves no trial.
"""

from collections.abc import Iterable

from tune_policies.cluster.capacity import NodeGroup
from tune_policies.placement.packing import device_slots
from tune_policies.values.resources import TICKS, from_ticks, to_ticks
from tune_policies.values.value import counted


def equal_device_share(most_per_device: int, most_devices: float) -> int:
    """Return the share of a device with which at most so many workers are on one, in ticks.

    Ray's scheduler and autoscaler add up the shares of a node, but each share must find its place on one
    device. With ``floor(10 000 / k)`` for everybody both counts agree; with anything else Ray admits a trial
    that no device can hold, and it waits for ever. On a node with many devices and a large k, what rounding
    loses on each device adds up to one share too many; then a smaller k is taken.

    Args:
        most_per_device: Workers on one device at the most.
        most_devices: Devices of the node that has the most.
    """
    devices = to_ticks(most_devices) // TICKS
    for k in range(min(most_per_device, TICKS), 0, -1):
        share = TICKS // k
        lost_on_node = max(1, devices) * (TICKS - k * share)
        if lost_on_node < share:  # so on one device as well: of the shares for 141, there would be room for 142
            return share
    return TICKS


def cpus_that_strand_no_device(groups: Iterable[NodeGroup], resource: str, share_ticks: int) -> float:
    """Return CPUs per worker such that on every node the devices run out first.

    The node with the fewest CPUs per slot decides. The number is whole, as threads are, or below 1 if need be. A node
    without CPUs is often a head that is kept free. It counts only where all nodes are so: Ray places no worker with a
    CPU there.

    Args:
        groups: Nodes, at least one with room for such a worker. Those without do not count.
        resource: Ray's name of the devices.
        share_ticks: Devices of one worker, in ticks of 1/10 000.
    """
    per_slot = {
        to_ticks(node.resources.cpus) // slots
        for node, _ in groups
        if (slots := device_slots(node.amounts.get(resource, 0), share_ticks))
    }
    fewest = min(per_slot - {0}, default=0)
    return from_ticks(fewest if fewest < TICKS else fewest // TICKS * TICKS)


def nodes_with_cpus(groups: Iterable[NodeGroup], resource: str, share_ticks: int = 1) -> tuple[NodeGroup, ...]:
    """Return the nodes that have CPUs; all nodes, if none with CPUs has room for such a share of the devices."""
    groups = tuple(groups)
    kept = tuple(group for group in groups if group.node.resources.cpus > 0)
    has_room = any(device_slots(node.amounts.get(resource, 0), share_ticks) for node, _ in kept)
    return kept if has_room else groups


def about_nodes_without_cpus(groups: Iterable[NodeGroup], resource: str, cpus: float) -> Iterable[str]:
    """Yield a sentence that says how many nodes with devices have fewer CPUs than a worker gets, where some have."""
    left_out = sum(count for node, count in groups if node.resources.ticks.get(resource) and node.resources.cpus < cpus)
    if left_out:
        yield (
            f"left out {counted(left_out, 'node')} with {resource} and too few CPUs for it: with cpus=0, workers run "
            "there too, and all of them without a CPU"
        )
