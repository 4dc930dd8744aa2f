"""Tests of the sizes of trials that learn: few, in ascending order, and near what each config needs."""

from itertools import pairwise

import pytest

from tune_policies.plan.learned_needs import learn_needs
from tune_policies.plan.learned_sizes import learned_sizes
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation

GIB = 2**30


def observed(*numbers, cpus=1.0):
    """Return trials whose memory in GiB and CPUs are proportional to a number of their config."""
    return [
        TrialObservation(
            trial_id=f"t{index}",
            config={"n": number},
            used=TrialNeed(gpu_memory_bytes=number * GIB // 64, cpus=number * cpus),
            num_steps=2,
            is_saved=True,
            ended=True,
        )
        for index, number in enumerate(numbers)
    ]


def sizes_of(*numbers, earlier=()):
    """Return what trials need, and their sizes."""
    trials = observed(*numbers)
    needs = learn_needs(trials)
    return needs, learned_sizes(needs, trials, earlier)


def larger(size, factor, **changes):
    return size.model_copy(update={"gpu_memory_bytes": int(size.gpu_memory_bytes * factor), **changes})


def test_without_a_formula_configs_inside_and_outside_the_observed_range_get_one_size_each():
    needs, sizes = sizes_of(64, 64, 64, 64)

    assert sizes == (needs.usual, needs.outside)


def test_if_no_config_can_be_outside_the_observed_range_there_is_one_size():
    trials = [trial.model_copy(update={"config": {"lr": 0.1}}) for trial in observed(64, 64, 64, 64)]
    needs = learn_needs(trials)

    assert learned_sizes(needs, trials, ()) == (needs.usual,)


def test_if_only_the_cpus_have_a_range_the_size_outside_of_it_has_the_usual_memory():
    trials = observed(*[64, 64] * 4)
    cpus = [TrialNeed(cpus=1, gpu_memory_bytes=GIB), *[TrialNeed(gpu_memory_bytes=GIB)] * 7]
    trials = [
        trial.model_copy(update={"config": {"n": n}, "used": used})
        for n, trial, used in zip(range(8), trials, cpus, strict=True)
    ]
    needs = learn_needs(trials)

    assert learned_sizes(needs, trials, ()) == (needs.usual, needs.usual.model_copy(update={"cpus": 2}))


def test_each_observed_config_gets_its_size():
    needs, sizes = sizes_of(64, 80, 100, 125)

    assert sizes == (*(needs.need_for({"n": n}) for n in (64, 80, 100, 125)), needs.outside)


def test_between_two_distant_sizes_there_is_one_with_their_mean_memory_and_the_cpus_of_the_larger_one():
    needs, sizes = sizes_of(64, 64, 96, 96)
    small, between, large, _ = sizes

    assert (small, large) == (needs.need_for({"n": 64}), needs.need_for({"n": 96}))
    assert between.gpu_memory_bytes == round((small.gpu_memory_bytes * large.gpu_memory_bytes) ** 0.5)
    assert between.cpus == large.cpus


def test_there_are_at_most_12_new_sizes_and_the_largest_gaps_are_filled():
    _, sizes = sizes_of(64, 128, 4096, 8192)

    factors = [large.gpu_memory_bytes / small.gpu_memory_bytes for small, large in pairwise(sizes)]
    assert len(sizes) == 12
    assert max(factors) < 2.1


def test_if_there_are_too_many_sizes_the_nearest_ones_become_the_larger_one():
    needs, sizes = sizes_of(950, 1000, 1200, 1440, 1730, 2070, 2490, 2990, 3580, 4300, 5160, 6190)

    assert needs.need_for({"n": 950}) not in sizes
    assert sizes[0] == needs.need_for({"n": 1000})
    assert len(sizes) == 12


@pytest.mark.parametrize("numbers", [range(64, 164), range(64, 6400, 64), [64 * 2**i for i in range(16)]])
def test_many_configs_get_few_sizes_of_which_one_covers_each_config(numbers):
    needs, sizes = sizes_of(*numbers)

    assert len(sizes) <= 12
    assert all(any(size.covers(needs.need_for({"n": n})) for size in sizes) for n in numbers)
    assert list(sizes) == sorted(sizes, key=lambda size: size.gpu_memory_bytes)


@pytest.mark.parametrize(
    ("factor", "is_used"),
    [
        pytest.param(1.05, True, id="slightly larger"),
        pytest.param(1.15, False, id="more than a tenth larger"),
        pytest.param(0.99, False, id="smaller"),
    ],
)
def test_an_earlier_size_is_used_again_if_it_is_slightly_larger(factor, is_used):
    needs, _ = sizes_of(64, 64, 64, 64)
    earlier = larger(needs.usual, factor)

    _, sizes = sizes_of(64, 64, 64, 64, earlier=[earlier])

    assert earlier in sizes
    assert (needs.usual not in sizes) == is_used
    assert list(sizes) == sorted(sizes, key=lambda size: size.gpu_memory_bytes)


def test_an_earlier_size_without_a_known_amount_is_dropped():
    needs, _ = sizes_of(64, 64, 64, 64)
    earlier = TrialNeed(cpus=needs.usual.cpus)

    _, sizes = sizes_of(64, 64, 64, 64, earlier=[earlier])

    assert sizes == (needs.usual, needs.outside)


def test_an_earlier_size_that_is_needed_again_is_contained_once():
    needs, sizes = sizes_of(64, 64, 64, 64)

    assert sizes_of(64, 64, 64, 64, earlier=sizes) == (needs, sizes)


def test_sizes_without_gpu_memory_are_ordered_by_their_host_memory_and_cpus():
    trials = [
        trial.model_copy(update={"used": TrialNeed(host_memory_bytes=GIB, cpus=trial.used.cpus)})
        for trial in observed(125, 64, 100, 80)
    ]
    earlier = [TrialNeed(host_memory_bytes=8 * GIB, cpus=100), TrialNeed(host_memory_bytes=6 * GIB, cpus=101)]

    sizes = learned_sizes(learn_needs(trials), trials, earlier)

    assert list(sizes) == sorted(sizes, key=lambda size: (size.host_memory_bytes, size.cpus))
    assert len({size.cpus for size in sizes}) >= 4
    assert set(earlier) <= set(sizes)


@pytest.mark.parametrize(
    ("numbers", "is_kept"),
    [
        pytest.param((64, 64, 64, 64), False, id="all configs need the same CPUs"),
        pytest.param((64, 80, 100, 125), True, id="the CPUs depend on the config"),
    ],
)
def test_an_earlier_size_with_other_cpus_is_kept_only_if_a_config_may_need_them(numbers, is_kept):
    needs, _ = sizes_of(*numbers)
    earlier = larger(needs.outside, 0.8, cpus=needs.outside.cpus + 7)

    _, sizes = sizes_of(*numbers, earlier=[earlier])

    assert (earlier in sizes) == is_kept


def test_a_run_has_at_most_24_sizes_and_keeps_the_largest_earlier_ones():
    needs, _ = sizes_of(64, 64, 64, 64)
    earlier = [larger(needs.outside, 1.2**i) for i in range(1, 31)]

    _, sizes = sizes_of(64, 64, 64, 64, earlier=earlier)

    assert sizes == (needs.usual, needs.outside, *earlier[-22:])
