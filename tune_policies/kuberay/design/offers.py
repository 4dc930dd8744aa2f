"""Ranks the nodes that can be rented for a number of trials by their price, with or without Kubernetes.

An offer is a choice of nodes: the cheapest choice of the whole catalog, or the nodes of one type alone. The search for
the nodes is that of a designed cluster.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tune_policies.kuberay.design.catalog_file import NodeCatalog
from tune_policies.kuberay.design.cluster_spec import capacity_of
from tune_policies.kuberay.design.design_cluster import (
    ClusterDesign,
    about_unusable_types,
    design_in_time,
    design_nodes,
)
from tune_policies.kuberay.design.trial_duration import TrialDuration
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.gpu_memory import GpuMemoryPolicy, difference_text, memory_for_one_more
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import MOST_AT_ONCE, PositiveCount, check_count
from tune_policies.values.units import format_bytes, format_money, format_request
from tune_policies.values.value import ShownValue, Value
from tune_policies.values.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHORTER_DEADLINES: Final = 12
"""The number of equal parts of the time at which a lower price of all trials is searched."""

_WORTH_MORE_NODES: Final = 0.99
"""More nodes are suggested if the price of all trials falls at least to this part."""


class NodeOffer(Value):
    """Nodes for the trials.

    Attributes:
        nodes: The number of nodes by type.
        trials: The plan of the trials on these nodes.
        price_per_hour: The price of the nodes, and of the head if it has a price; ``None`` if unknown.
        hours: The hours until the last trial ends; ``None`` if the duration of trials is unknown.
    """

    nodes: dict[str, PositiveCount]
    trials: TrialPlan
    price_per_hour: float | None = None
    hours: float | None = None

    @classmethod
    def of(cls, design: ClusterDesign) -> Self:
        """Return the nodes of a designed cluster."""
        nodes = {group.node_type.name: group.max_nodes for group in design.groups}
        plan = design.trials.model_copy(update={"nodes_to_add": {}})
        return cls(
            nodes=nodes,
            trials=plan,
            price_per_hour=design.price_per_hour,
            hours=design.hours,
        )

    @property
    def trials_at_once(self) -> int:
        """The number of trials that run concurrently."""
        return self.trials.min_concurrent_trials

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour while as many trials run as fit, or ``None`` if unknown."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / self.trials_at_once

    @property
    def price(self) -> float | None:
        """The price of all trials if all nodes run until the last trial ends, or ``None`` if unknown."""
        if self.price_per_hour is None or self.hours is None:
            return None
        return self.price_per_hour * self.hours

    def __str__(self) -> str:
        if not self.nodes:
            return "only the head"
        return ", ".join(counted(number, f"{name} node") for name, number in self.nodes.items())


class NodeOffers(ShownValue):
    """The nodes that run a number of trials, ranked by the number of concurrent trials and by price.

    If the duration of the trials is known, the price is that of all trials, and otherwise the price per hour.

    Attributes:
        num_trials: The number of trials in the run.
        duration: The duration of the trials, and their deadline; ``None`` if unknown.
        offers: The choice of nodes with the lowest price per hour, and the nodes of each other type alone, by rank.
        currency: The currency of the prices.
        date: The date of the prices, if known.
        unusable: The names of the node types on which no trial fits.
        has_head: Whether the prices include a head.
        cheaper: Sentences about nodes that cost less if trials get slightly less GPU memory, the cheapest first, or in
            total if the trials end earlier.
        notes: Sentences about fewer nodes of one type, and about amounts in the catalog that may be wrong.
    """

    num_trials: PositiveCount
    duration: TrialDuration | None = None
    offers: tuple[NodeOffer, ...]
    currency: str
    date: str | None = None
    unusable: tuple[str, ...] = ()
    has_head: bool = False
    cheaper: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __rich__(self) -> "RenderableType":
        from tune_policies.kuberay.design.offers_view import offers_view  # the view imports this module

        return offers_view(self)


def rank_offers(
    policy: ResourcePolicy, catalog: NodeCatalog, num_trials: int, duration: TrialDuration | None = None
) -> NodeOffers:
    """Return the cheapest nodes that run ``num_trials`` trials, and the nodes of each other type alone.

    The nodes run all trials concurrently or, with a deadline, as many trials as the deadline requires. If a catalog
    has too few nodes, an offer has room for fewer trials.

    Raises:
        InvalidResourcesError: The policy or the catalog is not valid for a design.
        InfeasibleRequestError: Not even one trial fits on the nodes of the catalog.
    """
    check_count(num_trials, least=1, most=MOST_AT_ONCE, name="num_trials")
    at_once = num_trials if duration is None else duration.trials_at_once(num_trials)
    best = NodeOffer.of(design_in_time(policy, catalog, num_trials, duration=duration))
    found = [best]
    unusable: list[str] = []
    notes: list[str] = []
    for node_type in catalog.nodes:
        # The cheapest choice of the whole catalog is known. Now look at each type alone, with and without slightly less
        # memory.
        alone = catalog.model_copy(update={"nodes": (node_type,)})
        offer = None
        with suppress(InfeasibleRequestError):
            offer = NodeOffer.of(design_in_time(policy, alone, num_trials, duration=duration))
        if offer is None:
            unusable.append(node_type.name)
        # If the cheapest choice consists of this type, the offer would be the same.
        elif offer.nodes.keys() != best.nodes.keys():
            found.append(offer)
        smaller = with_less_memory(policy, alone, at_once)
        # ``cheaper_than`` describes the nodes that cost less than the best offer.
        if smaller is None or _is_cheaper(smaller.offer, best, at_once):
            continue
        # Below the table, a note is worth its line only if less memory helps on this type.
        if offer is None or _rank(smaller.offer, at_once) < _rank(offer, at_once):
            notes.append(smaller.describe(catalog.currency, offer))
    offers = tuple(sorted(found, key=lambda offer: _rank_in_total(offer, at_once)))
    return NodeOffers(
        num_trials=num_trials,
        duration=duration,
        offers=offers,
        currency=catalog.currency,
        date=catalog.date,
        unusable=tuple(unusable),
        cheaper=(
            *cheaper_than(best, policy, catalog, at_once),
            *cheaper_in_total(offers[0], policy, catalog, num_trials, duration),
        ),
        has_head=catalog.head is not None and bool(catalog.head.price_per_hour),
        notes=(*notes, *about_unusable_types(policy, catalog), *catalog.cautions),
    )


def _rank(offer: NodeOffer, at_once: int) -> tuple[int, bool, float]:
    """Return the rank by the price per hour of nodes for ``at_once`` trials. Room for more trials does not count."""
    # Room for the trials comes first. An unknown price comes after all known ones.
    return (-min(offer.trials_at_once, at_once), offer.price_per_hour is None, offer.price_per_hour or 0)


def _rank_in_total(offer: NodeOffer, at_once: int) -> tuple[int, bool, float]:
    """Return the rank by the price of all trials, or by the price per hour if their duration is unknown."""
    room, has_no_price, per_hour = _rank(offer, at_once)
    if offer.price is None:
        return (room, has_no_price, per_hour)
    return (room, has_no_price, offer.price)


def _is_cheaper(offer: NodeOffer, other: NodeOffer, at_once: int) -> bool:
    if offer.price_per_hour is None or other.price_per_hour is None:
        return False
    has_room = offer.trials_at_once >= min(other.trials_at_once, at_once)
    return has_room and offer.price_per_hour < other.price_per_hour


class SmallerTrials(NamedTuple):
    """Trials with slightly less GPU memory, and the nodes that they need.

    Attributes:
        gpu_memory: The GPU memory of a trial, in bytes.
        instead_of: The GPU memory of a trial under the policy, in bytes.
        offer: The nodes.
    """

    gpu_memory: int
    instead_of: int
    offer: NodeOffer

    def describe(self, currency: str, offer: NodeOffer | None) -> str:
        """Return a sentence about the nodes, compared with those that the policy needs of the same type, if any."""
        price = ""
        if self.offer.price_per_hour is not None:
            price = f" ({format_money(self.offer.price_per_hour)} {currency} per hour)"
        instead = "" if offer is None else f" instead of {offer}"
        return f"{self._amount}, {self.offer}{price}{instead} would be enough"

    def describe_saving(self, currency: str, price_per_hour: float) -> str:
        """Return a sentence that compares the price of the nodes with that of the nodes that the policy needs."""
        prices = f"{format_money(self.offer.price_per_hour or 0)} instead of {format_money(price_per_hour)} {currency}"
        return f"{self._amount}, {self.offer} would be enough, for {prices} per hour"

    @property
    def _amount(self) -> str:
        less = f"{difference_text(self.gpu_memory, self.instead_of)} than {format_bytes(self.instead_of)}"
        return f"with gpu_memory: {format_request(self.gpu_memory)} ({less})"


def cheaper_than(best: NodeOffer, policy: ResourcePolicy, catalog: NodeCatalog, num_trials: int) -> Iterator[str]:
    """Yield sentences about nodes of one type that cost less if trials get slightly less GPU memory, cheapest first."""
    found = []
    for node_type in catalog.nodes:
        smaller = with_less_memory(policy, catalog.model_copy(update={"nodes": (node_type,)}), num_trials)
        if smaller is not None and _is_cheaper(smaller.offer, best, num_trials):
            found.append(smaller)
    for smaller in sorted(found, key=lambda smaller: _rank(smaller.offer, num_trials)):
        yield smaller.describe_saving(catalog.currency, best.price_per_hour or 0)


def cheaper_in_total(
    best: NodeOffer, policy: ResourcePolicy, catalog: NodeCatalog, num_trials: int, duration: TrialDuration | None
) -> Iterator[str]:
    """Yield a sentence if more nodes than the deadline requires cost less in total, because all trials end earlier."""
    if duration is None or duration.deadline_hours is None or best.price is None or best.hours is None:
        return
    # Only whole rounds matter, because all trials of a round end together.
    num_rounds = round(best.hours / duration.trial_hours)
    parts = {num_rounds * part // _SHORTER_DEADLINES for part in range(1, _SHORTER_DEADLINES)}
    cheapest, price = best, best.price
    # From the longest deadline to the shortest, so that of equal prices, the one with the fewest nodes stays.
    for fewer in sorted(parts - {0}, reverse=True):
        sooner = duration.model_copy(update={"deadline_hours": fewer * duration.trial_hours})
        offer = NodeOffer.of(design_in_time(policy, catalog, num_trials, duration=sooner))
        is_sooner = offer.hours is not None and offer.hours < best.hours
        if is_sooner and offer.price is not None and offer.price < price:
            cheapest, price = offer, offer.price
    # A saving of less than 1 % is not worth more nodes.
    if price > _WORTH_MORE_NODES * best.price:
        return
    prices = f"{format_money(price)} instead of {format_money(best.price)} {catalog.currency}"
    yield (
        f"with a deadline of {cheapest.hours:.4g} h, all trials would cost {prices}, on {cheapest}, because they would "
        "end earlier"
    )


def with_cheaper_nodes(
    design: ClusterDesign, policy: ResourcePolicy, catalog: NodeCatalog, duration: TrialDuration | None = None
) -> ClusterDesign:
    """Return the design with sentences about nodes that cost less.

    They cost less per hour if trials get slightly less GPU memory, or in total if the trials end earlier.
    """
    best = NodeOffer.of(design)
    cheaper = [
        *cheaper_than(best, policy, catalog, best.trials_at_once),
        *cheaper_in_total(best, policy, catalog, design.num_trials, duration),
    ]
    return design.model_copy(update={"cheaper": tuple(cheaper)})


def with_less_memory(policy: ResourcePolicy, one_type: NodeCatalog, num_trials: int) -> SmallerTrials | None:
    """Return the trials with slightly less memory, so that one more fits on a GPU of this type, and their nodes.

    The result is ``None`` if this needs much less GPU memory, or if no trial fits.
    """
    first = policy.choices[0]
    if not isinstance(first, GpuMemoryPolicy) or first.gpu_memory is None:
        return None
    needed = int(first.gpu_memory)
    device_bytes = capacity_of(one_type).nodes[0].smallest_gpu_memory_bytes
    if device_bytes is None:
        return None
    fewer_bytes = memory_for_one_more(device_bytes, needed, first.max_trials_per_gpu)
    if fewer_bytes is None:
        return None
    # A new policy instead of ``model_copy``, because only the constructor validates and converts its fields.
    smaller = GpuMemoryPolicy(**{**dict(first), "gpu_memory": fewer_bytes})
    with suppress(InfeasibleRequestError):
        return SmallerTrials(fewer_bytes, needed, NodeOffer.of(design_nodes(smaller, one_type, num_trials)))
    return None
