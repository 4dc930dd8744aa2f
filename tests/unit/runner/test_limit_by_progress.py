"""Tests of the steps that a run counts before it decides how many trials run at once."""

import pytest

from tune_policies import ClusterCapacity, LearningPolicy, Resources
from tune_policies.trainers.scheduling.limit_by_progress import RunAdmission

NODES = ClusterCapacity.of(Resources(cpus=8))
MORE_NODES = ClusterCapacity.of(Resources(cpus=16))


class Admission(RunAdmission):
    """The progress of a run with 1,000 trials, which report at given times."""

    def __init__(self):
        super().__init__(NODES)
        self.now_s = 0.0
        self.why = []

    def run(self, number, *, step_s, results=2, first=0):
        """Let trials report, with ``step_s`` between two results."""
        for _ in range(results):
            self.report(range(first, first + number), running=number, after_s=step_s)

    def run_once(self, number, *, trial_s, first):
        """Let trials start, report once after ``trial_s``, and end."""
        trials = range(first, first + number)
        for trial in trials:
            self.note_start(f"t{trial}")
        self.report(trials, running=number, after_s=trial_s, trained_s=trial_s)
        for trial in trials:
            self.why.append(self.note_end(f"t{trial}"))

    def report(self, trials, *, running, after_s, trained_s=0.0):
        """Let trials report once while ``running`` trials run."""
        self.now_s += after_s
        for trial in trials:
            why = self.note_result(
                f"t{trial}", num_running=running, num_left=1000, now_s=self.now_s, trained_s=trained_s
            )
            self.why.append(why)

    @property
    def most(self):
        return self.limit(NODES)


@pytest.fixture
def learned():
    """Four trials whose policy has just learned."""
    admission = Admission()
    admission.run(4, step_s=1)
    admission.begin(LearningPolicy(), num_allowed=4)
    return admission


def test_the_start_policy_has_no_limit():
    admission = Admission()
    admission.run(4, step_s=1, results=10)

    assert admission.most is None


def test_four_times_as_many_trials_may_run_when_the_policy_has_learned(learned):
    assert learned.most == 16


def test_learning_again_changes_nothing(learned):
    learned.run(8, step_s=1)
    learned.begin(LearningPolicy(), num_allowed=4)

    assert learned.most == 32


def test_without_steps_as_many_trials_run_as_under_the_start_policy():
    admission = Admission()
    admission.run(4, step_s=1, results=1)
    admission.begin(LearningPolicy(), num_allowed=4)

    assert admission.most == 4


@pytest.mark.parametrize(
    ("trial_s", "limit"),
    [pytest.param(10, 64, id="as fast"), pytest.param(100, 4, id="slower together")],
)
def test_if_trials_report_only_once_their_training_is_a_step(trial_s, limit):
    admission = Admission()
    admission.run_once(4, trial_s=10, first=0)
    admission.begin(LearningPolicy(), num_allowed=4)
    assert admission.most == 16

    admission.run_once(16, trial_s=trial_s, first=4)
    admission.run_once(16, trial_s=trial_s, first=20)

    assert admission.most == limit


def test_before_any_result_as_many_trials_run_as_the_plan_allowed():
    admission = Admission()
    admission.begin(LearningPolicy(), num_allowed=8)

    assert admission.most == 8


def test_the_steps_of_a_part_of_the_trials_are_enough_when_the_policy_has_learned():
    admission = Admission()
    admission.run(4, step_s=1, results=1)
    admission.report(range(3), running=4, after_s=1)
    admission.begin(LearningPolicy(), num_allowed=4)

    assert admission.most == 16


@pytest.fixture
def single():
    """One trial whose policy has learned, and four trials that run then."""
    admission = Admission()
    admission.run(1, step_s=1)
    admission.begin(LearningPolicy(), num_allowed=1)
    admission.report(range(4), running=4, after_s=1)
    return admission


def test_one_step_of_a_single_trial_shows_its_progress(single):
    assert single.most == 4


def test_after_the_first_comparison_as_many_steps_as_trials_are_needed_for_another_decision(single):
    single.report([0], running=4, after_s=4)
    assert single.is_effect_known
    single.report([0], running=4, after_s=1)

    assert single.most == 4


def test_the_effect_is_known_when_more_trials_were_compared_with_fewer(learned):
    assert learned.is_effect_known is False

    learned.run(8, step_s=1)

    assert learned.is_effect_known is True


def test_the_first_comparison_waits_for_a_step_of_each_trial_that_can_be_compared(learned):
    learned.report(range(4), running=8, after_s=1)
    learned.report([0], running=8, after_s=10)

    assert learned.most == 16


class Crowded(LearningPolicy):
    """A policy that expects trials to run at half of their speed if more than four share the GPUs."""

    def expected_speed(self, num_running, capacity):
        return 0.5 if num_running > 4 else 1.0


def test_a_slowdown_that_the_policy_expects_does_not_limit_the_trials():
    admission = Admission()
    admission.run(4, step_s=1)
    admission.begin(Crowded(), num_allowed=4)
    admission.run(16, step_s=2)

    assert admission.most == 64


def test_the_time_before_the_first_result_in_a_window_is_no_step(learned):
    learned.run(8, step_s=1000, results=1)

    assert learned.most == 16


def test_the_first_trials_decide_with_one_step_each_although_the_others_have_only_begun(learned):
    for trial in range(4, 16):
        learned.note_start(f"t{trial}")
    learned.run(4, step_s=1)
    learned.report(range(4, 16), running=16, after_s=0)

    learned.report(range(4), running=16, after_s=1)

    assert learned.most == 64


@pytest.mark.parametrize(
    ("began_s", "limit"),
    [
        pytest.param(1.5, 64, id="all steps since then"),
        pytest.param(0.5, 16, id="no step before the others began"),
    ],
)
def test_a_step_counts_if_it_began_when_the_others_began_to_train(learned, began_s, limit):
    learned.report(range(4), running=16, after_s=2)
    for trial in range(4, 16):
        learned.note_start(f"t{trial}")
    learned.report(range(4), running=16, after_s=5)
    learned.report(range(4, 16), running=16, after_s=1, trained_s=began_s)
    learned.report(range(4), running=16, after_s=0)

    assert learned.most == limit


def test_steps_do_not_count_while_many_processes_start(learned):
    for trial in range(4, 8):
        learned.note_start(f"t{trial}")
    learned.run(4, step_s=100, results=5)

    assert learned.most == 16


@pytest.mark.parametrize(
    ("num_starting", "limit"),
    [
        pytest.param(4, 48, id="a quarter starts, and twelve train"),
        pytest.param(5, 16, id="more than a quarter starts"),
    ],
)
def test_steps_count_while_at_most_a_quarter_of_the_processes_starts(learned, num_starting, limit):
    for trial in range(16 - num_starting, 16):
        learned.note_start(f"t{trial}")
    for _ in range(3):
        learned.report(range(16 - num_starting), running=16, after_s=1)

    assert learned.most == limit


def test_a_step_that_ends_when_many_processes_start_does_not_count(single):
    for trial in (4, 5):
        single.note_start(f"t{trial}")
    single.report([0], running=6, after_s=100)

    assert single.most == 4


def test_a_step_that_began_while_many_processes_started_does_not_count(learned):
    for trial in range(11, 16):
        learned.note_start(f"t{trial}")
    learned.report(range(11), running=16, after_s=100)
    learned.report([11], running=16, after_s=1)
    learned.report(range(11), running=16, after_s=99)

    assert learned.most == 16


@pytest.mark.parametrize(
    ("num_before", "num_running", "limit"),
    [
        pytest.param(8, 10, 40, id="a quarter more are similar"),
        pytest.param(8, 11, 16, id="more are not similar"),
        pytest.param(10, 8, 32, id="a fifth less are similar"),
        pytest.param(10, 7, 16, id="less are not similar"),
    ],
)
def test_steps_count_together_while_a_similar_number_of_trials_runs(learned, num_before, num_running, limit):
    learned.report(range(8), running=num_before, after_s=1)
    learned.report(range(4), running=num_running, after_s=1)

    assert learned.most == limit


def test_a_step_before_other_trials_began_counts_only_if_it_is_short(learned):
    learned.report(range(4), running=16, after_s=2)
    for trial in range(4, 16):
        learned.note_start(f"t{trial}")
    learned.report(range(4, 16), running=16, after_s=2, trained_s=10)
    learned.report(range(4), running=16, after_s=0)

    assert learned.most == 16


def test_the_training_before_a_first_result_counts_only_in_its_window(learned):
    learned.report([4], running=5, after_s=0.5, trained_s=5)
    learned.report(range(4), running=16, after_s=0.5)

    assert learned.most == 16


def test_a_process_that_ended_does_not_start(learned):
    for trial in range(8, 12):
        learned.note_start(f"t{trial}")
        learned.note_end(f"t{trial}")
    learned.run(8, step_s=1)

    assert learned.most == 32


def test_the_first_result_after_a_restart_is_no_step(learned):
    learned.run(8, step_s=1, results=1)
    for trial in range(8):
        learned.note_end(f"t{trial}")
    learned.run(8, step_s=1000, results=1)

    assert learned.most == 16


@pytest.mark.parametrize(
    ("step_s", "why"),
    [
        pytest.param(1, "8 trials at once do not slow down each other", id="twice as fast together"),
        pytest.param(2, "8 trials at once are not faster together than 4", id="as fast"),
        pytest.param(10, "8 trials at once are 0.20 times as fast together as 4", id="slow"),
    ],
)
def test_the_reason_is_given_once(learned, step_s, why):
    learned.run(8, step_s=step_s, results=9)

    assert [text for text in learned.why if text != ""] == [why]


def test_the_end_of_a_trial_that_has_reported_twice_decides_nothing(learned):
    assert learned.note_end("t0") == ""


def test_the_end_of_a_trial_without_a_result_decides_nothing():
    assert Admission().note_end("t0") == ""


def test_if_others_report_several_times_the_training_before_a_single_result_is_no_step(single):
    ended = range(10, 14)
    single.report(ended, running=4, after_s=20, trained_s=10)

    assert [single.note_end(f"t{trial}") for trial in ended] == [""] * 4
    assert single.most == 4


def test_as_many_trials_run_as_under_the_start_policy():
    admission = Admission()
    admission.run(20, step_s=1, results=1)
    admission.run(2, step_s=1)
    admission.begin(LearningPolicy(), num_allowed=4)

    assert admission.most == 20


def test_speeds_are_those_of_the_latest_steps():
    admission = Admission()
    admission.run(4, step_s=1)
    admission.begin(LearningPolicy(), num_allowed=4)
    admission.run(4, step_s=4, results=20)  # all trials have become slower
    admission.run(8, step_s=4)

    assert admission.most == 32


def test_after_a_decision_only_later_steps_count(learned):
    learned.run(8, step_s=1)
    learned.report(range(8), running=8, after_s=10)  # the trials have become slower
    learned.run(16, step_s=10)

    assert learned.most == 64


@pytest.mark.parametrize(
    ("slow_step", "limit"),
    [
        pytest.param(8, 4, id="the mean speed of eight steps"),
        pytest.param(9, 32, id="the speed of the step after them"),
    ],
)
def test_a_window_without_a_decision_ends_after_eight_steps_of_each_trial(learned, slow_step, limit):
    for step in range(1, slow_step + 1):
        learned.report(range(4), running=4, after_s=9 if step == slow_step else 1)
    learned.run(8, step_s=9)

    assert learned.most == limit


def test_on_other_nodes_the_earlier_progress_does_not_count(learned):
    assert learned.limit(MORE_NODES) == 16

    learned.run(8, step_s=100)
    assert learned.limit(MORE_NODES) == 32

    learned.run(16, step_s=1000)
    assert learned.limit(MORE_NODES) == 8
