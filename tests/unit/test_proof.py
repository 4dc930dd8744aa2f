"""What proofs count, and when their goals are met."""

import pytest

from tests.evidence.verdicts.proof import GOALS, ProofRecord, ProofRun, measure_coverage, wilson_interval
from tests.evidence.verdicts.proof_report import print_proof
from tune_policies.benchmarks.compare.judge import Comparison, Outcome


def run(truth, outcome, seconds=20.0, reasons=()):
    comparison = Comparison(ratio=1, low=1, high=1, outcome=outcome, num_rounds=5, reasons=reasons)
    return ProofRun(truth=truth, comparison=comparison, seconds=seconds)


def runs(truth, **counts):
    return [run(truth, Outcome(name)) for name, number in counts.items() for _ in range(number)]


def test_an_ambiguous_verdict_is_neither_found_nor_wrong():
    one = run(Outcome.SECOND, Outcome.AMBIGUOUS)

    assert (one.is_found, one.is_wrong) == (False, False)


@pytest.mark.parametrize(
    ("name", "made", "is_met"),
    [
        ("aa", runs(Outcome.SAME, same=150, ambiguous=48, first=2), True),
        ("aa", runs(Outcome.SAME, same=197, second=3), False),
        ("change", runs(Outcome.SECOND, second=95, ambiguous=5), True),
        ("change", runs(Outcome.SECOND, second=94, ambiguous=6), False),
        ("change", [run(Outcome.SECOND, Outcome.SECOND, seconds=61)], False),
        ("busy", runs(Outcome.SAME, ambiguous=100), True),
        ("busy", [*runs(Outcome.SAME, ambiguous=50), run(Outcome.SECOND, Outcome.SAME)], False),
    ],
    ids=[
        "two of 200 equal pairs pass for different",
        "three do",
        "five of 100 changes are not found",
        "six are not",
        "a run takes more than a minute",
        "a busy machine tells nothing",
        "a change beside a busy process passes for none",
    ],
)
def test_goals_are_met_up_to_their_limit(name, made, is_met):
    assert GOALS[name].is_met(made) is is_met


@pytest.mark.parametrize(
    ("hits", "number", "expected"),
    [(0, 200, (0.0, 0.0188)), (95, 100, (0.8882, 0.9785)), (5, 10, (0.2366, 0.7634)), (0, 0, (0.0, 1.0))],
)
def test_wilson_intervals_are_those_of_the_tables(hits, number, expected):
    assert wilson_interval(hits, number) == pytest.approx(expected, abs=1e-4)


def test_equal_arms_that_differ_by_a_fifth_at_random_pass_for_different_in_one_of_100_at_the_most():
    rows = measure_coverage(300, seed=1)

    assert all(row.false_verdicts <= 3 for row in rows)


def test_the_table_counts_the_reasons_by_their_kind(capsys):
    loads = [(f"other processes used {load} CPUs, more than 0.2: end them",) for load in ("0.91", "1.02")]
    record = ProofRecord(
        name="busy",
        command="python -m tests.evidence prove busy",
        machine="EPYC",
        num_rounds=5,
        num_blocks=8,
        runs=tuple(run(Outcome.SAME, Outcome.AMBIGUOUS, reasons=each) for each in loads),
    )

    assert print_proof(record)
    assert "* 2 times: other processes used\n" in capsys.readouterr().out
