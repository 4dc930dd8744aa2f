"""Designs a cluster: the worker groups that a policy's trials need, of the nodes that there could be."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from tune_policies.kuberay.design.catalog import HEAD, NodeCatalog, NodeType
from tune_policies.kuberay.design.cheapest_nodes import NodePool, Units, workers_in_unit
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, DesignedGroup
from tune_policies.kuberay.design.default_node_types import default_catalog
from tune_policies.kuberay.design.slot_choices import Measured, choose_by_decision, nodes_for, shares_of
from tune_policies.placement.layout import RemainingCapacity
from tune_policies.placement.packing import largest
from tune_policies.plan.decision import Decision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import PositiveCount, Resources, check_count
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import Value, counted, shorten, shorten_names

_CLUSTER_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")


def _name(name: str) -> str:
    if not _CLUSTER_NAME.fullmatch(name):
        raise InvalidResourcesError(
            # KubeRay puts the names of its pods and services together from it.
            f"name {shorten(name)} must have small letters, digits and '-', a letter first, and at most 53 of them"
        )
    return name


class ClusterDesign(Value):
    """The cluster that a policy's trials need.

    Attributes:
        name: Of the cluster: a DNS label of at most 53 characters.
        head: The head node.
        groups: At least one for each slot type.
        trials: The plan of the trials on it.
        num_trials: How many trials are to run.
        idle_timeout_s: After so many seconds without work a node goes.
        price_per_hour: Of all nodes at their most, with the head where its price is told; ``None``: that of some worker
            is not known.
        hours: How long all the trials take, as benchmarks measured; ``None``: not known.
        currency: Of the price.
        reasons: How it came about, a sentence each.
    """

    name: Annotated[str, AfterValidator(_name)]
    head: NodeType
    groups: tuple[DesignedGroup, ...] = Field(min_length=1)
    trials: TrialPlan
    num_trials: PositiveCount
    idle_timeout_s: Annotated[int, Field(ge=0)] = 60
    price_per_hour: float | None = None
    hours: float | None = None
    currency: str = "USD"
    reasons: tuple[str, ...] = ()

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as a file of it is to be read again. Its head has host memory, for Train drivers, and no CPU."""
        return ClusterSpec(
            name=self.name,
            head=Resources(memory_bytes=self.head.memory_bytes),
            groups=tuple(group.spec for group in self.groups),
            idle_timeout_s=self.idle_timeout_s,
        )

    @property
    def price(self) -> float | None:
        """What all the trials cost together, if every node stays until the last of them ends; ``None``: not known."""
        return None if self.price_per_hour is None or self.hours is None else self.price_per_hour * self.hours

    def explain(self) -> str:
        """Return the design as text: the groups, how many trials run on them, what limits them, the cost, and why."""
        most = self.trials.min_concurrent_trials
        least = "none" if all(group.min_nodes == 0 for group in self.groups) else "some"
        limit = "" if most >= self.num_trials else f"; limited by {self.trials.limited_by}"
        lines = [
            f"{most} of {counted(self.num_trials, 'trial')} at once at the most, {least} at the least{limit}",
            *(f"  {group}" for group in self.groups),
            *(f"  each trial: {slot}" for slot in self.trials.slots),
            self._cost(),
        ]
        return "\n".join(
            map(one_line, [*lines, *(f"  - {reason}" for reason in (*self.reasons, *self.trials.reasons))])
        )

    def _cost(self) -> str:
        if self.price_per_hour is None:
            return "what it costs is not known: give each node type its price_per_hour"
        head = "with the head" if self.head.price_per_hour is not None else "without the head, whose price is not told"
        text = f"at most {_money(self.price_per_hour)} {self.currency} an hour, {head}"
        if self.price is None:
            return text
        return f"{text}; all trials take {self.hours:.2g} h and cost {_money(self.price)} {self.currency}"


def _money(amount: float) -> str:
    return f"{amount:.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"


def design_cluster(
    policy: ResourcePolicy,
    catalog: NodeCatalog | None,
    num_trials: int,
    *,
    decision: Decision | None = None,
    workload: str | None = None,
    size: float | None = None,
    name: str = "tune",
) -> ClusterDesign:
    """Design the worker groups on which ``num_trials`` trials run at once, or as many as policy and catalogue allow.

    They are the cheapest by the prices of the catalogue; without prices, as few nodes as hold the trials. Where the
    policy has slots of several types, each type has its share of the trials and its own cheapest nodes. All groups
    scale from zero.

    Args:
        policy: What a trial gets. Of several choices the first counts of which a trial fits.
        catalog: The nodes that there could be; ``None``: nodes that suit the policy.
        num_trials: How many trials are to run at once.
        decision: What benchmarks measured. Where the policy has slots or choices on GPU and CPU, trials go where a
            trial costs the least.
        workload: For which of the decision's workloads; ``None``: for the only one.
        size: For trials of which size; ``None``: of the largest that was measured.
        name: Of the cluster: a DNS label.

    Raises:
        InvalidResourcesError: An argument is wrong, or without a catalogue no node can be told to suit the policy.
        InfeasibleRequestError: Not even one trial fits the nodes that there could be.
    """
    num_trials = check_count(num_trials, least=1, name="num_trials")
    measured = None if decision is None else Measured.of(decision, workload, size)
    notes: tuple[str, ...] = ()
    if catalog is None:
        catalog, notes = default_catalog(policy, num_trials)
    pool = NodePool({each.name: each for each in catalog.node_types}, catalog.head or HEAD)
    chosen = _within_limit(policy, pool, num_trials, measured)
    uncapped = chosen.policy.plan(pool.capacity(chosen.units))
    by_group = _trials_by_group(uncapped, pool, chosen.units)
    to_add = {each: pool.group(each, units).max_nodes for each, units in chosen.units.items()}
    plan = uncapped.capped(num_trials, limited_by="num_trials").model_copy(update={"nodes_to_add": to_add})
    groups = tuple(
        pool.group(each, units).model_copy(update={"trials_at_once": by_group[each]})
        for each, units in chosen.units.items()
    )
    trial_s = None if measured is None else measured.trial_s(plan, pool, chosen.units)
    workers_price = pool.price_per_hour(chosen.units)
    return ClusterDesign(
        name=name,
        head=pool.head,
        groups=groups,
        trials=plan,
        num_trials=num_trials,
        price_per_hour=None if workers_price is None else workers_price + (pool.head.price_per_hour or 0),
        hours=None if trial_s is None else plan.num_waves(num_trials) * trial_s / 3600,
        currency=catalog.currency,
        reasons=(*notes, *chosen.notes, *_why(plan, pool, chosen, num_trials)),
    )


class _Chosen(NamedTuple):
    policy: ResourcePolicy
    units: Units
    notes: tuple[str, ...]


def _within_limit(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> _Chosen:
    """Return the choice for as many trials as an ``AutoscalingPolicy`` around the policy allows nodes for.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    if not isinstance(policy, AutoscalingPolicy):
        return _choose(policy, pool, num_trials, measured)
    most, inner = policy.max_nodes_to_add, policy.inner
    chosen = _choose(inner, pool, num_trials, measured)
    if most is None or _num_nodes(pool, chosen.units) <= most:
        return chosen

    def fits(trials: int) -> bool:
        return trials == 0 or _num_nodes(pool, _choose(inner, pool, trials, measured).units) <= most

    fewer = largest(0, num_trials, fits)
    if fewer == 0:
        needed = counted(_num_nodes(pool, _choose(inner, pool, 1, measured).units), "node")
        raise InfeasibleRequestError(
            needed, f"max_nodes_to_add is {most}", "nodes", f"Set max_nodes_to_add to {needed.split()[0]} or more."
        )
    return _choose(inner, pool, fewer, measured)


def _num_nodes(pool: NodePool, units: Units) -> int:
    return sum(pool.group(name, number).max_nodes for name, number in units.items())


def _choose(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> _Chosen:
    if measured is not None and (best := choose_by_decision(policy, pool, num_trials, measured)) is not None:
        found = nodes_for(best.policy, best.shares, best.pool, num_trials)
        return _Chosen(best.policy, found.units, (*best.reasons, *found.notes))
    errors: list[InfeasibleRequestError] = []
    notes: list[str] = []
    if measured is not None:
        notes.append(
            "what was measured decides nothing here: there are not two kinds of slots for which it was measured"
        )
    for choice in policy.choices:
        try:
            found = nodes_for(choice, shares_of(choice, num_trials), pool, num_trials)
        except InfeasibleRequestError as error:
            errors.append(error)
            notes.append(f"not {type(choice).__name__}: {error}")
        else:
            return _Chosen(choice, found.units, (*notes, *found.notes))
    if len(errors) == 1:
        raise errors[0]
    raise InfeasibleRequestError(
        " or else ".join(error.asked for error in errors),
        errors[-1].offered,
        " and ".join(dict.fromkeys(error.short_of for error in errors)),
        errors[-1].suggestion,
        tuple(errors),
    )


def _trials_by_group(plan: TrialPlan, pool: NodePool, units: Units) -> dict[str, int]:
    """Return how many trials of the plan run on each group; those whose workers span groups count in none."""
    counts = dict.fromkeys(units, 0)
    left = RemainingCapacity.all_of(pool.capacity(units, is_expected=False))
    for slot in plan.slots:
        on_nodes, left = left.allocate(slot)
        if slot.num_workers:
            for name, number in units.items():
                counts[name] += workers_in_unit(pool.unit(name), slot) * number // slot.num_workers
        for node_id, count in on_nodes.items():
            if node_id is not None:
                counts[node_id.rpartition("-")[0]] += count
    return counts


def _why(plan: TrialPlan, pool: NodePool, chosen: _Chosen, num_trials: int) -> Iterator[str]:
    """Yield why these nodes, and not others or more."""
    names = shorten_names([f"{number} {name}" for name, number in plan.nodes_to_add.items()])
    if not pool.has_prices:
        how = "no prices are known, so these are as few nodes as hold them"
    elif pool.price_per_hour(chosen.units) is None:
        how = "those with a price do not hold them, so others are taken, too"
    else:
        how = "these are the cheapest that hold them" + (", for each kind" if len(plan.slots) > 1 else "")
    at_once = plan.min_concurrent_trials
    yield f"{counted(at_once, 'trial')} on {names}: {how}"
    yield from _by_price(plan, pool, chosen)
    if at_once < num_trials:
        are_all = all(pool.most[name] == chosen.units.get(name, 0) for name in chosen.units)
        why = "there are no more such nodes" if are_all else "the policy or its nodes allow no more"
        yield f"{at_once} of {num_trials} trials run at once, as {why}; the others wait"


def _by_price(plan: TrialPlan, pool: NodePool, chosen: _Chosen) -> Iterator[str]:
    """Yield what a trial's place costs on each node type that has one, where there are several."""
    if len(plan.slots) > 1 or len(pool.node_types) == 1:
        return
    slot = plan.slots[0]
    prices = []
    for name, node_type in pool.node_types.items():
        places = workers_in_unit(pool.unit(name), slot) / max(1, slot.num_workers)
        if places and node_type.price_per_hour is not None:
            prices.append((node_type.price_per_hour * node_type.num_hosts / places, name))
    if len(prices) > 1:
        listed = shorten_names([f"{price:.3g} on {name}" for price, name in sorted(prices)])
        yield f"an hour of such a trial costs {listed}, on nodes that are full"
