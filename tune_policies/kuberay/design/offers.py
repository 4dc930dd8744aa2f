"""Ranks the nodes that can be rented for a number of trials by their price, with or without Kubernetes.

An offer is a choice of nodes: the cheapest choice of the whole catalog, or the nodes of one type alone. The search for
the nodes is that of a designed cluster.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tune_policies.kuberay.design.catalog import NodeCatalog
from tune_policies.kuberay.design.cluster_spec import capacity_of
from tune_policies.kuberay.design.design_cluster import ClusterDesign, about_unusable_types, design_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.gpu_memory import GpuMemoryPolicy, memory_for_one_more
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.units import format_bytes, format_money, format_request
from tune_policies.values.value import ShownValue, Value, counted

if TYPE_CHECKING:
    from rich.console import RenderableType


class NodeOffer(Value):
    """Nodes for the trials.

    Attributes:
        nodes: The number of nodes by type.
        trials: The plan of the trials on these nodes.
        price_per_hour: The price of the nodes, and of the head if it has a price; ``None`` if unknown.
    """

    nodes: dict[str, PositiveCount]
    trials: TrialPlan
    price_per_hour: float | None = None

    @classmethod
    def of(cls, design: ClusterDesign) -> Self:
        """Return the nodes of a designed cluster."""
        nodes = {group.node_type.name: group.max_nodes for group in design.groups}
        plan = design.trials.model_copy(update={"nodes_to_add": {}})
        return cls(nodes=nodes, trials=plan, price_per_hour=design.price_per_hour)

    @property
    def trials_at_once(self) -> int:
        """The number of trials that run concurrently."""
        return self.trials.min_concurrent_trials

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour while all slots are in use, or ``None`` if unknown."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / self.trials_at_once

    def __str__(self) -> str:
        if not self.nodes:
            return "only the head"
        return ", ".join(counted(number, f"{name} node") for name, number in self.nodes.items())


class NodeOffers(ShownValue):
    """The nodes that run a number of trials, ranked by the number of concurrent trials and by price.

    Attributes:
        num_trials: The number of trials to run concurrently.
        offers: The cheapest choice of nodes, followed by the nodes of each other type alone.
        currency: The currency of the prices.
        date: The date of the prices, if known.
        unusable: The names of the node types on which no trial fits.
        has_head: Whether the prices include a head.
        notes: Sentences about cheaper nodes, and about amounts in the catalog that may be wrong.
    """

    num_trials: PositiveCount
    offers: tuple[NodeOffer, ...]
    currency: str
    date: str | None = None
    unusable: tuple[str, ...] = ()
    has_head: bool = False
    notes: tuple[str, ...] = ()

    def __rich__(self) -> "RenderableType":
        from tune_policies.kuberay.design.offers_view import offers_view  # the view imports this module

        return offers_view(self)


def rank_offers(policy: ResourcePolicy, catalog: NodeCatalog, num_trials: int) -> NodeOffers:
    """Return the cheapest nodes for ``num_trials`` concurrent trials, and the nodes of each other type alone.

    If a catalog has too few nodes, an offer has room for fewer trials.

    Raises:
        InvalidResourcesError: The policy or the catalog is not valid for a design.
        InfeasibleRequestError: Not even one trial fits on the nodes of the catalog.
    """
    best = NodeOffer.of(design_nodes(policy, catalog, num_trials))
    found = [best]
    unusable: list[str] = []
    notes: list[str] = []
    for node_type in catalog.nodes:
        alone = catalog.model_copy(update={"nodes": (node_type,)})
        offer = None
        with suppress(InfeasibleRequestError):
            offer = NodeOffer.of(design_nodes(policy, alone, num_trials))
        if offer is None:
            unusable.append(node_type.name)
        elif offer.nodes.keys() != best.nodes.keys():
            found.append(offer)
        notes += _with_less_memory(policy, alone, num_trials, offer)
    return NodeOffers(
        num_trials=num_trials,
        offers=tuple(sorted(found, key=_rank)),
        currency=catalog.currency,
        date=catalog.date,
        unusable=tuple(unusable),
        has_head=catalog.head is not None and bool(catalog.head.price_per_hour),
        notes=(*notes, *about_unusable_types(policy, catalog), *catalog.cautions),
    )


def _rank(offer: NodeOffer) -> tuple[int, bool, float]:
    return (-offer.trials_at_once, offer.price_per_hour is None, offer.price_per_hour or 0)


def _with_less_memory(
    policy: ResourcePolicy, one_type: NodeCatalog, num_trials: int, offer: NodeOffer | None
) -> Iterator[str]:
    """Yield a sentence if fewer nodes of one type are enough for trials with slightly less GPU memory.

    Args:
        policy: The policy.
        one_type: A catalog with one node type.
        num_trials: The number of trials to run concurrently.
        offer: The nodes of this type for the policy, or ``None`` if no trial fits on them.
    """
    first = policy.choices[0]
    if not isinstance(first, GpuMemoryPolicy) or first.gpu_memory is None:
        return
    needed = int(first.gpu_memory)
    device_bytes = capacity_of(one_type).nodes[0].smallest_gpu_memory_bytes
    if device_bytes is None:
        return
    fewer_bytes = memory_for_one_more(device_bytes, needed, first.max_trials_per_gpu)
    if fewer_bytes is None:
        return
    smaller = GpuMemoryPolicy(**{**dict(first), "gpu_memory": fewer_bytes})
    try:
        cheaper = NodeOffer.of(design_nodes(smaller, one_type, num_trials))
    except InfeasibleRequestError:
        return
    if offer is None or _rank(cheaper) < _rank(offer):
        instead = "" if offer is None else f" instead of {offer}"
        price = ""
        if cheaper.price_per_hour is not None:
            price = f" ({format_money(cheaper.price_per_hour)} {one_type.currency} per hour)"
        yield (
            f"with gpu_memory: {format_request(fewer_bytes)} ({1 - fewer_bytes / needed:.1%} less than "
            f"{format_bytes(needed)}), {cheaper}{price}{instead} would be enough"
        )
