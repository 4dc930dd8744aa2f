"""Random clusters and policies for Hypothesis."""

from hypothesis import strategies as st

from tests.clusters import gpu_node
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    ReservingPolicy,
)

shares = st.sampled_from([0.0384, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.3333, 0.34, 0.4, 0.5, 0.57, 0.6, 0.9])
gpu_amounts = shares | st.integers(1, 5)
cpu_amounts = st.sampled_from([0.1, 0.25, 0.5, 0.57, 1, 1.5, 2, 3, 8])
num_workers = st.integers(0, 4)
accelerator_types = st.sampled_from([None, "T4", "A100"])
gibs = st.integers(1, 64)


@st.composite
def clusters(draw):
    return ClusterCapacity.of(
        *(
            gpu_node(
                f"node-{i}",
                gpus=draw(st.integers(0, 8)),
                cpus=draw(st.sampled_from([0, 0.5, 1, 2, 3, 7, 16, 64])),
                gpu_memory_gib=draw(st.none() | st.sampled_from([8, 16, 17.5, 80])),
                accelerator_type=draw(accelerator_types),
                memory_gib=draw(st.none() | gibs),
            )
            for i in range(draw(st.integers(1, 4)))
        )
    )


def sized_by_the_user(num_workers):
    """Policies whose worker has what the user asked for, so that as many run as fit."""
    return (
        st.builds(
            CpuPolicy, cpus=cpu_amounts, memory=st.none() | gibs.map(lambda gib: f"{gib}GiB"), num_workers=num_workers
        )
        | st.builds(
            GpuPolicy,
            gpus=gpu_amounts,
            cpus=st.none() | cpu_amounts,
            accelerator_type=accelerator_types,
            num_workers=num_workers,
        )
        | st.builds(
            GpuMemoryPolicy,
            gpu_memory=st.sampled_from(["100MiB", "1GiB", "5GiB", "6GiB", "16GiB", "40GiB"]),
            cpus=st.none() | cpu_amounts,
            accelerator_type=accelerator_types,
            num_workers=num_workers,
            max_trials_per_gpu=st.none() | st.integers(1, 4),
        )
    )


fixed_size = sized_by_the_user(st.just(0))
leaves = sized_by_the_user(num_workers) | st.builds(
    EvenSplitPolicy,
    num_trials=st.integers(1, 50),
    min_cpus=cpu_amounts,
    min_gpus=st.just(0) | gpu_amounts,
    num_workers=num_workers,
    balance_waves=st.booleans(),
)

wrapped = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda policies: FirstFeasiblePolicy(*policies))
        | st.builds(AutoscalingPolicy, inner=inner, max_nodes_to_add=st.none() | st.integers(0, 3))
        | st.builds(CappedPolicy, inner=inner, max_concurrent_trials=st.integers(1, 9))
        | st.builds(
            ReservingPolicy,
            inner=inner,
            cpus=st.just(0) | cpu_amounts,
            gpus=st.integers(0, 2),
            memory=st.none() | gibs.map(lambda gib: f"{gib}GiB"),
        )
    ),
    max_leaves=4,
)
