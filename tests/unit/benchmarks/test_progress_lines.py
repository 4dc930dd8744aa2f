"""Tests of the lines about the progress of a benchmark run in a log file."""

from tune_policies.benchmarks.measuring.rounds import ProgressLines


def test_the_first_line_states_the_number_of_measurements():
    lines = ProgressLines(num_groups=10, num_rounds=5, started_at=0)

    assert lines.first().startswith("measuring 10 groups of processes (each workload and size, in 5 rounds)")


def test_after_the_first_group_a_line_states_the_remaining_time():
    lines = ProgressLines(num_groups=10, num_rounds=5, started_at=100)

    assert lines.after(0, 101) is None  # nothing was measured yet
    assert lines.after(1, 130) == "ran 1 of 10 groups, about 4 min left"


def test_there_is_at_most_one_line_per_minute_and_none_at_the_end():
    lines = ProgressLines(num_groups=10, num_rounds=5, started_at=0)

    assert lines.after(1, 10) == "ran 1 of 10 groups, about 90 s left"
    assert lines.after(2, 20) is None
    assert lines.after(7, 70) == "ran 7 of 10 groups, about 30 s left"
    assert lines.after(10, 200) is None
