"""Random clusters and policies for Hypothesis."""

from hypothesis import assume
from hypothesis import strategies as st

from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    ByConfigPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.node import GpuDevice
from tune_policies.policies.policy import build_policy
from tune_policies.testing.clusters import draw_nodes
from tune_policies.values.units import GIB

shares = st.sampled_from([0.0384, 0.05, 0.1, 0.2, 0.25, 0.3, 0.3333, 0.34, 0.4, 0.5, 0.57, 0.6]) | st.floats(0.01, 0.99)
gpu_amounts = shares | st.integers(1, 5)
cpu_amounts = st.sampled_from([0.1, 0.25, 0.5, 0.57, 1, 1.5, 2, 3, 8])
growing_workers = st.tuples(st.integers(1, 4), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
num_workers = st.integers(0, 4) | growing_workers
accelerator_types = st.sampled_from([None, "T4", "A100"])
wished_types = accelerator_types | st.sampled_from([("A100", "T4"), ("H100", "A100")])
custom = st.sampled_from([{}, {}, {"license": 1}, {"license": 0.3}])
gibs = st.integers(1, 64)
host_memory = st.none() | st.none() | gibs.map(lambda gib: f"{gib}GiB")
min_trials = st.sampled_from([1, 1, 1, 2, 5])


def clusters():
    """Draw clusters of alive nodes."""
    return st.randoms(use_true_random=False).map(lambda rng: ClusterCapacity(nodes=tuple(draw_nodes(rng))))


def plan_or_skip(policy, capacity):
    """Return the plan. If the policy is infeasible, let Hypothesis try another example."""
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        assume(False)


def sized_by_the_user(num_workers):
    """Draw policies that fix the size of a worker and run as many trials as fit."""
    return (
        st.builds(
            CpuPolicy,
            cpus=cpu_amounts,
            memory=host_memory,
            num_workers=num_workers,
            custom=custom,
        )
        | st.builds(
            GpuPolicy,
            gpus=gpu_amounts,
            cpus=st.none() | cpu_amounts,
            memory=host_memory,
            accelerator_type=wished_types,
            num_workers=num_workers,
            min_gpu_memory=st.none() | st.sampled_from(["10GiB", "17GiB", "50GiB"]),
            custom=custom,
        )
        | st.builds(
            GpuMemoryPolicy,
            gpu_memory=st.sampled_from(["100MiB", "1GiB", "5GiB", "6GiB", "16GiB", "40GiB"]),
            cpus=st.none() | cpu_amounts,
            memory=host_memory,
            accelerator_type=wished_types,
            num_workers=num_workers,
            custom=custom,
            max_trials_per_gpu=st.none() | st.integers(1, 4),
        )
        | st.builds(
            AcceleratorPolicy,
            resource=st.sampled_from(["GPU", "NPU"]),
            amount=gpu_amounts,
            cpus=st.none() | cpu_amounts,
            memory=host_memory,
            num_workers=num_workers,
        )
        | st.builds(
            AcceleratorPolicy,
            resource=st.just("HPU"),
            amount=st.integers(1, 5),
            cpus=st.none() | cpu_amounts,
            num_workers=num_workers,
        )
        | st.builds(
            AcceleratorPolicy,
            resource=st.just("TPU"),
            amount=st.sampled_from([1, 2, 4, 8]),
            cpus=st.none() | cpu_amounts,
        )
    )


def selecting(inner):
    return st.builds(
        SelectingPolicy,
        inner=inner,
        label_selector=st.sampled_from(
            [{}, {"zone": "eu"}, {"zone": "!us"}, {"zone": "in(eu, us)", "disk": "!ssd"}, {"zone": "!in(eu,us)"}]
        ),
        exclude_nodes=st.sampled_from([(), ("node-0",), ("node-1", "node-2")]),
    )


fixed_size = sized_by_the_user(st.just(0)) | selecting(sized_by_the_user(st.just(0)))


def even_splits(num_workers):
    return st.builds(
        EvenSplitPolicy,
        num_trials=st.integers(1, 50),
        min_cpus=cpu_amounts,
        min_gpus=st.just(0) | gpu_amounts,
        memory=host_memory,
        num_workers=num_workers,
    )


def leaves_with(num_workers):
    return sized_by_the_user(num_workers) | even_splits(num_workers)


def wrapping(inner):
    return (
        st.builds(FirstFeasiblePolicy, policies=st.lists(inner, min_size=1, max_size=3), min_trials=min_trials)
        | st.builds(AutoscalingPolicy, inner=inner, max_nodes_to_add=st.none() | st.integers(0, 3))
        | st.builds(CappedPolicy, inner=inner, max_concurrent_trials=st.integers(1, 9))
        | st.builds(
            ReservingPolicy,
            inner=inner,
            cpus=st.just(0) | cpu_amounts,
            gpus=st.integers(0, 2),
            memory=st.none() | gibs.map(lambda gib: f"{gib}GiB"),
            gpu_memory=st.none() | gibs.map(lambda gib: f"{gib}GiB"),
        )
        | selecting(inner)
    )


def mixing(inner):
    speeds = st.sampled_from([0.5, 1, 1e-300, 1e11])
    return st.lists(inner, min_size=2, max_size=3).flatmap(
        lambda policies: st.builds(
            MixedPolicy,
            policies=st.just(policies),
            speeds=st.none() | st.tuples(*[speeds] * len(policies)),
        )
    )


def choosing(inner):
    """Draw policies with one to three policies for values in the config, and possibly a default."""
    return st.builds(
        ByConfigPolicy,
        key=st.just("algo"),
        policies=st.dictionaries(st.sampled_from(["SAC", "PPO", 3]), inner, min_size=1),
        default=st.none() | inner,
    )


leaves = leaves_with(num_workers)
wrapped = st.recursive(leaves, wrapping, max_leaves=4)
with_kinds = st.recursive(leaves, lambda inner: mixing(inner) | wrapping(inner), max_leaves=5)
"""Mixed, capped and reserving policies, nested in any order."""
by_config = st.recursive(choosing(leaves), wrapping, max_leaves=2)
growing = st.recursive(leaves_with(growing_workers), wrapping, max_leaves=3)


def _similar_cluster(rng):
    """Return a cluster of 2 to 5 nodes with few kinds of hardware, whose nodes differ in their labels and devices."""
    kinds = [_hardware(rng) for _ in range(rng.randint(1, 3))]
    labels = ({}, {"zone": "eu"}, {"zone": "us", "disk": "ssd"})
    return ClusterCapacity(
        nodes=tuple(
            NodeCapacity(node_id=f"node-{number}", labels=rng.choice(labels), **rng.choice(kinds))
            for number in range(rng.randint(2, 5))
        )
    )


def _hardware(rng):
    gpus, cpus = rng.choice((0, 1, 1, 2)), rng.choice((0, 4, 4, 8))
    name, memory_gib = rng.choice((("T4", 16), ("A100", 40), ("A100", 80)))
    memory = rng.choice((None, 16 * GIB, 16 * GIB + 5))
    custom = rng.choice(({}, {}, {"NPU": 2}, {"license": 1}))
    of_gpu = {}
    if gpus:
        device = GpuDevice(index=0, name=name, memory_bytes=memory_gib * GIB)
        devices = rng.choice((None, tuple(device.model_copy(update={"index": i}) for i in range(gpus))))
        of_gpu = {"accelerator_type": name, "devices": devices}
    in_use = rng.choice((None, None, Resources(cpus=min(2, cpus))))
    has = Resources(cpus=cpus, gpus=gpus, memory_bytes=memory, custom=custom)
    return {"resources": has, "in_use": in_use, **of_gpu}


similar_clusters = st.randoms(use_true_random=False).map(_similar_cluster)
"""Clusters in which choices between nodes are close."""


def without_named_nodes(policy):
    """Return the policy without the names of excluded nodes."""
    return build_policy(_without_names(policy.model_dump()))


def _without_names(data):
    if isinstance(data, dict):
        return {name: () if name == "exclude_nodes" else _without_names(each) for name, each in data.items()}
    return [_without_names(each) for each in data] if isinstance(data, list | tuple) else data
