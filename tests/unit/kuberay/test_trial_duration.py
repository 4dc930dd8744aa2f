"""A deadline determines the minimum number of concurrent trials."""

import pytest

from tune_policies import InvalidResourcesError
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
