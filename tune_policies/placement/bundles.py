"""What a trial reserves, and whether the nodes of a cluster hold it: all of its bundles at once.

Unlike the workers of a plan, the bundles of a trial differ, so they are placed one by one, each share on one device.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tune_policies.accelerators import DEVICE_RESOURCES
from tune_policies.capacity import NodeCapacity
from tune_policies.labels import matcher
from tune_policies.placement.remaining import RemainingNode
from tune_policies.resources import Amounts, ray_ticks

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

    They are placed where they first fit, the largest first, by three measures of size. That may miss a way that only a
    search would find; Ray does not search either.
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
