"""Tests that plans depend on what nodes have, and never on their names or on their order."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import growing, with_kinds
from tune_policies import FreeCapacityPolicy, InfeasibleRequestError
from tune_policies.testing.clusters import draw_cluster

any_policy = with_kinds | growing
any_policy |= any_policy.map(FreeCapacityPolicy)


def renamed(value, names):
    """Return a policy or a capacity in which the nodes have other names of the same length."""
    pattern = re.compile("|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "$^")
    text = pattern.sub(lambda found: names[found[0]], value.to_json())
    return type(value).from_json(text)


def answer(policy, capacity):
    """Return the plan or the error as text, without the names of nodes."""
    try:
        text = policy.plan(capacity).to_json()
    except InfeasibleRequestError as error:
        text = str(error)
    names = [node.node_id for node in (*capacity.nodes, *capacity.draining)]
    pattern = re.compile("|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "$^")
    return pattern.sub("NODE", text)


@given(any_policy, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_names_and_the_order_of_nodes(policy, rng):
    capacity = draw_cluster(rng)
    names = [node.node_id for node in (*capacity.nodes, *capacity.draining)]
    nodes = [*capacity.nodes]
    others = [*names]
    rng.shuffle(others)
    rng.shuffle(nodes)
    new_names = dict(zip(names, others, strict=True))

    assert answer(renamed(policy, new_names), renamed(capacity.with_nodes(nodes), new_names)) == answer(
        policy, capacity
    )
