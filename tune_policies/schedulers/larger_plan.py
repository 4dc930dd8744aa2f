"""The plan after one whose Train workers ran out of memory."""

from collections.abc import Sequence

from tune_policies.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.capacity import NodeCapacity, NodeGroup
from tune_policies.errors import InfeasibleRequestError
from tune_policies.labels import matcher
from tune_policies.oom import OutOfMemory
from tune_policies.placement.packing import Request, count_trials, room_to_grow
from tune_policies.placement.remaining import BundleGroup
from tune_policies.plan import TrialPlan
from tune_policies.schedulers.escalation import SHARED_DEVICES, MemoryFloor, floor_of, next_floor
from tune_policies.slot import TrialSlot


def larger_plan(
    plan: TrialPlan, out_of_memory: OutOfMemory, *, growth: float, max_gpus: float, nodes: Sequence[NodeCapacity]
) -> TrialPlan:
    """Return the plan with more memory for each Train worker, and as many trials at once as then fit.

    Of a plan with several kinds of slots only the first is kept, which is the one that its workers have.

    Args:
        plan: A plan with Train workers.
        out_of_memory: What their error says; its kind is not ``"none"``.
        growth: How many times as much each worker gets, rounded up to the next part that a GPU is divided into.
        max_gpus: The most GPUs of a worker.
        nodes: The nodes of the cluster.

    Raises:
        InfeasibleRequestError: The workers have as much as they may have, or the cluster does not hold more for all.
    """
    slot = plan.slots[0]
    selects = matcher(slot.label_selector)
    nodes = [node for node in nodes if selects(node.ray_labels)]
    bundle = _bundle(slot)
    floor = next_floor(BundleGroup([bundle]), out_of_memory, growth=growth, max_gpus=max_gpus, nodes=nodes)
    larger = _lifted(slot, floor)
    request = Request(
        worker=larger.per_worker,
        num_workers=larger.num_workers,
        max_workers=larger.max_workers_alone,
        accelerator_type=larger.accelerator_type,
    )
    groups = [NodeGroup(node, 1) for node in nodes]
    room = count_trials(groups, request)
    if room == 0:
        raise InfeasibleRequestError(
            asked=f"{request}, as it ran out of memory with {floor_of([bundle])} a worker",
            offered="the nodes do not hold them all at once",
            short_of="GPU" if floor.gpu_ticks else "memory",
            suggestion="Take fewer workers, add a node, or ask for less memory with a smaller batch or model",
        )
    at_once = min(slot.max_concurrent_trials, room)
    most, alone = room_to_grow(groups, request, at_once)
    changes = {"max_concurrent_trials": at_once, "max_workers": most, "max_workers_alone": alone}
    larger = larger.model_copy(update=changes)
    reason = f"each worker ran out of memory with {floor_of([bundle])}, and now has {floor_of([_bundle(larger)])}"
    return plan.model_copy(update={"slots": (larger,)}).with_reasons(reason)


def _bundle(slot: TrialSlot) -> dict[str, float]:
    worker = slot.per_worker
    bundle = {"CPU": worker.cpus, "GPU": worker.gpus, "memory": worker.memory_bytes or 0, **worker.custom}
    if slot.accelerator_type is not None:
        bundle[ACCELERATOR_TYPE_PREFIX + slot.accelerator_type] = ACCELERATOR_TYPE_AMOUNT
    return {name: amount for name, amount in bundle.items() if amount > 0}


def _lifted(slot: TrialSlot, floor: MemoryFloor) -> TrialSlot:
    worker, gpu_memory_bytes = slot.per_worker, slot.gpu_memory_bytes
    for device in sorted(SHARED_DEVICES & worker.ticks.keys()):
        had = worker.ticks[device]
        if floor.gpu_ticks > had > 0:
            worker = worker.with_ticks(device, floor.gpu_ticks)
            if gpu_memory_bytes is not None:
                gpu_memory_bytes = gpu_memory_bytes * floor.gpu_ticks // had
    if floor.memory_bytes > (worker.memory_bytes or 0):
        worker = worker.with_ticks("memory", floor.memory_bytes)
    return slot.model_copy(update={"per_worker": worker, "gpu_memory_bytes": gpu_memory_bytes})
