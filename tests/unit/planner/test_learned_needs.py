"""Tests of the amounts that trials need, as learned from observed trials: by config, for each attempt, and rounded."""

import pytest

from tune_policies.plan.learned_amount import LearnedAmount, most_productive
from tune_policies.plan.learned_needs import LearnedNeeds, learn_needs
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation

GIB = 2**30
MIB = 2**20
GPU = "gpu_memory_bytes"

FIXED = LearnedAmount(amount=10, largest=20, most={"n": 4, "m": 4, "net=mlp": 1, "zero": 0})
FORMULA = LearnedAmount(terms=((("n",), 5.0),), amount=8, largest=25, most={"n": 4}, explained=0.9)


def seen(gib=None, config=None, **fields):
    known = {"trial_id": "t", "used": TrialNeed(gpu_memory_bytes=gib and int(gib * GIB)), "config": config or {}}
    return TrialObservation(**known | {"num_steps": 2, "is_saved": True} | fields)


@pytest.mark.parametrize(
    ("features", "amount"),
    [
        pytest.param({"n": 4}, 11, id="in the observed range: with headroom"),
        pytest.param({"n": 5}, 44, id="slightly outside: twice the largest amount"),
        pytest.param({"n": 12}, 66, id="three times as large"),
        pytest.param({"n": 8, "m": 12}, 132, id="two numbers"),
        pytest.param({"zero": 1}, 44, id="a number above 0"),
        pytest.param({"n": 10**9}, 22_000, id="at most a thousand times as much"),
        pytest.param({"net=vit": 1}, 20_000, id="an unknown word"),
        pytest.param({"lr=low": 1, "other": 9}, 11, id="keys that do not matter"),
    ],
)
def test_the_amount_for_a_config_depends_on_the_observed_range(features, amount):
    assert FIXED.amount_for(features, 0.1) == amount


@pytest.mark.parametrize(
    ("n", "headroom", "amount"),
    [
        pytest.param(2, 0.0, 18, id="5 for each n, and the residual"),
        pytest.param(4, 0.0, 25, id="at most the largest observed amount"),
        pytest.param(2, 0.1, 18, id="the residual is more than the headroom"),
        pytest.param(2, 1.0, 20, id="the headroom is more than the residual"),
    ],
)
def test_the_amount_of_a_formula_contains_the_residual_or_the_headroom(n, headroom, amount):
    assert FORMULA.amount_for({"n": n}, headroom) == amount


def test_an_amount_with_a_margin_gets_no_headroom():
    assert FIXED.model_copy(update={"has_margin": True}).amount_for({}, 0.1) == 10


@pytest.mark.parametrize(
    ("features", "is_outside"),
    [({"n": 4}, False), ({"n": 5}, True), ({"net=mlp": 1}, False), ({"net=vit": 1}, True), ({"other": 9}, False)],
)
def test_a_config_is_outside_if_a_number_or_word_that_matters_was_not_observed(features, is_outside):
    assert FIXED.is_outside(features) == is_outside


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        pytest.param(FIXED, "RAM: the same amount for all configs in the observed range", id="the same for all"),
        pytest.param(
            FIXED.model_copy(update={"most": {}}),
            "RAM: the same amount for all configs",
            id="no config can be outside the observed range",
        ),
        pytest.param(
            FIXED.model_copy(update={"failing": 0.25}),
            "RAM: the config does not explain it; 25% of the trials need more than the amount",
            id="too little for some",
        ),
        pytest.param(FORMULA, "RAM: n of the config explains 90% of the differences", id="one number"),
        pytest.param(
            FORMULA.model_copy(update={"terms": ((("n", "m"), 5.0), ((), 1.0))}),
            "RAM: m, n of the config explain 90% of the differences",
            id="two numbers",
        ),
    ],
)
def test_the_text_of_an_amount_states_how_it_was_decided(amount, text):
    assert amount.describe("RAM") == text


def amount_of(*trials):
    return learn_needs(trials).amounts[GPU]


def test_fewer_than_four_trials_or_similar_ones_give_the_largest_amount():
    few, similar = amount_of(seen(1), seen(2), seen(4)), amount_of(*map(seen, (4, 4.2, 4.3, 4.4)))

    assert (few.amount, similar.amount) == (4 * GIB, int(4.4 * GIB))
    assert (few.has_margin, similar.has_margin) == (False, False)


def test_eight_trials_without_checkpoints_give_an_amount_above_the_largest():
    """A failure loses half of a trial, so all eight trials and a larger one should fit."""
    learned = amount_of(*[seen(gib, is_saved=False, ended=True) for gib in (5, 6, 7, 8, 8, 8, 8, 8)])

    assert (learned.amount, learned.retries, learned.failing) == (8 * GIB, (9 * GIB,), 0)


def test_a_word_of_a_single_config_may_explain_why_it_needs_more():
    rare = [seen(gib, {"net": net}) for gib, net in ((1, "a"), (8, "a"), (2, "a"), (8, "b"))]
    common = [seen(gib, {"net": net}) for gib, net in ((1, "a"), (8, "b"), (8, "a"), (1.5, "b"))]

    assert (amount_of(*rare).has_margin, amount_of(*common).has_margin) == (False, True)


@pytest.mark.parametrize(("number", "is_outside"), [(7, True), (8, False)])
def test_after_eight_trials_a_number_without_an_effect_does_not_matter(number, is_outside):
    needs = learn_needs([seen(4, {"seed": i}) for i in range(number)])

    assert needs.is_outside({"seed": 99}) == is_outside


@pytest.mark.parametrize("used", [(2, 6, 3, 5), (3, 5)])
def test_the_cpus_that_no_formula_explains_are_the_mean(used):
    trials = [seen(used=TrialNeed(cpus=cpus)) for cpus in used]

    assert learn_needs(trials).amounts["cpus"].amount == 38_000


def test_a_formula_for_cpus_has_no_margin():
    trials = [seen(used=TrialNeed(cpus=n), config={"n": n}) for n in (1, 2, 4, 8)]

    assert learn_needs(trials).amounts["cpus"].amount_for({"n": 4}) == 38_000
    assert learn_needs(trials).amounts["cpus"].amount == 0


def test_few_trials_without_checkpoints_get_more_than_the_largest_amount_at_once():
    learned = amount_of(*[seen(gib, is_saved=False, ended=True) for gib in (1, 2, 4, 8)])

    assert (learned.amount, learned.retries) == (10 * GIB, ())


def test_an_assumed_amount_does_not_change_the_formula():
    known = [seen(gib, {"n": gib}) for gib in (1, 2, 4, 8)]
    guess = seen(None, {"n": 4}, too_little=TrialNeed(gpu_memory_bytes=GIB))

    assert amount_of(*known, guess).amount_for({"n": 4}) == pytest.approx(4 * GIB)


def test_a_formula_is_fitted_to_a_part_of_many_trials_with_the_largest_one():
    learned = amount_of(*[seen(gib, {"n": gib}) for gib in range(1, 101)])

    assert [learned.amount_for({"n": n}) for n in (1, 50, 100)] == pytest.approx([GIB, 50 * GIB, 100 * GIB])


def noisy(*numbers, noise, every=4):
    """Return trials whose memory in GiB is a number of their config minus or plus noise, in turns of trials."""
    trials = []
    for index, number in enumerate(numbers):
        sign = 1 if index // every % 2 else -1
        trials.append(seen(number + sign * noise, {"n": number}))
    return trials


def test_a_formula_must_explain_more_of_few_trials():
    few, many = noisy(1, 2, 4, 5, noise=0.4, every=1), noisy(*(1, 2, 4, 5) * 4, noise=0.4)

    assert (bool(amount_of(*few).terms), bool(amount_of(*many).terms)) == (False, True)


def test_a_formula_gives_each_observed_trial_what_it_had():
    trials = noisy(*(1, 2, 4, 5) * 4, noise=0.3)
    learned = amount_of(*trials)

    assert learned.terms
    assert all(learned.amount_for(trial.features, 0.1) >= trial.used.gpu_memory_bytes for trial in trials)
    assert learned.amount < GIB


def test_at_most_64_different_amounts_are_compared_and_the_largest_is_the_last():
    amounts = [1000 + i for i in range(200)]

    assert most_productive(amounts, 1.0)[-1] == 1199
    assert len(most_productive(amounts, 0.0)) == 64
    assert most_productive([1000 + i for i in range(64)], 0.0) == [1000 + i for i in range(64)]


@pytest.mark.parametrize(
    ("too_little", "gib"),
    [
        pytest.param(2, 4, id="twice as much"),
        pytest.param(6, 11, id="at most the largest observed amount with headroom"),
        pytest.param(10, 20, id="twice as much as ever observed"),
        pytest.param(0.5, 1.1, id="at least what the config needs"),
    ],
)
def test_a_retry_without_further_steps_gets_twice_the_memory(too_little, gib):
    amounts = {GPU: LearnedAmount(amount=GIB, largest=10 * GIB)}
    needs = LearnedNeeds(num_trials=4, amounts=amounts)

    need = needs.need_after({}, TrialNeed(gpu_memory_bytes=int(too_little * GIB)))

    assert need.gpu_memory_bytes == pytest.approx(gib * GIB, rel=1 / 128)


@pytest.mark.parametrize(("too_little", "gib"), [(1, 3), (3, 7), (7, 10)])
def test_a_retry_gets_the_next_larger_step(too_little, gib):
    amounts = {GPU: LearnedAmount(amount=GIB, largest=9 * GIB, retries=(GIB, 3 * GIB, 7 * GIB), has_margin=True)}
    needs = LearnedNeeds(num_trials=4, amounts=amounts)

    need = needs.need_after({}, TrialNeed(gpu_memory_bytes=too_little * GIB))

    assert need.gpu_memory_bytes == pytest.approx(gib * GIB, rel=1 / 64)


def test_a_retry_gets_more_of_each_resource_that_was_too_little():
    needs = LearnedNeeds(num_trials=4, amounts={GPU: LearnedAmount(amount=GIB, largest=3 * GIB)})

    need = needs.need_after({}, TrialNeed(host_memory_bytes=GIB, gpu_memory_bytes=4 * GIB))

    assert need == TrialNeed(host_memory_bytes=2 * GIB, gpu_memory_bytes=8 * GIB)


def test_one_resource_is_enough_to_depend_on_the_config_or_to_be_outside_the_range():
    needs = LearnedNeeds(num_trials=4, amounts={GPU: FORMULA, "cpus": LearnedAmount(amount=1, largest=1)})

    assert needs.depends_on_config
    assert needs.is_outside({"n": 5})


def test_a_retry_of_a_resource_that_was_not_learned_gets_twice_as_much():
    needs = LearnedNeeds(num_trials=4, amounts={})

    assert needs.need_after({}, TrialNeed(host_memory_bytes=GIB)) == TrialNeed(host_memory_bytes=2 * GIB)


def test_a_config_outside_the_range_gets_at_least_twice_the_largest_amount_and_observed_ones_at_most_the_largest():
    needs = LearnedNeeds(num_trials=4, amounts={GPU: FORMULA.model_copy(update={"largest": 10 * GIB})})

    assert needs.at_most == needs.observed == TrialNeed(gpu_memory_bytes=11 * GIB)
    assert needs.outside == TrialNeed(gpu_memory_bytes=22 * GIB)


@pytest.mark.parametrize(
    ("ticks", "cpus"),
    [(1, 0.05), (5_000, 0.5), (5_001, 0.5), (5_015, 0.6), (6_600, 0.6666), (10_000, 1), (10_001, 2), (20_000, 2)],
)
def test_cpus_are_rounded_up_to_simple_fractions_and_whole_numbers(ticks, cpus):
    needs = LearnedNeeds(num_trials=4, amounts={"cpus": LearnedAmount(amount=ticks, largest=ticks)})

    assert needs.usual.cpus == cpus


@pytest.mark.parametrize(
    ("name", "amount", "rounded"),
    [
        pytest.param("gpu_memory_bytes", 256 * MIB + 1, 258 * MIB, id="GPU memory: 8 binary digits"),
        pytest.param("host_memory_bytes", 256 * MIB + 1, 264 * MIB, id="host memory: 6 binary digits"),
        pytest.param("host_memory_bytes", 256 * MIB, 256 * MIB, id="a round amount"),
        pytest.param("host_memory_bytes", 1, MIB, id="at least 1 MiB"),
    ],
)
def test_memory_is_rounded_up(name, amount, rounded):
    learned = LearnedAmount(amount=amount, largest=amount, has_margin=True)

    assert getattr(LearnedNeeds(num_trials=4, amounts={name: learned}).usual, name) == rounded


def test_the_time_of_a_gpu_is_at_most_all_of_it():
    learned = LearnedAmount(amount=6_000, largest=6_000, most={"n": 4})
    needs = LearnedNeeds(num_trials=4, amounts={"gpu_utilization": learned})

    assert (needs.usual.gpu_utilization, needs.outside.gpu_utilization) == (0.6, 1.0)


def test_trials_that_have_reported_once_are_not_counted():
    needs = learn_needs([seen(4), seen(4, ended=True), seen(9, num_steps=1)])

    assert (needs.num_trials, needs.num_ended, needs.amounts[GPU].largest) == (2, 1, 4 * GIB)


def test_a_resource_that_was_measured_for_some_trials_is_learned_from_these():
    needs = learn_needs([seen(gib, {"n": gib}) for gib in (1, 2, 4, 8)] + [seen(None, {"n": 64})])

    assert needs.amounts[GPU].most == {"n": 8}
    assert needs.depends_on_config
    assert needs.amounts.keys() == {GPU}


def with_cpus_of_some(*cpus, **config_of):
    """Return what was learned from trials with equal memory. Some of them measured their CPUs."""
    ((name, numbers),) = config_of.items()
    pairs = zip(numbers, cpus, strict=True)
    return learn_needs(
        [seen(used=TrialNeed(cpus=used, host_memory_bytes=GIB), config={name: number}) for number, used in pairs]
    )


def test_a_config_whose_trial_measured_no_cpus_is_inside_the_observed_range():
    needs = with_cpus_of_some(1, *[None] * 11, width=[32, 64, 128] * 4)

    assert [needs.is_outside({"width": width}) for width in (32, 64, 128)] == [False] * 3
    assert {needs.need_for({"width": width}) for width in (32, 64, 128)} == {needs.usual}


def test_a_config_outside_the_range_for_one_amount_gets_more_of_this_amount_only():
    needs = with_cpus_of_some(1, *[None] * 11, width=[32, 64, 128] * 4)

    assert needs.names_outside({"width": 256}) == ["cpus"]
    assert needs.need_for({"width": 256}) == needs.usual.model_copy(update={"cpus": 2})


def test_a_formula_for_cpus_holds_only_in_the_range_of_the_trials_that_measured_them():
    needs = with_cpus_of_some(1, 2, 4, 8, None, n=[1, 2, 4, 8, 64])

    assert needs.amounts["cpus"].terms
    assert needs.names_outside({"n": 64}) == ["cpus"]


def test_each_amount_states_the_number_of_trials_that_measured_it():
    needs = with_cpus_of_some(1, None, None, 1, n=[1, 2, 3, 4])

    assert {name: amount.num_trials for name, amount in needs.amounts.items()} == {"cpus": 2, "host_memory_bytes": 4}


@pytest.mark.parametrize(
    ("amounts", "outside"),
    [
        pytest.param({"cpus": {}, GPU: {}}, [], id="no config can be outside"),
        pytest.param({"cpus": {"n": 4}, GPU: {"n": 4}}, [(2, 2)], id="equal ranges"),
        pytest.param({"cpus": {"n": 4}, GPU: {}}, [(2, 1)], id="a range of the CPUs only"),
        pytest.param({"cpus": {"n": 4}, GPU: {"n": 8}}, [(2, 1), (1, 2), (2, 2)], id="different ranges"),
    ],
)
def test_configs_outside_the_range_of_some_amounts_get_twice_these_amounts(amounts, outside):
    learned = {
        "cpus": LearnedAmount(amount=10_000, largest=10_000, most=amounts["cpus"]),
        GPU: LearnedAmount(amount=10 * GIB, largest=10 * GIB, most=amounts[GPU]),
    }
    needs = LearnedNeeds(num_trials=4, amounts=learned)

    assert needs.all_outside == tuple(
        TrialNeed(cpus=cpus, gpu_memory_bytes=memory * 11 * GIB) for cpus, memory in outside
    )


def failing_of(*trials):
    """Return the part of the trials for which the learned amount is too little."""
    return learn_needs(trials).amounts[GPU].failing


@pytest.mark.parametrize(
    ("fields", "failing"),
    [
        pytest.param({"num_steps": 100, "ended": True}, 0.75, id="two of a hundred steps"),
        pytest.param({"num_steps": 20, "ended": True}, 0.5, id="two of twenty steps"),
        pytest.param({"num_steps": 3, "ended": True}, 0, id="half of a trial with few steps"),
        pytest.param({}, 0.5, id="a tenth until a trial has ended"),
        pytest.param({"is_saved": False, "ended": True}, 0, id="half without checkpoints"),
    ],
)
def test_the_less_a_failure_loses_the_more_trials_may_fail(fields, failing):
    assert failing_of(*[seen(10 + i, **fields) for i in range(8)]) == failing


def test_one_trial_without_a_checkpoint_is_enough_to_avoid_failures():
    trials = [seen(10 + i, ended=True, num_steps=100) for i in range(7)]

    assert failing_of(*trials, seen(17, ended=True, num_steps=100, is_saved=False)) == 0


@pytest.mark.parametrize(
    ("lost_s", "failing"),
    [
        pytest.param(1, 0.875, id="a hundredth is lost, so trials may fail several times"),
        pytest.param(100, 0.125, id="all is lost, so only the trial that needs far more may fail"),
    ],
)
def test_the_observed_losses_determine_for_how_many_trials_an_amount_may_be_too_little(lost_s, failing):
    """One of eight trials ran out of memory with 20 GiB, so that it needs 30 GiB."""
    failed = seen(None, too_little=TrialNeed(gpu_memory_bytes=20 * GIB), lost_s=lost_s, elapsed_s=0)

    assert failing_of(*[seen(10 + i, ended=True, elapsed_s=100) for i in range(7)], failed) == failing


@pytest.mark.parametrize(
    ("fields", "gib"),
    [
        pytest.param({"is_saved": False}, 8, id="twice as much, because a failure would lose all"),
        pytest.param({"is_saved": True}, 4, id="no more with checkpoints"),
        pytest.param({"is_saved": False, "ended": True}, 4, id="no more if the peaks are known"),
    ],
)
def test_the_memory_of_running_trials_is_expected_to_grow(fields, gib):
    assert amount_of(*[seen(4, **fields) for _ in range(4)]).amount == gib * GIB
