"""Tests that no cheaper combination of nodes has room for as many trials as the chosen nodes."""

from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tune_policies import AcceleratorPolicy, CappedPolicy, CpuPolicy, GpuMemoryPolicy, GpuPolicy, InfeasibleRequestError
from tune_policies.kuberay import NodeType
from tune_policies.kuberay.design.catalog_file import HEAD
from tune_policies.kuberay.design.cheapest_nodes import NodePool, choose_nodes
from tune_policies.kuberay.design.cluster_spec import head_of

prices = st.none() | st.integers(1, 9)


@st.composite
def node_types(draw, name):
    gpus = draw(st.integers(0, 2))
    return NodeType(
        name=name,
        cpus=draw(st.sampled_from([1, 2, 4, 6, 16])),
        memory=draw(st.sampled_from(["8GiB", "32GiB"])),
        gpus=gpus,
        accelerator_type=draw(st.sampled_from(["T4", "A100", "A100-80G"])) if gpus else None,
        custom={} if gpus else draw(st.sampled_from([{}, {"HPU": 2}])),
        price_per_hour=draw(prices),
        count=draw(st.integers(1, 3)),
    )


catalogs = st.integers(1, 3).flatmap(lambda number: st.tuples(*(node_types(f"node-{i}") for i in range(number))))

policies = st.one_of(
    st.builds(CpuPolicy, cpus=st.sampled_from([0.5, 1, 2, 3]), num_workers=st.sampled_from([0, 0, 2, 3])),
    st.builds(CpuPolicy, memory=st.sampled_from(["3GiB", "9GiB"])),
    st.builds(
        GpuPolicy,
        gpus=st.sampled_from([0.25, 0.3, 0.5, 1, 2]),
        cpus=st.sampled_from([None, 1, 2]),
        accelerator_type=st.sampled_from([None, "T4"]),
        num_workers=st.sampled_from([0, 0, 2]),
    ),
    st.builds(
        GpuMemoryPolicy,
        gpu_memory=st.sampled_from(["3GiB", "7GiB", "20GiB"]),
        cpus=st.sampled_from([None, 1]),
        same_for_all=st.booleans(),
    ),
    st.builds(AcceleratorPolicy, resource=st.just("HPU"), amount=st.sampled_from([1, 2])),
    st.builds(
        CappedPolicy, inner=st.builds(CpuPolicy, cpus=st.sampled_from([1, 2])), max_concurrent_trials=st.integers(1, 9)
    ),
)


def at_once(policy, pool, units):
    plan = pool.plan(policy, units)
    return 0 if plan is None else plan.min_concurrent_trials


def cost(policy, pool, units):
    plan = pool.plan(policy, units)
    uses_devices = plan.worker.gpus > 0 or bool(plan.worker.custom)
    costs = [[part * number for part in pool.cost(name, uses_devices=uses_devices)] for name, number in units.items()]
    return tuple(map(sum, zip(*costs, strict=True)))


def all_units(pool):
    for numbers in product(*(range(most + 1) for most in pool.most.values())):
        yield {name: number for name, number in zip(pool.most, numbers, strict=True) if number}


@example(
    policy=GpuMemoryPolicy(gpu_memory="20GiB", cpus=1, same_for_all=True),
    types=(
        NodeType(name="large-gpu", cpus=4, memory="32GiB", gpus=1, accelerator_type="A100-80G", count=1),
        NodeType(name="gpu", cpus=6, memory="32GiB", gpus=1, accelerator_type="A100", count=3, price_per_hour=1),
    ),
    num_trials=7,
)
@given(policy=policies, types=catalogs, num_trials=st.integers(1, 20))
def test_no_cheaper_nodes_have_room_for_as_many_trials(policy, types, num_trials):
    pool = NodePool({each.name: each for each in types}, head_of(HEAD))
    held = {tuple(units.items()): at_once(policy, pool, units) for units in all_units(pool)}
    most = max(held.values())
    assume(most)

    chosen = choose_nodes(policy, pool, pool.most, num_trials)

    enough = [dict(units) for units, trials in held.items() if trials >= min(num_trials, most)]
    assert chosen.num_trials == min(num_trials, most)
    assert cost(policy, pool, chosen.units) == min(cost(policy, pool, units) for units in enough)


@given(policy=policies, types=catalogs, num_trials=st.integers(1, 20))
def test_choosing_nodes_raises_an_error_if_no_trial_fits(policy, types, num_trials):
    pool = NodePool({each.name: each for each in types}, head_of(HEAD))
    assume(not at_once(policy, pool, pool.most))

    with pytest.raises(InfeasibleRequestError, match="with all nodes of the catalog"):
        choose_nodes(policy, pool, pool.most, num_trials)
