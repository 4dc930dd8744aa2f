"""A deadline determines the minimum number of concurrent trials, and so the nodes and the price of a design."""

import pytest

from tests.unit.kuberay.designed_clusters import FOUR_L4, L4, catalog, node_type
from tune_policies import GpuMemoryPolicy, GpuPolicy, InvalidResourcesError
from tune_policies.kuberay import NodeType, design_cluster
from tune_policies.kuberay.design.offers import rank_offers, with_cheaper_nodes
from tune_policies.kuberay.design.trial_duration import TrialDuration


@pytest.mark.parametrize(
    ("trial_hours", "deadline_hours", "expected"),
    [
        pytest.param(1, None, 64, id="without a deadline, all trials run at once"),
        pytest.param(1, 1, 64, id="in one round"),
        pytest.param(1, 3, 22, id="in three rounds"),
        pytest.param(1, 3.9, 22, id="in three rounds, because a fourth round would be late"),
        pytest.param(0.1, 0.3, 22, id="in three rounds, although 0.3 / 0.1 is below 3"),
        pytest.param(1, 100, 1, id="one after the other"),
    ],
)
def test_as_few_trials_run_at_once_as_the_deadline_requires(trial_hours, deadline_hours, expected):
    assert TrialDuration(trial_hours=trial_hours, deadline_hours=deadline_hours).trials_at_once(64) == expected


def test_the_time_of_the_trials_is_described_with_their_rounds():
    duration = TrialDuration(trial_hours=1.5, deadline_hours=3)

    assert [duration.describe(rounds) for rounds in (1, 2, 3)] == [
        "1.5 h in 1 round",
        "3 h in 2 rounds",
        "4.5 h in 3 rounds, after the deadline",
    ]


def test_a_deadline_must_have_room_for_one_trial():
    with pytest.raises(InvalidResourcesError, match=r"deadline_hours=0\.5 is shorter than a trial of 1 h"):
        TrialDuration.of(1, 0.5)


def test_a_deadline_requires_the_duration_of_a_trial():
    with pytest.raises(InvalidResourcesError, match="a deadline requires the duration of a trial"):
        TrialDuration.of(None, 3)


def test_the_price_of_a_trial_hour_is_computed_with_the_slots_of_each_node_type():
    types = catalog(
        NodeType(name="l4", cpus=8, gpus=1, memory="32GiB", accelerator_type="L4", price_per_hour=0.9),
        NodeType(name="a100", cpus=12, gpus=1, memory="85GiB", accelerator_type="A100-80G", price_per_hour=6),
    )

    plan = design_cluster(GpuMemoryPolicy(gpu_memory="20GiB"), types, 16)

    assert (
        "the price of a slot per hour is 0.9 USD on l4, 2 USD on a100. A trial hour costs more if some slots are idle"
        in plan.reasons
    )


def test_a_deadline_reduces_the_concurrent_trials_and_the_nodes():
    design = design_cluster(GpuPolicy(gpus=0.25, cpus=1), catalog(L4, FOUR_L4), 64, trial_hours=1, deadline_hours=3)

    assert (design.trials.min_concurrent_trials, design.num_trials) == (24, 64)  # 22 would be enough
    assert design.hours == 3
    assert design.price == pytest.approx(3 * design.price_per_hour)
    assert design.explain().splitlines()[0] == (
        "room for 24 of 64 trials at once, no worker nodes at first; limited by deadline_hours"
    )


def test_with_a_deadline_the_trials_use_all_slots_of_the_nodes():
    """One node has four GPUs, and the deadline requires two trials at once."""
    design = design_cluster(GpuPolicy(cpus=1), catalog(FOUR_L4), 8, trial_hours=1, deadline_hours=4)

    assert (design.trials.max_concurrent_trials, design.hours) == (4, 2)
    assert design.price == pytest.approx(2 * design.price_per_hour)


def test_nodes_in_time_are_ranked_by_the_price_of_all_trials():
    """The four GPUs cost more per hour, and less in total, because all trials end in a quarter of the time."""
    policy, nodes = GpuPolicy(cpus=1), catalog(L4, node_type("l4-4", 48, 4, 2.0, accelerator_type="L4"))

    ranked = rank_offers(policy, nodes, 4, TrialDuration(trial_hours=1, deadline_hours=4))

    assert [(str(offer), offer.price) for offer in ranked.offers] == [
        ("1 l4-4 node", pytest.approx(2.0)),
        ("1 l4 node", pytest.approx(2.8)),
    ]
    assert ranked.cheaper == ()  # the first offer is already the cheapest


@pytest.mark.parametrize(
    ("head", "cheaper"),
    [
        pytest.param(
            7,
            ("with a deadline of 1 h, all trials would cost 9.80 instead of 30.80 USD, on 4 l4 nodes, because they "
             "would end earlier",),
            id="the head costs for each hour",
        ),
        pytest.param(0, (), id="each hour of a trial costs the same"),
    ],
)  # fmt: skip
def test_a_design_says_if_more_nodes_would_cost_less_in_total(head, cheaper):
    nodes = catalog(L4, head=node_type("head", 4, price=head))
    duration = TrialDuration(trial_hours=1, deadline_hours=4)
    design = design_cluster(GpuPolicy(cpus=1), nodes, 4, trial_hours=1, deadline_hours=4)

    assert with_cheaper_nodes(design, GpuPolicy(cpus=1), nodes, duration).cheaper == cheaper


def test_a_design_reports_that_its_trials_exceed_the_deadline():
    few = catalog(L4.model_copy(update={"count": 2}))

    design = design_cluster(GpuPolicy(gpus=0.25, cpus=1), few, 64, trial_hours=1, deadline_hours=3)
    assert "64 trials take 8 h in 8 rounds, after the deadline" in design.reasons


def test_the_price_of_a_trial_hour_divides_by_the_trials_and_not_by_idle_slots():
    design = design_cluster(GpuPolicy(gpus=0.25, cpus=1), catalog(FOUR_L4), 17)

    assert design.price_of_trial_hour == pytest.approx(design.price_per_hour / 17)
