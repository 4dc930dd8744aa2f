"""Places bundles on nodes as Ray does, and counts how many groups of bundles fit.

A bundle is what one process reserves on one node. Fractions of devices must fit on one device.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeCapacity
from tune_policies.values.resources import (
    TICKS,
    Amounts,
    ray_ticks,
)

_UNLIMITED: Final = 2**63


class RemainingNode:
    """The remaining resources of a node, with each device counted separately."""

    def __init__(self, has: Mapping[str, int]) -> None:
        self._left = {name: ticks for name, ticks in has.items() if name not in DEVICE_RESOURCES}
        # Devices with equal free ticks are counted together, because a node can declare millions of devices.
        self._devices = {
            name: Counter({TICKS: ticks // TICKS, ticks % TICKS: 1})
            for name, ticks in has.items()
            if name in DEVICE_RESOURCES
        }
        self._held: Counter[str] = Counter()
        self._num_holders = 0

    @property
    def is_idle(self) -> bool:
        """Whether the node has no reservations."""
        return self._num_holders == 0

    def amount(self, name: str) -> int:
        """Return the remaining amount of a resource, or 0 if it is unknown."""
        if name in self._devices:
            free = sum(ticks * count for ticks, count in self._devices[name].items())
            return max(0, free - self._held[name])
        return max(0, self._left.get(name, 0))

    def slots(self, worker: Mapping[str, int], most: int) -> int:
        """Return how many workers fit, up to ``most``.

        Reserved fractions are subtracted from the sum of all devices, because it is unknown which devices they use. So
        the result can be too large.
        """
        return min([most, *(self._slots_of(name, needed) for name, needed in worker.items() if needed)])

    def _slots_of(self, name: str, needed: int) -> int:
        if name not in self._devices:
            if name == "memory" and name not in self._left:
                return _UNLIMITED
            return self.amount(name) // needed
        free = self._devices[name]
        if needed >= TICKS:  # whole devices
            by_device = free[TICKS] * TICKS // needed
        else:  # Ray never splits a fraction between devices
            by_device = sum(ticks // needed * count for ticks, count in free.items())
        return min(by_device, self.amount(name) // needed)

    def hold(self, amounts: Mapping[str, int]) -> None:
        """Subtract a reservation whose devices are unknown."""
        self._add(amounts, 1)

    def release(self, amounts: Mapping[str, int]) -> None:
        """Release a reservation that :meth:`hold` subtracted."""
        self._add(amounts, -1)

    def _add(self, amounts: Mapping[str, int], sign: int) -> None:
        self._num_holders += sign
        for name, ticks in amounts.items():
            if name in self._devices:
                self._held[name] += sign * ticks
            elif name in self._left:
                self._left[name] -= sign * ticks

    def allocate(self, bundle: Mapping[str, int]) -> bool:
        """Subtract a bundle if it fits, and return whether it fits. A fraction uses the fullest device with room."""
        devices = {}
        for name, ticks in bundle.items():
            if name in self._devices:
                left = _without(self._devices[name], ticks)
                if left is None:
                    return False
                devices[name] = left
                continue
            # Host memory that is not listed is unknown, so it is not a limit.
            unlisted = _UNLIMITED if name == "memory" else 0
            if ticks > self._left.get(name, unlisted):
                return False
        for name, ticks in bundle.items():
            if name in self._left:
                self._left[name] -= ticks
        self._devices |= devices
        return True


def _without(devices: Counter[int], ticks: int) -> Counter[int] | None:
    """Return the number of devices by free ticks after an allocation, or ``None`` if the allocation does not fit."""
    whole, share = divmod(ticks, TICKS)
    left = Counter({free: count for free, count in devices.items() if count})
    if left[TICKS] < whole:
        return None
    left[TICKS] -= whole
    if share:
        # The fullest device with room keeps the others free for larger fractions.
        fullest = min((free for free, count in left.items() if count and free >= share), default=None)
        if fullest is None:
            return None
        left[fullest] -= 1
        left[fullest - share] += 1
    return left


BundleAmounts = Mapping[str, float]
"""The amounts that Ray reserves on one node, by resource name. ``memory`` is in bytes."""


_Wanted = tuple[Amounts, Callable[[Mapping[str, str]], bool]]


class BundleGroup(NamedTuple):
    """The bundles that a trial or the workers of a Train run reserve together.

    Attributes:
        bundles: The bundles. The first bundle of a trial is for its trainable and can be empty.
        strategy: Ray's placement strategy.
        selectors: The label selector of each bundle. The sequence is empty if no bundle has a selector.
    """

    bundles: Sequence[BundleAmounts]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()

    @property
    def common_selector(self) -> Mapping[str, str]:
        """The label selector that all bundles share, or an empty selector if there is none."""
        if self.selectors and all(selector == self.selectors[0] for selector in self.selectors):
            return self.selectors[0]
        return {}

    def with_bundles(self, bundles: Sequence[BundleAmounts]) -> "BundleGroup":
        """Return a copy of the group with these bundles."""
        return self._replace(bundles=bundles)


def is_held(group: BundleGroup, nodes: Sequence[NodeCapacity]) -> bool:
    """Return whether all bundles fit the idle ``nodes`` at once."""
    return count_groups(group, nodes, most=1) > 0


def count_groups(group: BundleGroup, nodes: Sequence[NodeCapacity], most: int) -> int:
    """Return how many groups of bundles fit the idle ``nodes`` at once, up to ``most``.

    Larger bundles are placed first, each on the node with the fewest devices and CPUs that has room. The size is
    measured in three ways, and the best result is returned. A search could find room for more groups, but Ray does not
    search either.
    """
    selectors = [matcher(selector) for selector in group.selectors] or [matcher({})] * len(group.bundles)
    wanted = [(ray_ticks(bundle), selects) for bundle, selects in zip(group.bundles, selectors, strict=True) if bundle]
    nodes = sorted(nodes, key=_smallest_first)
    if group.strategy == "STRICT_PACK":
        held = 0
        for node in nodes:
            held += _count_placed(wanted, [node], one_each=False, most=most - held)
        return held
    spreads = group.strategy == "STRICT_SPREAD"
    # It is unknown which resource is scarce, so the bundles are sorted once by each of the three kinds.
    return max(
        _count_placed(sorted(wanted, key=size, reverse=True), nodes, one_each=spreads, most=most)
        for size in (_amount_of(*DEVICE_RESOURCES), _amount_of("memory"), _amount_of("CPU"))
    )


def _smallest_first(node: NodeCapacity) -> tuple[object, ...]:
    devices = sum(node.resources.ticks.get(name, 0) for name in DEVICE_RESOURCES)
    return devices, node.resources.cpus, repr(node.shape), node.sort_key


def _amount_of(*names: str) -> Callable[[_Wanted], int]:
    return lambda wanted: sum(wanted[0].get(name, 0) for name in names)


def _count_placed(wanted: Sequence[_Wanted], nodes: Sequence[NodeCapacity], *, one_each: bool, most: int) -> int:
    remaining = [(node, RemainingNode(node.amounts)) for node in nodes]
    for count in range(most):
        # Only the list is copied, for STRICT_SPREAD. The nodes are shared, so the reservations of all groups add up.
        left = list(remaining)
        for bundle, selects in wanted:
            for candidate in left:
                node, resources = candidate
                if selects(node.ray_labels) and resources.allocate(bundle):
                    break
            else:
                return count
            if one_each:
                left.remove(candidate)
    return max(0, most)
