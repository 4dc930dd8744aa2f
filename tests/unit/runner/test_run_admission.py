"""Tests of the steps that a run counts before it decides how many trials run at once."""

import pytest

from tune_policies import ClusterCapacity, LearningPolicy, Resources
from tune_policies.trainers.scheduling.run_admission import RunAdmission

NODES = ClusterCapacity.of(Resources(cpus=8))
MORE_NODES = ClusterCapacity.of(Resources(cpus=16))


class Admission(RunAdmission):
    """The progress of a run whose trials report at given times."""

    def __init__(self):
        super().__init__(NODES)
        self.now_s = 0.0
        self.why = []

    def run(self, number, *, step_s, results=2, first=0):
        """Let trials report, with ``step_s`` between two results."""
        for _ in range(results):
            self.now_s += step_s
            for trial in range(first, first + number):
                self.why.append(self.note_result(f"t{trial}", number, self.now_s))

    def report(self, trials, *, running, after_s):
        """Let trials report once while ``running`` trials run."""
        self.now_s += after_s
        for trial in trials:
            self.why.append(self.note_result(f"t{trial}", running, self.now_s))

    @property
    def most(self):
        return self.limit(NODES)


@pytest.fixture
def learned():
    """Four trials whose policy has just learned."""
    admission = Admission()
    admission.run(4, step_s=1)
    admission.begin(LearningPolicy())
    return admission


def test_the_start_policy_has_no_limit():
    admission = Admission()
    admission.run(4, step_s=1, results=10)

    assert admission.most is None


def test_four_times_as_many_trials_may_run_when_the_policy_has_learned(learned):
    assert learned.most == 16


def test_learning_again_changes_nothing(learned):
    learned.run(8, step_s=1)
    learned.begin(LearningPolicy())

    assert learned.most == 32


def test_without_steps_all_trials_that_fit_may_run():
    admission = Admission()
    admission.run(4, step_s=1, results=1)
    admission.begin(LearningPolicy())

    assert admission.most is None


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


def test_a_step_counts_if_it_began_when_the_others_began_to_train(learned):
    learned.report(range(4), running=16, after_s=0)
    for trial in range(4, 16):
        learned.note_start(f"t{trial}")
    learned.report(range(4), running=16, after_s=5)
    learned.report(range(4, 15), running=16, after_s=1)  # their training began one second before

    learned.report(range(4), running=16, after_s=0)

    assert learned.most == 64


def test_steps_do_not_count_while_many_processes_start(learned):
    for trial in range(4, 8):
        learned.note_start(f"t{trial}")
    learned.run(4, step_s=100, results=5)

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
        pytest.param(1, "", id="twice as fast together"),
        pytest.param(2, "8 trials at once are not faster together than 4, so no more start", id="as fast"),
        pytest.param(10, "8 trials at once are 0.20 times as fast together as 4, so at most 6 run at once", id="slow"),
    ],
)
def test_the_reason_is_given_once(learned, step_s, why):
    learned.run(8, step_s=step_s, results=9)

    assert [text for text in learned.why if text] == [why] * bool(why)


def test_as_many_trials_run_as_under_the_start_policy():
    admission = Admission()
    admission.run(8, step_s=1, results=1)
    admission.run(2, step_s=1)
    admission.begin(LearningPolicy())

    assert admission.most == 8


def test_speeds_are_those_of_the_latest_steps():
    admission = Admission()
    admission.run(4, step_s=1)
    admission.begin(LearningPolicy())
    admission.run(4, step_s=4, results=20)  # all trials have become slower
    admission.run(8, step_s=4)

    assert admission.most == 32


def test_on_other_nodes_the_earlier_progress_does_not_count(learned):
    assert learned.limit(MORE_NODES) == 16

    learned.run(8, step_s=100)

    assert learned.limit(MORE_NODES) == 32
