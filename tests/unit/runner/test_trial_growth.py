"""Tests that the last trials of a run restart with more resources, and only if this is allowed and pays."""

import logging

import pytest
from ray.exceptions import RayActorError
from ray.tune.experiment import Trial

from tests.clusters import GIB
from tests.unit.runner.small_runs import SmallRun, new_trial, reading
from tune_policies import CappedPolicy, ClusterCapacity, CpuPolicy, GrowingPolicy, NodeCapacity, Resources
from tune_policies.policies.growing import Growth
from tune_policies.ray_compat.tune_request import bundles_of, with_bundles
from tune_policies.trainers.scheduling import run_events, trial_growth
from tune_policies.trainers.scheduling.run_failures import FailureCause
from tune_policies.trainers.scheduling.trial_growth import TrialGrowth
from tune_policies.trainers.scheduling.trial_record import record_of

NODE = NodeCapacity(node_id="a", resources=Resources(cpus=4, memory_bytes=16 * GIB))
GROWING = GrowingPolicy(CpuPolicy(cpus=1), up_to=4)
STEP_S = 10.0


class Growing:
    """A run whose trials report every ten seconds."""

    def __init__(self, monkeypatch, policy, *, has_checkpoints=True):
        self.run = SmallRun(monkeypatch, policy, NODE)
        self.has_checkpoints = has_checkpoints
        for module in (run_events, trial_growth):
            monkeypatch.setattr(module, "actor_of", lambda trial: trial.trial_id)

    def add(self, number):
        for index in range(number):
            trial = new_trial(index, stopping_criterion={"training_iteration": 40})
            trial.has_checkpoint = lambda: self.has_checkpoints
            self.run.add_trial(trial)
        return self.run.run_all()

    def report(self, trial, iteration):
        """Let a trial report. Return what its scheduler decides."""
        self.run.cluster.clock.advance(STEP_S)
        return self.run.scheduler.on_trial_result(self.run.controller, trial, {"training_iteration": iteration})

    def let_grow(self, trial, *, located=None):
        """Let the run decide about a trial that has reported three results. Return the decision about the fourth.

        The nodes of the ``located`` trials are known, by default those of all trials.
        """
        if located is None:
            located = self.run.trials
        for iteration in (1, 2, 3):
            self.report(trial, iteration)
        self.run.watch.next_reading = reading([NODE], node_of_actor={each.trial_id: "a" for each in located})
        self.run.watch.latest = self.run.watch.next_reading
        self.run.step()
        return self.report(trial, 4)


@pytest.fixture
def growing(monkeypatch):
    """A function that returns a run under a policy."""
    return lambda policy=GROWING, **options: Growing(monkeypatch, policy, **options)


def cpus_of(trial):
    return bundles_of(trial.placement_group_factory)[0]["CPU"]


def test_the_last_trial_pauses_and_restarts_with_the_free_cpus(growing):
    run = growing()
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    decision = run.let_grow(last)
    run.run.pause(last)
    restarted = run.run.request_all()

    assert decision == "PAUSE"
    assert restarted == [last]
    assert cpus_of(last) == 4


def grown(run):
    """Let the last of four trials grow to all CPUs. Return it when it has requested them."""
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)
    assert run.let_grow(last) == "PAUSE"
    run.run.pause(last)
    assert run.run.request_all() == [last]
    return last


def test_a_grown_trial_starts_with_its_planned_cpus_if_ray_does_not_grant_more(growing, caplog):
    run = growing()
    last = grown(run)

    run.run.cluster.clock.advance(29)
    assert run.run.step() is None
    run.run.cluster.clock.advance(1)
    again = run.run.step()

    assert again is last
    assert run.run.controller.withdrawn == [last]
    assert cpus_of(last) == 1
    assert caplog.messages == ["train_00000000 does not grow, because Ray has not granted 4 CPUs within 30 s"]


def test_a_grown_trial_starts_with_its_planned_cpus_after_its_node_is_lost(growing):
    run = growing()
    last = grown(run)
    run.run.begin(last)
    run.run.step()
    smaller = NODE.model_copy(update={"node_id": "b", "resources": Resources(cpus=2, memory_bytes=16 * GIB)})
    run.run.cluster.nodes = (smaller,)
    run.run.watch.next_reading = reading([smaller])

    run.run.fail(last, RayActorError(), FailureCause(lost_node_id="a"))
    run.run.request_all()
    run.run.cluster.clock.advance(30)

    assert run.run.request_all() == [last]
    assert cpus_of(last) == 1


@pytest.mark.parametrize("step", ["granted", "started"])
def test_a_grown_trial_keeps_its_cpus_once_ray_has_granted_them(growing, step):
    run = growing()
    last = grown(run)
    if step == "granted":
        run.run.granted.append(last.placement_group_factory)
    else:
        run.run.processes.started.add(last.trial_id)

    run.run.cluster.clock.advance(30)
    run.run.step()

    assert not run.run.controller.withdrawn
    assert cpus_of(last) == 4


def test_a_trial_does_not_grow_again_to_what_ray_has_not_granted(growing):
    run = growing()
    last = grown(run)
    run.run.cluster.clock.advance(30)
    run.run.run_all()

    assert run.let_grow(last) == "CONTINUE"


def test_a_trial_that_fails_before_it_pauses_to_grow_is_later_paused_by_its_scheduler_as_usual(growing):
    run = growing()
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)
    assert run.let_grow(last) == "PAUSE"
    run.run.fail(last, RayActorError(), FailureCause(lost_node_id="b"))
    assert run.run.run_all() == [last]

    run.run.pause(last)

    assert run.run.core.step(lambda _: None, run.run.controller) is None  # the scheduler does not resume it


def test_free_cpus_are_divided_among_the_last_trials(growing):
    run = growing()
    first, second, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)
    for iteration in (1, 2, 3):
        run.report(second, iteration)

    decisions = run.let_grow(first), run.report(second, 4)
    for trial in (first, second):
        run.run.pause(trial)
    run.run.run_all()  # a trial that needs several slots starts alone
    run.run.run_all()

    assert decisions == ("PAUSE", "PAUSE")
    assert (cpus_of(first), cpus_of(second)) == (2, 2)


def test_no_trial_grows_while_another_one_waits(growing):
    run = growing(CappedPolicy(GROWING, 1))
    (first,) = run.add(2)

    assert run.let_grow(first) == "CONTINUE"


def test_no_trial_grows_while_another_one_starts(growing):
    run = growing()
    first, second, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)
    second.set_status(Trial.PENDING)

    assert run.let_grow(first) == "CONTINUE"


def test_no_trial_grows_while_the_node_of_another_one_is_not_known(growing):
    run = growing()
    first, _, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    assert run.let_grow(first, located=[first]) == "CONTINUE"


def test_a_trial_without_a_checkpoint_does_not_grow_and_the_run_prints_the_reason_once(growing, capsys):
    run = growing(has_checkpoints=False)
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    assert run.let_grow(last) == "CONTINUE"
    run.run.step()
    assert capsys.readouterr().out.count("the last trials do not grow, because they have no checkpoints") == 1


def test_without_a_growing_policy_trials_keep_their_resources(growing):
    run = growing(CpuPolicy(cpus=1))
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    assert run.let_grow(last) == "CONTINUE"


class Asked:
    """Replaces a policy. It keeps what it was asked, and answers with the given growths."""

    def __init__(self, *growths):
        self.growths = growths
        self.trials, self.free, self.restart_s, self.is_gpu = (), {}, None, None

    def growth(self, trials, free, *, restart_s, is_gpu):
        self.trials, self.free, self.restart_s, self.is_gpu = trials, free, restart_s, is_gpu
        return self.growths

    def why_not(self, trials, free, *, restart_s, is_gpu):
        return ""


class Measured:
    """The growth of trials on one node whose results arrive at given times."""

    def __init__(self, *growths, longest=None, in_use=None, bundle=None):
        self.asked = Asked(*growths)
        self.growth = TrialGrowth(self.asked, longest or {})
        self.bundle = bundle or {"CPU": 1.0}
        self.capacity = ClusterCapacity.of(NODE.model_copy(update={"in_use": in_use}))
        self.records = {}

    def start(self, number=0, *, at_s=0.0, amount=None, stop=None):
        trial = new_trial(number, bundles=(self.bundle,), stopping_criterion=stop or {})
        trial.has_checkpoint = lambda: True
        request = trial.placement_group_factory
        if amount is not None:
            request = with_bundles(request, [{**self.bundle, "CPU": amount}])
        self.records[trial] = record_of(trial)
        self.growth.note_start(trial, request, at_s)
        return trial

    def restart(self, trial, amount, *, at_s):
        self.growth.note_start(trial, with_bundles(trial.placement_group_factory, [{"CPU": amount}]), at_s)

    def report(self, trial, *times_s, first=1, **fields):
        for iteration, now_s in enumerate(times_s, start=first):
            self.growth.note_result(trial, {"training_iteration": iteration, **fields}, now_s)

    def decide(self, now_s=1000.0):
        self.growth.decide(self.records, dict.fromkeys(self.records, "a"), self.capacity, now_s)
        return self.asked


def test_the_speed_and_the_time_left_follow_from_the_results_after_the_first():
    run = Measured()
    trial = run.start(stop={"training_iteration": 10})
    run.report(trial, 50, 52, 54)

    (seen,) = run.decide().trials

    assert (seen.speeds, seen.left_s) == (((1.0, 0.5),), 14.0)


def test_results_without_an_iteration_are_counted():
    run = Measured()
    trial = run.start()
    for now_s in (50, 52, 54):
        run.growth.note_result(trial, {}, now_s)

    (seen,) = run.decide().trials

    assert seen.left_s == 6.0


def test_results_at_the_same_time_show_no_speed():
    run = Measured()
    run.report(run.start(), 50, 50)

    (seen,) = run.decide().trials

    assert seen.speeds == ()


def test_a_trial_that_has_passed_its_end_has_no_time_left():
    run = Measured()
    run.report(run.start(stop={"training_iteration": 2}), 50, 52, 54)

    (seen,) = run.decide().trials

    assert seen.left_s == 0.0


@pytest.mark.parametrize("score", [0, -3])
def test_a_stop_criterion_without_progress_is_ignored(score):
    run = Measured()
    run.report(run.start(stop={"score": 10}), 50, 52, 54, score=score)

    (seen,) = run.decide().trials

    assert seen.left_s == 6.0


def test_the_amount_of_a_trial_is_that_of_its_request():
    run = Measured()
    run.report(run.start(amount=2.0), 12, 14)

    assert [seen.amount for seen in run.decide().trials] == [2.0]


def test_the_earliest_of_several_ends_counts():
    run = Measured(longest={"training_iteration": 8})
    trial = run.start(stop={"training_iteration": 10, "score": 1000})
    run.report(trial, 50, 52, 54, score=1)

    (seen,) = run.decide().trials

    assert seen.left_s == 10.0


def test_a_stop_criterion_that_is_no_number_is_ignored():
    run = Measured(longest={"training_iteration": 8})
    trial = run.start(stop={"phase": 3})
    run.report(trial, 50, 52, 54, phase="training")

    (seen,) = run.decide().trials

    assert seen.left_s == 10.0


def test_without_a_known_end_a_trial_runs_as_long_as_longer_trials_did():
    run = Measured()
    short, long, trial = run.start(0), run.start(1), run.start(2)
    run.report(short, 1, 2)
    run.report(long, *range(1, 12))
    for ended in (short, long):
        run.growth.note_end(ended)
        del run.records[ended]
    run.report(trial, 50, 52, 54)

    (seen,) = run.decide().trials

    assert seen.left_s == 16.0


def test_without_longer_trials_a_trial_runs_for_as_long_again():
    run = Measured()
    trial = run.start()
    run.report(trial, 50, 52, 54)

    (seen,) = run.decide().trials

    assert seen.left_s == 6.0


def test_a_trial_that_ended_after_as_many_results_is_not_longer():
    run = Measured()
    ended, trial = run.start(0), run.start(1)
    run.report(ended, 1, 2, 3)
    run.growth.note_end(ended)
    del run.records[ended]
    run.report(trial, 50, 52, 54)

    (seen,) = run.decide().trials

    assert seen.left_s == 6.0


@pytest.mark.parametrize(
    ("times_s", "restart_s"),
    [
        pytest.param((12, 14, 26), 10, id="later steps do not count"),
        pytest.param((1, 3), 0, id="a start is shorter than a step"),
    ],
)
def test_a_start_takes_the_time_until_the_first_result_without_one_step(times_s, restart_s):
    run = Measured()
    run.report(run.start(), *times_s)

    assert run.decide().restart_s == restart_s


def test_the_shortest_start_is_the_estimate_of_a_restart():
    run = Measured()
    for number, first_s in enumerate((30, 12, 40)):
        run.report(run.start(number), first_s, first_s + 2, first_s + 4)

    assert run.decide().restart_s == 10.0


def test_a_measured_restart_replaces_the_estimate_and_the_speeds_of_both_amounts_are_known():
    run = Measured()
    trial = run.start()
    run.report(trial, 12, 14, 16)
    run.restart(trial, 2.0, at_s=20)
    run.report(trial, 41, 42, 43, first=4)
    run.report(run.start(1, at_s=50), 52, 53)

    asked = run.decide()

    assert asked.restart_s == 20.0
    assert asked.trials[0].speeds == ((1.0, 0.5), (2.0, 1.0))


def test_no_restart_is_decided_before_its_time_is_known():
    run = Measured()
    run.report(run.start(), 12)

    assert run.decide().trials == ()


def test_nothing_is_decided_without_running_trials():
    run = Measured()
    run.report(run.start(), 12, 14)
    run.records.clear()

    assert run.decide().restart_s is None


def test_nothing_is_decided_if_the_node_of_a_trial_is_not_known():
    run = Measured()
    run.report(run.start(), 12, 14)
    run.growth.decide(run.records, {}, run.capacity, 1000.0)

    assert run.asked.trials == ()


def test_without_a_growing_policy_nothing_is_decided():
    run = Measured()
    trial = run.start()
    run.report(trial, 12, 14)
    run.growth.policy = None
    run.decide()

    assert not run.growth.begin(run.records[trial])


def test_decisions_are_at_least_a_second_apart():
    run = Measured()
    run.report(run.start(), 12, 14)
    run.decide(100.0)
    run.report(run.start(1), 90, 92)

    assert len(run.decide(100.5).trials) == 1
    assert len(run.decide(101.0).trials) == 2


def test_a_decision_applies_once_and_not_to_a_trial_that_ended():
    run = Measured()
    first, second = run.start(), run.start(1)
    run.asked.growths = tuple(Growth(trial.trial_id, 2.0, 5.0) for trial in (first, second))
    for trial in (first, second):
        run.report(trial, 12, 14)
    run.decide()
    run.growth.note_end(second)

    begun = [run.growth.begin(run.records[trial]) for trial in (first, first, second)]

    assert begun == [True, False, False]
    assert list(bundles_of(run.records[first].changed)) == [{"CPU": 2.0}]
    assert [run.growth.has_paused(first) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("bundle", "in_use", "free"),
    [
        pytest.param({"CPU": 1.0}, None, 3.0, id="CPUs"),
        pytest.param({"CPU": 1.0}, Resources(cpus=2), 1.0, id="CPUs that others use too"),
        pytest.param({"CPU": 1.0}, Resources(cpus=4), 0.0, id="no CPU"),
        pytest.param({"CPU": 1.0, "GPU": 0.5}, None, 1.5, id="GPUs"),
        pytest.param({"CPU": 1.0, "GPU": 0.5}, Resources(gpus=1), 0.5, id="GPUs that others use too"),
    ],
)
def test_what_trials_and_other_programs_use_is_not_free(bundle, in_use, free):
    run = Measured(bundle=bundle, in_use=in_use)
    run.capacity = ClusterCapacity.of(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=2), in_use=in_use))
    run.report(run.start(), 12, 14)

    asked = run.decide()

    assert (dict(asked.free), asked.is_gpu) == ({"a": free}, "GPU" in bundle)


def test_trials_grow_by_gpus_if_any_of_them_has_a_gpu():
    run = Measured(bundle={"CPU": 1.0, "GPU": 0.5})
    run.capacity = ClusterCapacity.of(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=2)))
    run.report(run.start(), 12, 14)
    run.bundle = {"CPU": 1.0}
    run.report(run.start(1), 12, 14)

    asked = run.decide()

    assert (dict(asked.free), asked.is_gpu) == ({"a": 1.5}, True)


def test_nothing_is_free_on_a_node_that_has_left_or_is_in_use():
    run = Measured(bundle={"CPU": 0.5})
    used = Resources(cpus=4)
    run.capacity = ClusterCapacity.of(NodeCapacity(node_id="b", resources=used, in_use=used))
    run.report(run.start(), 12, 14)

    assert dict(run.decide().free) == {"a": 0.0, "b": 0.0}


def test_a_trial_that_grows_prints_its_new_amount_and_the_saved_time(capsys):
    run = Measured()
    trial = run.start()
    run.asked.growths = (Growth(trial.trial_id, 2.0, 5.0),)
    run.report(trial, 12, 14)
    run.decide()
    run.growth.begin(run.records[trial])

    assert capsys.readouterr().out == f"{trial} grows: it restarts with 2 CPUs, which saves about 5 s\n"


@pytest.mark.parametrize(
    ("left", "shrinks"), [(11, True), (10, False)], ids=["more than twice a restart", "twice a restart"]
)
def test_a_smaller_slot_must_release_more_than_twice_what_a_restart_takes(left, shrinks):
    run = Measured()
    trial = run.start(stop={"training_iteration": 3 + left})
    run.report(trial, 4, 6, 8)  # a restart takes 2 s, and a step 2 s

    assert run.growth.shrink(trial, 0.2) == shrinks
    assert run.growth.has_paused(trial) == shrinks


def test_a_restart_in_a_smaller_slot_is_logged(caplog):
    run = Measured()
    trial = run.start(stop={"training_iteration": 14})
    run.report(trial, 4, 6, 8)
    with caplog.at_level(logging.DEBUG):
        run.growth.shrink(trial, 0.2)

    assert "restarts in a smaller slot, which releases 20% for 22 s" in caplog.text


def test_a_trial_keeps_its_slot_until_the_time_of_a_restart_is_known():
    run = Measured()
    trial = run.start()
    run.report(trial, 4)

    assert not run.growth.shrink(trial, 0.9)


def test_a_trial_that_has_ended_does_not_move_to_a_smaller_slot():
    run = Measured()
    trial = run.start()
    run.report(trial, 4, 6, 8)
    run.growth.note_end(trial)

    assert not run.growth.shrink(trial, 0.9)
