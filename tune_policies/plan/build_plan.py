"""Creates the plan with the maximum number of concurrent trials that fit the cluster."""

from collections.abc import Iterable

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeGroup
from tune_policies.placement.count_trials import count_trials, room_to_grow, workers_on_node
from tune_policies.placement.limiting_resource import limiting_resource
from tune_policies.placement.request import DRIVER, Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.infeasible_request import infeasible
from tune_policies.plan.plan_notes import about_gpu_memory, about_host_memory, about_the_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.resources import (
    MOST,
    Resources,
)
from tune_policies.values.wording import counted


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
        raise infeasible(capacity, request, groups)
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
    # Elastic workers do not reduce the number of trials: they only use what the trials leave.
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
