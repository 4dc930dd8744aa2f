"""Tests of the decision which running trials grow when no trial waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import CpuPolicy, GpuPolicy, GrowingPolicy
from tune_policies.policies.growing import GrowingTrial

POLICY = GrowingPolicy(CpuPolicy(), up_to=4)


def running(name="a", amount=1.0, *, left_s=100.0, speeds=(), has_checkpoint=True, node="n"):
    return GrowingTrial(
        trial_id=name, node_id=node, amount=amount, left_s=left_s, speeds=speeds, has_checkpoint=has_checkpoint
    )


def amounts(trials, free, *, policy=POLICY, restart_s=2.0, is_gpu=False):
    free = free if isinstance(free, dict) else {"n": free}
    return {each.trial_id: each.amount for each in policy.growth(trials, free, restart_s=restart_s, is_gpu=is_gpu)}


def test_two_survivors_divide_eight_cpus_evenly():
    assert amounts([running("a"), running("b")], 6) == {"a": 4, "b": 4}


@pytest.mark.parametrize(
    ("trial", "restart_s"),
    [
        pytest.param(running(has_checkpoint=False), 2, id="it has no checkpoint"),
        pytest.param(running(left_s=2), 2, id="it ends before a restart would pay"),
        pytest.param(running(left_s=100), 80, id="a restart takes long"),
        pytest.param(running(left_s=None), 2, id="the time left is not known"),
        pytest.param(running(amount=2, speeds=((1, 1.0), (2, 1.05))), 2, id="it was not faster with more"),
        pytest.param(running(amount=4), 2, id="it has the maximum"),
    ],
)
def test_a_trial_does_not_grow_if(trial, restart_s):
    assert amounts([trial], 6, restart_s=restart_s) == {}


@pytest.mark.parametrize(("restart_s", "grown"), [(49, {"a": 4}), (51, {})])
def test_a_restart_must_save_more_than_one_and_a_half_times_its_duration(restart_s, grown):
    """With 4 CPUs, the trial trains 75 s less."""
    assert amounts([running(left_s=100)], 6, restart_s=restart_s) == grown


@pytest.mark.parametrize(
    ("speeds", "scaling"),
    [
        pytest.param(((1, 1.0),), 1, id="no growth was measured"),
        pytest.param(((1, 0.0), (2, 1.0)), 1, id="the first speed is not known"),
        pytest.param(((1, 1.0), (2, 1.5)), 0.5, id="half of the added resources"),
        pytest.param(((4, 6.0), (1, 1.0), (2, 4.0)), 0.5, id="the last growth counts"),
        pytest.param(((1, 1.0), (2, 4.0)), 1, id="more than the added resources"),
        pytest.param(((1, 1.0), (2, 0.5)), 0, id="slower"),
    ],
)
def test_the_scaling_is_the_part_of_added_resources_that_raised_the_speed(speeds, scaling):
    assert running(speeds=speeds).scaling == scaling


def test_a_fifth_of_the_added_resources_is_enough_to_grow_further():
    assert amounts([running(amount=3, speeds=((0.5, 1.0), (3, 2.0)))], 6) == {"a": 4}


@pytest.mark.parametrize(
    ("trials", "free", "why"),
    [
        pytest.param(
            [running("b", left_s=4), running(left_s=12), running("c", left_s=3)],
            9,
            "the last trials do not grow: with 4 CPUs, the longest would train about 9 s less. That is not 1.5 times "
            "the 8 s that a restart takes",
            id="a restart takes long",
        ),
        pytest.param(
            [running(has_checkpoint=False)],
            6,
            "the last trials do not grow, because they have no checkpoints",
            id="no checkpoints",
        ),
        pytest.param([running(left_s=12)], 0, "", id="nothing is free"),
        pytest.param([running(left_s=None)], 6, "", id="the time left is not known"),
        pytest.param([running(amount=2, speeds=((1, 1.0), (2, 1.05)))], 6, "", id="more CPUs did not help"),
    ],
)
def test_the_reason_is_stated_if_no_trial_grows_into_free_resources(trials, free, why):
    assert POLICY.growth(trials, {"n": free}, restart_s=8.0, is_gpu=False) == ()
    assert POLICY.why_not(trials, {"n": free}, restart_s=8.0, is_gpu=False) == why


def test_a_trial_that_does_not_grow_leaves_its_part_to_others():
    assert amounts([running("a", left_s=1), running("b"), running("c")], 4) == {"b": 3, "c": 3}


def test_a_trial_grows_only_into_the_free_resources_of_its_node():
    trials = [running("a", node="n"), running("b", node="m")]

    assert amounts(trials, {"n": 1, "m": 2}) == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("amount", "free", "grown"),
    [
        pytest.param(0.25, 0.75, 1, id="a quarter of a GPU grows to the GPU"),
        pytest.param(0.25, 0.25, 0.5, id="to a half if a quarter is free"),
        pytest.param(0.25, 0.1, 0.3333, id="to a third if a tenth is free"),
        pytest.param(1, 1.5, 2, id="above one GPU, to whole GPUs"),
    ],
)
def test_gpus_grow_by_legal_amounts(amount, free, grown):
    policy = GrowingPolicy(GpuPolicy(gpus=0.25), up_to=2)

    assert amounts([running(amount=amount)], free, policy=policy, is_gpu=True) == {"a": grown}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(1, 1000), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 20),
    st.just(0.0) | st.floats(0.1, 100),
)
def test_growth_is_always_to_a_larger_amount_that_is_free_and_saves_time(trials, free, restart_s):
    described = [
        running(str(i), cpus, left_s=left_s, has_checkpoint=saves) for i, (cpus, left_s, saves) in enumerate(trials)
    ]

    grown = POLICY.growth(described, {"n": free}, restart_s=restart_s, is_gpu=False)

    had = {trial.trial_id: trial.amount for trial in described}
    assert sum(each.amount - had[each.trial_id] for each in grown) <= free
    assert all(had[each.trial_id] < each.amount <= 4 and each.saved_s > 0 for each in grown)
