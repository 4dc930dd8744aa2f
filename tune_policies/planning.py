"""From one trial's request to a plan, or to an error that names the nearest request that would work."""

from collections.abc import Iterable

from tune_policies.capacity import ClusterCapacity, NodeCapacity
from tune_policies.errors import InfeasibleRequestError
from tune_policies.packing import (
    DRIVER,
    Request,
    count_trials,
    count_workers,
    gpu_slots,
    limiting_resource,
    slots_on_node,
)
from tune_policies.plan import TrialPlan, TrialSlot
from tune_policies.resources import TICKS, Resources, format_amount, from_ticks, to_ticks
from tune_policies.units import format_request


def build_plan(capacity: ClusterCapacity, request: Request, reasons: Iterable[str] = ()) -> TrialPlan:
    """Return the plan with as many trials at once as the cluster holds.

    Raises:
        InfeasibleRequestError: Not even one fits.
    """
    count = count_trials(capacity.nodes, request)
    if count == 0:
        raise infeasible(capacity, request)
    notes = list(reasons)
    if request.num_workers:
        notes.append(
            f"a trial's driver only waits for its workers, so it holds {DRIVER} and no CPU; "
            "pass max_concurrent_trials to Tune, as so little does not keep further drivers from starting"
        )
    slot = TrialSlot(
        trial=DRIVER if request.num_workers else request.worker,
        num_workers=request.num_workers,
        per_worker=request.worker if request.num_workers else Resources(),
        max_concurrent_trials=count,
        gpu_memory_bytes=request.gpu_memory_bytes,
        accelerator_type=request.accelerator_type,
    )
    return TrialPlan(slots=(slot,), limited_by=limiting_resource(capacity.nodes, request), reasons=tuple(notes))


def cpus_that_strand_no_gpu(nodes: Iterable[NodeCapacity], share_ticks: int) -> float:
    """Return CPUs per worker such that on every node the GPUs run out first.

    The node with the fewest CPUs per GPU slot decides. Whole CPUs, as threads are whole; below 1 if need be.
    """
    fewest = min(to_ticks(node.resources.cpus) // slots for node in nodes if (slots := gpu_slots(node, share_ticks)))
    return from_ticks(fewest if fewest < TICKS else fewest // TICKS * TICKS)


def infeasible(capacity: ClusterCapacity, request: Request) -> InfeasibleRequestError:
    """Return the error for a request of which not even one trial fits: what is short, and what would work."""
    if not capacity.nodes:
        return InfeasibleRequestError(
            str(request), "the cluster has no alive node", "nodes", "Start Ray nodes, then probe again."
        )
    if request.accelerator_type and not any(capacity.gpu_nodes(request.accelerator_type)):
        return _no_such_type(capacity, request)
    if (workers := count_workers(capacity.nodes, request)) > 0:
        return _too_many_workers(capacity, request, workers)
    return _too_large(capacity, request)


def _no_such_type(capacity: ClusterCapacity, request: Request) -> InfeasibleRequestError:
    there = sorted({str(node.accelerator_type or "of unknown type") for node in capacity.gpu_nodes()})
    offered = f"the cluster's GPUs are {', '.join(there)}" if there else "no node has a GPU"
    way_out = "Leave accelerator_type out, or name one that is there" if there else "Ask for CPUs"
    return InfeasibleRequestError(
        str(request), offered, str(request.accelerator_type), f"{way_out}, or add such a node."
    )


def _too_many_workers(capacity: ClusterCapacity, request: Request, workers: int) -> InfeasibleRequestError:
    fewer = next(
        (
            n
            for n in range(min(workers, request.num_workers - 1), 0, -1)
            if count_trials(capacity.nodes, _with_workers(request, n))
        ),
        None,
    )
    way_out = f"Ask for num_workers={fewer}, or add nodes." if fewer else "Add nodes."
    return InfeasibleRequestError(
        str(request),
        f"the cluster holds {workers} such {'worker' if workers == 1 else 'workers'} at once",
        limiting_resource(capacity.nodes, request),
        way_out,
    )


def _too_large(capacity: ClusterCapacity, request: Request) -> InfeasibleRequestError:
    needed = request.worker.ticks

    def missing(node: NodeCapacity) -> list[str]:
        return [name for name, slots in slots_on_node(node, request).items() if slots == 0]

    def how_near(node: NodeCapacity) -> tuple[object, ...]:
        has = node.resources.ticks
        return (-len(missing(node)), *(has.get(name, 0) for name in sorted(needed, reverse=True)), node.node_id)

    def has_most(name: str) -> int:
        return max(node.resources.ticks.get(name, 0) for node in capacity.nodes)

    best = max(capacity.nodes, key=how_near)
    short_of = missing(best)[0]
    # What no node has enough of is the better answer, shown on the node that has the most of it.
    if nowhere := [name for name in needed if has_most(name) < needed[name]]:
        short_of = nowhere[0]
        best = max(capacity.nodes, key=lambda node: (node.resources.ticks.get(short_of, 0), how_near(node)))
    return InfeasibleRequestError(
        str(request), f"the largest node offers {best}", short_of, _smaller_request(capacity, request, short_of)
    )


def _smaller_request(capacity: ClusterCapacity, request: Request, short_of: str) -> str:
    most = max(
        (
            node.resources.ticks.get(short_of, 0)
            for node in capacity.nodes
            if all(slots for name, slots in slots_on_node(node, request).items() if name != short_of)
        ),
        default=0,
    )
    if short_of == "GPU" and most == 0:
        return "Ask for no GPU (CpuPolicy, or FirstFeasiblePolicy with a CpuPolicy last), or add a GPU node."
    if most == 0:
        return f"Ask for less {short_of} per worker, or add a larger node."
    if short_of == "memory":
        return f"Ask for at most {format_request(most)} of host memory per worker, or add a larger node."
    nearest = f"Ask for at most {format_amount(from_ticks(most))} {short_of} per worker"
    if short_of == "GPU" and request.num_workers == 0:
        each, parts = _split_over_workers(capacity, request, most)
        if parts:
            nearest += f", or for num_workers={parts} with {each} GPU each"
    return f"{nearest}, or add a larger node."


def _split_over_workers(capacity: ClusterCapacity, request: Request, most_ticks: int) -> tuple[str, int | None]:
    """Return the GPUs of each worker, and how many workers make up the same wish, if the cluster holds them."""
    asked = to_ticks(request.worker.gpus)
    if asked % most_ticks:
        return "", None
    parts = asked // most_ticks
    worker = request.worker.replaced(gpus=from_ticks(most_ticks))
    split = request.model_copy(update={"worker": worker, "num_workers": parts})
    fits = count_trials(capacity.nodes, split) > 0
    return format_amount(from_ticks(most_ticks)), parts if fits else None


def _with_workers(request: Request, num_workers: int) -> Request:
    return request.model_copy(update={"num_workers": num_workers})
