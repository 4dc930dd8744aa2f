"""The border with Ray Train, function by function: what a new Ray changes fails here by its name."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray.train
from ray import tune
from ray.train import Checkpoint, ScalingConfig
from ray.train.v2.api.exceptions import WorkerGroupError
from ray.util.queue import Queue

from tests.on_ray.rays import local_ray, wait_until
from tune_policies.ray_compat import train_run
from tune_policies.ray_compat.gcs import living_actors

pytestmark = [pytest.mark.rest, pytest.mark.ray_border]


@pytest.fixture(scope="module", autouse=True)
def own_ray():
    with local_ray(num_cpus=4):
        yield


@pytest.fixture
def trainer(tmp_path):
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=train_run.RunConfig(storage_path=str(tmp_path)),
    )


class StartsElsewhere(train_run.WorkerCallback):
    def after_init_train_context(self):
        train_run.start_from_checkpoint(ray.train.Checkpoint("/of/another/run"))


class SendsController(train_run.ControllerCallback):
    def __init__(self, queue):
        self.queue = queue

    def after_controller_start(self, train_run_context):
        self.queue.put(ray.get_runtime_context().current_actor)


def trainer_with(callback, loop, tmp_path):
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    run_config = train_run.RunConfig(storage_path=str(tmp_path), callbacks=[callback])
    return DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=run_config)


@pytest.fixture(scope="module")
def error_of_worker(own_ray, tmp_path_factory):
    """What a loop has raised that names the checkpoint with which its worker began."""

    def loop():
        raise ValueError(f"began with {ray.train.get_checkpoint().path}")

    with pytest.raises(WorkerGroupError) as caught:
        trainer_with(StartsElsewhere(), loop, tmp_path_factory.mktemp("error")).fit()
    return train_run.error_in_worker(caught.value.worker_failures[0])


def test_what_a_workers_loop_has_raised_is_found_in_the_error_of_its_run(error_of_worker):
    assert type(error_of_worker).__mro__[-4:] == ValueError.__mro__
    assert not isinstance(error_of_worker, train_run.TrainingFailedError)


def test_the_error_of_workers_is_one_of_a_failed_run():
    """To Ray 2.50 that is one of two classes; since then it is the class of both."""
    assert isinstance(WorkerGroupError("rank 0", {0: ValueError()}), train_run.TrainingFailedError)


def test_a_worker_begins_with_the_checkpoint_that_it_is_given(error_of_worker):
    assert "began with /of/another/run" in str(error_of_worker)


def test_a_run_that_is_aborted_by_its_controller_ends_its_workers_and_itself(tmp_path):
    queue = Queue(actor_options={"num_cpus": 0})
    trainer = trainer_with(SendsController(queue), lambda: time.sleep(600), tmp_path)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(trainer.fit)
        controller = queue.get(timeout=60)
        wait_until(lambda: "RayTrainWorker" in {actor.class_name for actor in living_actors()}, timeout_s=60)
        run_id = train_run.run_id_of(controller)
        classes = {actor.actor_id: actor.class_name for actor in living_actors()}

        train_run.abort_run(controller, 30)

        assert classes[run_id] == train_run.CONTROLLER_CLASS
        assert run.exception(timeout=60) is not None
    workers = {actor_id for actor_id, name in classes.items() if name == "RayTrainWorker"}
    wait_until(lambda: not {run_id, *workers} & {actor.actor_id for actor in living_actors()})


def test_version_2_is_told_from_what_is_not(trainer):
    assert train_run.is_version_2(type(trainer))
    assert not train_run.is_version_2(tune.Trainable)


def test_a_trainer_can_be_given_another_run_config(trainer, tmp_path):
    other = train_run.RunConfig(name="mine", storage_path=str(tmp_path))
    changed = train_run.with_run_config(trainer, other)

    assert changed.run_config is changed.train_run_context.run_config is other
    assert trainer.run_config is not other
    assert changed.train_run_context.run_id == trainer.train_run_context.run_id
    assert (train_run.is_named(other), train_run.is_named(trainer.run_config)) == (True, False)


def test_what_ray_asks_for_a_worker_has_its_defaults():
    assert train_run.worker_amounts(ScalingConfig(num_workers=1)) == {"CPU": 1}
    assert train_run.worker_amounts(ScalingConfig(num_workers=1, use_gpu=True)) == {"GPU": 1}


START = train_run.TrialStart.of("trial", "program", {"lr": 0.1})


@pytest.fixture
def earlier_run(tmp_path):
    """A run in whose folder Train has told of so many reports, by their numbers, since it began from nothing."""
    run_config = train_run.RunConfig(name="again", storage_path=str(tmp_path))

    def told(*numbers, began=None, lost=()):
        train_run.begin_account(run_config, began and Checkpoint(began), START)
        for number in set(numbers) - set(lost):
            (tmp_path / "again" / f"checkpoint_{number}").mkdir()
        account = {
            "checkpoint_results": [{"checkpoint_dir_name": f"checkpoint_{n}", "metrics": {"n": n}} for n in numbers],
            "checkpoint_report_indices": numbers,
        }
        (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text(json.dumps(account))
        return run_config

    return told


def unheard(run_config, checkpoint=None, start=START):
    found = train_run.unheard_reports(run_config, checkpoint and Checkpoint(checkpoint), start)
    assert all(Path(at.path).name == f"checkpoint_{metrics['n']}" for metrics, at in found)
    return [metrics["n"] for metrics, _ in found]


def test_the_account_of_an_earlier_run_is_where_ray_keeps_it(tmp_path, earlier_run):
    run_config = earlier_run(0, 1)

    train_run.begin_account(run_config, None, START)

    assert not (tmp_path / "again" / "checkpoint_manager_snapshot.json").exists()
    assert unheard(run_config) == []


def test_what_a_run_has_reported_since_a_checkpoint_is_found(tmp_path, earlier_run):
    run_config = earlier_run(2, 0, 1, 4)  # Train may sort them by a score; the fourth had no checkpoint

    assert unheard(run_config) == [0, 1, 2]
    assert unheard(run_config, str(tmp_path / "again" / "checkpoint_1")) == [2]
    assert unheard(run_config, str(tmp_path / "again" / "checkpoint_2")) == []


def test_what_a_run_has_reported_that_began_otherwise_is_left(tmp_path, earlier_run):
    others = str(tmp_path / "other" / "checkpoint_0")
    run_config = earlier_run(0, 1, began=others)

    assert unheard(run_config, others) == [0, 1]
    assert unheard(run_config) == unheard(run_config, str(tmp_path / "third" / "checkpoint_0")) == []


class Plain:
    """An object whose ``repr`` contains its address."""


@pytest.mark.parametrize(
    ("start", "taken"),
    [
        pytest.param(START._replace(program="restoring", config="drawn again"), [0], id="of the restored trial"),
        pytest.param(START._replace(config="exploited"), [], id="with another config in the same program"),
        pytest.param(START._replace(trial_id="new", program="other"), [], id="of a new trial of the same name"),
    ],
)
def test_reports_of_an_earlier_start_are_those_of_the_same_trial(earlier_run, start, taken):
    assert unheard(earlier_run(0), start=start) == taken


def test_a_config_is_the_same_wherever_its_functions_and_objects_are_in_memory():
    first, second = ({"loss": lambda x: x, "data": Plain(), "lr": 0.1} for _ in range(2))

    assert repr(first) != repr(second)
    assert train_run.TrialStart.of("trial", "p", first) == train_run.TrialStart.of("trial", "p", second)
    assert train_run.TrialStart.of("trial", "p", first) != train_run.TrialStart.of("trial", "p", first | {"lr": 0.2})


def test_what_a_run_has_reported_ends_where_a_checkpoint_is_gone(earlier_run):
    assert unheard(earlier_run(0, 1, 2, lost=[1])) == [0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"checkpoint_results": [{}]}', '{"checkpoint_report_indices": [0, 1]}']
)
def test_an_account_that_says_nothing_of_use_is_no_reason_to_fail(tmp_path, earlier_run, text):
    run_config = earlier_run(0)
    (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text(text)

    assert unheard(run_config) == []
    (tmp_path / "again" / ".began.json").unlink()
    assert unheard(run_config) == []


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (train_run.ControllerCallback, "after_controller_start"),
        (train_run.ControllerCallback, "after_controller_state_update"),
        (train_run.WorkerGroupCallback, "before_worker_group_start"),
        (train_run.WorkerGroupCallback, "after_worker_group_start"),
        (train_run.ReportCallback, "after_report"),
        (train_run.WorkerCallback, "after_init_train_context"),
    ],
)
def test_train_calls_what_the_callbacks_have(base, name):
    assert callable(getattr(base, name))


def test_trains_controller_has_the_name_and_the_end_that_are_asked_for():
    from ray.train.v2._internal.execution.controller import TrainController

    assert TrainController.__name__ == train_run.CONTROLLER_CLASS
    assert callable(TrainController.abort)


def test_outside_of_a_worker_reports_stay_plain():
    assert train_run.add_to_reports(dict) is False
    assert "ray.train.v2._internal.execution.train_fn_utils" in sys.modules
