"""While trials run, more trials start on added nodes, and trials of lost nodes are requeued without a failure."""

import tempfile
import time
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.cluster_utils import Cluster

from tests.on_ray.rays import wait_until
from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    LearningPolicy,
    PolicyScheduler,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.trainers.watches.run_watch import RunWatch

INTERVAL_S = 0.5


@pytest.fixture(scope="module")
def cluster():
    """Start a head node without CPUs that detects dead nodes sooner than with Ray's default settings (14 s)."""
    health = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 2000,
        "health_check_failure_threshold": 2,
    }
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": health})
    try:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def add_node(cluster):
    """Return a function that adds a node. At the end of the test, the added nodes are removed."""
    added = []

    def add(**resources):
        added.append(cluster.add_node(**resources))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)
    wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)


def record(config, text):
    with Path(config["folder"], "records").open("a") as file:
        file.write(f"{text}\n")


def records(folder):
    return (Path(folder) / "records").read_text().splitlines() if (Path(folder) / "records").exists() else []


class DoOnce(tune.Callback):
    """Calls ``action`` once when ``condition`` is true."""

    def __init__(self, condition, action):
        self.condition, self.action, self.is_done = condition, action, False

    def on_step_end(self, iteration, trials, **info):
        if not self.is_done and self.condition(trials):
            self.is_done = True
            self.action()


class ContinueAfterALoss(tune.Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_trial_recover(self, iteration, trials, trial, **info):
        record({"folder": self.folder}, "continue")


def run(folder, scheduler, trainable, num_samples, **kwargs):
    arguments = {
        "config": {"folder": str(folder), "number": num_samples},
        "num_samples": num_samples,
        "scheduler": scheduler,
        "storage_path": str(folder / "results"),
        "name": "run",
        "verbose": 0,
    }
    return tune.run(trainable, **{**arguments, **kwargs}).trials


def meet(config):
    record(config, ray.get_runtime_context().get_node_id())
    wait_until(lambda: len(records(config["folder"])) >= config["number"])
    tune.report({"score": 1})


@pytest.mark.slow
def test_running_trials_keep_their_slots_when_a_node_of_another_type_is_added(tmp_path, add_node):
    first = add_node(num_cpus=4, num_gpus=1)
    gpu = TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=2)
    cpu = TrialSlot(trial=Resources(cpus=1), max_concurrent_trials=4)
    scheduler = PolicyScheduler(
        TrialPlan(slots=(cpu.model_copy(update={"max_concurrent_trials": 2}),), limited_by="CPU")
    )

    def add_one_without_a_gpu():
        add_node(num_cpus=2)
        scheduler.replan(TrialPlan(slots=(gpu, cpu), limited_by="CPU"))

    when_two_run = DoOnce(lambda _: len(records(tmp_path)) == 2, add_one_without_a_gpu)

    run(tmp_path, scheduler, meet, 6, callbacks=[when_two_run])

    assert records(tmp_path).count(first.node_id) == 4


class StartsSlowly(tune.Trainable):
    """Finishes its set-up after the plan has changed, and finishes its step after the other trial has started."""

    def setup(self, config):
        record(config, "starts")
        wait_until(lambda: "the plan changed" in records(config["folder"]))

    def step(self):
        wait_until(lambda: records(self.config["folder"]).count("starts") == 2)
        return {"done": True}


@pytest.mark.rest
def test_another_trial_starts_when_a_node_is_added_and_a_starting_trial_is_not_restarted(tmp_path, add_node):
    add_node(num_cpus=1)
    policy = CpuPolicy(cpus=1)
    scheduler = PolicyScheduler(policy, replan_interval_s=INTERVAL_S)
    when_it_starts = DoOnce(lambda _: "starts" in records(tmp_path), lambda: add_node(num_cpus=1))
    when_replanned = DoOnce(lambda _: scheduler.changes, lambda: record({"folder": tmp_path}, "the plan changed"))

    trials = run(tmp_path, scheduler, StartsSlowly, 2, callbacks=[when_it_starts, when_replanned])

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    assert sorted(records(tmp_path)) == ["starts", "starts", "the plan changed"]
    assert [(change.plan.max_concurrent_trials, change.why) for change in scheduler.changes] == [(2, "1 node added")]


@pytest.mark.slow
def test_each_slot_type_runs_on_its_own_node_type(tmp_path, add_node):
    with_gpu = add_node(num_cpus=2, num_gpus=1)
    without = add_node(num_cpus=2)
    gpu = TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=2)
    cpu = TrialSlot(trial=Resources(cpus=1), max_concurrent_trials=2)
    scheduler = PolicyScheduler(TrialPlan(slots=(gpu, cpu), limited_by="CPU"))

    trials = run(tmp_path, scheduler, meet, 4)

    assert sorted(records(tmp_path)) == sorted([with_gpu.node_id] * 2 + [without.node_id] * 2)
    assert sorted(trial.last_result["slot"] for trial in trials) == ["1 CPU"] * 2 + ["1 CPU, 0.5 GPU"] * 2


def report_twice(config):
    """Report two results. Between them, wait until ``continue`` is recorded, or after a loss, ``the plan changed``."""
    checkpoint = tune.get_checkpoint()
    record(config, f"{ray.get_runtime_context().get_node_id()} {'first' if checkpoint is None else 'again'}")
    if checkpoint is None:
        with tempfile.TemporaryDirectory() as folder:
            tune.report({"score": 1}, checkpoint=tune.Checkpoint.from_directory(folder))
        record(config, "waits")
        wait_until(lambda: "continue" in records(config["folder"]))
    else:  # a requeued trial can finish before the remaining nodes have been probed
        wait_until(lambda: "the plan changed" in records(config["folder"]))
    tune.report({"score": 2})


@pytest.mark.ray_border
def test_trials_of_a_lost_node_finish_on_another_node_without_a_failure(tmp_path, cluster, add_node):
    stays, dies = add_node(num_cpus=1), add_node(num_cpus=1)
    policy = CpuPolicy(cpus=1)
    scheduler = PolicyScheduler(policy, replan_interval_s=INTERVAL_S)

    when_both_have_checkpoints = DoOnce(
        lambda trials: all(trial.latest_checkpoint_result for trial in trials) and len(trials) == 2,
        lambda: cluster.remove_node(dies, allow_graceful=False),
    )
    when_replanned = DoOnce(lambda _: scheduler.changes, lambda: record({"folder": tmp_path}, "the plan changed"))
    callbacks = [when_both_have_checkpoints, ContinueAfterALoss(tmp_path), when_replanned]

    trials = run(tmp_path, scheduler, report_twice, 2, callbacks=callbacks)

    assert [(trial.status, trial.num_failures) for trial in trials] == [("TERMINATED", 0)] * 2
    assert f"{stays.node_id} again" in records(tmp_path)
    assert [change.plan.max_concurrent_trials for change in scheduler.changes] == [1]


class SlowToStart(tune.Trainable):
    """A trainable whose process takes long to start unless another process has started in vain."""

    def setup(self, config):
        record(config, "begins to start")
        if len(records(config["folder"])) <= 2:
            time.sleep(10)

    def step(self):
        return {"done": True}


@pytest.mark.slow
def test_a_trial_whose_process_starts_on_a_lost_node_is_requeued_without_a_failure(tmp_path, cluster, add_node):
    _, dies = add_node(num_cpus=1), add_node(num_cpus=1)
    scheduler = PolicyScheduler(CpuPolicy(cpus=1), replan_interval_s=INTERVAL_S)
    statuses = []

    def both_start(trials):
        statuses[:] = [trial.status for trial in trials]
        return len(records(tmp_path)) == 2

    when_both_start = DoOnce(both_start, lambda: cluster.remove_node(dies, allow_graceful=False))
    trials = run(tmp_path, scheduler, SlowToStart, 2, callbacks=[when_both_start])

    assert statuses == ["PENDING"] * 2
    assert [(trial.status, trial.num_failures) for trial in trials] == [("TERMINATED", 0)] * 2
    assert len(records(tmp_path)) == 3


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the memory of a simulated GPU cannot be read
def test_a_run_without_a_feasible_plan_raises_an_error_and_keeps_its_results(tmp_path, cluster, add_node, monkeypatch):
    # Tune's loggers do not close their files if a run ends with an error.
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    dies = add_node(num_cpus=1, num_gpus=1)
    add_node(num_cpus=1)
    policy = GpuPolicy(gpus=1)
    scheduler = PolicyScheduler(policy, replan_interval_s=INTERVAL_S, wait_for_nodes_s=1)
    when_one_has_a_checkpoint = DoOnce(
        lambda trials: any(trial.latest_checkpoint_result for trial in trials),
        lambda: cluster.remove_node(dies, allow_graceful=False),
    )

    with pytest.raises(InfeasibleRequestError, match="short of GPU"):
        run(tmp_path, scheduler, report_twice, 2, callbacks=[when_one_has_a_checkpoint])

    left = tune.ResultGrid(tune.ExperimentAnalysis(str(tmp_path / "results" / "run")))
    assert {(result.metrics or {}).get("score") for result in left} == {1, None}


class MostAtOnce(tune.Callback):
    """Adds a node after the first completed trials, and counts the trials that run at once before and after.

    When ``enough`` trials run at once, a file tells the other trials that they need not wait.
    """

    def __init__(self, add, enough, file):
        self.add, self.is_added, self.num_completed = add, False, 0
        self.enough, self.file = enough, file
        self.most = {False: 0, True: 0}

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.num_completed += 1

    def on_step_end(self, iteration, trials, **info):
        running = sum(trial.status == "RUNNING" for trial in trials)
        self.most[self.is_added] = max(self.most[self.is_added], running)
        if self.num_completed == 2 and not self.is_added:
            self.is_added = True
            self.add()
        if running >= self.enough:
            self.file.touch()


def wait_and_report(config):
    if not Path(config["folder"], "enough").exists():
        time.sleep(2)
    tune.report({"gpus": ray.get_runtime_context().get_assigned_resources().get("GPU", 0)})


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_a_node_that_joins_never_reduces_the_number_of_trials_that_run_at_once(tmp_path, add_node):
    """The policy alone would plan only the GPU of the new node."""
    add_node(num_cpus=3)
    counting = MostAtOnce(lambda: add_node(num_cpus=1, num_gpus=1), 4, tmp_path / "enough")
    scheduler = PolicyScheduler(
        GpuPolicy() | CpuPolicy(cpus=1), replan_interval_s=INTERVAL_S, on_unenforced_limit="warn"
    )

    trials = run(tmp_path, scheduler, wait_and_report, 60, callbacks=[counting], reuse_actors=True)

    assert counting.most == {False: 3, True: 4}
    assert {trial.last_result["gpus"] for trial in trials} == {0, 1}


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_trials_without_devices_leave_a_gpu_node_free_while_other_nodes_have_room(tmp_path, add_node):
    gpu_node = add_node(num_cpus=4, num_gpus=1)
    add_node(num_cpus=2)

    run(tmp_path, PolicyScheduler(CpuPolicy(cpus=1)), meet, 2)

    assert gpu_node.node_id not in records(tmp_path)


@pytest.mark.rest
def test_a_group_whose_node_died_before_its_process_started_is_lost(cluster, add_node):
    """Ray would wait for the node indefinitely, because the request of a slot names its node."""
    node = add_node(num_cpus=1, resources={"lost": 1})
    group = ray.util.placement_group([{"CPU": 1, "lost": 1}])
    ray.get(group.ready())
    ids = [group.id.hex()]
    watch = RunWatch()

    cluster.remove_node(node, allow_graceful=False)

    wait_until(lambda: watch.read(lambda: (ids, ids)) is not None and watch.latest.lost_groups == {*ids})
    ray.util.remove_placement_group(group)


def mostly_wait(config):
    for step in range(4):
        time.sleep(0.5)
        tune.report({"step": step})


@pytest.mark.rest
def test_a_run_that_has_learned_loses_no_trial_with_a_node(tmp_path, cluster, add_node):
    add_node(num_cpus=2)
    second = add_node(num_cpus=2)
    has_learned = DoOnce(
        lambda trials: (tmp_path / "results" / "run" / "learned_policy.json").exists(),
        lambda: cluster.remove_node(second),
    )

    trials = run(tmp_path, PolicyScheduler(LearningPolicy(CpuPolicy(cpus=1))), mostly_wait, 12, callbacks=[has_learned])

    assert has_learned.is_done
    assert {(trial.status, trial.last_result["step"]) for trial in trials} == {("TERMINATED", 3)}
