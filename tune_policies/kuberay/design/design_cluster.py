"""Designs a cluster: the worker groups that a policy's trials need.

Without a catalog, the nodes are those of ``default_nodes``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.kuberay.design.catalog_file import HEAD, NodeCatalog, NodeType
from tune_policies.kuberay.design.cheapest_nodes import MOST_NODES_OF_TYPE, NodePool, Units, workers_in_unit
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, DesignedGroup, capacity_of, head_of
from tune_policies.kuberay.design.default_nodes import default_catalog
from tune_policies.kuberay.design.slot_choices import (
    ChosenNodes,
    Measured,
    choose_by_decision,
    nodes_for,
    shares_of,
    without_unused,
)
from tune_policies.kuberay.design.trial_duration import TrialDuration
from tune_policies.placement.count_trials import largest
from tune_policies.placement.fill_nodes import RemainingCapacity
from tune_policies.placement.request import Limit
from tune_policies.plan.benchmark_decision import Decision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.first_feasible import why_not
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import MOST_AT_ONCE, PositiveCount, check_count
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_money
from tune_policies.values.value import Value
from tune_policies.values.wording import counted, shorten, shorten_names, suggest

NO_TRIAL_FITS: Final = "no trial fits on "
"""The beginning of a sentence about a node type."""

_MOST_UNUSABLE: Final = 3
"""The maximum number of node types for which a design explains why no trial fits on them."""


def _name(name: str) -> str:
    # KubeRay derives the names of pods and services from this name.
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?", name):
        raise InvalidResourcesError(
            f"name {shorten(name)} is not valid: use at most 53 lowercase letters, digits and '-', starting with a "
            "letter"
        )
    return name


class ClusterDesign(Value):
    """A designed cluster for the trials of a policy.

    Attributes:
        name: A DNS label of at most 53 characters.
        groups: At least one group for each slot type, unless its trials fit on the head.
        trials: The plan of the trials on the cluster.
        num_trials: The number of trials in the run.
        idle_timeout_s: Seconds after which an idle node is removed.
        price_per_hour: The price of all nodes per hour, with the head if its price is known; ``None`` if the price of a
            worker node is unknown.
        hours: The hours until the last trial ends; ``None`` if the durations of trials are unknown.
        currency: The currency of the price.
        cheaper: Sentences about nodes that cost less if trials get slightly less GPU memory, or in total if the trials
            end earlier. They are empty until ``with_cheaper_nodes`` of ``offers.py`` adds them.
        reasons: Sentences that explain the choice of the nodes.
    """

    name: Annotated[str, AfterValidator(_name)]
    head: NodeType
    groups: tuple[DesignedGroup, ...]
    trials: TrialPlan
    num_trials: PositiveCount
    idle_timeout_s: Annotated[int, Field(ge=0)] = 60
    price_per_hour: float | None = None
    hours: float | None = None
    currency: str = "USD"
    cheaper: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types of the head and of the groups."""
        return (self.head, *(group.node_type for group in self.groups))

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as Ray reads it from the written file."""
        return ClusterSpec(
            name=self.name,
            head=head_of(self.head),
            groups=tuple(group.spec for group in self.groups),
            idle_timeout_s=self.idle_timeout_s,
        )

    @property
    def price(self) -> float | None:
        """The price of all trials if all nodes run until the last trial ends, or ``None`` if unknown."""
        if self.price_per_hour is None or self.hours is None:
            return None
        return self.price_per_hour * self.hours

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour while as many trials run as fit, or ``None`` if unknown."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / min(self.num_trials, self.trials.min_concurrent_trials)

    def explain(self) -> str:
        """Return the design as text: the groups, the trials on them, the cost, and the reasons."""
        most = self.trials.min_concurrent_trials
        always = sum(group.min_nodes for group in self.groups)
        at_first = counted(always, "worker node") if always else "no worker nodes"
        limit = ""
        if most < self.num_trials:
            limit = f"; limited by {self.trials.limited_by}"
        lines = [f"room for {most} of {counted(self.num_trials, 'trial')} at once, {at_first} at first{limit}"]
        if self.head.devices:
            lines.append(f"  {self.head.name}, which also runs trials: {self.head.resources}")
        lines += [f"  {group}" for group in self.groups]
        lines += [f"  each trial: {slot}" for slot in self.trials.slots]
        lines.append(self._cost())
        lines += [f"cheaper: {text}" for text in self.cheaper]
        lines += [f"  - {reason}" for reason in (*self.reasons, *self.trials.reasons)]
        return "\n".join(map(one_line, lines))

    def _cost(self) -> str:
        if self.price_per_hour is None or self.price_of_trial_hour is None:
            return "the price is unknown: set price_per_hour of each node type"
        head = "with the head"
        if self.head.price_per_hour is None:
            head = "without the head, whose price is unknown"
        per_trial = f"{format_money(self.price_of_trial_hour)} {self.currency} per trial hour"
        text = f"at most {format_money(self.price_per_hour)} {self.currency} an hour, {per_trial}, {head}"
        if self.price is None:
            return text
        return f"{text}; all trials take {self.hours:.3g} h and cost {format_money(self.price)} {self.currency}"


def design_cluster(
    policy: ResourcePolicy,
    catalog: NodeCatalog | None,
    num_trials: int,
    *,
    decision: Decision | None = None,
    workload: str | None = None,
    size: float | None = None,
    trial_hours: float | None = None,
    deadline_hours: float | None = None,
    name: str = "tune",
    min_nodes: Mapping[str, int] | None = None,
) -> ClusterDesign:
    """Design the worker groups on which ``num_trials`` trials run concurrently, or as many trials as possible.

    With ``deadline_hours``, only as many trials run concurrently as the deadline requires.

    The groups have the lowest price according to the catalog or, without prices, the smallest number of nodes. If the
    policy has several slot types, the trials are divided between them, and each type has its own cheapest nodes. Groups
    scale from zero unless their node type has ``min_nodes``. Trials first run on nodes that always exist and on a head
    with devices.

    Args:
        policy: The policy. If it has several choices, the design uses the first choice under which a trial fits.
        catalog: The available nodes; by default nodes that suit the policy.
        num_trials: The number of trials in the run, at most 100,000.
        decision: The result of benchmarks. If the policy has slots or choices on GPU and CPU, each trial runs
            on the device where it is cheapest.
        workload: The workload of the decision; ``None`` if the decision has only one workload.
        size: The size of the trials; ``None`` for the largest measured size.
        trial_hours: The duration of each trial, in hours. A decision already contains it.
        deadline_hours: The time in which all trials must end, in hours.
        name: The name of the cluster, a DNS label.
        min_nodes: The number of nodes to keep, by the name of the node type. It replaces ``min_nodes`` of the catalog.

    Raises:
        InvalidResourcesError: An argument is wrong, or there are no default nodes for the policy.
        InfeasibleRequestError: Not even one trial fits on the available nodes.
    """
    num_trials = check_count(num_trials, least=1, most=MOST_AT_ONCE, name="num_trials")
    duration = TrialDuration.of(trial_hours, deadline_hours)
    if decision is not None and duration is not None:
        raise InvalidResourcesError("the decision contains the durations of trials. Omit trial_hours (--trial-hours)")
    measured = None if decision is None else Measured.of(decision, workload, size)
    notes: tuple[str, ...] = ()
    if catalog is None:
        catalog, notes = default_catalog(policy, num_trials)
    # Without a request, Kubernetes may place more pods on a machine than its memory can hold.
    unknown = [node_type.name for node_type in (*catalog.nodes, catalog.head or HEAD) if node_type.memory is None]
    if unknown:
        raise InvalidResourcesError(
            f"the memory of {shorten_names(unknown)} is missing, but pods must request memory. Set the memory that "
            "each node offers to pods, such as memory: 64GiB"
        )
    design = design_in_time(
        policy, catalog, num_trials, duration=duration, measured=measured, name=name, min_nodes=min_nodes, notes=notes
    )
    return design.model_copy(update={"reasons": (*design.reasons, *about_unusable_types(policy, catalog))})


def about_unusable_types(policy: ResourcePolicy, catalog: NodeCatalog) -> list[str]:
    """Return a sentence for each of the first node types on which no trial fits, with what would make it fit."""
    sentences: list[str] = []
    for node_type in catalog.nodes:
        if len(sentences) == _MOST_UNUSABLE:
            break
        alone = catalog.model_copy(update={"nodes": (node_type,)})
        try:
            policy.plan(capacity_of(alone))
        except InfeasibleRequestError as error:
            has_devices = not DEVICE_RESOURCES.isdisjoint(node_type.resources.ticks)
            # It is obvious why a trial with a GPU does not fit on a node without GPUs.
            if has_devices or error.short_of not in DEVICE_RESOURCES:
                sentences.append(f"{NO_TRIAL_FITS}{node_type.name}: {error.offered}. {error.suggestion}")
    return sentences


def design_in_time(
    policy: ResourcePolicy, catalog: NodeCatalog, num_trials: int, *, duration: TrialDuration | None, **options: Any
) -> ClusterDesign:
    """Design the nodes for as many concurrent trials as the deadline requires, or for all trials without a deadline.

    For the other arguments and the errors, see :func:`design_nodes`.
    """
    if duration is None:
        return design_nodes(policy, catalog, num_trials, **options)
    # Fewer concurrent trials need fewer nodes, so no more trials run at once than the deadline requires.
    at_once = duration.trials_at_once(num_trials)
    design = design_nodes(policy, catalog, at_once, num_in_run=num_trials, **options)
    plan = design.trials
    is_limited_by_deadline = duration.deadline_hours is not None and plan.min_concurrent_trials >= at_once
    if is_limited_by_deadline:
        plan = plan.model_copy(update={"limited_by": Limit.DEADLINE})
    num_rounds = plan.num_rounds(num_trials)
    reasons = (f"{counted(num_trials, 'trial')} take {duration.describe(num_rounds)}", *design.reasons)
    changes = {"num_trials": num_trials, "trials": plan, "hours": duration.hours(num_rounds), "reasons": reasons}
    return design.model_copy(update=changes)


def design_nodes(
    policy: ResourcePolicy,
    catalog: NodeCatalog,
    num_trials: int,
    *,
    num_in_run: int | None = None,
    measured: Measured | None = None,
    name: str = "tune",
    min_nodes: Mapping[str, int] | None = None,
    notes: tuple[str, ...] = (),
) -> ClusterDesign:
    """Design a cluster of nodes whose host memory may be unknown. See :func:`design_cluster`.

    Args:
        policy: The policy.
        catalog: The available nodes.
        num_trials: The number of trials to run concurrently.
        num_in_run: The number of trials in the run if it is larger. If the nodes have room for more than
            ``num_trials``, the plan uses it.
        measured: The measured durations of trials.
        name: The name of the cluster.
        min_nodes: The number of nodes to keep, by the name of the node type.
        notes: The first reasons of the design.

    Raises:
        InvalidResourcesError: An argument is wrong.
        InfeasibleRequestError: Not even one trial fits on the available nodes.
    """
    num_trials = check_count(num_trials, least=1, most=MOST_AT_ONCE, name="num_trials")
    node_types, head = _with_min_nodes(catalog, min_nodes or {}), catalog.head or HEAD
    least = {
        name: node_type.min_nodes // node_type.num_hosts
        for name, node_type in node_types.items()
        if node_type.min_nodes
    }
    pool = NodePool(node_types, head_of(head), least, catalog.currency)
    # First, choose the nodes. Then plan without a limit on them, so that each group shows all trials for which it has
    # room.
    chosen = _within_limit(policy, pool, num_trials, measured)
    uncapped = pool.plan_or_raise(chosen.policy, chosen.units)
    by_group = _trials_by_group(uncapped, pool, chosen.units)
    groups = []
    to_add = {}
    for type_name, units in chosen.units.items():
        group = pool.group(type_name, units)
        groups.append(group.model_copy(update={"trials_at_once": by_group[type_name]}))
        if group.max_nodes > group.min_nodes:
            to_add[type_name] = group.max_nodes - group.min_nodes
    plan = uncapped.capped(num_in_run or num_trials, limited_by="num_trials").model_copy(
        update={"nodes_to_add": to_add}
    )
    # The run lasts as long as its slowest trials, round after round.
    hours = None
    trial_s = None if measured is None else measured.trial_s(plan, pool, chosen.units)
    if trial_s is not None:
        hours = plan.num_rounds(num_trials) * trial_s / 3600
    price = pool.price_per_hour(chosen.units)
    if price is not None:
        price += head.price_per_hour or 0
    return ClusterDesign(
        name=name,
        head=head,
        groups=tuple(groups),
        trials=plan,
        num_trials=num_trials,
        price_per_hour=price,
        hours=hours,
        currency=catalog.currency,
        reasons=(*notes, *chosen.notes, *_reasons(plan, pool, chosen, num_trials, policy), *catalog.cautions),
    )


def _with_min_nodes(catalog: NodeCatalog, min_nodes: Mapping[str, int]) -> dict[str, NodeType]:
    """Return the node types by name, with the minimum numbers of nodes from ``min_nodes``."""
    node_types = {node_type.name: node_type for node_type in catalog.nodes}
    for name, number in min_nodes.items():
        if name not in node_types:
            raise InvalidResourcesError(
                f"min_nodes contains {shorten(name)}, which is not a node type{suggest(name, node_types) or '.'} "
                f"Node types: {shorten_names(list(node_types))}"
            )
        # Create a new node type, because ``model_copy`` would not validate the number.
        node_types[name] = NodeType(**{**dict(node_types[name]), "min_nodes": number})
    return node_types


def _within_limit(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> ChosenNodes:
    """Return the nodes for as many trials as ``max_nodes_to_add`` of an ``AutoscalingPolicy`` allows."""
    if not isinstance(policy, AutoscalingPolicy):
        return _choose(policy, pool, num_trials, measured)
    most, inner = policy.max_nodes_to_add, policy.inner
    chosen = _choose(inner, pool, num_trials, measured)
    if most is None or _num_nodes(pool, chosen.units) <= most:
        return chosen

    def fits(trials: int) -> bool:
        return trials == 0 or _num_nodes(pool, _choose(inner, pool, trials, measured).units) <= most

    # More trials never need fewer nodes, so a binary search finds the largest number.
    fewer = largest(0, num_trials, fits)
    if fewer == 0:
        needed = counted(_num_nodes(pool, _choose(inner, pool, 1, measured).units), "node")
        raise InfeasibleRequestError(
            needed, f"max_nodes_to_add is {most}", "nodes", f"Set max_nodes_to_add to {needed.split()[0]} or more."
        )
    return _choose(inner, pool, fewer, measured)


def _num_nodes(pool: NodePool, units: Units) -> int:
    """Return the number of nodes that an autoscaler adds for these units."""
    groups = [pool.group(name, number) for name, number in units.items()]
    return sum(group.max_nodes - group.min_nodes for group in groups)


def _choose(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> ChosenNodes:
    """Return the nodes that always exist, and the cheapest nodes for trials that do not fit on them or on the head."""
    if not pool.least and not pool.head.resources.cpus:
        return _cheapest(policy, pool, num_trials, measured)
    # Choose nodes as if the head ran no trials and no nodes always existed. Then remove the nodes that are not needed
    # beside them.
    try:
        chosen = _cheapest(policy, pool.from_scratch(), num_trials, measured)
    except InfeasibleRequestError:
        if pool.plan(policy, {}) is None:
            raise
        chosen = ChosenNodes(policy, {})
    units = pool.with_least(chosen.units)
    return chosen._replace(units=pool.with_least(without_unused(chosen.policy, units, pool, num_trials)))


def _cheapest(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> ChosenNodes:
    errors: list[InfeasibleRequestError] = []
    notes: list[str] = []
    if measured is not None:
        best = choose_by_decision(policy, pool, num_trials, measured)
        if best is not None:
            return best
        notes.append("the decision has no effect, because fewer than two slot types of the policy were measured")
    for choice in policy.choices:
        try:
            found = nodes_for(choice, shares_of(choice, num_trials), pool, num_trials)
        except InfeasibleRequestError as error:
            errors.append(error)
            notes.append(why_not(choice, error))
        else:
            return found._replace(notes=(*notes, *found.notes))
    raise InfeasibleRequestError.of_choices(errors)


def _trials_by_group(plan: TrialPlan, pool: NodePool, units: Units) -> dict[str, int]:
    """Return the number of trials in each group, without trials whose workers run in several groups."""
    if len(units) == 1 == len(plan.slots) and not plan.num_workers and not pool.head.resources.cpus:
        return dict.fromkeys(units, plan.slots[0].max_concurrent_trials)  # there are no other nodes
    # Place the trials slot type by slot type, in the plan's order, and count them by group.
    counts = dict.fromkeys(units, 0)
    left = RemainingCapacity.all_of(pool.capacity(units, is_expected=False))
    for slot in plan.slots:
        on_nodes, left = left.allocate(slot)
        if slot.num_workers:
            for name, number in units.items():
                counts[name] += workers_in_unit(pool.unit(name), slot) * number // slot.num_workers
        for node_id, count in on_nodes.items():
            if node_id not in (None, "head"):
                # ``WorkerGroup.nodes`` numbers its nodes: the third node of l4 is l4-2.
                counts[str(node_id).rpartition("-")[0]] += count
    return counts


def _reasons(
    plan: TrialPlan, pool: NodePool, chosen: ChosenNodes, num_trials: int, policy: ResourcePolicy
) -> Iterator[str]:
    """Yield the reasons for these nodes and their number."""
    groups = [pool.group(name, number) for name, number in chosen.units.items()]
    names = shorten_names([counted(group.max_nodes, f"{group.node_type.name} node") for group in groups])
    if pool.head.resources.cpus:
        names = f"{names} and the head" if names else "the head"
    if not pool.has_prices:
        how = "the smallest number of nodes with room for them, because no prices are known"
    elif pool.price_per_hour(chosen.units) is None:
        how = "including nodes without a price, because the nodes with a price do not have room for all trials"
    else:
        how = "the lowest price per hour with room for them"
        if len(plan.slots) > 1:
            how += ", for each slot type"
        if pool.least:
            how += ", in addition to the nodes that always exist"
    at_once = plan.min_concurrent_trials
    yield f"{counted(at_once, 'trial')} on {names}: {how}"
    yield from _price_reasons(plan, pool, chosen)
    if at_once >= num_trials:
        return
    limit = policy.max_nodes_to_add if isinstance(policy, AutoscalingPolicy) else None
    # Name the limit that the user can raise, if there is one.
    to_raise, why = None, "the policy or the available nodes do not allow more trials"
    if all(pool.most[name] == chosen.units.get(name, 0) for name in chosen.units):
        to_raise, why = "count", "the catalog has no more of these nodes"
    elif _num_nodes(pool, chosen.units) == limit:
        to_raise, why = "max_nodes_to_add", f"max_nodes_to_add is {limit}"
    yield f"{at_once} of {num_trials} trials run at once because {why}; the other trials wait"
    if to_raise is None:
        return
    nodes = _for_all_at_once(plan, pool, chosen, num_trials)
    if nodes is not None:
        yield f"all {num_trials} trials at once would need {nodes}: raise {to_raise}"


def _for_all_at_once(plan: TrialPlan, pool: NodePool, chosen: ChosenNodes, num_trials: int) -> str | None:
    """Return, as text, how many nodes are required to run all trials concurrently.

    Return ``None`` if the design uses several node types, or if more nodes do not help.
    """
    if len(chosen.units) != 1:
        return None
    ((name, units),) = chosen.units.items()
    # An estimate in proportion to the present design. The plan below shows whether it is right.
    more = {name: -(-num_trials * units // plan.min_concurrent_trials)}
    if more[name] > MOST_NODES_OF_TYPE:
        return None
    larger = pool.plan(chosen.policy, more)
    if larger is None or larger.min_concurrent_trials < num_trials:
        return None
    return counted(pool.group(name, more[name]).max_nodes, f"{name} node")


def _price_reasons(plan: TrialPlan, pool: NodePool, chosen: ChosenNodes) -> Iterator[str]:
    """Yield a sentence that compares the prices of a trial hour if at least two node types have a price."""
    if len(plan.slots) > 1 or len(pool.node_types) == 1:
        return
    prices = []
    for name, node_type in pool.node_types.items():
        # One node for each worker, so that a trial fits even if a node has room for one worker only.
        alone = NodePool({name: node_type}, pool.head).plan(chosen.policy, {name: max(1, plan.slots[0].num_workers)})
        if alone is None or len(alone.slots) > 1 or node_type.price_per_hour is None:
            continue
        (slot,) = alone.slots
        places = workers_in_unit(pool.unit(name), slot) / max(1, slot.num_workers)
        if places:
            prices.append((node_type.price_per_hour * node_type.num_hosts / places, name))
    if len(prices) > 1:
        listed = shorten_names([f"{price:.3g} {pool.currency} on {name}" for price, name in sorted(prices)])
        yield f"the price of a slot per hour is {listed}. A trial hour costs more if some slots are idle"
