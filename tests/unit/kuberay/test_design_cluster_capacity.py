"""Tests that the planned trials fit the designed cluster, for random policies and catalogs."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import leaves, sized_by_the_user, wrapped
from tune_policies import AutoscalingPolicy, CappedPolicy, InfeasibleRequestError, MixedPolicy
from tune_policies.kuberay import NodeCatalog, NodeType, design_cluster


@st.composite
def node_types(draw, name):
    gpus = draw(st.integers(0, 4))
    devices = {} if gpus else draw(st.sampled_from([{}, {}, {"NPU": 4}, {"HPU": 8}, {"TPU": 4}]))
    return NodeType(
        name=name,
        cpus=draw(st.sampled_from([1, 2, 4, 8, 48])),
        memory=draw(st.sampled_from(["4GiB", "16GiB", "64GiB"])),
        gpus=gpus,
        accelerator_type=draw(st.sampled_from([None, "T4", "A100"])) if gpus else None,
        custom=devices | draw(st.sampled_from([{}, {"license": 2}])),
        labels=draw(st.sampled_from([{}, {"zone": "eu"}, {"zone": "us", "disk": "ssd"}])),
        price_per_hour=draw(st.none() | st.integers(1, 9)),
        count=draw(st.sampled_from([1, 3, 20, 100])),
        min_nodes=draw(st.sampled_from([0, 0, 0, 1])),
    )


heads = st.sampled_from([None, None, NodeType(name="head", cpus=8, memory="32GiB", gpus=2, accelerator_type="T4")])


catalogs = st.integers(1, 4).flatmap(
    lambda number: st.builds(
        NodeCatalog, nodes=st.tuples(*(node_types(f"node-{i}") for i in range(number))), head=heads
    )
)
one_kind = wrapped | leaves
policies = one_kind | st.tuples(one_kind, sized_by_the_user(st.just(0))).map(lambda policies: MixedPolicy(*policies))


@given(policy=policies, catalog=catalogs, num_trials=st.integers(1, 40))
def test_the_planned_number_of_trials_fits_the_designed_cluster(policy, catalog, num_trials):
    try:
        plan = design_cluster(policy, catalog, num_trials)
    except InfeasibleRequestError:
        return

    found = AutoscalingPolicy(CappedPolicy(policy, num_trials)).plan(plan.spec.capacity)

    assert found.min_concurrent_trials == plan.trials.min_concurrent_trials
    assert all(found.nodes_to_add.get(name, 0) <= number for name, number in plan.trials.nodes_to_add.items())
