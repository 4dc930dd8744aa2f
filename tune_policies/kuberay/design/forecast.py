"""Forecasts how many trials of a policy run on a planned cluster, at its minimum and maximum size."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import AutoscalerVersion, ClusterCapacity
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.design.cluster_spec import MOST_NODES, ClusterSpec, WorkerGroup, slice_shape_of
from tune_policies.placement.launch_forecast import format_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.capped import CappedPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_money
from tune_policies.values.value import Value
from tune_policies.values.wording import counted


class Stage(Value):
    """The trials on the cluster at one size.

    Attributes:
        nodes: The number of worker nodes by group.
        plan: The plan of the trials; ``None`` if no trial fits.
        why_not: The reason if no trial fits.
        price_per_hour: The price of these nodes and the head, if known.
    """

    nodes: dict[str, Count]
    plan: TrialPlan | None = None
    why_not: str | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None

    @property
    def trials_at_once(self) -> int:
        """The number of trials that run concurrently."""
        if self.plan is None:
            return 0
        return self.plan.max_concurrent_trials


class TrialForecast(Value):
    """The trials of a policy that run on a cluster, with the nodes and their price.

    Attributes:
        cluster: The name of the cluster.
        at_minimum: The trials on the nodes that always exist.
        at_maximum: The trials on the nodes that always exist and all nodes that the autoscaler adds for the trials.
        for_trials: The requested number of trials and their nodes; ``None`` if no number was requested or it is not
            below the number of trials at the maximum.
        currency: The currency of the prices.
        cautions: Warnings about possible differences from the real cluster.
    """

    cluster: str
    at_minimum: Stage
    at_maximum: Stage
    for_trials: Stage | None = None
    currency: str = "USD"
    cautions: tuple[str, ...] = ()

    def explain(self) -> str:
        """Return the forecast as text."""
        least, most, some = self.at_minimum, self.at_maximum, self.for_trials
        lines = []
        # Without an autoscaler, both sizes are the same.
        if least != most:
            lines.append(f"at the minimum ({self._nodes(least)}): {_trials(least)}")
        lines.append(f"at the maximum ({self._nodes(most)}): {_trials(most)}")
        if most.plan is not None:
            lines += _as_text(most.plan)[1:]
        if some is not None:
            verb = "needs" if some.trials_at_once == 1 else "need"
            rest = "only the nodes of the minimum" if some.nodes == least.nodes else self._nodes(some)
            lines.append(f"{counted(some.trials_at_once, 'trial')} at once {verb} {rest}")
        lines += [f"caution: {caution}" for caution in self.cautions]
        return "\n".join(map(one_line, lines))

    def _nodes(self, stage: Stage) -> str:
        parts = [counted(number, f"{name} node") for name, number in stage.nodes.items() if number]
        if not parts:
            parts = ["the head alone"]
        if stage.price_per_hour is not None:
            parts.append(f"{format_money(stage.price_per_hour)} {self.currency} an hour")
        return ", ".join(parts)


def _trials(stage: Stage) -> str:
    if stage.plan is None:
        return f"no trial runs, {stage.why_not}"
    return _as_text(stage.plan)[0]


def _as_text(plan: TrialPlan) -> list[str]:
    return plan.model_copy(update={"nodes_to_add": {}}).explain().splitlines()


def forecast_trials(
    policy: ResourcePolicy, cluster: ClusterSpec, *, catalog: NodeCatalog | None = None, num_trials: int | None = None
) -> TrialForecast:
    """Forecast how many trials run on a cluster at its minimum and its maximum size, and the price.

    Args:
        policy: The policy of the trials.
        cluster: The cluster as its file describes it.
        catalog: The prices of the nodes.
        num_trials: The number of trials to run concurrently; ``None`` for as many as fit.

    Raises:
        InfeasibleRequestError: Not even one trial fits on the cluster at its maximum size.
        InvalidResourcesError: The cluster has more than 10,000 nodes at its minimum.
    """
    priced, currency, head_price = cluster, "USD", None
    if catalog is not None:
        priced, currency = with_prices(cluster, catalog), catalog.currency
        if catalog.head is not None:
            head_price = catalog.head.price_per_hour
    always = _minimum_nodes(cluster)
    capacity = cluster.capacity

    def stage(plan: TrialPlan | None, why_not: str | None = None) -> Stage:
        added = {} if plan is None else plan.nodes_to_add
        nodes = {name: number + added.get(name, 0) for name, number in always.items()}
        return Stage(nodes=nodes, plan=plan, why_not=why_not, price_per_hour=_price(priced, nodes, head_price))

    try:
        # The maximum comes first: if no trial fits there, there is nothing to forecast.
        most = _plan_at_maximum(policy, cluster, capacity)
    except InfeasibleRequestError as error:
        notes = [f"Note that {assumption}." for assumption in cluster.assumptions]
        raise error.with_texts(suggestion=" ".join([error.suggestion, *notes])) from error
    at_maximum = stage(most)
    try:
        # Without node types, the plan contains only nodes that always exist.
        at_minimum = stage(policy.plan(capacity.model_copy(update={"node_types": ()})))
    except InfeasibleRequestError as error:
        at_minimum = stage(None, f"because one trial needs {error.asked}, but {error.offered}")
    # With as many trials as at the maximum or more, this stage would be the same as the maximum.
    for_trials, capped = None, policy
    if num_trials is not None and 0 < num_trials < most.max_concurrent_trials:
        capped = CappedPolicy(policy, num_trials)
        for_trials = stage(_plan_at_maximum(capped, cluster, capacity))
    return TrialForecast(
        cluster=cluster.name,
        at_minimum=at_minimum,
        at_maximum=at_maximum,
        for_trials=for_trials,
        currency=currency,
        cautions=(
            *cluster.assumptions,
            *_types_not_counted(cluster, most),
            *_slices_without_labels(cluster, most),
            *_cheaper_nodes(capped, priced, capacity, for_trials or at_maximum, head_price, currency),
            *_prices_missing(priced, catalog, head_price),
        ),
    )


def _minimum_nodes(cluster: ClusterSpec) -> dict[str, int]:
    """Return the number of workers that always exist, by group."""
    nodes = {}
    for group in cluster.groups:
        nodes[group.name] = group.min_nodes if cluster.is_autoscaling else group.nodes_at_start
    if sum(nodes.values()) > MOST_NODES:
        raise InvalidResourcesError(
            f"the cluster {cluster.name!r} has at least {sum(nodes.values())} nodes, but a forecast supports at most "
            f"{MOST_NODES}: reduce the minimum of its groups"
        )
    return nodes


def _plan_at_maximum(policy: ResourcePolicy, cluster: ClusterSpec, capacity: ClusterCapacity) -> TrialPlan:
    # Only slices of several hosts need the second way. It makes many plans, and a plan supports a limited number of
    # nodes.
    growing = [group for group in cluster.groups if group.num_hosts > 1 and group.max_nodes > group.min_nodes]
    total = sum(group.max_nodes for group in cluster.groups)
    if not cluster.is_autoscaling or not growing or total > min(cluster.max_nodes or total, MOST_NODES):
        return AutoscalingPolicy(policy).plan(capacity)
    # A plan only finds slices whose hosts are alive, so count all hosts as alive.
    numbers = {group.name: group.max_nodes for group in cluster.groups}
    plan = policy.plan(_with_nodes(cluster, numbers))
    for group in cluster.groups:
        # One group after the other, so that the numbers of earlier groups are already reduced.
        numbers[group.name] = _fewest_nodes(policy, cluster, group, numbers, plan.max_concurrent_trials)
    added = {group.name: numbers[group.name] - group.min_nodes for group in cluster.groups}
    return plan.model_copy(update={"nodes_to_add": {name: number for name, number in added.items() if number}})


def _with_nodes(cluster: ClusterSpec, numbers: Mapping[str, int]) -> ClusterCapacity:
    """Return the capacity of the cluster with the given number of alive nodes in each group."""
    groups = (
        group.model_copy(update=dict.fromkeys(("min_nodes", "start_nodes"), numbers[group.name]))
        for group in cluster.groups
    )
    return cluster.model_copy(update={"groups": tuple(groups), "is_autoscaling": False}).capacity


def _fewest_nodes(
    policy: ResourcePolicy, cluster: ClusterSpec, group: WorkerGroup, numbers: Mapping[str, int], num_trials: int
) -> int:
    """Return the minimum number of nodes of one group for ``num_trials`` trials, if the other groups do not change."""

    def holds(number: int) -> bool:
        try:
            plan = policy.plan(_with_nodes(cluster, {**numbers, group.name: number}))
        except InfeasibleRequestError:
            return False
        return plan.max_concurrent_trials >= num_trials

    # More nodes never have room for fewer trials, so a binary search finds the first number that is enough.
    steps = range(group.min_nodes, numbers[group.name] + 1, group.num_hosts)
    # The last step need not be tested, because it has room for all trials.
    return steps[bisect_left(steps, True, hi=len(steps) - 1, key=holds)]


def _price(cluster: ClusterSpec, nodes: Mapping[str, int], head_price: float | None) -> float | None:
    total = head_price or 0.0
    for group in cluster.groups:
        number = nodes.get(group.name, 0)
        # A group without nodes costs nothing, so its price may be unknown.
        if number and group.price_per_hour is None:
            return None
        total += number * (group.price_per_hour or 0)
    # If only the head runs and its price is unknown, 0 would be wrong.
    if head_price is not None or any(nodes.values()):
        return total
    return None


def _types_not_counted(cluster: ClusterSpec, plan: TrialPlan) -> list[str]:
    wanted = {slot.accelerator_type for slot in plan.slots} - {None}
    cautions = []
    for group in cluster.groups:
        if not cluster.is_autoscaling or group.accelerator_type not in wanted or group.is_type_counted:
            continue
        resource = f"accelerator_type:{group.accelerator_type}"
        fix = f'Write resources: {{"{resource}": "1"}} in the group'
        if group.needs_start_params:
            fix = f"Write 1 as {resource} in the JSON of rayStartParams.resources of the group"
        cautions.append(
            f"trials request {resource}, but the resources of group {group.name!r} do not include it, so the "
            f"autoscaler launches no nodes of this group for these trials. {fix}"
        )
    return cautions


def _slices_without_labels(cluster: ClusterSpec, plan: TrialPlan) -> Iterator[str]:
    """Yield a warning for each group of TPU slices that autoscaler v2 does not add for Ray Train."""
    wanted = {slot.topology for slot in plan.slots} - {None}
    for group in cluster.groups:
        shape = slice_shape_of(group)
        can_grow = cluster.is_autoscaling and cluster.autoscaler_version == 2 and group.max_nodes > group.min_nodes
        if shape is None or shape.has_one_host or shape.topology not in wanted or not can_grow:
            continue
        missing = [f"{key}: {value!r}" for key, value in shape.head_labels.items() if group.labels.get(key) != value]
        if missing:
            yield (
                f"Ray Train reserves a slice by the labels of its first host, but the labels of group {group.name!r} "
                f"do not include them, so autoscaler version 2 adds no slices of this group. Add to its labels: "
                f"{', '.join(missing)}"
            )


def _cheaper_nodes(
    policy: ResourcePolicy,
    cluster: ClusterSpec,
    capacity: ClusterCapacity,
    stage: Stage,
    head_price: float | None,
    currency: str,
) -> Iterator[str]:
    """Yield how to get cheaper nodes of one group, if Ray's autoscaler launches others."""
    if stage.plan is None or stage.price_per_hour is None or not stage.plan.nodes_to_add:
        return
    cheapest: tuple[float, str, dict[str, int]] | None = None
    # The autoscaler must launch this type if the cluster has no other one.
    for node_type in capacity.node_types or ():
        try:
            plan = AutoscalingPolicy(policy).plan(capacity.model_copy(update={"node_types": (node_type,)}))
        except InfeasibleRequestError:
            continue
        added, always = plan.nodes_to_add, _minimum_nodes(cluster)
        nodes = {name: number + added.get(name, 0) for name, number in always.items()}
        price = _price(cluster, nodes, head_price)
        if price is None or plan.max_concurrent_trials < stage.trials_at_once:
            continue
        price_to_beat = stage.price_per_hour if cheapest is None else cheapest[0]
        if price < price_to_beat:
            cheapest = price, node_type.name, added
    if cheapest is None:
        return
    price, name, added = cheapest
    yield (
        f"{format_nodes(added)} instead of {format_nodes(stage.plan.nodes_to_add)} would be cheaper "
        f"({format_money(price)} {currency} an hour), but Ray's autoscaler (version {capacity.autoscaler_version}) "
        f"prefers nodes that pending trials use completely. {_how_to_get(name, cluster, capacity.autoscaler_version)}"
    )


def _how_to_get(name: str, cluster: ClusterSpec, version: AutoscalerVersion) -> str:
    """Return how to restrict the trials to the nodes of one group."""
    if version == 1:
        return (
            f"Autoscaler version 1 ignores labels: to get nodes of {name!r}, set the maximum of the other groups to 0"
        )
    others = [group.labels for group in cluster.groups if group.name != name]
    (labels,) = (group.labels for group in cluster.groups if group.name == name)
    # A label that only this group has is enough to select its nodes.
    for key, value in sorted(labels.items()):
        if all(other.get(key) != value for other in others):
            return f"To get nodes of {name!r}, use SelectingPolicy with label_selector: {{{key}: {value}}}"
    return (
        f"To get nodes of {name!r}, add a label such as labels: {{nodes: {name}}} to the group, and use "
        f"SelectingPolicy with label_selector: {{nodes: {name}}}"
    )


def _prices_missing(cluster: ClusterSpec, catalog: NodeCatalog | None, head_price: float | None) -> Iterator[str]:
    if catalog is None:
        return
    missing = [repr(group.name) for group in cluster.groups if group.price_per_hour is None]
    if missing:
        yield f"the catalog has no price for {', '.join(missing)}"
    if head_price is None:
        yield "the price does not include the head, because the catalog has no price for it"


def with_prices(spec: ClusterSpec, catalog: NodeCatalog) -> ClusterSpec:
    """Return the cluster with the prices of the catalog.

    A group gets the price of the node type with the same name. Otherwise, it gets the price of the smallest node type
    that has the same devices and at least as many CPUs. If both have a device type, the types must be equal.
    """
    # A manifest does not contain machine types, so the name or the size must tell which entry of the catalog is meant.
    named = {node_type.name: node_type for node_type in catalog.nodes}
    groups = []
    for group in spec.groups:
        alike = [node_type for node_type in catalog.nodes if _matches(node_type, group)]
        nearest = min(
            alike, key=lambda node_type: (node_type.cpus, node_type.price_per_hour or 0, node_type.name), default=None
        )
        priced = named.get(group.name, nearest)
        price_per_hour = None if priced is None else priced.price_per_hour
        groups.append(group.model_copy(update={"price_per_hour": price_per_hour}))
    return spec.model_copy(update={"groups": tuple(groups)})


def _matches(node_type: NodeType, group: WorkerGroup) -> bool:
    types = {node_type.accelerator_type, group.accelerator_type} - {None}
    ours, theirs = (
        {name: ticks for name, ticks in offer.resources.ticks.items() if name in DEVICE_RESOURCES}
        for offer in (node_type, group)
    )
    return ours == theirs and len(types) <= 1 and node_type.cpus >= group.resources.cpus
