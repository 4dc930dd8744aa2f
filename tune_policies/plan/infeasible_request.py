"""Creates the error for a request that does not fit, with the missing resource and the nearest request that fits."""

from collections.abc import Iterable, Sequence
from typing import Final

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPE_PREFIX,
    DEVICE_RESOURCES,
    families_of,
    similar_type,
)
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.placement.count_trials import (
    count_trials,
    count_workers,
    count_workers_beside,
    largest,
    slots_on_node,
    workers_on_node,
)
from tune_policies.placement.limiting_resource import limiting_resource
from tune_policies.placement.request import DRIVER, Limit, Request
from tune_policies.plan.plan_notes import describe_held, describe_unusable
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import (
    TICKS,
    amount_of,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import format_request
from tune_policies.values.wording import counted, with_article

_FALLBACK: Final = "Or fall back to CPUs: policy | CpuPolicy()."
"""The suggestion in an error if the cluster has no device of the requested kind."""


def add_device_node(resource: str) -> str:
    """Return the suggestion for a request of devices in a cluster without such devices."""
    return f"Add {with_article(resource)} node."


def in_context(error: InfeasibleRequestError, capacity: ClusterCapacity, request: Request) -> InfeasibleRequestError:
    """Return the error with what the plan does not count, and the node types that the autoscaler could add."""
    offered, suggestion = error.offered, error.suggestion
    if capacity.draining:
        offered += f" (not counting {counted(len(capacity.draining), 'draining node')})"
    if capacity.unusable:
        offered += f" (not counting {describe_unusable(capacity.unusable)})"
    for holder, held in describe_held(capacity).items():
        offered += f" (not counting {held})"
        suggestion += f" Or reserve fewer resources for {holder}."
    names = []
    if capacity.max_nodes_to_add != 0:
        can_be_added = [node_type for node_type in capacity.node_types or () if node_type.max_nodes_to_add]
        names = [node_type.name for node_type in can_be_added if _could_run(node_type, request)]
    if names:
        named = " or ".join(sorted(names))
        suggestion += (
            f" The autoscaler could add nodes of type {named}. To use them, call plan_when_ready, or wrap the policy "
            "in AutoscalingPolicy."
        )
    elif capacity.node_types is None:
        suggestion += " An autoscaler may be able to add nodes of unknown types. Call plan_when_ready to request them."
    return error.with_texts(offered=offered, suggestion=suggestion)


def _could_run(node_type: NodeTypeCapacity, request: Request) -> bool:
    """Return whether a worker fits on a node of this type, as far as its GPU memory is known."""
    node = node_type.as_node()
    has, needs = node.smallest_gpu_memory_bytes, request.gpu_memory_bytes
    if has is not None and needs is not None and has < needs:
        return False
    return workers_on_node(node, request) > 0


def infeasible(
    capacity: ClusterCapacity, request: Request, groups: tuple[NodeGroup, ...] | None = None
) -> InfeasibleRequestError:
    """Return the error for a request that does not fit, with the missing resource and the nearest request that fits.

    If no node has the requested device type, the error names a similar type of the nodes or of the node types that the
    autoscaler could add.

    Args:
        capacity: The cluster.
        request: The request of a trial.
        groups: The nodes that the trial may use, or ``None`` for all nodes.
    """
    if groups is None:
        groups = capacity.groups
    return in_context(_missing(groups, request, capacity.node_types or ()), capacity, request)


def _missing(
    groups: tuple[NodeGroup, ...], request: Request, node_types: Iterable[NodeTypeCapacity]
) -> InfeasibleRequestError:
    if not groups:
        return InfeasibleRequestError(
            str(request), "the cluster has no alive node", Limit.NODES, "Start Ray nodes, then probe again."
        )
    if request.accelerator_type not in {None, *(node.accelerator_type for node, _ in groups)}:
        return _no_such_type(groups, request, node_types)
    # Each worker fits on a node, but not all workers of a trial and its driver at the same time.
    if count_workers(groups, request) > 0:
        return _too_many_workers(groups, request)
    return _too_large(groups, request)


def _no_such_type(
    groups: tuple[NodeGroup, ...], request: Request, node_types: Iterable[NodeTypeCapacity]
) -> InfeasibleRequestError:
    device = next((name for name in request.worker.ticks if name in DEVICE_RESOURCES), "GPU")
    there = sorted({node.accelerator_type or "of unknown type" for node, _ in groups if _ticks_of(node, device)})
    offered, hint = f"no node has {with_article(device)}", "Request CPUs, or add"
    if there:
        offered = f"the cluster's {device}s are {', '.join(there)}"
        hint = "Omit accelerator_type, use a type that the cluster has, or add"
    wanted = str(request.accelerator_type)
    suggestion = f"{hint} a node of type {wanted}."
    types = {node.accelerator_type for node, _ in groups} | {node_type.accelerator_type for node_type in node_types}
    known = {name for name in types if name is not None}
    # If the autoscaler can add nodes of this type, its name is correct.
    near = None
    if wanted not in known:
        near = similar_type(wanted, known)
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
    fallback = ""
    if most == 0 and resource in DEVICE_RESOURCES:
        fallback = _FALLBACK
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
        return add_device_node(short_of)
    if most == 0:
        return f"Request no {short_of}, or add a node with more {short_of}."
    # Ray accepts only certain amounts of some devices, such as TPU chips.
    amounts = [to_ticks(amount) for family in families_of(short_of) for amount in family.amounts or ()]
    most = max((amount for amount in amounts if amount <= most), default=most)
    amount = amount_of(from_ticks(most), short_of)
    if short_of == "memory":
        amount = f"{format_request(most)} of host memory"
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
    # A trial without devices needs at least a fraction of a CPU.
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
