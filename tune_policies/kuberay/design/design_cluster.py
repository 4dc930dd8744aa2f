"""Designs a cluster: the worker groups that a policy's trials need.

Without a catalog, the design uses the smallest nodes on which no resource stays idle. A node for trials with devices
has one device, or the devices of one worker. A node for trials on CPUs has up to 16 CPUs. Nodes have 4 GiB of memory
per CPU, like general-purpose machines in clouds, or more if the trials need more.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from tune_policies.cluster.accelerators import DEVICE_RESOURCES, KNOWN_TYPES, gpu_memory_of_type
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.catalog import HEAD, NodeCatalog, NodeType, node_type_name
from tune_policies.kuberay.design.cheapest_nodes import MOST_NODES_OF_TYPE, NodePool, Units, workers_in_unit
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, DesignedGroup, capacity_of, head_of
from tune_policies.kuberay.design.slot_choices import (
    ChosenNodes,
    Measured,
    choose_by_decision,
    nodes_for,
    policies_by_slot,
    shares_of,
    without_unused,
)
from tune_policies.placement.counting import largest
from tune_policies.placement.filling import RemainingCapacity
from tune_policies.placement.scale_up import plan_on_smallest_node
from tune_policies.plan.decision import Decision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.accelerator import AcceleratorPolicy
from tune_policies.policies.autoscaling import AutoscalingPolicy
from tune_policies.policies.first_feasible import why_not
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.policies.selecting import SelectingPolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import MOST_AT_ONCE, TICKS, PositiveCount, Resources, check_count, to_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, format_money
from tune_policies.values.value import Value, counted, shorten, shorten_names, suggest

_CPUS_PER_DEVICE: Final = 8
"""The number of CPUs per device of a default node, if the policy does not set the CPUs."""

_CPUS_OF_CPU_NODE: Final = 16
"""The number of CPUs of a default node without devices, unless a worker needs more."""

_BYTES_PER_CPU: Final = 4 * GIB

NO_TRIAL_FITS: Final = "no trial fits on "
"""The beginning of a sentence about a node type."""

_MOST_UNUSABLE: Final = 3
"""The maximum number of node types for which a design explains why no trial fits on them."""

_HINT: Final = "pass a catalog of the available nodes (--nodes)"


class _Worker(NamedTuple):
    """The worker for which a default node is designed. With devices and 0 CPUs, it uses all CPUs of the node."""

    amounts: Resources
    accelerator_type: str | None
    topology: str | None = None


def default_catalog(policy: ResourcePolicy, num_trials: int) -> tuple[NodeCatalog, tuple[str, ...]]:
    """Return nodes that suit the first choice of a policy, and a note about each node type.

    Raises:
        InvalidResourcesError: The policy does not determine the nodes.
    """
    node_types: dict[str, NodeType] = {}
    for inner in policies_by_slot(policy.choices[0]):
        node_type = _node_type(_worker(inner), num_trials)
        # Two slot types can need different nodes with the same default name.
        while node_types.get(node_type.name, node_type) != node_type:
            node_type = node_type.model_copy(update={"name": f"{node_type.name}-b"})
        node_types[node_type.name] = node_type
    notes = (
        f"without a catalog, the design uses a default node type, {node_type.name}: {node_type.resources}"
        for node_type in node_types.values()
    )
    return NodeCatalog(nodes=tuple(node_types.values())), tuple(notes)


def _worker(policy: ResourcePolicy) -> _Worker:
    match policy:
        case AcceleratorPolicy() if policy.topology is not None:  # the smallest node lacks the labels of slices
            custom = {policy.resource: policy.amount}
            amounts = Resources(cpus=policy.cpus or 0, memory_bytes=int(policy.memory or 0) or None, custom=custom)
            return _Worker(amounts, policy.accelerator_type, policy.topology)
        case GpuPolicy():
            if policy.min_gpu_memory is not None:
                _check_memory(policy, int(policy.min_gpu_memory), _one_type(policy.accelerator_type))
        case GpuMemoryPolicy():
            _check_memory(policy, int(policy.gpu_memory or 1), _one_type(policy.accelerator_type))
            if policy.gpu_memory is None:  # with a profile, design for one whole GPU
                measured = policy.profile and policy.profile.host_memory_bytes
                memory = int(policy.memory or measured or 0) or None
                amounts = Resources(cpus=policy.cpus or 0, gpus=1, memory_bytes=memory, custom=policy.custom)
                return _Worker(amounts, _one_type(policy.accelerator_type))
        case SelectingPolicy() if policy.label_selector:
            raise InvalidResourcesError(f"SelectingPolicy selects nodes by labels, which default nodes lack: {_HINT}")
        case WrappingPolicy():
            return _worker(policy.inner.choices[0])
    plan = plan_on_smallest_node(policy.plan)
    if plan is None:
        raise InvalidResourcesError(f"there are no default nodes for {type(policy).__name__}: {_HINT}")
    return _Worker(plan.slots[0].worker, plan.slots[0].accelerator_type)


def _one_type(types: str | tuple[str, ...] | None) -> str | None:
    if isinstance(types, tuple):
        return types[0]
    return types


def _check_memory(policy: ResourcePolicy, needed: int, accelerator_type: str | None) -> None:
    has = gpu_memory_of_type(accelerator_type)
    if has is None:
        named = f"for {accelerator_type!r}" if accelerator_type else "without a GPU type"
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs the size of the GPU memory, which is unknown {named}: set "
            f"accelerator_type (such as 'A100'), or {_HINT}"
        )
    if has < needed:
        larger = sorted(name for name in KNOWN_TYPES if (gpu_memory_of_type(name) or 0) >= needed)
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs {needed} bytes of GPU memory, but {accelerator_type} has only {has} bytes. "
            f"Types with enough memory: {', '.join(larger) or 'none'}"
        )


def _node_type(worker: _Worker, num_trials: int) -> NodeType:
    amounts = worker.amounts
    by_name = {"GPU": amounts.gpus, **amounts.custom}
    resource = next((name for name, amount in by_name.items() if amount and name in DEVICE_RESOURCES), None)
    if resource is None:
        cpus_each = amounts.cpus or 1
        devices, workers = 0, max(1, min(int(_CPUS_OF_CPU_NODE / cpus_each), num_trials))
        cpus = _rounded_up(workers * cpus_each)
    else:
        devices, workers = _devices_and_workers(worker, by_name[resource])
        cpus = _rounded_up(workers * amounts.cpus) or _CPUS_PER_DEVICE * devices
    custom = {name: float(_rounded_up(workers * amount)) for name, amount in amounts.custom.items() if name != resource}
    gpus = 0
    if resource == "GPU":
        gpus = devices
    elif resource is not None:
        custom[resource] = devices
    topology = [worker.topology] if worker.topology else []
    return NodeType(
        name=node_type_name(cpus, resource, devices, worker.accelerator_type, *topology),
        cpus=cpus,
        # Trial drivers need memory in addition to the workers.
        memory=max(cpus * _BYTES_PER_CPU, workers * (amounts.memory_bytes or 0) + GIB),
        gpus=gpus,
        custom=custom,
        accelerator_type=worker.accelerator_type,
        topology=worker.topology,
        count=max(1000, 1000 * devices),
    )


def _rounded_up(amount: float) -> int:
    return math.ceil(round(amount, 4))


def _devices_and_workers(worker: _Worker, devices: float) -> tuple[int, int]:
    """Return the numbers of devices and workers of a node if each worker uses ``devices`` devices."""
    if worker.topology is not None and worker.accelerator_type is not None:
        shape = SliceShape(worker.topology, worker.accelerator_type)
        chips = shape.chips if shape.has_one_host else 4  # every host of a larger slice has 4 chips
        return chips, max(1, chips // int(devices))
    if devices < 1:
        return (1, TICKS // to_ticks(devices))
    return (int(devices), 1)


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
        num_trials: The requested number of trials.
        idle_timeout_s: Seconds after which an idle node is removed.
        price_per_hour: The price of all nodes per hour, with the head if its price is known; ``None`` if the price of a
            worker node is unknown.
        hours: The hours until the last trial ends; ``None`` if the durations of trials were not measured.
        currency: The currency of the price.
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
        lines += [f"  - {reason}" for reason in (*self.reasons, *self.trials.reasons)]
        return "\n".join(map(one_line, lines))

    def _cost(self) -> str:
        if self.price_per_hour is None:
            return "the price is unknown: set price_per_hour of each node type"
        head = "with the head"
        if self.head.price_per_hour is None:
            head = "without the head, whose price is unknown"
        text = f"at most {format_money(self.price_per_hour)} {self.currency} an hour, {head}"
        if self.price is None:
            return text
        return f"{text}; all trials take {self.hours:.2g} h and cost {format_money(self.price)} {self.currency}"


def design_cluster(
    policy: ResourcePolicy,
    catalog: NodeCatalog | None,
    num_trials: int,
    *,
    decision: Decision | None = None,
    workload: str | None = None,
    size: float | None = None,
    name: str = "tune",
    min_nodes: Mapping[str, int] | None = None,
) -> ClusterDesign:
    """Design the worker groups on which ``num_trials`` trials run concurrently, or as many trials as possible.

    The groups have the lowest price according to the catalog or, without prices, the smallest number of nodes. If the
    policy has several slot types, the trials are divided between them, and each type has its own cheapest nodes. Groups
    scale from zero unless their node type has ``min_nodes``. Trials first run on nodes that always exist and on a head
    with devices.

    Args:
        policy: The policy. If it has several choices, the design uses the first choice under which a trial fits.
        catalog: The available nodes; by default nodes that suit the policy.
        num_trials: The number of trials to run concurrently, at most 100,000.
        decision: The result of benchmarks. If the policy has slots or choices on GPU and CPU, each trial runs
            on the device where it is cheapest.
        workload: The workload of the decision; ``None`` if the decision has only one workload.
        size: The size of the trials; ``None`` for the largest measured size.
        name: The name of the cluster, a DNS label.
        min_nodes: The number of nodes to keep, by the name of the node type. It replaces ``min_nodes`` of the catalog.

    Raises:
        InvalidResourcesError: An argument is wrong, or there are no default nodes for the policy.
        InfeasibleRequestError: Not even one trial fits on the available nodes.
    """
    num_trials = check_count(num_trials, least=1, most=MOST_AT_ONCE, name="num_trials")
    measured = None if decision is None else Measured.of(decision, workload, size)
    notes: tuple[str, ...] = ()
    if catalog is None:
        catalog, notes = default_catalog(policy, num_trials)
    unknown = [node_type.name for node_type in (*catalog.nodes, catalog.head or HEAD) if node_type.memory is None]
    if unknown:
        raise InvalidResourcesError(
            f"the memory of {shorten_names(unknown)} is missing, but pods must request memory. Set the memory that "
            "each node offers to pods, such as memory: 64GiB"
        )
    design = design_nodes(policy, catalog, num_trials, measured=measured, name=name, min_nodes=min_nodes, notes=notes)
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


def design_nodes(
    policy: ResourcePolicy,
    catalog: NodeCatalog,
    num_trials: int,
    *,
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
    plan = uncapped.capped(num_trials, limited_by="num_trials").model_copy(update={"nodes_to_add": to_add})
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
    counts = dict.fromkeys(units, 0)
    left = RemainingCapacity.all_of(pool.capacity(units, is_expected=False))
    for slot in plan.slots:
        on_nodes, left = left.allocate(slot)
        if slot.num_workers:
            for name, number in units.items():
                counts[name] += workers_in_unit(pool.unit(name), slot) * number // slot.num_workers
        for node_id, count in on_nodes.items():
            if node_id not in (None, "head"):
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
        how = "the cheapest choice with room for them"
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
        alone = NodePool({name: node_type}, pool.head).plan(chosen.policy, {name: max(1, plan.slots[0].num_workers)})
        if alone is None or len(alone.slots) > 1 or node_type.price_per_hour is None:
            continue
        (slot,) = alone.slots
        places = workers_in_unit(pool.unit(name), slot) / max(1, slot.num_workers)
        if places:
            prices.append((node_type.price_per_hour * node_type.num_hosts / places, name))
    if len(prices) > 1:
        listed = shorten_names([f"{price:.3g} {pool.currency} on {name}" for price, name in sorted(prices)])
        yield f"a trial hour costs {listed}, if all slots of the nodes are in use"
