"""Nodes that allocate resources like Ray, on random devices with room."""

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import matcher

TICKS = 10_000


class RayNode:
    """The free resources of a node, with each device separately."""

    def __init__(self, node, rng):
        self.id = node.node_id
        self._node = node
        self._rng = rng
        self._free = dict(node.resources.ticks)
        self._devices = {
            name: [TICKS] * (self._free.pop(name) // TICKS) for name in DEVICE_RESOURCES & self._free.keys()
        }
        if node.resources.memory_bytes is None:
            self._free["memory"] = float("inf")

    def selects(self, slot, *, is_driver=False):
        """Return whether Ray may place a worker of the slot, or its driver, here."""
        of_type = is_driver or slot.accelerator_type in (None, self._node.accelerator_type)
        return of_type and matcher(slot.label_selector)(self._node.ray_labels)

    def take(self, worker):
        """Allocate a worker's resources, or return ``None``."""
        wanted = dict(worker.ticks)
        devices = {name: wanted.pop(name) for name in self._devices.keys() & wanted.keys()}
        if any(self._free.get(name, 0) < ticks for name, ticks in wanted.items()):
            return None
        chosen = {name: self._choose(self._devices[name], ticks) for name, ticks in devices.items()}
        if any(shares is None for shares in chosen.values()):
            return None
        self._add(wanted, chosen, -1)
        return wanted, chosen

    def give_back(self, taken):
        self._add(*taken, 1)

    def _add(self, amounts, chosen, sign):
        for name, ticks in amounts.items():
            self._free[name] += sign * ticks
        for name, shares in chosen.items():
            for i, ticks in shares.items():
                self._devices[name][i] += sign * ticks

    def _choose(self, free, ticks):
        least = min(ticks, TICKS)
        fitting = [i for i, left in enumerate(free) if left >= least]
        number = max(1, ticks // TICKS)
        return dict.fromkeys(self._rng.sample(fitting, number), least) if len(fitting) >= number else None
