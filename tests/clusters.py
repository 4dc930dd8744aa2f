"""Capacities by hand, for tests."""

from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, Resources

GIB = 2**30


def gpu_node(
    node_id, *, gpus=1, cpus=64, gpu_memory_gib=None, accelerator_type=None, memory_gib=None, custom=None, labels=None
):
    """One node; its devices are read if their memory is given."""
    devices = None
    if gpu_memory_gib is not None:
        devices = tuple(
            GpuDevice(index=i, name=accelerator_type or "GPU", memory_bytes=int(gpu_memory_gib * GIB))
            for i in range(gpus)
        )
    memory = None if memory_gib is None else memory_gib * GIB
    return NodeCapacity(
        node_id=node_id,
        resources=Resources(cpus=cpus, gpus=gpus, memory_bytes=memory, custom=custom or {}),
        accelerator_type=accelerator_type,
        devices=devices,
        labels=labels or {},
    )


def nodes(*shapes):
    """A cluster from (cpus, gpus) pairs."""
    return ClusterCapacity.of(*(Resources(cpus=cpus, gpus=gpus) for cpus, gpus in shapes))
