"""A run warns if its trials wait for tasks that find no free CPU, and explains how to reserve CPUs for them."""

import logging
import threading
import time
from pathlib import Path

import pytest
import ray.data
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.rays import wait_until
from tune_policies import ClusterCapacity, CpuPolicy, PolicyScheduler, ReservingPolicy, Resources
from tune_policies.trainers.gpu_memory.fraction_limits import LimitOptions
from tune_policies.trainers.train.build_trainer import build_trainer

CAPACITY = ClusterCapacity.of(Resources(cpus=2))
MESSAGES = []


RAY = {"num_cpus": 2}

pytestmark = pytest.mark.usefixtures("without_loggers")


@pytest.fixture(autouse=True)
def collected_messages():
    """Collect the messages of the task watch."""
    handler = logging.Handler()
    handler.emit = lambda record: MESSAGES.append(record.getMessage())
    logger = logging.getLogger("tune_policies.trainers.watches.task_watch")
    MESSAGES.clear()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


class UntilWarned(tune.Stopper):
    def __init__(self):
        self.deadline = time.monotonic() + 100

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return bool(MESSAGES) or time.monotonic() > self.deadline


def read_a_dataset(config):
    ray.data.DataContext.get_current().enable_progress_bars = False
    tune.report({"rows": ray.data.range(10).map_batches(lambda batch: batch).count()})


def start_a_task_anywhere(config):
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(lambda: 10)
    tune.report({"rows": ray.get(task.remote())})


def run(trainable, plan, folder):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan),
        num_samples=2,
        storage_path=str(folder),
        stop=UntilWarned(),
        verbose=0,
    ).trials


@pytest.mark.rest
def test_tasks_run_without_a_warning_if_the_plan_reserves_a_cpu(tmp_path):
    trials = run(read_a_dataset, ReservingPolicy(CpuPolicy(cpus=1), cpus=1).plan(CAPACITY), tmp_path)

    assert [trial.last_result.get("rows") for trial in trials] == [10, 10]
    assert MESSAGES == []


@pytest.mark.rest
@pytest.mark.ray_border
def test_a_run_warns_if_its_trials_and_actors_leave_no_cpu_for_their_tasks(tmp_path):
    """For example, a plan may reserve a CPU for Ray Serve, but none for Ray Data."""
    replica = ray.remote(num_cpus=1)(Replica).remote()
    assert ray.get(replica.answer.remote()) == 1

    run(start_a_task_anywhere, ReservingPolicy(CpuPolicy(cpus=1), cpus=1).plan(CAPACITY), tmp_path)
    ray.kill(replica)

    [text] = MESSAGES
    assert text.startswith("tasks that need 1 CPU have waited for ")
    assert "leave room for these tasks and for the actors, which use 1 CPU" in text
    assert "ReservingPolicy(policy, cpus=2)" in text


class Replica:
    def answer(self):
        return 1


def read_the_shard_until_warned(config):
    shard = ray.train.get_dataset_shard("train")
    threading.Thread(target=lambda: list(shard.iter_rows()), daemon=True).start()
    wait_until(Path(config["told"]).exists)


@pytest.mark.slow
def test_a_train_run_warns_if_it_leaves_no_cpu_for_its_dataset(tmp_path):
    plan = CpuPolicy(cpus=1, num_workers=2).plan(CAPACITY)
    trainer = build_trainer(
        DataParallelTrainer,
        read_the_shard_until_warned,
        plan,
        {"told": str(tmp_path / "told")},
        LimitOptions(),
        {"datasets": {"train": ray.data.range(10)}, "run_config": ray.train.RunConfig(storage_path=str(tmp_path))},
    )
    run = threading.Thread(target=trainer.fit, daemon=True)
    run.start()

    wait_until(lambda: MESSAGES)
    (tmp_path / "told").touch()
    run.join(60)

    assert len(MESSAGES) == 1
    assert MESSAGES[0].startswith("tasks that need 1 CPU have waited for ")
