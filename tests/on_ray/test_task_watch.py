"""A run whose trials wait for tasks that find no CPU beside them says so, and how to leave room."""

import logging
import threading
import time
from pathlib import Path

import pytest
import ray.data
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tune_policies import ClusterCapacity, CpuPolicy, PolicyScheduler, ReservingPolicy, Resources
from tune_policies.trainers.gpu_memory.share import LimitOptions
from tune_policies.trainers.train_loop import build_trainer

CAPACITY = ClusterCapacity.of(Resources(cpus=2))
TOLD = []


RAY = {"num_cpus": 2}


@pytest.fixture(autouse=True)
def without_loggers(monkeypatch):
    """Where a run is stopped, Tune's loggers do not close their files."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


@pytest.fixture(autouse=True)
def listening():
    """Collect what the watch says."""
    handler = logging.Handler()
    handler.emit = lambda record: TOLD.append(record.getMessage())
    logger = logging.getLogger("tune_policies.tune.task_watch")
    TOLD.clear()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


class UntilTold(tune.Stopper):
    def __init__(self):
        self.deadline = time.monotonic() + 100

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return bool(TOLD) or time.monotonic() > self.deadline


def read_a_dataset(config):
    ray.data.DataContext.get_current().enable_progress_bars = False
    tune.report({"rows": ray.data.range(10).map_batches(lambda batch: batch).count()})


def start_a_task_anywhere(config):
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(lambda: 10)
    tune.report({"rows": ray.get(task.remote())})


BOTH = pytest.mark.parametrize(
    "trainable",
    [pytest.param(read_a_dataset, marks=pytest.mark.rest), pytest.param(start_a_task_anywhere, marks=pytest.mark.slow)],
)


def run(trainable, plan, folder):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan),
        num_samples=2,
        storage_path=str(folder),
        stop=UntilTold(),
        verbose=0,
    ).trials


@BOTH
@pytest.mark.ray_border
def test_trials_that_wait_for_tasks_for_which_they_left_no_cpu_say_so(tmp_path, trainable):
    run(trainable, CpuPolicy(cpus=1).plan(CAPACITY), tmp_path)

    [text] = TOLD
    assert text.startswith("tasks that need 1 CPU have waited for ")
    assert "ReservingPolicy(policy, cpus=1)" in text


@pytest.mark.rest
@BOTH
def test_where_room_was_left_trials_get_their_data(tmp_path, trainable):
    trials = run(trainable, ReservingPolicy(CpuPolicy(cpus=1), cpus=1).plan(CAPACITY), tmp_path)

    assert [trial.last_result.get("rows") for trial in trials] == [10, 10]
    assert TOLD == []


def test_a_cpu_that_an_actor_holds_is_no_room_for_tasks(tmp_path):
    """As under a plan that leaves room for a replica of Ray Serve, and none for Ray Data."""
    replica = ray.remote(num_cpus=1)(Replica).remote()
    assert ray.get(replica.answer.remote()) == 1

    run(start_a_task_anywhere, ReservingPolicy(CpuPolicy(cpus=1), cpus=1).plan(CAPACITY), tmp_path)
    ray.kill(replica)

    [text] = TOLD
    assert "Leave room for them, and for the actors, which use 1 CPU" in text
    assert "ReservingPolicy(policy, cpus=2)" in text


class Replica:
    def answer(self):
        return 1


def read_the_shard_until_told(config):
    shard = ray.train.get_dataset_shard("train")
    threading.Thread(target=lambda: list(shard.iter_rows()), daemon=True).start()
    deadline = time.monotonic() + 100
    while not Path(config["told"]).exists() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.slow
def test_a_train_run_with_a_dataset_for_which_no_cpu_is_left_says_so(tmp_path):
    plan = CpuPolicy(cpus=1, num_workers=2).plan(CAPACITY)
    trainer = build_trainer(
        DataParallelTrainer,
        read_the_shard_until_told,
        plan,
        {"told": str(tmp_path / "told")},
        LimitOptions(),
        {"datasets": {"train": ray.data.range(10)}, "run_config": ray.train.RunConfig(storage_path=str(tmp_path))},
    )
    run = threading.Thread(target=trainer.fit, daemon=True)
    run.start()

    deadline = time.monotonic() + 100
    while not TOLD and time.monotonic() < deadline:
        time.sleep(0.1)
    (tmp_path / "told").touch()
    run.join(60)

    assert len(TOLD) == 1
    assert TOLD[0].startswith("tasks that need 1 CPU have waited for ")
