"""Whether a machine is quiet enough, by what equal steps show."""

import pytest

from tune_policies.benchmarks.compare.machine_check import Check, print_check
from tune_policies.benchmarks.record.run_set import NoiseReading

ROUNDS = 16


def check(*, load=0.02, spread=0.0, ratio=1.0, num_cpus=2, **reading):
    """Of 16 pairs of processes, of which every second differs by ``spread``."""
    first = {number: (0.3e-3 * ratio * (1 + spread * (number % 2)),) for number in range(ROUNDS)}
    second = dict.fromkeys(range(ROUNDS), (0.3e-3,))
    noise = tuple(NoiseReading(round=number, load=load, **reading) for number in range(ROUNDS))
    return Check.of(first, second, noise=noise, num_cpus=num_cpus, usable_cpus=2)


def test_a_machine_that_does_nothing_else_is_quiet():
    assert check(spread=0.02).is_quiet


@pytest.mark.parametrize(
    ("disturbed", "problem"),
    [
        ({"load": 0.9}, "other processes used 0.90 CPUs"),
        ({"throttled_s": 0.05}, "the cgroup's quota stopped the processes for 0.8 s"),
        ({"gpu_throttled": ("power cap",)}, "a GPU's clock was held down (power cap)"),
        ({"spread": 0.1}, "would be found: end what else runs"),
        ({"ratio": 1.04}, "equal steps seem to differ"),
    ],
    ids=["other load", "a quota", "a GPU's clock", "times that scatter", "equal steps that differ"],
)
def test_a_disturbed_machine_is_not_and_says_why(disturbed, problem):
    found = check(**disturbed)

    assert not found.is_quiet
    assert problem in " ".join(found.problems)


def test_what_others_use_of_many_cpus_takes_none_from_a_step():
    assert check(load=0.9, num_cpus=64).is_quiet


def test_the_smallest_change_grows_with_the_scatter_of_the_times():
    assert check().smallest_change == pytest.approx(0.02)
    assert 0.03 < check(spread=0.02).smallest_change < check(spread=0.03).smallest_change < 0.1


def test_what_is_not_known_is_told_so(capsys):
    print_check(check())

    told = capsys.readouterr().out
    assert "cgroup throttled: not known" in told
    assert told.endswith("quiet: a change of 5% in such a step can be told\n")
