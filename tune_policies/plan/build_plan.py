"""From one trial's request to a plan."""

from collections.abc import Iterable

from tune_policies.cluster.capacity import ClusterCapacity, NodeGroup
from tune_policies.placement.packing import DRIVER, Request, count_trials, limiting_resource, room_to_grow
from tune_policies.plan.infeasible import in_context, infeasible
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import MOST, Resources, format_amount, to_ticks
from tune_policies.values.value import counted


def build_plan(
    capacity: ClusterCapacity,
    request: Request,
    reasons: Iterable[str] = (),
    *,
    groups: tuple[NodeGroup, ...] | None = None,
) -> TrialPlan:
    """Return the plan with as many trials at once as the cluster holds.

    Args:
        capacity: The cluster.
        request: What a trial needs.
        reasons: How the request came about, a sentence each.
        groups: The only nodes to use; ``None``: all. Ray is kept to them by labels, which the plan is still to name.

    Raises:
        InfeasibleRequestError: Not even one fits.
    """
    groups = capacity.groups if groups is None else groups
    count = count_trials(groups, request)
    if count == 0:
        raise in_context(infeasible(groups, request), capacity, request)
    notes = list(reasons)
    if count > MOST:
        notes.append(f"{count:.0e} would fit, but no plan counts more than {MOST:.0e}")
        count = MOST
    if request.num_workers:
        notes.append(
            f"a trial's driver only waits for its workers, so it holds {DRIVER} and no CPU; "
            "pass max_concurrent_trials to Tune, as so little does not keep further drivers from starting"
        )
    if request.max_workers is not None:
        notes.append(
            f"as many trials at once as fit with {request.num_workers} workers each; with fewer at once "
            f"(CappedPolicy), each has more room to grow to {request.max_workers}"
        )
    max_workers, max_workers_alone = room_to_grow(groups, request, count)
    slot = TrialSlot(
        trial=DRIVER if request.num_workers else request.worker,
        num_workers=request.num_workers,
        max_workers=max_workers,
        max_workers_alone=max_workers_alone,
        per_worker=request.worker if request.num_workers else Resources(),
        max_concurrent_trials=count,
        gpu_memory_bytes=request.gpu_memory_bytes,
        accelerator_type=request.accelerator_type,
    )
    return TrialPlan(
        slots=(slot,),
        limited_by=limiting_resource(groups, request),
        reasons=(*notes, *_about_the_nodes(capacity)),
    )


def _about_the_nodes(capacity: ClusterCapacity) -> Iterable[str]:
    """Yield what a user should know of the nodes, whatever is planned on them."""
    differs: dict[tuple[float, float], int] = {}
    for node, count in capacity.groups:
        if node.usable_cpus is not None and to_ticks(node.usable_cpus) < to_ticks(node.resources.cpus):
            amounts = (node.resources.cpus, node.usable_cpus)
            differs[amounts] = differs.get(amounts, 0) + count
    for (of_ray, usable), count in sorted(differs.items()):
        yield (
            f"Ray counts {format_amount(of_ray)} CPU on {counted(count, 'node')} where the cgroup, the CPU affinity or "
            f"SLURM allows {format_amount(usable)}: start Ray there with --num-cpus={max(1, int(usable))}"
        )
    if capacity.draining:
        yield f"not counted: {counted(len(capacity.draining), 'node')} being drained"
