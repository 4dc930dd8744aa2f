"""What a trial that ran out of memory gets next: decisions only, no I/O.

A share of a GPU grows in equal parts 1/k, as the planner deals them, up to a whole GPU; from there in whole GPUs. Host
memory grows in bytes. Both end at what the nodes of the cluster hold, since a trial that they cannot waits for ever.
What is said of GPUs holds for each kind of device that several processes may share.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from tune_policies.cluster.accelerator_families import FAMILIES
from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.cluster.capacity import NodeCapacity, NodeGroup
from tune_policies.cluster.labels import matcher
from tune_policies.oom import OutOfMemory
from tune_policies.placement.packing import Request, count_trials, equal_device_share, largest, room_to_grow
from tune_policies.placement.remaining import DRIVER_BYTES, Bundle, BundleGroup, is_held
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Count, UsedBytes, format_amount, from_ticks, to_ticks
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import Value

SHARED_DEVICES: Final = frozenset(family.resource for family in FAMILIES if family.can_be_split)
"""Ray's resources of which a trial may have a part; of the others it has whole devices, whose number stays."""

FIRST_MEMORY_BYTES: Final = 2 * GIB
"""The host memory that a trial is taken to have used where neither a reservation nor the error tells."""

NUM_SAME_SHARE: Final = 2
"""How often a trial goes back with the share that it had, because a neighbour had taken what it was to have."""


class MemoryFloor(Value):
    """What a trial gets at least of the resources that hold memory.

    Attributes:
        gpu_ticks: Of a GPU, or GPUs, in ticks, in each bundle that holds one.
        memory_bytes: Host memory in the first bundle, which is the trainable's own.
    """

    gpu_ticks: Count = 0
    memory_bytes: UsedBytes = 0

    def __or__(self, other: "MemoryFloor") -> "MemoryFloor":
        """Return the floor that keeps both."""
        return MemoryFloor(
            gpu_ticks=max(self.gpu_ticks, other.gpu_ticks), memory_bytes=max(self.memory_bytes, other.memory_bytes)
        )

    def __str__(self) -> str:
        gpus = [f"{format_amount(self.gpu_ticks / TICKS)} GPU"] if self.gpu_ticks else []
        memory = [f"{format_bytes(self.memory_bytes)} of host memory"] if self.memory_bytes else []
        return ", ".join(gpus + memory) or "no memory of its own"

    def lift(self, bundles: Sequence[Bundle]) -> list[dict[str, float]]:
        """Return ``bundles`` with no less memory than this; everything else stays."""
        lifted = [dict(bundle) for bundle in bundles]
        for bundle in lifted:
            for device in SHARED_DEVICES & bundle.keys():
                if 0 < to_ticks(bundle[device]) < self.gpu_ticks:
                    bundle[device] = from_ticks(self.gpu_ticks)
        if lifted[0].get("memory", 0) < self.memory_bytes:
            lifted[0]["memory"] = self.memory_bytes
        return lifted


def floor_of(bundles: Sequence[Bundle]) -> MemoryFloor:
    """Return the memory that ``bundles`` hold: of several shares the smallest."""
    shares = [to_ticks(bundle[device]) for bundle in bundles for device in SHARED_DEVICES & bundle.keys()]
    return MemoryFloor(
        gpu_ticks=min((share for share in shares if share > 0), default=0),
        memory_bytes=int(bundles[0].get("memory", 0)),
    )


def next_floor(
    reservation: BundleGroup,
    out_of_memory: OutOfMemory,
    *,
    growth: float,
    max_gpus: float,
    nodes: Sequence[NodeCapacity],
) -> MemoryFloor:
    """Return what a trial that ran out of memory gets next: more than it had.

    Args:
        reservation: What it reserved.
        out_of_memory: What its error says; its kind is not ``"none"``.
        growth: How many times as much it gets, rounded up to the next part that a GPU is divided into, as far as the
            nodes hold that.
        max_gpus: The most GPUs in a bundle.
        nodes: The nodes of the cluster.

    Raises:
        InfeasibleRequestError: It has as much as it may have, or as the nodes hold.
    """
    had = floor_of(reservation.bundles)
    if out_of_memory.kind == "host":
        return _next_memory(reservation, had, out_of_memory, growth, nodes)
    if not had.gpu_ticks:
        raise InfeasibleRequestError(
            asked="more GPU memory than it has",
            offered="it holds no GPU of its own",
            short_of="GPU memory",
            suggestion="Plan a share of a GPU for it",
        )
    most_devices = _most_devices(reservation, nodes)
    most = min(max_gpus, max(1.0, most_devices))
    wish = MemoryFloor(
        gpu_ticks=next_share(had.gpu_ticks, growth=growth, max_gpus=most, most_devices=most_devices) or 0
    )
    floor = most_of(wish, reservation, nodes)
    if not floor.gpu_ticks:
        limit = f"max_gpus={format_amount(max_gpus)}" if most == max_gpus else f"no node has more than {most:g} GPU"
        raise InfeasibleRequestError(
            asked=f"more GPU memory than {had} gave it",
            offered=f"no node has {wish} beside the rest of what it reserves" if wish.gpu_ticks else limit,
            short_of="GPU memory",
            suggestion="Raise max_gpus, take a GPU with more memory, or ask for less with a smaller batch or model",
        )
    return floor


def most_of(wish: MemoryFloor, reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> MemoryFloor:
    """Return as much of ``wish`` as ``nodes`` hold; nothing of what is no more than ``reservation`` has."""

    def is_held_with(floor: MemoryFloor) -> bool:
        return is_held(reservation.with_bundles(floor.lift(reservation.bundles)), nodes)

    had = floor_of(reservation.bundles)
    shares = _shares_up_to(wish.gpu_ticks, had.gpu_ticks, _most_devices(reservation, nodes)) if had.gpu_ticks else ()
    share = next((share for share in shares if is_held_with(MemoryFloor(gpu_ticks=share))), 0)
    memory_bytes = largest(
        had.memory_bytes,
        max(had.memory_bytes, wish.memory_bytes),
        lambda amount: is_held_with(MemoryFloor(gpu_ticks=share, memory_bytes=amount)),
    )
    return MemoryFloor(gpu_ticks=share, memory_bytes=memory_bytes if memory_bytes > had.memory_bytes else 0)


def allowed(
    floor: MemoryFloor, reservation: BundleGroup, *, max_gpus: float, nodes: Sequence[NodeCapacity] | None
) -> MemoryFloor:
    """Return what of a floor that was learned elsewhere is allowed here.

    Nodes that do not hold ``reservation`` itself tell nothing: those that will are not there yet.

    Args:
        floor: What was learned.
        reservation: What the trial was planned to have.
        max_gpus: The most GPUs in a bundle.
        nodes: The nodes of the cluster; ``None``: not read.
    """
    most_devices = _most_devices(reservation, nodes or ())
    floor = floor.model_copy(update={"gpu_ticks": min(floor.gpu_ticks, _largest_share(max_gpus, most_devices))})
    if nodes is None or not is_held(reservation, nodes):
        return floor
    return (
        floor
        if is_held(reservation.with_bundles(floor.lift(reservation.bundles)), nodes)
        else most_of(floor, reservation, nodes)
    )


def next_share(share_ticks: int, *, growth: float, max_gpus: float, most_devices: float) -> int | None:
    """Return the share after ``share_ticks``, in ticks; ``None``: it is as large as it may be.

    Args:
        share_ticks: The share that was too small.
        growth: How many times as much the next one is at least, unless that is more than a GPU or than ``max_gpus``.
        max_gpus: The most GPUs.
        most_devices: GPUs of the node that has the most.
    """
    wanted = max(share_ticks + 1, math.ceil(round(share_ticks * growth, 6)))
    if share_ticks >= TICKS:  # a share becomes a whole GPU before it becomes several
        share = -(-wanted // TICKS) * TICKS
    else:
        share = equal_device_share(max(1, TICKS // wanted), most_devices)
    share = min(share, _largest_share(max_gpus, most_devices))
    return share if share > share_ticks else None


def _largest_share(max_gpus: float, most_devices: float) -> int:
    most = to_ticks(max_gpus)
    return most // TICKS * TICKS if most >= TICKS else equal_device_share(-(-TICKS // most), most_devices)


def _shares_up_to(most_ticks: int, above_ticks: int, most_devices: float) -> Iterator[int]:
    """Yield the shares above ``above_ticks``, the largest first: ``most_ticks``, then whole GPUs, or parts of one."""
    share = most_ticks
    while share > above_ticks:
        yield share
        if share > TICKS:
            share = (-(-share // TICKS) - 1) * TICKS
            continue
        parts = range(TICKS // share + 1, TICKS // max(1, above_ticks) + 1)
        smaller = (equal_device_share(part, most_devices) for part in parts)
        share = next((each for each in smaller if each < share), 0)


def _most_devices(reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> float:
    devices = {device for bundle in reservation.bundles for device in SHARED_DEVICES & bundle.keys()}
    return max((node.resources.ticks.get(device, 0) / TICKS for node in nodes for device in devices), default=0)


def _next_memory(
    reservation: BundleGroup,
    had: MemoryFloor,
    out_of_memory: OutOfMemory,
    growth: float,
    nodes: Sequence[NodeCapacity],
) -> MemoryFloor:
    # A reservation holds nobody to it.
    used = max(had.memory_bytes, out_of_memory.requested_bytes or 0) or FIRST_MEMORY_BYTES
    floor = most_of(MemoryFloor(memory_bytes=math.ceil(used * growth)), reservation, nodes)
    if not floor.memory_bytes:
        most = max((node.resources.memory_bytes or 0 for node in nodes), default=0)
        raise InfeasibleRequestError(
            asked=f"more host memory than the {format_bytes(used)} that it had",
            offered=f"the largest node has {format_bytes(most)}",
            short_of="memory",
            suggestion="Add a node with more host memory, or load less of the data at once",
        )
    return floor


def what_next(
    bundles: Sequence[Bundle], out_of_memory: OutOfMemory, num_same_share: int
) -> Literal["leave", "same", "more"]:
    """Return what becomes of a trial that failed: it is left to Tune, or goes back with the same, or with more.

    One that holds no GPU reports what others ran out of, such as its Train workers, whose share is not its own. So
    does a driver of Train workers, whose own memory is a formality, of host memory. GPU memory
    that a neighbour has taken is no reason for a larger share: within its own the trial had room. So it goes back with
    the same. Where that does not help, more is the way to have fewer neighbours.

    Args:
        bundles: What the trial reserved.
        out_of_memory: What its error says.
        num_same_share: How often it went back with the same share.
    """
    holds_gpu = floor_of(bundles).gpu_ticks > 0
    is_driver = {name: amount for name, amount in bundles[0].items() if amount} == {"memory": DRIVER_BYTES}
    is_anothers = {"none": True, "accelerator": not holds_gpu, "host": is_driver}
    if is_anothers[out_of_memory.kind]:
        return "leave"
    return "same" if out_of_memory.cause == "neighbour" and num_same_share < NUM_SAME_SHARE else "more"


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
