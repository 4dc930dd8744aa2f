"""What a trial reserves, and whether the nodes of a cluster hold it: all of its bundles at once.

Unlike the workers of a plan, the bundles of a trial differ, so they are placed one by one, each share on one device.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.capacity import NodeCapacity
from tune_policies.labels import matcher
from tune_policies.resources import TICKS, to_ticks

Bundle = Mapping[str, float]
"""What Ray reserves in one place, by Ray's names of the resources: GPUs in units, ``memory`` in bytes."""

_Wanted = tuple[Bundle, Callable[[Mapping[str, str]], bool]]


class Reservation(NamedTuple):
    """What a trial reserves.

    Attributes:
        bundles: The trainable's own first, though it be empty.
        strategy: Ray's name for where they may be: ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        selectors: The labels of the node that each bundle must have; empty: any node.
    """

    bundles: Sequence[Bundle]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()

    def with_bundles(self, bundles: Sequence[Bundle]) -> "Reservation":
        """Return the same with other bundles."""
        return self._replace(bundles=bundles)


def is_held(reservation: Reservation, nodes: Sequence[NodeCapacity]) -> bool:
    """Return whether ``nodes``, all of them idle, hold all bundles at once.

    They are placed where they first fit, the largest first, by three measures of size. That may miss a way that only a
    search would find; Ray does not search either.
    """
    selectors = [matcher(selector) for selector in reservation.selectors] or [matcher({})] * len(reservation.bundles)
    wanted = [each for each in zip(reservation.bundles, selectors, strict=True) if each[0]]
    if reservation.strategy == "STRICT_PACK":
        return any(_are_placed(wanted, [node], one_each=False) for node in nodes)
    return any(
        _are_placed(sorted(wanted, key=size, reverse=True), nodes, one_each=reservation.strategy == "STRICT_SPREAD")
        for size in (_devices, _amount_of("memory"), _amount_of("CPU"))
    )


def _devices(wanted: _Wanted) -> float:
    return sum(amount for name, amount in wanted[0].items() if name in DEVICE_RESOURCES)


def _amount_of(name: str) -> Callable[[_Wanted], float]:
    return lambda wanted: wanted[0].get(name, 0)


def _are_placed(wanted: Sequence[_Wanted], nodes: Sequence[NodeCapacity], *, one_each: bool) -> bool:
    rooms = [_Room(node) for node in nodes]
    for bundle, selects in wanted:
        room = next((room for room in rooms if selects(room.node.ray_labels) and room.take(bundle)), None)
        if room is None:
            return False
        if one_each:
            rooms.remove(room)
    return True


class _Room:
    """What is left of a node, in ticks; of devices by device."""

    def __init__(self, node: NodeCapacity) -> None:
        self.node = node
        self._left = dict(node.resources.ticks)
        self._devices = {
            name: sorted([TICKS] * (ticks // TICKS) + [ticks % TICKS])
            for name, ticks in self._left.items()
            if name in DEVICE_RESOURCES
        }

    def take(self, bundle: Bundle) -> bool:
        """Take ``bundle`` out of what is left, if there is room for all of it."""
        if not all(self._has(name, amount) for name, amount in bundle.items()):
            return False
        for name, amount in bundle.items():
            if name in self._devices:
                self._devices[name] = _without(self._devices[name], to_ticks(amount)) or []
            elif name in self._left:
                self._left[name] -= _ticks(name, amount)
        return True

    def _has(self, name: str, amount: float) -> bool:
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            return self.node.accelerator_type == name.removeprefix(ACCELERATOR_TYPE_PREFIX)
        if name in self._devices:
            return _without(self._devices[name], to_ticks(amount)) is not None
        return _ticks(name, amount) <= self._left.get(name, 0)


def _ticks(name: str, amount: float) -> int:
    return int(amount) if name == "memory" else to_ticks(amount)


def _without(devices: Sequence[int], ticks: int) -> list[int] | None:
    """Return what is left of devices; a share comes from the fullest that has room. ``None``: there is none."""
    left = sorted(devices)
    for _ in range(ticks // TICKS):
        if not left or left.pop() < TICKS:
            return None
    share = ticks % TICKS
    if share:
        index = next((index for index, free in enumerate(left) if free >= share), None)
        if index is None:
            return None
        left[index] -= share
    return left
