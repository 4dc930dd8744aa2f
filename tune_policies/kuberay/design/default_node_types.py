"""Default node types: nodes that suit a policy, for users without a catalogue.

The policy says what a trial needs by its plan for the smallest node on which one runs. The default nodes are the
smallest that leave nothing idle. For trials with devices, a node has one device, or as many as a worker has. For trials
on CPUs, it has up to 16 CPUs. It has 4 GiB of memory for each CPU, which clouds sell as general purpose, or more where
trials ask for more.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, DEVICE_RESOURCES, gpu_memory_of_type
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.catalog import NodeCatalog, NodeType
from tune_policies.kuberay.design.slot_choices import policies_by_slot
from tune_policies.placement.smallest_node import plan_on_smallest_node
from tune_policies.policies.accelerator import AcceleratorPolicy
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.policies.selecting import SelectingPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, to_ticks
from tune_policies.values.units import GIB

_CPUS_PER_DEVICE: Final = 8
"""Where a policy leaves them to the nodes."""

_CPU_NODE: Final = 16
"""CPUs of a node without devices, unless a worker has more."""

_BYTES_PER_CPU: Final = 4 * GIB

_HINT: Final = "give a catalogue of the nodes that there could be"
"""A program passes it as ``catalog``, and the command takes it as ``--nodes``."""


class _Worker(NamedTuple):
    """What a node is made for.

    Attributes:
        cpus: Of one worker; ``None``: what is left to each.
        resource: Ray's resource of its devices; ``None``: it has none.
        devices: Of one worker, below 1 a part of one.
        accelerator_type: Ray's name of the type.
        topology: Of its TPU slices.
        memory_bytes: Host memory of one worker.
        custom: Other resources of one worker.
    """

    cpus: float | None
    resource: str | None = None
    devices: float = 0
    accelerator_type: str | None = None
    topology: str | None = None
    memory_bytes: int | None = None
    custom: Mapping[str, float] = {}


def default_catalog(policy: ResourcePolicy, num_trials: int) -> tuple[NodeCatalog, tuple[str, ...]]:
    """Return nodes that suit the first choice of a policy, and a sentence about each.

    Raises:
        InvalidResourcesError: It cannot be told; the message says why.
    """
    node_types: dict[str, NodeType] = {}
    for inner in policies_by_slot(policy.choices[0]):
        node_type = _node_type(_worker(inner), num_trials)
        while node_types.get(node_type.name, node_type) != node_type:
            node_type = node_type.model_copy(update={"name": f"{node_type.name}-b"})
        node_types[node_type.name] = node_type
    notes = (
        f"no catalogue is given, so {each.name} suits the policy: {each.resources}" for each in node_types.values()
    )
    return NodeCatalog(node_types=tuple(node_types.values())), tuple(notes)


def _worker(policy: ResourcePolicy) -> _Worker:
    match policy:
        case AcceleratorPolicy() if policy.topology is not None:  # slices have labels, which no imagined node has
            return _Worker(policy.cpus, policy.resource, policy.amount, policy.accelerator_type, policy.topology)
        case GpuPolicy():
            if policy.min_gpu_memory is not None:
                _check_memory(policy, policy.min_gpu_memory, _one_type(policy.accelerator_type))
        case GpuMemoryPolicy():
            _check_memory(policy, policy.gpu_memory or 1, _one_type(policy.accelerator_type))
            if policy.gpu_memory is None:  # a profile: what fits one device is what fits
                return _Worker(policy.cpus, "GPU", 1, _one_type(policy.accelerator_type), custom=policy.custom)
        case SelectingPolicy() if policy.label_selector:
            raise InvalidResourcesError(f"which nodes have the labels of a SelectingPolicy is not known: {_HINT}")
        case WrappingPolicy():
            return _worker(policy.inner.choices[0])
    plan = plan_on_smallest_node(policy)
    if plan is None:
        raise InvalidResourcesError(f"which nodes suit a {type(policy).__name__} is not known: {_HINT}")
    slot = plan.slots[0]
    amounts, custom = slot.worker, dict(slot.worker.custom)
    resource = next((name for name in amounts.ticks if name in DEVICE_RESOURCES), None)
    devices = amounts.gpus if resource == "GPU" else custom.pop(str(resource), 0)
    # No CPUs beside devices means as many as the nodes have.
    cpus = None if resource is not None and amounts.cpus == 0 else amounts.cpus
    return _Worker(cpus, resource, devices, slot.accelerator_type, memory_bytes=amounts.memory_bytes, custom=custom)


def _one_type(wish: str | tuple[str, ...] | None) -> str | None:
    return wish[0] if isinstance(wish, tuple) else wish


def _check_memory(policy: ResourcePolicy, needed: int, accelerator_type: str | None) -> None:
    has = gpu_memory_of_type(accelerator_type)
    if has is None:
        named = f"of {accelerator_type!r}" if accelerator_type else "of GPUs without a type"
        raise InvalidResourcesError(
            f"{type(policy).__name__} goes by GPU memory, and that {named} is not known: name an accelerator_type such "
            f"as 'A100', or {_HINT}"
        )
    if has < needed:
        larger = sorted(name for name in ACCELERATOR_TYPES if (gpu_memory_of_type(name) or 0) >= needed)
        raise InvalidResourcesError(
            f"{type(policy).__name__} needs {needed} bytes of GPU memory, and a {accelerator_type} has {has}: name a "
            f"type with more ({', '.join(larger) or 'there is none'})"
        )


def _node_type(worker: _Worker, num_trials: int) -> NodeType:
    devices, workers = _devices(worker)
    if worker.resource is None:
        cpus = worker.cpus or 1
        workers = max(1, min(int(_CPU_NODE / cpus), num_trials))
        num_cpus = math.ceil(round(workers * cpus, 4))
    elif worker.cpus is None:
        num_cpus = _CPUS_PER_DEVICE * devices
    else:
        num_cpus = max(1, math.ceil(round(workers * worker.cpus, 4)))
    # Beside the trials there is a little room for Train's drivers.
    memory = max(num_cpus * _BYTES_PER_CPU, workers * (worker.memory_bytes or 0) + GIB)
    custom = {name: float(math.ceil(round(workers * amount, 4))) for name, amount in worker.custom.items()}
    if worker.resource not in (None, "GPU"):
        custom[str(worker.resource)] = devices
    return NodeType(
        name=_name(worker, devices, num_cpus),
        cpus=num_cpus,
        memory_bytes=memory,
        gpus=devices if worker.resource == "GPU" else 0,
        custom=custom,
        accelerator_type=worker.accelerator_type,
        topology=worker.topology,
        max_nodes=max(1000, 1000 * devices),
    )


def _devices(worker: _Worker) -> tuple[int, int]:
    """Return how many devices a node has, and how many workers they are for."""
    if worker.resource is None:
        return 0, 1
    if worker.topology is not None and worker.accelerator_type is not None:
        shape = SliceShape(worker.topology, worker.accelerator_type)
        chips = shape.chips if shape.has_one_host else 4
        return chips, max(1, chips // int(worker.devices))
    if worker.devices < 1:
        return 1, TICKS // to_ticks(worker.devices)
    return int(worker.devices), 1


def _name(worker: _Worker, devices: int, cpus: int) -> str:
    what = worker.accelerator_type or worker.resource
    if what is None:
        return f"cpu-{cpus}"
    words = [*re.findall(r"[a-z0-9]+", what.lower()), *([worker.topology] if worker.topology else [])]
    return "-".join([*words, *([f"x{devices}"] if devices > 1 else [])])
