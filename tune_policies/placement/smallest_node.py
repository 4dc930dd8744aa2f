"""Finds the smallest node on which a policy's trial runs, by planning on larger and larger nodes.

A policy says what a trial needs only by its plan. Where no node fits, and the autoscaler's node types are not known,
this plan says what to ask the autoscaler for.
"""

from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES
from tune_policies.cluster.capacity import ClusterCapacity, GpuDevice, NodeCapacity
from tune_policies.placement.packing import largest
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Resources
from tune_policies.values.units import GIB

_MOST: Final = 2**16
"""No node has more of anything."""

GPU_MEMORY: Final = "GPU memory"
"""How errors call it; in an imagined node it is counted in GiB for each GPU."""


def plan_on_smallest_node(policy: ResourcePolicy) -> TrialPlan | None:
    """Return the plan of ``policy`` for the smallest node on which a trial runs; ``None``: none is found.

    A policy that wants GPU memory gets a GPU that it fills, so for each worker a whole one.
    """
    amounts: dict[str, int] = {}
    while (error := _why_not(policy, amounts)) is not None:
        grown = amounts | {name: max(1, 2 * amounts.get(name, 0)) for name in _short_of(error)}
        if grown == amounts or max(grown.values()) > _MOST:
            return None
        amounts = grown
    for name in sorted(amounts, reverse=True):  # GPUs before CPUs
        amounts = amounts | {name: _fewest(policy, amounts, name)}
    return policy.plan(_capacity(amounts))


def _fewest(policy: ResourcePolicy, amounts: dict[str, int], name: str) -> int:
    def too_few(amount: int) -> bool:
        return _why_not(policy, amounts | {name: amount}) is not None

    return largest(0, amounts[name], too_few) + 1 if too_few(0) else 0


def _why_not(policy: ResourcePolicy, amounts: dict[str, int]) -> InfeasibleRequestError | None:
    try:
        policy.plan(_capacity(amounts))
    except InfeasibleRequestError as error:
        return error
    return None


def _short_of(error: InfeasibleRequestError) -> list[str]:
    """Return the names of what to add to the node; empty: more would not help."""
    if error.tried:
        return _short_of(error.tried[0])
    if error.short_of == "memory":
        return []  # the node's host memory is not known, which limits nothing already
    if error.short_of == GPU_MEMORY or error.short_of in ACCELERATOR_TYPES:
        return ["GPU", error.short_of]
    return [error.short_of]


def _capacity(amounts: dict[str, int]) -> ClusterCapacity:
    rest = {name: amount for name, amount in amounts.items() if amount}
    cpus, gpus, memory = (rest.pop(name, 0) for name in ("CPU", "GPU", GPU_MEMORY))
    types = [name for name in rest if name in ACCELERATOR_TYPES]
    devices = [GpuDevice(index=i, name="imagined", memory_bytes=memory * GIB) for i in range(gpus if memory else 0)]
    node = NodeCapacity(
        node_id="imagined",
        resources=Resources(cpus=cpus, gpus=gpus, custom={name: rest[name] for name in rest.keys() - set(types)}),
        accelerator_type=types[0] if types else None,
        devices=tuple(devices) if memory else None,
    )
    return ClusterCapacity(nodes=(node,))
