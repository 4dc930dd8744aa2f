"""Default nodes for a design without a catalog: the smallest nodes on which no resource stays idle.

A node for trials with devices has one device, or the devices of one worker. A node for trials on CPUs has up to 16
CPUs. Nodes have 4 GiB of memory per CPU, like general-purpose machines in clouds, or more if the trials need more.
"""

import math
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES, KNOWN_TYPES, gpu_memory_of_type
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType, node_type_name
from tune_policies.kuberay.design.slot_choices import policies_by_slot
from tune_policies.placement.scale_up import plan_on_smallest_node
from tune_policies.policies.accelerator import AcceleratorPolicy
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.node_selection import SelectingPolicy
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, Resources, to_ticks
from tune_policies.values.units import GIB, format_bytes

_CPUS_PER_DEVICE: Final = 8
"""The number of CPUs per device of a default node, if the policy does not set the CPUs."""

_CPUS_OF_CPU_NODE: Final = 16
"""The number of CPUs of a default node without devices, unless a worker needs more."""

_BYTES_PER_CPU: Final = 4 * GIB

_HINT: Final = "pass a catalog of the available nodes (--nodes)"


class _Worker(NamedTuple):
    """The worker for which a default node is designed. With devices and 0 CPUs, it uses all CPUs of the node."""

    amounts: Resources
    accelerator_type: str | None
    topology: str | None = None


def default_catalog(policy: ResourcePolicy, num_trials: int) -> tuple[NodeCatalog, tuple[str, ...]]:
    """Return nodes that suit the first choice of a policy, and a note about each node type.

    Raises:
        InvalidResourcesError: The policy does not determine the nodes.
    """
    node_types: dict[str, NodeType] = {}
    for inner in policies_by_slot(policy.choices[0]):
        node_type = _node_type(_worker(inner), num_trials)
        # Two slot types can need different nodes with the same default name.
        while node_types.get(node_type.name, node_type) != node_type:
            node_type = node_type.model_copy(update={"name": f"{node_type.name}-b"})
        node_types[node_type.name] = node_type
    notes = (
        f"without a catalog, the design uses a default node type, {node_type.name}: {node_type.resources}"
        for node_type in node_types.values()
    )
    return NodeCatalog(nodes=tuple(node_types.values())), tuple(notes)


def _worker(policy: ResourcePolicy) -> _Worker:
    match policy:
        case AcceleratorPolicy() if policy.topology is not None:  # the smallest node lacks the labels of slices
            custom = {policy.resource: policy.amount}
            amounts = Resources(cpus=policy.cpus or 0, memory_bytes=int(policy.memory or 0) or None, custom=custom)
            return _Worker(amounts, policy.accelerator_type, policy.topology)
        case GpuPolicy():
            if policy.min_gpu_memory is not None:
                _check_memory(policy, int(policy.min_gpu_memory), _one_type(policy.accelerator_type))
        case GpuMemoryPolicy():
            _check_memory(policy, int(policy.gpu_memory or 1), _one_type(policy.accelerator_type))
            if policy.gpu_memory is None:  # with a profile, design for one whole GPU
                measured = policy.profile and policy.profile.host_memory_bytes
                memory = int(policy.memory or measured or 0) or None
                amounts = Resources(cpus=policy.cpus or 0, gpus=1, memory_bytes=memory, custom=policy.custom)
                return _Worker(amounts, _one_type(policy.accelerator_type))
        case SelectingPolicy() if policy.label_selector:
            raise InvalidResourcesError(f"SelectingPolicy selects nodes by labels, which default nodes lack: {_HINT}")
        case WrappingPolicy():
            return _worker(policy.inner.choices[0])
    plan = plan_on_smallest_node(policy.plan)
    if plan is None:
        raise InvalidResourcesError(f"there are no default nodes for {type(policy).__name__}: {_HINT}")
    return _Worker(plan.slots[0].worker, plan.slots[0].accelerator_type)


def _one_type(types: str | tuple[str, ...] | None) -> str | None:
    if isinstance(types, tuple):
        return types[0]
    return types


def _check_memory(policy: ResourcePolicy, needed: int, accelerator_type: str | None) -> None:
    has = gpu_memory_of_type(accelerator_type)
    if has is None:
        named = f"for {accelerator_type!r}" if accelerator_type else "without a GPU type"
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs the size of the GPU memory, which is unknown {named}: set "
            f"accelerator_type (such as 'A100'), or {_HINT}"
        )
    if has < needed:
        larger = sorted(name for name in KNOWN_TYPES if (gpu_memory_of_type(name) or 0) >= needed)
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs {format_bytes(needed)} of GPU memory, but {accelerator_type} has only "
            f"{format_bytes(has)}. Types with enough memory: {', '.join(larger) or 'none'}"
        )


def _node_type(worker: _Worker, num_trials: int) -> NodeType:
    amounts = worker.amounts
    by_name = {"GPU": amounts.gpus, **amounts.custom}
    resource = next((name for name, amount in by_name.items() if amount and name in DEVICE_RESOURCES), None)
    if resource is None:
        cpus_each = amounts.cpus or 1
        devices, workers = 0, max(1, min(int(_CPUS_OF_CPU_NODE / cpus_each), num_trials))
        cpus = _rounded_up(workers * cpus_each)
    else:
        devices, workers = _devices_and_workers(worker, by_name[resource])
        cpus = _rounded_up(workers * amounts.cpus) or _CPUS_PER_DEVICE * devices
    custom = {name: float(_rounded_up(workers * amount)) for name, amount in amounts.custom.items() if name != resource}
    gpus = 0
    if resource == "GPU":
        gpus = devices
    elif resource is not None:
        custom[resource] = devices
    topology = [worker.topology] if worker.topology else []
    # Without a catalog, the number of nodes is not known, so it must not limit the design.
    count = max(1000, 1000 * devices)
    if worker.topology is not None and worker.accelerator_type is not None:  # only whole slices exist
        num_hosts = max(1, SliceShape(worker.topology, worker.accelerator_type).chips // devices)
        count = max(num_hosts, count - count % num_hosts)
    return NodeType(
        name=node_type_name(cpus, resource, devices, worker.accelerator_type, *topology),
        cpus=cpus,
        # Trial drivers need memory in addition to the workers.
        memory=max(cpus * _BYTES_PER_CPU, workers * (amounts.memory_bytes or 0) + GIB),
        gpus=gpus,
        custom=custom,
        accelerator_type=worker.accelerator_type,
        topology=worker.topology,
        count=count,
    )


def _rounded_up(amount: float) -> int:
    return math.ceil(round(amount, 4))


def _devices_and_workers(worker: _Worker, devices: float) -> tuple[int, int]:
    """Return the numbers of devices and workers of a node if each worker uses ``devices`` devices."""
    if worker.topology is not None and worker.accelerator_type is not None:
        shape = SliceShape(worker.topology, worker.accelerator_type)
        chips = shape.chips if shape.has_one_host else 4  # every host of a larger slice has 4 chips
        return chips, max(1, chips // int(devices))
    if devices < 1:
        return (1, TICKS // to_ticks(devices))
    return (int(devices), 1)
