"""Decides how much memory a trial gets when it is retried after an out-of-memory error. This module does no I/O.

A GPU fraction grows to a larger fraction 1/k or to a whole GPU, because the planner divides GPUs into equal parts. A
trial with whole GPUs gets more whole GPUs. Host memory can grow to any amount. Neither amount grows beyond the capacity
of the nodes, because otherwise the trial would stay pending indefinitely. In this module, "GPU" means every device that
several processes can share.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.cluster.capacity import NodeCapacity, NodeGroup
from tune_policies.cluster.labels import matcher
from tune_policies.oom import OutOfMemory
from tune_policies.placement.packing import (
    DRIVER_BYTES,
    BundleAmounts,
    BundleGroup,
    Request,
    count_trials,
    is_held,
    largest,
    room_to_grow,
)
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Count, UsedBytes, amount_of, format_amount, from_ticks, to_ticks
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import Value

SHARED_DEVICES: Final = frozenset(family.resource for family in FAMILIES if family.can_be_split)
"""Ray's resource names of the devices that trials can share. A retry never adds other devices, such as TPUs."""

ASSUMED_MEMORY_BYTES: Final = 2 * GIB
"""The assumed host memory of a trial, in bytes, if neither its reservation nor its error contains an amount."""

MAX_SAME_SHARE_RETRIES: Final = 2
"""The maximum number of retries with the same GPU fraction if another process filled the shared GPU."""


class MemoryFloor(Value):
    """The minimum memory of a trial.

    Attributes:
        gpu_ticks: The minimum number or fraction of GPUs in each bundle with a GPU, in ticks.
        memory_bytes: The minimum host memory in the first bundle, which runs the trainable, in bytes.
    """

    gpu_ticks: Count = 0
    memory_bytes: UsedBytes = 0

    def __or__(self, other: "MemoryFloor") -> "MemoryFloor":
        """Return the maximum of each amount."""
        return MemoryFloor(
            gpu_ticks=max(self.gpu_ticks, other.gpu_ticks), memory_bytes=max(self.memory_bytes, other.memory_bytes)
        )

    def __str__(self) -> str:
        gpus = [amount_of(self.gpu_ticks / TICKS, "GPU")] if self.gpu_ticks else []
        memory = [f"{format_bytes(self.memory_bytes)} of host memory"] if self.memory_bytes else []
        return ", ".join(gpus + memory) or "no reserved memory"

    def apply_to(self, bundles: Sequence[BundleAmounts]) -> list[dict[str, float]]:
        """Return ``bundles`` with their memory raised to at least this minimum."""
        raised = [dict(bundle) for bundle in bundles]
        for bundle in raised:
            for device in SHARED_DEVICES & bundle.keys():
                if 0 < to_ticks(bundle[device]) < self.gpu_ticks:
                    bundle[device] = from_ticks(self.gpu_ticks)
        if raised[0].get("memory", 0) < self.memory_bytes:
            raised[0]["memory"] = self.memory_bytes
        return raised


def floor_of(bundles: Sequence[BundleAmounts]) -> MemoryFloor:
    """Return the memory that ``bundles`` reserve. If their GPU fractions differ, the smallest fraction is returned."""
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
    """Return a larger memory minimum for the retry of a trial that ran out of memory.

    Args:
        reservation: The reservation of the trial.
        out_of_memory: The classified error. Its kind must not be ``"none"``.
        growth: The factor by which the memory grows. A GPU fraction is rounded up to the next fraction 1/k. If
            the larger amount does not fit on any node, the trial gets the largest amount that fits.
        max_gpus: The maximum number of GPUs in a bundle.
        nodes: The nodes of the cluster.

    Raises:
        InfeasibleRequestError: The trial already has as much memory as ``max_gpus`` or the nodes allow, or it ran out
            of GPU memory without reserving a GPU.
    """
    had = floor_of(reservation.bundles)
    if out_of_memory.kind == "host":
        return _next_host_memory(reservation, had, out_of_memory, growth, nodes)
    if not had.gpu_ticks:
        raise InfeasibleRequestError(
            asked="more GPU memory",
            offered="the trial does not reserve a GPU",
            short_of="GPU memory",
            suggestion="Plan a GPU fraction for the trial.",
        )
    most_devices = _most_devices(reservation, nodes)
    most = min(max_gpus, max(1.0, most_devices))
    wish = MemoryFloor(
        gpu_ticks=next_share(had.gpu_ticks, growth=growth, max_gpus=most, most_devices=most_devices) or 0
    )
    floor = largest_that_fits(wish, reservation, nodes)
    if not floor.gpu_ticks:
        limit = (
            f"max_gpus is {format_amount(max_gpus)}"
            if most == max_gpus
            else f"no node has more than {amount_of(most, 'GPU')}"
        )
        raise InfeasibleRequestError(
            asked=f"more than {amount_of(had.gpu_ticks / TICKS, 'GPU')}",
            offered=f"no node has {wish} in addition to the other resources of the trial" if wish.gpu_ticks else limit,
            short_of="GPU memory",
            suggestion="Raise max_gpus, use a GPU with more memory, or use less memory with a smaller batch or model.",
        )
    return floor


def largest_that_fits(wish: MemoryFloor, reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> MemoryFloor:
    """Return the largest amounts, up to ``wish``, with which the trial still fits on ``nodes``.

    An amount is 0 if the trial cannot get more than the amount in ``reservation``.
    """

    def is_satisfied_by(floor: MemoryFloor) -> bool:
        return is_held(reservation.with_bundles(floor.apply_to(reservation.bundles)), nodes)

    had = floor_of(reservation.bundles)
    shares = _shares_up_to(wish.gpu_ticks, had.gpu_ticks, _most_devices(reservation, nodes)) if had.gpu_ticks else ()
    share = next((share for share in shares if is_satisfied_by(MemoryFloor(gpu_ticks=share))), 0)
    memory_bytes = largest(
        had.memory_bytes,
        max(had.memory_bytes, wish.memory_bytes),
        lambda amount: is_satisfied_by(MemoryFloor(gpu_ticks=share, memory_bytes=amount)),
    )
    return MemoryFloor(gpu_ticks=share, memory_bytes=memory_bytes if memory_bytes > had.memory_bytes else 0)


def limit_floor(
    floor: MemoryFloor, reservation: BundleGroup, *, max_gpus: float, nodes: Sequence[NodeCapacity] | None
) -> MemoryFloor:
    """Return ``floor``, limited to ``max_gpus`` in a bundle and to the amounts that fit on the nodes.

    The nodes are ignored if they are not known (``None``). They are also ignored if even ``reservation`` does not fit
    on them, because then more nodes are expected.
    """
    most_devices = _most_devices(reservation, nodes or ())
    floor = floor.model_copy(update={"gpu_ticks": min(floor.gpu_ticks, _largest_share(max_gpus, most_devices))})
    if nodes is None or not is_held(reservation, nodes):
        return floor
    if is_held(reservation.with_bundles(floor.apply_to(reservation.bundles)), nodes):
        return floor
    return largest_that_fits(floor, reservation, nodes)


def next_share(share_ticks: int, *, growth: float, max_gpus: float, most_devices: float) -> int | None:
    """Return the next larger fraction or number of GPUs in ticks, or ``None`` if ``share_ticks`` is the maximum.

    The result is at least ``growth`` times ``share_ticks``, but at most ``max_gpus``. A fraction grows to at most one
    GPU.
    """
    wanted = max(share_ticks + 1, math.ceil(round(share_ticks * growth, 6)))  # 100 * 1.1 is slightly more than 110
    if share_ticks >= TICKS:  # only a trial with whole GPUs gets several GPUs
        share = -(-wanted // TICKS) * TICKS
    else:
        share = equal_device_fraction(max(1, TICKS // wanted), most_devices)
    share = min(share, _largest_share(max_gpus, most_devices))
    return share if share > share_ticks else None


def _largest_share(max_gpus: float, most_devices: float) -> int:
    most = to_ticks(max_gpus)
    return most // TICKS * TICKS if most >= TICKS else equal_device_fraction(-(-TICKS // most), most_devices)


def _shares_up_to(most_ticks: int, above_ticks: int, most_devices: float) -> list[int]:
    """Return the GPU amounts above ``above_ticks`` and up to ``most_ticks``, in ticks, largest first.

    The amounts are equal parts of a GPU, whole GPUs, and ``most_ticks`` itself.
    """
    parts = range(2, TICKS // max(1, above_ticks) + 1)
    shares = {
        most_ticks,
        *range(TICKS, most_ticks, TICKS),
        *(equal_device_fraction(part, most_devices) for part in parts),
    }
    return sorted((share for share in shares if above_ticks < share <= most_ticks), reverse=True)


def _most_devices(reservation: BundleGroup, nodes: Sequence[NodeCapacity]) -> float:
    devices = {device for bundle in reservation.bundles for device in SHARED_DEVICES & bundle.keys()}
    return max((node.resources.ticks.get(device, 0) / TICKS for node in nodes for device in devices), default=0)


def _next_host_memory(
    reservation: BundleGroup,
    had: MemoryFloor,
    out_of_memory: OutOfMemory,
    growth: float,
    nodes: Sequence[NodeCapacity],
) -> MemoryFloor:
    # Ray does not enforce the reserved host memory, so the trial may have used more than it reserved.
    used = max(had.memory_bytes, out_of_memory.requested_bytes or 0) or ASSUMED_MEMORY_BYTES
    floor = largest_that_fits(MemoryFloor(memory_bytes=math.ceil(used * growth)), reservation, nodes)
    if not floor.memory_bytes:
        most = max((node.resources.memory_bytes or 0 for node in nodes), default=0)
        raise InfeasibleRequestError(
            asked=f"more host memory than {format_bytes(used)}",
            offered=f"the largest node has {format_bytes(most)} of host memory",
            short_of="memory",
            suggestion="Add a node with more host memory, or load less data at a time.",
        )
    return floor


RetryDecision = Literal["leave_to_tune", "same_share", "more_memory"]


def decide_retry(
    bundles: Sequence[BundleAmounts], out_of_memory: OutOfMemory, num_same_share_retries: int
) -> RetryDecision:
    """Return whether a failed trial with these bundles is retried, and whether it gets more memory.

    If a trial without a GPU runs out of GPU memory, or a Train driver runs out of host memory, the error comes from
    another process, such as a Train worker. More memory for the trial would not help, so Tune handles the failure.

    If another trial filled the device and this trial was within its limit, the same fraction may be enough for a retry.
    After ``MAX_SAME_SHARE_RETRIES`` such retries, the trial gets a larger fraction, so that fewer trials share its
    device.
    """
    holds_gpu = floor_of(bundles).gpu_ticks > 0
    is_driver = {name: amount for name, amount in bundles[0].items() if amount} == {"memory": DRIVER_BYTES}
    is_of_another_process = {"none": True, "accelerator": not holds_gpu, "host": is_driver}
    if is_of_another_process[out_of_memory.kind]:
        return "leave_to_tune"
    may_keep_share = num_same_share_retries < MAX_SAME_SHARE_RETRIES
    return "same_share" if out_of_memory.cause == "neighbour" and may_keep_share else "more_memory"


def larger_plan(
    plan: TrialPlan, out_of_memory: OutOfMemory, *, growth: float, max_gpus: float, nodes: Sequence[NodeCapacity]
) -> TrialPlan:
    """Return the plan with more memory for each Train worker, and with the number of concurrent trials that then fit.

    Only the first slot type of the plan is kept, because a Train run does not use the other types. ``growth`` and
    ``max_gpus`` apply to each worker, as in :func:`next_floor`.

    Raises:
        InfeasibleRequestError: The workers already have as much memory as ``max_gpus`` or the nodes allow, or the
            larger workers do not all fit on the nodes.
    """
    slot = plan.slots[0]
    selects = matcher(slot.label_selector)
    nodes = [node for node in nodes if selects(node.ray_labels)]
    bundle = _worker_bundle(slot)
    floor = next_floor(BundleGroup([bundle]), out_of_memory, growth=growth, max_gpus=max_gpus, nodes=nodes)
    larger = _with_floor(slot, floor)
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
            asked=f"{request} because it ran out of memory with {floor_of([bundle])} per worker",
            offered="the nodes do not have room for all workers at the same time",
            short_of="GPU" if floor.gpu_ticks else "memory",
            suggestion="Use fewer workers, add a node, or use less memory with a smaller batch or model.",
        )
    at_once = min(slot.max_concurrent_trials, room)
    most, alone = room_to_grow(groups, request, at_once)
    changes = {"max_concurrent_trials": at_once, "max_workers": most, "max_workers_alone": alone}
    larger = larger.model_copy(update=changes)
    now = floor_of([_worker_bundle(larger)])
    reason = f"a worker ran out of memory with {floor_of([bundle])}, so each worker now reserves {now}"
    return plan.model_copy(update={"slots": (larger,)}).with_reasons(reason)


def _worker_bundle(slot: TrialSlot) -> dict[str, float]:
    return {name: amount for name, amount in slot.with_type(slot.resources_per_worker).items() if amount > 0}


def _with_floor(slot: TrialSlot, floor: MemoryFloor) -> TrialSlot:
    worker, gpu_memory_bytes = slot.per_worker, slot.gpu_memory_bytes
    for device in sorted(SHARED_DEVICES & worker.ticks.keys()):
        had = worker.ticks[device]
        if floor.gpu_ticks > had > 0:
            worker = worker.with_ticks(device, floor.gpu_ticks)
            if gpu_memory_bytes is not None:
                gpu_memory_bytes = gpu_memory_bytes * floor.gpu_ticks // had
    if floor.memory_bytes > (worker.memory_bytes or 0):
        worker = worker.with_ticks("memory", floor.memory_bytes)
    # The nodes chosen for the workers may not have enough memory for larger workers.
    return slot.model_copy(update={"per_worker": worker, "gpu_memory_bytes": gpu_memory_bytes, "worker_nodes": ()})
