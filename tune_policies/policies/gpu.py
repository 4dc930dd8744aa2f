"""Trials with whole GPUs, or an equal share of one."""

from typing import Annotated

from pydantic import AfterValidator

from tune_policies.accelerators import check_accelerator_type
from tune_policies.capacity import ClusterCapacity, NodeCapacity
from tune_policies.errors import InvalidResourcesError
from tune_policies.packing import Request, equal_gpu_share, gpu_slots
from tune_policies.plan import TrialPlan
from tune_policies.planning import build_plan, cpus_that_strand_no_gpu
from tune_policies.policy import ResourcePolicy
from tune_policies.resources import TICKS, Amount, Count, GpuAmount, Resources, format_amount, from_ticks, to_ticks
from tune_policies.units import format_bytes


def _above_zero(gpus: float) -> float:
    if gpus == 0:
        raise InvalidResourcesError("gpus must be above 0, got 0: for trials without GPUs take CpuPolicy")
    return gpus


AcceleratorType = Annotated[str, AfterValidator(check_accelerator_type)]
"""A device type that Ray knows, such as ``"A100"``."""


class GpuPolicy(ResourcePolicy):
    """The same GPUs, or share of one, for every worker.

    Attributes:
        gpus: GPUs of each worker: whole, or below 1 a share, which is rounded up to the k-th part of a GPU.
        cpus: CPUs of each worker; ``None``: as many as strand no GPU.
        accelerator_type: Only devices of this type, such as ``"A100"``.
        num_workers: Train workers in a trial; 0: the trial itself trains.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    gpus: Annotated[GpuAmount, AfterValidator(_above_zero)] = 1
    cpus: Amount | None = None
    accelerator_type: AcceleratorType | None = None
    num_workers: Count = 0

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        wish = to_ticks(self.gpus)
        nodes = tuple(capacity.gpu_nodes(self.accelerator_type))
        share = equal_gpu_share(TICKS // wish, nodes) if wish < TICKS else wish
        reasons = []
        if share != wish:
            reasons.append(
                f"{format_amount(self.gpus)} GPU became {format_amount(from_ticks(share))}: "
                f"only {TICKS // share} such on a GPU, and unequal shares may wait for ever"
            )
        return plan_gpu_share(
            capacity,
            share,
            cpus=self.cpus,
            accelerator_type=self.accelerator_type,
            num_workers=self.num_workers,
            reasons=reasons,
        )


def plan_gpu_share(
    capacity: ClusterCapacity,
    share_ticks: int,
    *,
    cpus: float | None,
    accelerator_type: str | None,
    num_workers: int,
    reasons: list[str],
) -> TrialPlan:
    """Return the plan for workers with ``share_ticks`` of GPU each (1/10 000), on nodes of one type or any.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    nodes = tuple(node for node in usable_gpu_nodes(capacity, accelerator_type, cpus) if gpu_slots(node, share_ticks))
    reasons = list(reasons)
    if cpus is None and nodes:
        cpus = cpus_that_strand_no_gpu(nodes, share_ticks)
        reasons.append(f"{format_amount(cpus)} CPU per worker, so that no GPU is left without CPUs")
    memory = share_of_gpu_memory(nodes, share_ticks)
    if share_ticks < TICKS and nodes:
        reasons.append(
            "GPU memory was not read on every node, so each worker is held to its share of the device it gets"
            if memory is None
            else f"{format_bytes(memory)} of GPU memory per worker: its share of the smallest device in use"
        )
    request = Request(
        worker=Resources(cpus=cpus or 0, gpus=from_ticks(share_ticks)),
        num_workers=num_workers,
        accelerator_type=accelerator_type,
        gpu_memory_bytes=memory,
    )
    return build_plan(capacity, request, reasons)


def usable_gpu_nodes(
    capacity: ClusterCapacity, accelerator_type: str | None, cpus: float | None
) -> tuple[NodeCapacity, ...]:
    """Return the GPU nodes on which Ray may place a worker: of that type, if given, and with so many CPUs."""
    return tuple(node for node in capacity.gpu_nodes(accelerator_type) if node.resources.cpus >= (cpus or 0))


def share_of_gpu_memory(nodes: tuple[NodeCapacity, ...], share_ticks: int) -> int | None:
    """Return what ``share_ticks`` of the smallest device hold, in bytes; ``None``: some were not read."""
    memories = [node.smallest_gpu_memory_bytes for node in nodes]
    known = [memory for memory in memories if memory is not None]
    if not known or len(known) < len(memories):
        return None
    # Not share_ticks / 10 000 of it: a third is 0.3333 to Ray, and the rest of the device would go to waste.
    return min(known) // max(1, TICKS // share_ticks)
