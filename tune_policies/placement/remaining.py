"""What remains of a node, and how often something fits there: the arithmetic of all placement.

Amounts are by Ray's names and in ticks of 1/10 000, host memory in bytes. The same rules hold everywhere:

* Missing host memory is not known, and limits nothing. A node has nothing of any other resource that is missing.
* A share below one device stays on one device; whole devices are whole.
* A device type is an amount like any other: a node has one unit of ``accelerator_type:X``, a worker takes 0.001 of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.values.resources import TICKS, Amounts, Resources, from_ticks, ray_ticks
from tune_policies.values.units import MIB

DRIVER_BYTES: Final = MIB
"""Host memory of a Train driver, of which it holds nothing else."""


def device_slots(ticks: int, share: int) -> int:
    """Return how many times a share fits idle devices of one node, both in ticks."""
    if share >= TICKS:
        return ticks // share
    return ticks // TICKS * (TICKS // share) + ticks % TICKS // share


def slots_by_resource(has: Mapping[str, int], worker: Mapping[str, int], *, num_drivers: int = 0) -> dict[str, int]:
    """Return for each resource of a worker how many workers it alone would let an idle node hold.

    Args:
        has: What the node has.
        worker: What each worker takes.
        num_drivers: Train drivers that may all be on this node; where Ray puts them cannot be known.
    """
    slots = {}
    for name, needed in worker.items():
        if name in DEVICE_RESOURCES:
            slots[name] = device_slots(has.get(name, 0), needed)
        elif name != "memory":
            slots[name] = has.get(name, 0) // needed
        elif name in has:
            slots[name] = max(0, has[name] - num_drivers * DRIVER_BYTES) // needed
    return slots


def subtract(node: NodeCapacity, worker: Mapping[str, int], count: int = 1, *, num_drivers: int = 0) -> NodeCapacity:
    """Subtract workers and Train drivers from a node.

    Ray may spread shares of a device over all devices of the node, so shares leave none of these.
    """
    left = dict(node.resources.ticks)
    for name, ticks in left.items():
        needed = worker.get(name, 0)
        if name in DEVICE_RESOURCES and 0 < needed < TICKS:
            left[name] = 0
        elif name == "memory":
            # None would mean "not known": a node with nothing left keeps its last byte.
            left[name] = max(1, ticks - count * needed - num_drivers * DRIVER_BYTES)
        else:
            left[name] = ticks - count * needed
    custom = {name: from_ticks(left[name]) for name in node.resources.custom}
    cpus, gpus = (from_ticks(left.get(name, 0)) for name in ("CPU", "GPU"))
    return node.with_less(Resources(cpus=cpus, gpus=gpus, memory_bytes=left.get("memory"), custom=custom))


class RemainingNode:
    """What remains of a node while parts of it are allocated and released, device by device."""

    def __init__(self, has: Mapping[str, int]) -> None:
        self._left = {name: ticks for name, ticks in has.items() if name not in DEVICE_RESOURCES}
        # How many devices have so many ticks free: a cluster may claim more of them than fit a list.
        self._devices = {
            name: Counter({TICKS: ticks // TICKS, ticks % TICKS: 1})
            for name, ticks in has.items()
            if name in DEVICE_RESOURCES
        }
        self._held: Counter[str] = Counter()
        self._num_holders = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held on it."""
        return self._num_holders == 0

    def amount(self, name: str) -> int:
        """Return how much is left of a resource; 0 too where it is not known."""
        if name in self._devices:
            free = sum(ticks * count for ticks, count in self._devices[name].items())
            return max(0, free - self._held[name])
        return max(0, self._left.get(name, 0))

    def slots(self, worker: Mapping[str, int], most: int) -> int:
        """Return how many workers fit, up to ``most``.

        Nobody knows on which devices held shares are, so they count against the sum of the devices. So this may say
        that workers fit which do not, but never the reverse.
        """
        return min([most, *(self._slots_of(name, needed) for name, needed in worker.items() if needed)])

    def _slots_of(self, name: str, needed: int) -> int:
        if name not in self._devices:
            return _UNLIMITED if name == "memory" and name not in self._left else self.amount(name) // needed
        free = self._devices[name]
        by_device = sum(ticks // needed * count for ticks, count in free.items())
        return min(free[TICKS] * TICKS // needed if needed >= TICKS else by_device, self.amount(name) // needed)

    def hold(self, amounts: Mapping[str, int]) -> None:
        """Take what somebody holds, on devices that are not known."""
        self._add(amounts, 1)

    def release(self, amounts: Mapping[str, int]) -> None:
        """Give back what was held."""
        self._add(amounts, -1)

    def _add(self, amounts: Mapping[str, int], sign: int) -> None:
        self._num_holders += sign
        for name, ticks in amounts.items():
            if name in self._devices:
                self._held[name] += sign * ticks
            elif name in self._left:
                self._left[name] -= sign * ticks

    def allocate(self, bundle: Mapping[str, int]) -> bool:
        """Take all of a bundle, each share from the fullest device with room; ``False``: it does not fit."""
        devices = {}
        for name, ticks in bundle.items():
            if name in self._devices:
                if (left := _without(self._devices[name], ticks)) is None:
                    return False
                devices[name] = left
            elif ticks > self._left.get(name, _UNLIMITED if name == "memory" else 0):
                return False
        for name, ticks in bundle.items():
            if name in self._left:
                self._left[name] -= ticks
        self._devices |= devices
        return True


_UNLIMITED: Final = 2**63


def _without(devices: Counter[int], ticks: int) -> Counter[int] | None:
    """Return the devices by their free ticks without so many, the fullest first; ``None``: there is no room."""
    whole, share = divmod(ticks, TICKS)
    left = Counter({free: count for free, count in devices.items() if count})
    if left[TICKS] < whole:
        return None
    left[TICKS] -= whole
    if share:
        fullest = min((free for free, count in left.items() if count and free >= share), default=None)
        if fullest is None:
            return None
        left[fullest] -= 1
        left[fullest - share] += 1
    return left


Bundle = Mapping[str, float]
"""What Ray reserves in one place, by Ray's names of the resources: GPUs in units, ``memory`` in bytes."""

_Wanted = tuple[Amounts, Callable[[Mapping[str, str]], bool]]


class BundleGroup(NamedTuple):
    """The bundles that a trial reserves together.

    Attributes:
        bundles: The trainable's own first, though it be empty.
        strategy: Ray's name for where they may be: ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        selectors: The labels of the node that each bundle must have; empty: any node.
    """

    bundles: Sequence[Bundle]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()

    def with_bundles(self, bundles: Sequence[Bundle]) -> "BundleGroup":
        """Return the same with other bundles."""
        return self._replace(bundles=bundles)


def is_held(group: BundleGroup, nodes: Sequence[NodeCapacity]) -> bool:
    """Return whether ``nodes``, all of them idle, hold all bundles at once.

    Bundles go to the first node that has room, the largest bundle first, by three measures of size. That may miss what
    only a search would find. Ray does not search either.
    """
    selectors = [matcher(selector) for selector in group.selectors] or [matcher({})] * len(group.bundles)
    wanted = [(ray_ticks(bundle), selects) for bundle, selects in zip(group.bundles, selectors, strict=True) if bundle]
    if group.strategy == "STRICT_PACK":
        return any(_are_placed(wanted, [node], one_each=False) for node in nodes)
    return any(
        _are_placed(sorted(wanted, key=size, reverse=True), nodes, one_each=group.strategy == "STRICT_SPREAD")
        for size in (_amount_of(*DEVICE_RESOURCES), _amount_of("memory"), _amount_of("CPU"))
    )


def _amount_of(*names: str) -> Callable[[_Wanted], int]:
    return lambda wanted: sum(wanted[0].get(name, 0) for name in names)


def _are_placed(wanted: Sequence[_Wanted], nodes: Sequence[NodeCapacity], *, one_each: bool) -> bool:
    remaining = [(node, RemainingNode(node.amounts)) for node in nodes]
    for bundle, selects in wanted:
        fits = (each for each in remaining if selects(each[0].ray_labels) and each[1].allocate(bundle))
        if (chosen := next(fits, None)) is None:
            return False
        if one_each:
            remaining.remove(chosen)
    return True
