"""Decides whether a trial that ran out of memory is retried, and with how much memory. This module does no I/O.

A trial gets more memory if it used more than it reserved. If other processes took the memory, the trial is retried with
the same memory after a pause, and other trials learn nothing from the error. Ray's memory monitor measures a killed
worker without its child processes, so the decision also considers which processes started together with the trial.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.oom import OutOfMemory
from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.count_trials import count_trials, room_to_grow
from tune_policies.placement.request import DRIVER_BYTES, Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import Value

from .memory_floor import SHARED_DEVICES, MemoryFloor, floor_of, largest_that_fits, most_devices, next_share
from .oom_history import MemorySettings, OomRecord, TrialOomHistory

GROWTH: Final = 2.0
"""The default factor by which the memory of a trial grows at a retry."""

ASSUMED_MEMORY_BYTES: Final = 2 * GIB
"""The assumed host memory of a trial, in bytes, if neither its reservation nor its error contains an amount."""

MAX_SAME_MEMORY_RETRIES: Final = 2
"""The maximum number of retries with the same memory if other processes took the memory."""

PAUSE_S: Final = 10.0
"""The pause before the first retry with the same host memory, in seconds. The second pause is twice as long."""


class RetryDecision(Value):
    """The decision about a trial that ran out of memory.

    Attributes:
        kind: Whether Tune handles the failure, or the trial is retried with the same memory or with more memory.
        reason: The reason as a sentence without the trial's name, for the log.
        floor: The minimum memory of a retry with more memory, otherwise ``None``.
        pause_s: The time to wait before the retry, in seconds.
    """

    kind: Literal["leave_to_tune", "same_memory", "more_memory"]
    reason: str
    floor: MemoryFloor | None = None
    pause_s: float = 0.0


def decide_retry(
    reservation: BundleGroup,
    out_of_memory: OutOfMemory,
    history: TrialOomHistory,
    *,
    growth: float,
    max_gpus: float,
    nodes: Sequence[NodeCapacity] | None,
) -> RetryDecision:
    """Return whether a failed trial is retried, and with how much memory.

    If a trial without a GPU runs out of GPU memory, or a Train driver runs out of host memory, the error comes from
    another process, such as a Train worker. More memory for the trial would not help, so Tune handles the failure.

    Args:
        reservation: The reservation of the trial.
        out_of_memory: The classified error.
        history: The earlier retries of the trial.
        growth: The factor by which the memory grows, as in :func:`next_floor`.
        max_gpus: The maximum number of GPUs in a bundle.
        nodes: The nodes of the cluster, or ``None`` if they are not known. In this case, the trial cannot get more
            memory, because it could stay pending indefinitely.

    Raises:
        InfeasibleRequestError: The trial needs more memory than ``max_gpus`` or the nodes allow.
    """
    if out_of_memory.kind == "none":
        return _left_to_tune("the error is not an out-of-memory error")
    if out_of_memory.kind == "host":
        return _decide_host_memory(reservation, out_of_memory, history, growth, nodes)
    return _decide_gpu_memory(reservation, out_of_memory, history, growth, max_gpus, nodes)


def history_after(
    history: TrialOomHistory, decision: RetryDecision, out_of_memory: OutOfMemory, settings: MemorySettings
) -> TrialOomHistory:
    """Return the history of a trial with these memory settings after the retry of ``decision``."""
    other_pids = history.other_pids
    if out_of_memory.killed_workers:
        other_pids = tuple(process.pid for process in out_of_memory.other_processes)
    if decision.floor is None:
        num_retries = history.num_same_memory_retries + 1
        return history.model_copy(update={"num_same_memory_retries": num_retries, "other_pids": other_pids})
    # More memory starts a new count of retries with the same memory.
    record = OomRecord(settings=settings, floor=decision.floor)
    return TrialOomHistory(records=(*history.records, record), other_pids=other_pids)


def _left_to_tune(reason: str) -> RetryDecision:
    return RetryDecision(kind="leave_to_tune", reason=reason)


def _retried_with(floor: MemoryFloor, reservation: BundleGroup, kind_of_memory: str) -> RetryDecision:
    had = floor_of(reservation.bundles)
    gets = floor_of(floor.apply_to(reservation.bundles))
    reason = f"ran out of {kind_of_memory} memory and is retried with {gets} instead of {had}"
    return RetryDecision(kind="more_memory", floor=floor, reason=reason)


_UNREAD_NODES: Final = "the trial needs more memory, but the nodes could not be read"


def _decide_gpu_memory(
    reservation: BundleGroup,
    out_of_memory: OutOfMemory,
    history: TrialOomHistory,
    growth: float,
    max_gpus: float,
    nodes: Sequence[NodeCapacity] | None,
) -> RetryDecision:
    """Decide about a trial that ran out of GPU memory.

    If other processes filled the device and this trial was within its limit, the same fraction may be enough for a
    retry. After ``MAX_SAME_MEMORY_RETRIES`` such retries, the trial gets a larger fraction, so that fewer trials share
    its device.
    """
    gpu_ticks = floor_of(reservation.bundles).gpu_ticks
    if not gpu_ticks:
        return _left_to_tune("the trial does not reserve a GPU, so the error comes from another process")
    cause = out_of_memory.cause_with(from_ticks(gpu_ticks))
    if cause == "neighbour" and history.num_same_memory_retries < MAX_SAME_MEMORY_RETRIES:
        reason = "is retried with the same GPU fraction because other processes filled the GPU"
        return RetryDecision(kind="same_memory", reason=reason)
    if nodes is None:
        return _left_to_tune(_UNREAD_NODES)
    floor = next_floor(reservation, out_of_memory, growth=growth, max_gpus=max_gpus, nodes=nodes)
    return _retried_with(floor, reservation, "GPU")


def _decide_host_memory(
    reservation: BundleGroup,
    out_of_memory: OutOfMemory,
    history: TrialOomHistory,
    growth: float,
    nodes: Sequence[NodeCapacity] | None,
) -> RetryDecision:
    """Decide about a trial that ran out of host memory.

    A trial that stayed within its reservation is retried with the same memory after a pause. After
    ``MAX_SAME_MEMORY_RETRIES`` such retries, Tune handles the failure.
    """
    first = {name: amount for name, amount in reservation.bundles[0].items() if amount}
    # Only Train drivers reserve this amount and nothing else.
    if first == {"memory": DRIVER_BYTES}:
        return _left_to_tune("the trial only waits for its Train workers, so the error comes from another process")
    reserved_bytes = floor_of(reservation.bundles).memory_bytes
    used_bytes = bytes_of_trial(reserved_bytes, out_of_memory, history)
    if used_bytes is None:
        return _decide_same_host_memory(reserved_bytes, out_of_memory, history)
    if nodes is None:
        return _left_to_tune(_UNREAD_NODES)
    if _is_unknown(out_of_memory) and any(record.floor.memory_bytes for record in history.records):
        # The amount is only a guess, and a larger guess was not enough. More guesses would need too many attempts.
        used_bytes = max([used_bytes, *(node.resources.memory_bytes or 0 for node in nodes)])
    # ``bytes_of_trial`` has already added the requested bytes.
    used = out_of_memory.model_copy(update={"used_bytes": used_bytes, "requested_bytes": None})
    floor = next_floor(reservation, used, growth=growth, max_gpus=1.0, nodes=nodes)
    return _retried_with(floor, reservation, "host")


def _decide_same_host_memory(
    reserved_bytes: int, out_of_memory: OutOfMemory, history: TrialOomHistory
) -> RetryDecision:
    reserved = format_bytes(reserved_bytes) if reserved_bytes else "none"
    used = f"used {format_bytes(out_of_memory.used_bytes or 0)} of host memory and reserves {reserved}"
    reason = f"{used}, but other processes took the memory of the node"
    if out_of_memory.other_processes:
        process = max(out_of_memory.other_processes, key=lambda process: process.used_bytes)
        reason += f" (process {process.pid} used {format_bytes(process.used_bytes)}: {process.command})"
    num_retries = history.num_same_memory_retries
    if num_retries >= MAX_SAME_MEMORY_RETRIES:
        return _left_to_tune(
            f"{reason}, and {num_retries} retries with the same memory failed. End the other processes. If they belong "
            "to the trial, reserve their memory in the policy"
        )
    # Another program may take some time to release its memory.
    pause_s = PAUSE_S * 2**num_retries
    return RetryDecision(kind="same_memory", reason=f"{reason}. It is retried with the same memory", pause_s=pause_s)


def _is_unknown(out_of_memory: OutOfMemory) -> bool:
    return out_of_memory.used_bytes is None and out_of_memory.requested_bytes is None


def bytes_of_trial(reserved_bytes: int, out_of_memory: OutOfMemory, history: TrialOomHistory) -> int | None:
    """Return the host memory that the trial and its child processes needed, in bytes.

    Returns:
        The memory, or ``None`` if the trial was within its reservation, or if other processes took the memory. If the
        amount is not known, the reserved memory or ``ASSUMED_MEMORY_BYTES`` is returned.
    """
    own_bytes = out_of_memory.used_bytes or 0
    if not out_of_memory.killed_workers:  # the trial's own request failed, or the kernel killed it
        needed_bytes = own_bytes + (out_of_memory.requested_bytes or 0)
        if own_bytes and out_of_memory.requested_bytes and needed_bytes <= reserved_bytes:
            return None
        return max(reserved_bytes, needed_bytes) or ASSUMED_MEMORY_BYTES
    # From here on, Ray's memory monitor has killed the process. First, the trial alone exceeded its reservation.
    if own_bytes > reserved_bytes > 0:
        return own_bytes
    # Second, the trial may have exceeded it together with its child processes.
    other_bytes = sum(process.used_bytes for process in out_of_memory.other_processes)
    child_bytes = _bytes_started_with_trial(out_of_memory, history)
    # Most of the memory of other processes appeared with the trial, so these are its child processes.
    if child_bytes > other_bytes / 2 and own_bytes + child_bytes > reserved_bytes:
        return own_bytes + child_bytes
    # Third, without a reservation, the trial counts as the cause if it used at least as much as the others.
    if reserved_bytes == 0 and own_bytes >= other_bytes:
        return own_bytes or ASSUMED_MEMORY_BYTES
    return None


def _bytes_started_with_trial(out_of_memory: OutOfMemory, history: TrialOomHistory) -> int:
    """Return the memory of the processes that started after the previous kill of the trial, in bytes.

    Ray ends the child processes of a killed worker. If the processes that took the memory are new each time, they were
    started by the trial. A program that runs independently of the trial keeps its process ID.
    """
    if history.other_pids is None:
        return 0
    new = [process for process in out_of_memory.other_processes if process.pid not in history.other_pids]
    return sum(process.used_bytes for process in new)


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
    if out_of_memory.kind == "host":
        return _next_host_memory(reservation, out_of_memory, growth, nodes)
    return _next_gpu_memory(reservation, growth, max_gpus, nodes)


def _next_gpu_memory(
    reservation: BundleGroup, growth: float, max_gpus: float, nodes: Sequence[NodeCapacity]
) -> MemoryFloor:
    had_ticks = floor_of(reservation.bundles).gpu_ticks
    if not had_ticks:
        raise InfeasibleRequestError(
            asked="more GPU memory",
            offered="the trial does not reserve a GPU",
            short_of="GPU memory",
            suggestion="Plan a GPU fraction for the trial.",
        )
    num_devices = most_devices(reservation, nodes)
    of_nodes = max(1.0, num_devices)
    most = min(max_gpus, of_nodes)
    wish_ticks = next_share(had_ticks, growth=growth, max_gpus=most, num_devices=num_devices)
    wish = MemoryFloor(gpu_ticks=wish_ticks or 0)
    floor = largest_that_fits(wish, reservation, nodes)
    if floor.gpu_ticks:
        return floor
    remedy = "Use a GPU with more memory, or use less memory with a smaller batch or model."
    # Which limit was reached: the nodes, the user's maximum, or the number of devices of a node.
    if wish_ticks is not None:
        offered = f"no node has {wish} in addition to the other resources of the trial"
    elif max_gpus < of_nodes:
        offered = f"max_gpus is {format_amount(max_gpus)}"
        remedy = "Raise max_gpus, use a GPU with more memory, or use less memory with a smaller batch or model."
    else:
        # Also if ``max_gpus`` is the same number, because raising it would not help.
        offered = f"no node has more than {amount_of(of_nodes, 'GPU')}"
    raise InfeasibleRequestError(
        asked=f"more than {amount_of(had_ticks / TICKS, 'GPU')}",
        offered=offered,
        short_of="GPU memory",
        suggestion=remedy,
    )


def _next_host_memory(
    reservation: BundleGroup, out_of_memory: OutOfMemory, growth: float, nodes: Sequence[NodeCapacity]
) -> MemoryFloor:
    # Ray does not enforce the reserved host memory, so the trial may have used more than it reserved.
    needed_bytes = (out_of_memory.used_bytes or 0) + (out_of_memory.requested_bytes or 0)
    needed_bytes = max(floor_of(reservation.bundles).memory_bytes, needed_bytes) or ASSUMED_MEMORY_BYTES
    wish = MemoryFloor(memory_bytes=math.ceil(needed_bytes * growth))
    floor = largest_that_fits(wish, reservation, nodes)
    if floor.memory_bytes:
        return floor
    most_bytes = max((node.resources.memory_bytes or 0 for node in nodes), default=0)
    selects = matcher(reservation.common_selector)
    selected = [node.resources.memory_bytes or 0 for node in nodes if selects(node.ray_labels)]
    usable_bytes = max(selected, default=0)
    offered = f"the largest node has {format_bytes(most_bytes)} of host memory"
    if usable_bytes < most_bytes:
        offered = f"the nodes on which it may run have at most {format_bytes(usable_bytes)} of host memory"
    raise InfeasibleRequestError(
        asked=f"more host memory than {format_bytes(needed_bytes)}",
        offered=offered,
        short_of="memory",
        suggestion="Add a node with more host memory, or load less data at a time.",
    )


def decide_worker_retry(
    plan: TrialPlan,
    out_of_memory: OutOfMemory,
    history: TrialOomHistory,
    *,
    growth: float,
    max_gpus: float,
    nodes: Sequence[NodeCapacity],
) -> RetryDecision:
    """Return whether a Train run of ``plan`` is retried, and with how much memory for each worker.

    The arguments and errors are those of :func:`decide_retry`, but ``max_gpus`` applies to each worker.
    """
    slot = plan.slots[0]
    return decide_retry(
        BundleGroup([_worker_bundle(slot)]),
        out_of_memory,
        history,
        growth=growth,
        max_gpus=max_gpus,
        nodes=_nodes_of(slot, nodes),
    )


def larger_plan(plan: TrialPlan, floor: MemoryFloor, nodes: Sequence[NodeCapacity]) -> TrialPlan:
    """Return the plan with at least ``floor`` for each Train worker, and the number of trials that then fit.

    Only the first slot type of the plan is kept, because a Train run does not use the other types.

    Raises:
        InfeasibleRequestError: The larger workers do not all fit on the nodes.
    """
    slot = plan.slots[0]
    bundle = _worker_bundle(slot)
    larger = _with_floor(slot, floor)
    request = Request(
        worker=larger.per_worker,
        num_workers=larger.num_workers,
        max_workers=larger.max_workers_alone,
        accelerator_type=larger.accelerator_type,
    )
    groups = [NodeGroup(node, 1) for node in _nodes_of(slot, nodes)]
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


def _nodes_of(slot: TrialSlot, nodes: Sequence[NodeCapacity]) -> list[NodeCapacity]:
    selects = matcher(slot.label_selector)
    return [node for node in nodes if selects(node.ray_labels)]


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
