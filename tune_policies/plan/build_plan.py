"""Creates the plan for a trial's request, or the error that explains why no trial fits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPE_PREFIX,
    DEVICE_RESOURCES,
    families_of,
    may_be_nvidia,
    similar_type,
)
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.cluster.gpu_sizes import total_of_type
from tune_policies.placement.counting import (
    DRIVER,
    Limit,
    Request,
    count_trials,
    count_workers,
    count_workers_beside,
    largest,
    limiting_resource,
    room_to_grow,
    slots_on_node,
    workers_on_node,
)
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import NodeNote, TrialPlan
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import (
    MOST,
    TICKS,
    Resources,
    amount_of,
    format_amount,
    format_ticks,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import format_bytes, format_request
from tune_policies.values.value import counted, shorten_names

_FALLBACK: Final = "Or fall back to CPUs: policy | CpuPolicy()."
"""The suggestion in an error if the cluster has no device of the requested kind."""


def build_plan(
    capacity: ClusterCapacity,
    request: Request,
    reasons: Iterable[str] = (),
    *,
    groups: tuple[NodeGroup, ...] | None = None,
) -> TrialPlan:
    """Return a plan with the maximum number of concurrent trials that fit the cluster.

    Args:
        capacity: The cluster.
        request: The request of a trial.
        reasons: Sentences that explain the request.
        groups: The nodes to use, or ``None`` for all nodes. The caller must restrict Ray to these nodes by labels.

    Raises:
        InfeasibleRequestError: No trial fits the cluster.
    """
    if groups is None:
        groups = capacity.groups
    most = count = count_trials(groups, request)
    if count == 0:
        raise in_context(infeasible(groups, request, capacity.node_types or ()), capacity, request)
    notes = [*reasons, *about_host_memory(groups, request)]
    if request.gpu_memory_bytes is not None:
        notes += about_gpu_memory(group for group in groups if workers_on_node(group.node, request))
    if count > MOST:
        notes.append(f"{count:.0e} trials would fit, but a plan can have at most {MOST:.0e}")
        count = MOST
    if request.num_workers:
        notes.append(f"the trial driver only waits for its workers, so it reserves {DRIVER} and no CPU")
    if request.max_workers is not None:
        notes.append(
            f"the number of concurrent trials assumes {counted(request.num_workers, 'worker')} per trial. If you "
            f"reduce it with CappedPolicy, a trial can have more workers, up to {request.max_workers}"
        )
    max_workers, max_workers_alone = room_to_grow(groups, request, count)
    trial, per_worker = request.worker, Resources()
    if request.num_workers:
        trial, per_worker = DRIVER, request.worker
    slot = TrialSlot(
        trial=trial,
        num_workers=request.num_workers,
        max_workers=max_workers,
        max_workers_alone=max_workers_alone,
        per_worker=per_worker,
        max_concurrent_trials=count,
        gpu_memory_bytes=request.gpu_memory_bytes,
        has_simulated_gpus=has_simulated_gpus(groups, request),
        accelerator_type=request.accelerator_type,
        label_selector=capacity.usable_selector,
    )
    return TrialPlan(
        slots=(slot,),
        # Use ``most`` instead of ``count``, because ``MOST`` is not a resource of the cluster.
        limited_by=limiting_resource(groups, request, most),
        reasons=(*notes, *about_the_nodes(capacity)),
    )


def has_simulated_gpus(groups: Iterable[NodeGroup], request: Request) -> bool:
    """Return whether the request includes GPUs, and the GPUs of all nodes with room for a worker are simulated."""
    if not request.worker.gpus:
        return False
    with_room = [group.node for group in groups if workers_on_node(group.node, request)]
    return bool(with_room) and all(node.has_simulated_gpus for node in with_room)


def about_host_memory(groups: Iterable[NodeGroup], request: Request) -> Iterator[str]:
    """Yield sentences about nodes with unknown host memory, and nodes with too little host memory for a worker."""
    memory = request.worker.memory_bytes
    if memory is None:
        return
    beside = request.model_copy(update={"worker": request.worker.with_ticks("memory", 0)})
    short = [group for group in groups if (group.node.resources.memory_bytes or 0) < memory]
    if beside.worker.ticks:
        # The plan omits the other nodes because of other resources, whatever their memory is.
        short = [group for group in short if workers_on_node(group.node, beside)]
    if any(node.resources.memory_bytes is None for node, _ in short):
        yield "the host memory of some nodes is unknown, so it does not limit the number of trials on these nodes"
    left_out = sum(count for node, count in short if node.resources.memory_bytes is not None)
    if left_out:
        yield (
            f"the plan does not use {counted(left_out, 'node')} with less host memory than the {format_bytes(memory)} "
            "that a worker needs"
        )


def about_gpu_memory(groups: Iterable[NodeGroup]) -> Iterator[str]:
    """Yield sentences about GPU memory that is assumed because it was not read, and about how to specify the size."""
    unread = [group for group in groups if group.node.devices is None and group.node.smallest_gpu_memory_bytes]
    if not unread:
        return
    yield (
        f"GPU memory was not read, so the plan assumes the smallest amount known for the type: {describe_gpus(unread)}"
    )
    for name in sorted({str(node.accelerator_type) for node, _ in unread}):
        total = total_of_type(name)
        if total is None:
            continue
        if total.margin:
            yield (
                f"the plan assumes {total.margin:.0%} less GPU memory than the nominal size of {name}, because "
                "the total that its driver reports is unknown"
            )
        if total.variants:
            yield (
                f"{name} also exists with {total.variants}. If your GPUs have more memory than assumed, "
                f"{how_to_state_gpu_memory(node for node, _ in unread)}"
            )


def gpu_memory_hint(groups: Iterable[NodeGroup]) -> str:
    """Return a sentence on how to specify unknown or ambiguous GPU memory, or an empty string if none is needed."""
    unread = [node for node, _ in groups if node.devices is None or node.smallest_gpu_memory_bytes is None]
    nodes = [node for node in unread if node.smallest_gpu_memory_bytes is None or _has_variants(node)]
    if not nodes:
        return ""
    is_nvidia = any(may_be_nvidia(node.accelerator_type) for node in nodes)
    install = "install nvidia-ml-py on the node, or " if is_nvidia and any(node.address for node in nodes) else ""
    return f" If a node's GPU memory was not read, {install}{how_to_state_gpu_memory(nodes)}."


def how_to_state_gpu_memory(nodes: Iterable[NodeCapacity]) -> str:
    """Return where the user writes the memory of the GPUs of these nodes: in a catalog, or in a read capacity."""
    listed = "list each device with its memory_bytes in the capacity"
    if any(node.address for node in nodes):
        return listed
    return f"set gpu_memory of the node type in the catalog (in Python, {listed})"


def _has_variants(node: NodeCapacity) -> bool:
    total = total_of_type(node.accelerator_type)
    return total is not None and total.variants != ""


def describe_gpus(groups: Iterable[NodeGroup]) -> str:
    """Return the GPUs of the nodes by type and memory, such as ``"4 A100 (80 GiB), 2 T4 (memory not read)"``."""
    gpus: Counter[tuple[str, int | None]] = Counter()
    for node, count in groups:
        model = (node.accelerator_type or "unknown type", node.smallest_gpu_memory_bytes)
        gpus[model] += count * (int(node.resources.gpus) or 1)
    texts = []
    for (name, memory), count in sorted(gpus.items(), key=str):
        size = format_bytes(memory) if memory else "memory not read"
        texts.append(f"{count} {name} ({size})")
    return ", ".join(texts)


def about_the_nodes(capacity: ClusterCapacity) -> Iterator[NodeNote]:
    """Yield notes for every plan about resources and nodes that it does not use, and about nodes with too many CPUs."""
    differs: Counter[tuple[float, float]] = Counter()
    for node, count in capacity.groups:
        if node.usable_cpus is not None and to_ticks(node.usable_cpus) < to_ticks(node.resources.cpus):
            differs[node.resources.cpus, node.usable_cpus] += count
    for (of_ray, usable), count in sorted(differs.items()):
        number = max(1, int(usable))
        how = f"on these nodes with --num-cpus={number}"
        if capacity.is_started_here:
            how = f"with ray.init(num_cpus={number})"
        yield NodeNote(
            f"Ray counts {amount_of(of_ray, 'CPU')} per node on {counted(count, 'node')}, but the cgroup, the CPU "
            f"affinity or Slurm allows {format_amount(usable)}. Start Ray {how}"
        )
    for uuid, nodes in sorted(capacity.nodes_by_shared_device().items()):
        names = shorten_names(sorted({node.address or node.node_id[:8] for node in nodes}))
        yield NodeNote(
            f"the nodes {names} share the GPU {uuid}, so its memory counts only once, and each node has "
            f"1/{len(nodes)} of it"
        )
    if capacity.draining:
        yield NodeNote(f"the plan does not use {counted(len(capacity.draining), 'draining node')}")
    if capacity.unusable:
        yield NodeNote(f"the plan does not use {describe_unusable(capacity.unusable)}")
    for held in _held(capacity).values():
        yield NodeNote(f"the plan does not use {held}")


def describe_unusable(nodes: Iterable[NodeCapacity]) -> str:
    """Return the nodes and their problems as text, such as ``"1 node (10.0.0.7): tune-policies is not installed"``."""
    names: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        names[node.problem or "trials cannot run on it"].append(node.address or node.node_id[:8])
    return "; ".join(
        f"{counted(len(of_problem), 'node')} ({shorten_names(sorted(of_problem))}): {problem}"
        for problem, of_problem in sorted(names.items())
    )


def _held(capacity: ClusterCapacity) -> dict[str, str]:
    """Return the resources that the program itself reserves as text, by holder: ``"1 GPU, reserved by …"``."""
    return {
        holder: f"{', '.join(format_ticks(name, ticks) for name, ticks in sorted(held.items()))}, reserved by {holder}"
        for holder, held in sorted(capacity.held_by().items())
    }


def in_context(error: InfeasibleRequestError, capacity: ClusterCapacity, request: Request) -> InfeasibleRequestError:
    """Return the error with what the plan does not count, and the node types that the autoscaler could add."""
    offered, suggestion = error.offered, error.suggestion
    if capacity.draining:
        offered += f" (not counting {counted(len(capacity.draining), 'draining node')})"
    if capacity.unusable:
        offered += f" (not counting {describe_unusable(capacity.unusable)})"
    for holder, held in _held(capacity).items():
        offered += f" (not counting {held})"
        suggestion += f" Or reserve fewer resources for {holder}."
    names = []
    if capacity.max_nodes_to_add != 0:
        can_be_added = [node_type for node_type in capacity.node_types or () if node_type.max_nodes_to_add]
        names = [node_type.name for node_type in can_be_added if workers_on_node(node_type.as_node(), request)]
    if names:
        named = " or ".join(sorted(names))
        suggestion += (
            f" The autoscaler could add nodes of type {named}. To use them, call plan_when_ready, or wrap the policy "
            "in AutoscalingPolicy."
        )
    elif capacity.node_types is None:
        suggestion += " An autoscaler may be able to add nodes of unknown types. Call plan_when_ready to request them."
    return error.with_texts(offered=offered, suggestion=suggestion)


def infeasible(
    groups: tuple[NodeGroup, ...], request: Request, node_types: Iterable[NodeTypeCapacity] = ()
) -> InfeasibleRequestError:
    """Return the error for a request that does not fit, with the missing resource and the nearest request that fits.

    If no node has the requested device type, the error names a similar type of the nodes or of ``node_types``.
    """
    if not groups:
        return InfeasibleRequestError(
            str(request), "the cluster has no alive node", Limit.NODES, "Start Ray nodes, then probe again."
        )
    if request.accelerator_type not in {None, *(node.accelerator_type for node, _ in groups)}:
        return _no_such_type(groups, request, node_types)
    if count_workers(groups, request) > 0:
        return _too_many_workers(groups, request)
    return _too_large(groups, request)


def _no_such_type(
    groups: tuple[NodeGroup, ...], request: Request, node_types: Iterable[NodeTypeCapacity]
) -> InfeasibleRequestError:
    device = next((name for name in request.worker.ticks if name in DEVICE_RESOURCES), "GPU")
    there = sorted({node.accelerator_type or "of unknown type" for node, _ in groups if _ticks_of(node, device)})
    offered, hint = f"no node has a {device}", "Request CPUs, or add"
    if there:
        offered = f"the cluster's {device}s are {', '.join(there)}"
        hint = "Omit accelerator_type, use a type that the cluster has, or add"
    wanted = str(request.accelerator_type)
    suggestion = f"{hint} a node of type {wanted}."
    types = {node.accelerator_type for node, _ in groups} | {node_type.accelerator_type for node_type in node_types}
    known = {name for name in types if name is not None}
    # If the autoscaler can add nodes of this type, its name is correct.
    near = None if wanted in known else similar_type(wanted, known)
    if near is not None:
        suggestion = f"Did you mean {near!r}? {suggestion}"
    return InfeasibleRequestError(str(request), offered, wanted, suggestion, accelerator_type=wanted)


def _too_many_workers(groups: tuple[NodeGroup, ...], request: Request) -> InfeasibleRequestError:
    workers = count_workers_beside(groups, request, 1)
    offered = f"the cluster has room for only {counted(workers, 'such worker')}"
    if workers != count_workers(groups, request):
        offered = f"in addition to a driver with {DRIVER}, {offered}"

    def fits(num_workers: int) -> bool:
        smaller = request.model_copy(update={"num_workers": num_workers})
        return count_trials(groups, smaller) > 0

    fewer = largest(0, request.num_workers - 1, fits)
    short_of = limiting_resource(groups, request, 0)
    if fewer:
        return InfeasibleRequestError(str(request), offered, short_of, f"Set num_workers={fewer}, or add nodes.")
    return _short_of(short_of, groups, request, offered)


def _too_large(groups: tuple[NodeGroup, ...], request: Request) -> InfeasibleRequestError:
    nodes = _nodes_of_the_type(groups, request)

    def missing(node: NodeCapacity) -> list[str]:
        return [name for name, slots in slots_on_node(node, request).items() if slots == 0]

    def closeness(node: NodeCapacity) -> tuple[object, ...]:
        names = sorted(request.worker.ticks, reverse=True)
        return (-len(missing(node)), *(_ticks_of(node, name) for name in names), str(node))

    best = max(nodes, key=closeness)
    short_of = missing(best)[0]
    # Prefer a resource that is insufficient on every node, and the node with the largest amount of it.
    nowhere = _insufficient_everywhere(nodes, request)
    if nowhere:
        short_of = nowhere[0]
        best = max(nodes, key=lambda node: (_ticks_of(node, short_of), closeness(node)))
    return _short_of(short_of, groups, request, f"the largest node has {best}")


def _nodes_of_the_type(groups: tuple[NodeGroup, ...], request: Request) -> list[NodeCapacity]:
    return [node for node, _ in groups if request.accelerator_type in {None, node.accelerator_type}]


def _ticks_of(node: NodeCapacity, name: str) -> int:
    return node.resources.ticks.get(name, 0)


def _insufficient_everywhere(nodes: Sequence[NodeCapacity], request: Request) -> list[str]:
    """Return the names of the resources whose amount is too small for a worker on every node."""
    needed = request.worker.ticks
    return [name for name in needed if max(_ticks_of(node, name) for node in nodes) < needed[name]]


def _short_of(resource: str, groups: tuple[NodeGroup, ...], request: Request, offered: str) -> InfeasibleRequestError:
    """Return the error for a missing resource, with the nearest request that fits."""
    most = _largest_that_fits(groups, request, resource)
    suggestion = _smaller_request(groups, request, resource, most)
    fallback = _FALLBACK if most == 0 and resource in DEVICE_RESOURCES else ""
    return InfeasibleRequestError(str(request), offered, resource, suggestion, fallback=fallback)


def _smaller_request(groups: tuple[NodeGroup, ...], request: Request, short_of: str, most: int | None) -> str:
    """Return a suggestion: the nearest request that fits, or the node to add if no smaller request fits.

    ``most`` is the largest amount of the missing resource with which a trial fits, or ``None`` if a trial does not fit
    with any smaller amount.
    """
    if most is None:
        short = _insufficient_everywhere(_nodes_of_the_type(groups, request), request) or [short_of]
        return f"Add a node with more {' and '.join(short)}, or request less of every resource."
    if most == 0 and short_of in DEVICE_RESOURCES:
        return f"Add a {short_of} node."
    if most == 0:
        return f"Request no {short_of}, or add a node with more {short_of}."
    # Ray accepts only certain amounts of some devices, such as TPU chips.
    amounts = [to_ticks(amount) for family in families_of(short_of) for amount in family.amounts or ()]
    most = max((amount for amount in amounts if amount <= most), default=most)
    amount = f"{format_request(most)} of host memory" if short_of == "memory" else amount_of(from_ticks(most), short_of)
    nearest = f"Request at most {amount} per {request.unit}"
    # A trial whose GPUs are on several nodes needs Train workers.
    if short_of == "GPU" and request.num_workers == 0 and to_ticks(request.worker.gpus) % most == 0:
        parts = to_ticks(request.worker.gpus) // most
        smaller = request.model_copy(update={"num_workers": parts, "worker": request.worker.with_ticks("GPU", most)})
        if count_trials(groups, smaller):
            nearest += f", or num_workers={parts} with {amount} each"
    return f"{nearest}, or add a larger node."


def _largest_that_fits(groups: tuple[NodeGroup, ...], request: Request, resource: str) -> int | None:
    """Return the largest amount of a resource with which a trial fits, in ticks or bytes.

    If a trial does not fit with any smaller amount, return ``None``.
    """
    if resource.startswith(ACCELERATOR_TYPE_PREFIX):
        return None
    asked = request.worker.ticks.get(resource, 0)
    is_all = set(request.worker.ticks) <= {resource}

    def fits(ticks: int) -> bool:
        if ticks == 0 and is_all:
            return resource in DEVICE_RESOURCES  # a policy without devices requests CPUs instead
        smaller = request.model_copy(update={"worker": request.worker.with_ticks(resource, ticks)})
        return count_trials(groups, smaller) > 0

    has_devices = any(name in DEVICE_RESOURCES for name in request.worker.ticks)
    can_be_zero = has_devices or (resource != "CPU" and not is_all)
    least = 0 if can_be_zero else 1
    if asked <= least or not fits(least):
        return None
    return _rounded(resource, largest(least, asked - 1, lambda ticks: fits(_rounded(resource, ticks))))


def _rounded(resource: str, ticks: int) -> int:
    """Return the largest amount up to ``ticks`` that Ray can assign. Except for memory, amounts above 1 are whole."""
    whole = ticks // TICKS * TICKS
    if resource in DEVICE_RESOURCES:
        family = families_of(resource)[0]
        if family.amounts:
            return max((amount * TICKS for amount in family.amounts if amount * TICKS <= ticks), default=0)
        if not family.can_be_split:
            return whole
    if resource == "memory" or ticks < TICKS:
        return ticks
    return whole
