"""Designs a cluster: the worker groups that a policy's trials need, of the nodes that there could be.

For users without a catalogue there are default nodes. The policy says what a trial needs by its plan for the smallest
node on which one runs. The default nodes are the smallest that leave nothing idle. For trials with devices, a node has
one device, or as many as a worker has. For trials on CPUs, it has up to 16 CPUs. It has 4 GiB of memory for each CPU,
which clouds sell as general purpose, or more where trials ask for more.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, DEVICE_RESOURCES, gpu_memory_of_type
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.catalog import HEAD, NodeCatalog, NodeType, node_type_name
from tune_policies.kuberay.design.cheapest_nodes import MOST_NODES_OF_TYPE, NodePool, Units, workers_in_unit
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, DesignedGroup
from tune_policies.kuberay.design.slot_choices import (
    ChosenNodes,
    Measured,
    choose_by_decision,
    nodes_for,
    policies_by_slot,
    shares_of,
)
from tune_policies.placement.layout import RemainingCapacity
from tune_policies.placement.packing import largest
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
from tune_policies.values.value import Value, counted, shorten, shorten_names

_CPUS_PER_DEVICE: Final = 8
"""Where a policy leaves them to the nodes."""

_CPU_NODE: Final = 16
"""CPUs of a node without devices, unless a worker has more."""

_BYTES_PER_CPU: Final = 4 * GIB

_HINT: Final = "give a catalogue of the nodes that there could be"
"""A program passes it as ``catalog``, and the command takes it as ``--nodes``."""


class _Worker(NamedTuple):
    """What a node is made for.

    Attributes:
        cpus: Of one worker; ``None``: what is left to each.
        resource: Ray's resource of its devices; ``None``: it has none.
        devices: Of one worker, below 1 a part of one.
        accelerator_type: Ray's name of the type.
        topology: Of its TPU slices.
        memory_bytes: Host memory of one worker.
        custom: Other resources of one worker.
    """

    cpus: float | None
    resource: str | None = None
    devices: float = 0
    accelerator_type: str | None = None
    topology: str | None = None
    memory_bytes: int | None = None
    custom: Mapping[str, float] = {}


def default_catalog(policy: ResourcePolicy, num_trials: int) -> tuple[NodeCatalog, tuple[str, ...]]:
    """Return nodes that suit the first choice of a policy, and a sentence about each.

    Raises:
        InvalidResourcesError: It cannot be told; the message says why.
    """
    node_types: dict[str, NodeType] = {}
    for inner in policies_by_slot(policy.choices[0]):
        node_type = _node_type(_worker(inner), num_trials)
        while node_types.get(node_type.name, node_type) != node_type:
            node_type = node_type.model_copy(update={"name": f"{node_type.name}-b"})
        node_types[node_type.name] = node_type
    notes = (
        f"no catalogue is given, so {each.name} suits the policy: {each.resources}" for each in node_types.values()
    )
    return NodeCatalog(nodes=tuple(node_types.values())), tuple(notes)


def _worker(policy: ResourcePolicy) -> _Worker:
    match policy:
        case AcceleratorPolicy() if policy.topology is not None:  # slices have labels, which no imagined node has
            kind = (policy.resource, policy.amount, policy.accelerator_type, policy.topology)
            return _Worker(policy.cpus, *kind, memory_bytes=int(policy.memory or 0) or None)
        case GpuPolicy():
            if policy.min_gpu_memory is not None:
                _check_memory(policy, int(policy.min_gpu_memory), _one_type(policy.accelerator_type))
        case GpuMemoryPolicy():
            _check_memory(policy, int(policy.gpu_memory or 1), _one_type(policy.accelerator_type))
            if policy.gpu_memory is None:  # a profile: what fits one device is what fits
                measured = policy.profile.host_memory_bytes if policy.profile is not None else None
                memory = int(policy.memory or measured or 0) or None
                one_type = _one_type(policy.accelerator_type)
                return _Worker(policy.cpus, "GPU", 1, one_type, memory_bytes=memory, custom=policy.custom)
        case SelectingPolicy() if policy.label_selector:
            raise InvalidResourcesError(f"which nodes have the labels of a SelectingPolicy is not known: {_HINT}")
        case WrappingPolicy():
            return _worker(policy.inner.choices[0])
    plan = plan_on_smallest_node(policy.plan)
    if plan is None:
        raise InvalidResourcesError(f"which nodes suit a {type(policy).__name__} is not known: {_HINT}")
    slot = plan.slots[0]
    amounts, custom = slot.worker, dict(slot.worker.custom)
    resource = next((name for name in amounts.ticks if name in DEVICE_RESOURCES), None)
    devices = amounts.gpus if resource == "GPU" else custom.pop(str(resource), 0)
    # No CPUs beside devices means as many as the nodes have.
    cpus = None if resource is not None and amounts.cpus == 0 else amounts.cpus
    return _Worker(cpus, resource, devices, slot.accelerator_type, memory_bytes=amounts.memory_bytes, custom=custom)


def _one_type(wish: str | tuple[str, ...] | None) -> str | None:
    return wish[0] if isinstance(wish, tuple) else wish


def _check_memory(policy: ResourcePolicy, needed: int, accelerator_type: str | None) -> None:
    has = gpu_memory_of_type(accelerator_type)
    if has is None:
        named = f"of {accelerator_type!r}" if accelerator_type else "of GPUs without a type"
        raise InvalidResourcesError(
            f"{type(policy).__name__} goes by GPU memory, and the memory {named} is not known: name an "
            f"accelerator_type such as 'A100', or {_HINT}"
        )
    if has < needed:
        larger = sorted(name for name in ACCELERATOR_TYPES if (gpu_memory_of_type(name) or 0) >= needed)
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs {needed} bytes of GPU memory, and a {accelerator_type} has {has}: name a "
            f"type with more ({', '.join(larger) or 'there is none'})"
        )


def _node_type(worker: _Worker, num_trials: int) -> NodeType:
    devices, workers = _devices(worker)
    if worker.resource is None:
        cpus = worker.cpus or 1
        workers = max(1, min(int(_CPU_NODE / cpus), num_trials))
        num_cpus = math.ceil(round(workers * cpus, 4))
    elif worker.cpus is None:
        num_cpus = _CPUS_PER_DEVICE * devices
    else:
        num_cpus = max(1, math.ceil(round(workers * worker.cpus, 4)))
    # Beside the trials there is a little room for Train's drivers.
    memory = max(num_cpus * _BYTES_PER_CPU, workers * (worker.memory_bytes or 0) + GIB)
    custom = {name: float(math.ceil(round(workers * amount, 4))) for name, amount in worker.custom.items()}
    if worker.resource not in (None, "GPU"):
        custom[str(worker.resource)] = devices
    return NodeType(
        name=node_type_name(
            num_cpus, worker.resource, devices, worker.accelerator_type, *([worker.topology] if worker.topology else [])
        ),
        cpus=num_cpus,
        memory=memory,
        gpus=devices if worker.resource == "GPU" else 0,
        custom=custom,
        accelerator_type=worker.accelerator_type,
        topology=worker.topology,
        count=max(1000, 1000 * devices),
    )


def _devices(worker: _Worker) -> tuple[int, int]:
    """Return how many devices a node has, and how many workers they are for."""
    if worker.resource is None:
        return 0, 1
    if worker.topology is not None and worker.accelerator_type is not None:
        shape = SliceShape(worker.topology, worker.accelerator_type)
        chips = shape.chips if shape.has_one_host else 4
        return chips, max(1, chips // int(worker.devices))
    if worker.devices < 1:
        return 1, TICKS // to_ticks(worker.devices)
    return int(worker.devices), 1


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
            head=Resources(memory_bytes=self.head.memory),
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
        at_first = "no worker node" if all(group.min_nodes == 0 for group in self.groups) else "some worker nodes"
        limit = "" if most >= self.num_trials else f"; limited by {self.trials.limited_by}"
        lines = [
            f"room for {most} of {counted(self.num_trials, 'trial')} at once, {at_first} at first{limit}",
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
        head = "with the head" if self.head.price_per_hour is not None else "without the head, whose price is not known"
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
) -> ClusterDesign:
    """Design the worker groups on which ``num_trials`` trials run at once, or as many as policy and catalogue allow.

    They are the cheapest by the prices of the catalogue; without prices, as few nodes as hold the trials. Where the
    policy has slots of several types, each type has its share of the trials and its own cheapest nodes. All groups
    scale from zero.

    Args:
        policy: What a trial gets. Of several choices, the first under which a trial fits counts.
        catalog: The nodes that there could be; ``None``: nodes that suit the policy.
        num_trials: How many trials are to run at once, 100,000 at most.
        decision: What benchmarks measured. Where the policy has slots or choices on GPU and CPU, trials go where a
            trial costs the least.
        workload: For which of the decision's workloads; ``None``: for the only one.
        size: For trials of which size; ``None``: of the largest that was measured.
        name: Of the cluster: a DNS label.

    Raises:
        InvalidResourcesError: An argument is wrong, or there is no catalogue, and the policy does not say enough to
            choose nodes for it.
        InfeasibleRequestError: Not even one trial fits the nodes that there could be.
    """
    num_trials = check_count(num_trials, least=1, most=MOST_AT_ONCE, name="num_trials")
    measured = None if decision is None else Measured.of(decision, workload, size)
    notes: tuple[str, ...] = ()
    if catalog is None:
        catalog, notes = default_catalog(policy, num_trials)
    pool = NodePool({each.name: each for each in catalog.nodes}, catalog.head or HEAD)
    if unknown := [name for name, each in {**pool.node_types, "head": pool.head}.items() if each.memory is None]:
        raise InvalidResourcesError(
            f"the memory of {shorten_names(unknown)} is not known, and a pod must request it: write what the node "
            "offers to pods, such as memory: 64GiB"
        )
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
        reasons=(*notes, *chosen.notes, *_why(plan, pool, chosen, num_trials, policy)),
    )


def _within_limit(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> ChosenNodes:
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


def _choose(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured | None) -> ChosenNodes:
    if measured is not None and (best := choose_by_decision(policy, pool, num_trials, measured)) is not None:
        return best
    errors: list[InfeasibleRequestError] = []
    notes: list[str] = []
    if measured is not None:
        notes.append("the decision has no effect: the policy does not have two slot types for which it was measured")
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


def _why(
    plan: TrialPlan, pool: NodePool, chosen: ChosenNodes, num_trials: int, policy: ResourcePolicy
) -> Iterator[str]:
    """Yield why these nodes, and not others or more."""
    names = shorten_names([counted(number, f"{name} node") for name, number in plan.nodes_to_add.items()])
    if not pool.has_prices:
        how = "the fewest that hold them, as no prices are known"
    elif pool.price_per_hour(chosen.units) is None:
        how = "nodes with a price do not hold them all, so others are taken, too"
    else:
        how = "the cheapest that hold them" + (", for each kind" if len(plan.slots) > 1 else "")
    at_once = plan.min_concurrent_trials
    yield f"{counted(at_once, 'trial')} on {names}: {how}"
    yield from _by_price(plan, pool, chosen)
    if at_once >= num_trials:
        return
    limit = policy.max_nodes_to_add if isinstance(policy, AutoscalingPolicy) else None
    to_raise, why = None, "the policy or its nodes allow no more"
    if all(pool.most[name] == chosen.units.get(name, 0) for name in chosen.units):
        to_raise, why = "count", "there are no more such nodes"
    elif _num_nodes(pool, chosen.units) == limit:
        to_raise, why = "max_nodes_to_add", f"max_nodes_to_add is {limit}"
    yield f"{at_once} of {num_trials} trials run at once, as {why}; the others wait"
    if to_raise is not None and (nodes := _for_all_at_once(plan, pool, chosen, num_trials)) is not None:
        yield f"{nodes} would hold all {num_trials} at once: raise {to_raise}"


def _for_all_at_once(plan: TrialPlan, pool: NodePool, chosen: ChosenNodes, num_trials: int) -> str | None:
    """Return the nodes of the one type in use on which all trials fit; ``None``: more of them do not help."""
    if len(chosen.units) != 1:
        return None
    ((name, units),) = chosen.units.items()
    more = {name: -(-num_trials * units // plan.min_concurrent_trials)}
    larger = pool.plan(chosen.policy, more) if more[name] <= MOST_NODES_OF_TYPE else None
    if larger is None or larger.min_concurrent_trials < num_trials:
        return None
    return counted(pool.group(name, more[name]).max_nodes, f"{name} node")


def _by_price(plan: TrialPlan, pool: NodePool, chosen: ChosenNodes) -> Iterator[str]:
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
        yield f"on full nodes, an hour of such a trial costs {listed}"
