"""Builds cluster capacities for tests."""

from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, Resources

GIB = 2**30


def gpu_node(
    node_id,
    *,
    gpus=1,
    cpus=64,
    gpu_memory_gib=None,
    num_devices=None,
    accelerator_type=None,
    memory_gib=None,
    custom=None,
    labels=None,
    **more,
):
    """Return a node. With ``gpu_memory_gib``, the node has ``num_devices`` devices (default: one for each GPU).

    ``more`` are other fields of ``NodeCapacity``.
    """
    devices = None
    if gpu_memory_gib is not None:
        devices = tuple(
            GpuDevice(index=i, name=accelerator_type or "GPU", memory_bytes=int(gpu_memory_gib * GIB))
            for i in range(gpus if num_devices is None else num_devices)
        )
    memory = None if memory_gib is None else memory_gib * GIB
    return NodeCapacity(
        node_id=node_id,
        resources=Resources(cpus=cpus, gpus=gpus, memory_bytes=memory, custom=custom or {}),
        accelerator_type=accelerator_type,
        devices=devices,
        labels=labels or {},
        **more,
    )


def nodes(*shapes):
    """Return a cluster from (cpus, gpus) pairs."""
    return ClusterCapacity.of(*(Resources(cpus=cpus, gpus=gpus) for cpus, gpus in shapes))


def slice_hosts(name, *, topology="2x2x2", accelerator_type="TPU-V4", pod_type="v4-16", num_hosts=2, tpus=4, cpus=8):
    """Return the hosts of a TPU slice with Ray's labels and resources."""
    return [
        NodeCapacity(
            node_id=f"{name}-{i}",
            resources=Resources(
                cpus=cpus, custom={"TPU": tpus, name: 1} | ({f"TPU-{pod_type}-head": 1} if i == 0 else {})
            ),
            accelerator_type=accelerator_type,
            labels={
                "ray.io/tpu-slice-name": name,
                "ray.io/tpu-topology": topology,
                "ray.io/tpu-worker-id": str(i),
                "ray.io/tpu-pod-type": pod_type,
            },
        )
        for i in range(num_hosts)
    ]


def with_devices(*shapes):
    """Return a cluster from (cpus, custom resources) pairs."""
    return ClusterCapacity.of(*(Resources(cpus=cpus, custom=custom) for cpus, custom in shapes))
