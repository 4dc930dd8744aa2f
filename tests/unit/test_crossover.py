"""The search for the size from which on the GPU is faster, on devices whose cost is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.judge import Comparison, Outcome
from tune_policies.benchmarks.decide.crossover import Step, next_step, powers_of_two, search
from tune_policies.benchmarks.decide.decide import Change, crossover, describe

SIZES = powers_of_two(1, 8192)
ROUNDS = 5


def compared(cpu_s, gpu_s, rounds):
    ratio = cpu_s / gpu_s
    outcome = Outcome.SAME if abs(ratio - 1) < 0.05 else Outcome.SECOND if ratio > 1 else Outcome.FIRST
    return Comparison(ratio=ratio, low=ratio, high=ratio, outcome=outcome, num_rounds=rounds)


class Devices:
    """Two devices with known times of a step, and what was asked of them."""

    def __init__(self, cpu_s, gpu_s):
        self.cpu_s, self.gpu_s = cpu_s, gpu_s
        self.rounds = {}

    def measure(self, size, num_rounds):
        self.rounds[size] = num_rounds
        return compared(self.cpu_s(size), self.gpu_s(size), num_rounds)

    @property
    def num_processes(self):
        return 2 * sum(self.rounds.values())


def linear(for_itself, for_each):
    return lambda size: for_itself + for_each * size


ANSWERS = {Outcome.FIRST: "CPU", Outcome.SECOND: "GPU", Outcome.SAME: "same"}


def answers(found):
    return {size: ANSWERS[each.comparison.outcome] for size, each in found.items() if each.comparison is not None}


costs = st.floats(1e-6, 1.0)


@given(
    exact=st.floats(1.5, 2048),
    cpu_for_itself=st.floats(0, 0.25),
    cpu_for_each=costs,
    times_as_fast=st.floats(3, 30),
    rounds=st.integers(5, 20),
)
def test_a_known_crossover_is_found_within_one_power_of_two_for_a_quarter_of_the_sweep(
    exact, cpu_for_itself, cpu_for_each, times_as_fast, rounds
):
    cpu_for_itself *= exact * cpu_for_each
    gpu_for_each = cpu_for_each / times_as_fast
    gpu_for_itself = cpu_for_itself + exact * (cpu_for_each - gpu_for_each)
    devices = Devices(linear(cpu_for_itself, cpu_for_each), linear(gpu_for_itself, gpu_for_each))

    found = crossover(answers(search(devices.measure, SIZES, rounds)))

    # What differs by less than 5 % counts as the same, so the crossover lies above the size of equal times.
    assert found.at == 2 * found.above
    assert found.at / 4 < exact < found.at
    assert devices.num_processes <= 0.25 * 2 * len(SIZES) * rounds


@given(cpu=st.tuples(costs, costs), gpu=st.tuples(costs, costs))
def test_only_sizes_at_which_one_round_does_not_tell_have_more(cpu, gpu):
    devices = Devices(linear(*cpu), linear(*gpu))

    found = search(devices.measure, SIZES, ROUNDS)

    with_more = {size for size, rounds in devices.rounds.items() if rounds > 1}
    assert with_more <= {size for size, each in answers(found).items() if each == "same"}
    assert set(devices.rounds.values()) <= {1, ROUNDS}


def test_a_tie_beside_the_change_moves_it_until_the_gpu_is_surely_faster():
    # At 64 the GPU is 2 % faster, which counts as the same.
    devices = Devices(linear(0, 1), linear(62.7, 0))

    found = search(devices.measure, SIZES, ROUNDS)

    assert (devices.rounds[32], devices.rounds[64], devices.rounds[128]) == (1, ROUNDS, 1)
    assert crossover(answers(found))[:2] == (64, 128)


@given(times=st.lists(st.tuples(costs, costs), min_size=1, max_size=14), lost=st.sets(st.integers(0, 13)))
def test_it_ends_whatever_the_times_are_and_whatever_cannot_be_measured(times, lost):
    sizes = SIZES[: len(times)]
    asked = []

    def measure(size, rounds):
        asked.append(size)
        at = sizes.index(size)
        return None if at in lost else compared(*times[at], rounds)

    search(measure, sizes, ROUNDS)

    assert len(asked) <= 2 * len(sizes)


def test_a_change_back_at_a_large_size_is_no_crossover():
    # A step of a small network took 14 ms at batch 32 on a CPU, and 604 ms at 256: its cache was full.
    devices = Devices(lambda size: 0.01 if size != 128 else 5, linear(1, 0))

    found = search(devices.measure, SIZES, ROUNDS)

    assert crossover(answers(found)).at is None
    assert describe(answers(found)) == (
        "no single crossover, as the answer changes back; it is ambiguous between 64 and 256 "
        "(1: CPU, 128: GPU, 256: CPU); measured from 1 to 8192"
    )


def test_sizes_are_galloped_through_first_and_the_largest_is_among_them():
    devices = Devices(linear(0, 1), linear(10_000, 0.1))

    search(devices.measure, SIZES, ROUNDS)

    assert list(devices.rounds)[:5] == [1, 2, 8, 128, 8192]


def test_what_could_not_be_measured_is_not_asked_for_again():
    asked = []

    def measure(size, rounds):
        asked.append((size, rounds))
        return None if size > 100 else compared(1, 2, rounds)

    search(measure, SIZES, ROUNDS)

    assert asked == [(1, 1), (2, 1), (8, 1), (128, 1), (8192, 1)]


def test_one_size_is_measured_in_one_round():
    assert next_step({}, (64,), ROUNDS) == Step(64, 1)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {64: "CPU", 128: "same", 256: "ambiguous", 512: "GPU"},
            "from 512 on the GPU is faster, and at 256 not surely; measured from 64 to 512",
        ),
        ({64: "GPU", 128: "GPU"}, "no crossover: for all sizes the GPU is faster; measured from 64 to 128"),
        ({64: "CPU", 128: "same"}, "no crossover: for no size is the GPU surely faster; measured from 64 to 128"),
        ({64: "GPU"}, "no crossover: for all sizes the GPU is faster; measured at 64 only"),
        (
            {16: "CPU", 32: "GPU", 64: "ambiguous", 128: "GPU"},
            "no single crossover, as the answer changes back; it is ambiguous between 16 and 128 "
            "(16: CPU, 32: GPU, 64: ambiguous, 128: GPU); measured from 16 to 128",
        ),
    ],
    ids=["one", "always", "never", "one size", "several"],
)
def test_the_crossover_is_told_with_the_sizes_for_which_it_holds(found, told):
    assert describe(found) == told


def test_the_crossover_is_between_two_sizes():
    found = crossover({64: "CPU", 128: "same", 256: "GPU"})

    assert found == (128, 256, (Change(64, 128), Change(128, 256)))


@pytest.mark.parametrize(
    ("least", "most", "sizes"), [(1, 8, (1, 2, 4, 8)), (3, 9, (4, 8)), (4, 4, (4,)), (5, 100, (8, 16, 32, 64))]
)
def test_powers_of_two_lie_between_the_smallest_and_the_largest_size(least, most, sizes):
    assert powers_of_two(least, most) == sizes


def test_a_range_without_a_power_of_two_is_refused():
    with pytest.raises(InvalidResourcesError, match="there is no power of two from 5 to 7"):
        powers_of_two(5, 7)
