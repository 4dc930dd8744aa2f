"""Tests every function of train_run against Ray Train, so that a change in a new Ray version fails here."""

import json
import pkgutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray.train
from packaging.version import Version
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


class StartFromCheckpoint(train_run.WorkerCallback):
    def after_init_train_context(self):
        train_run.start_from_checkpoint(ray.train.Checkpoint("/of/another/run"))


class SendController(train_run.ControllerCallback):
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
    """Return the error of a training loop. Its text contains the worker's initial checkpoint."""

    def loop():
        raise ValueError(f"began with {ray.train.get_checkpoint().path}")

    with pytest.raises(WorkerGroupError) as caught:
        trainer_with(StartFromCheckpoint(), loop, tmp_path_factory.mktemp("error")).fit()
    return train_run.error_in_worker(caught.value.worker_failures[0])


def test_the_error_of_a_training_loop_is_found_in_the_error_of_the_run(error_of_worker):
    assert type(error_of_worker).__mro__[-4:] == ValueError.__mro__
    assert not isinstance(error_of_worker, train_run.TrainingFailedError)


def test_a_worker_group_error_is_a_training_failed_error():
    assert isinstance(WorkerGroupError("rank 0", {0: ValueError()}), train_run.TrainingFailedError)


def test_a_worker_starts_from_the_given_checkpoint(error_of_worker):
    assert "began with /of/another/run" in str(error_of_worker)


def test_aborting_a_controller_ends_the_run_and_its_workers(tmp_path):
    queue = Queue(actor_options={"num_cpus": 0})
    trainer = trainer_with(SendController(queue), lambda: time.sleep(600), tmp_path)
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


def test_trainers_of_version_2_are_recognized(trainer):
    assert train_run.is_version_2(type(trainer))
    assert not train_run.is_version_2(tune.Trainable)


def test_the_run_config_of_a_trainer_can_be_replaced(trainer, tmp_path):
    other = train_run.RunConfig(name="mine", storage_path=str(tmp_path))
    changed = train_run.with_run_config(trainer, other)

    assert changed.run_config is changed.train_run_context.run_config is other
    assert trainer.run_config is not other
    assert changed.train_run_context.run_id == trainer.train_run_context.run_id
    assert (train_run.is_named(other), train_run.is_named(trainer.run_config)) == (True, False)


def test_a_train_worker_has_rays_default_resources():
    assert train_run.worker_amounts(ScalingConfig(num_workers=1)) == {"CPU": 1}
    assert train_run.worker_amounts(ScalingConfig(num_workers=1, use_gpu=True)) == {"GPU": 1}


START = train_run.TrialStart.of("trial", "program", {"lr": 0.1})


@pytest.fixture
def earlier_run(tmp_path):
    """Return a function that creates the folder of an earlier Train run with the given report indices."""
    run_config = train_run.RunConfig(name="again", storage_path=str(tmp_path))

    def write(*numbers, began=None, lost=()):
        train_run.begin_account(run_config, began and Checkpoint(began), START)
        for number in set(numbers) - set(lost):
            (tmp_path / "again" / f"checkpoint_{number}").mkdir()
        account = {
            "checkpoint_results": [{"checkpoint_dir_name": f"checkpoint_{n}", "metrics": {"n": n}} for n in numbers],
            "checkpoint_report_indices": numbers,
        }
        (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text(json.dumps(account))
        return run_config

    return write


def missing_reports(run_config, checkpoint=None, start=START):
    found = train_run.unconsumed_reports(run_config, checkpoint and Checkpoint(checkpoint), start)
    assert all(Path(at.path).name == f"checkpoint_{metrics['n']}" for metrics, at in found)
    return [metrics["n"] for metrics, _ in found]


def test_starting_a_run_removes_the_reports_of_an_earlier_run(tmp_path, earlier_run):
    run_config = earlier_run(0, 1)

    train_run.begin_account(run_config, None, START)

    assert not (tmp_path / "again" / "checkpoint_manager_snapshot.json").exists()
    assert missing_reports(run_config) == []


def test_reports_that_follow_a_checkpoint_of_an_earlier_run_are_found(tmp_path, earlier_run):
    run_config = earlier_run(2, 0, 1, 4)  # Train may sort reports by a score, and report 3 had no checkpoint

    assert missing_reports(run_config) == [0, 1, 2]
    assert missing_reports(run_config, str(tmp_path / "again" / "checkpoint_1")) == [2]
    assert missing_reports(run_config, str(tmp_path / "again" / "checkpoint_2")) == []


def test_reports_after_a_missing_checkpoint_and_runs_with_a_different_initial_checkpoint_are_ignored(
    tmp_path, earlier_run
):
    others = str(tmp_path / "other" / "checkpoint_0")
    run_config = earlier_run(0, 1, 2, began=others, lost=[1])

    assert missing_reports(run_config, others) == [0]
    assert missing_reports(run_config) == missing_reports(run_config, str(tmp_path / "third" / "checkpoint_0")) == []


class Plain:
    """An object whose ``repr`` contains its address."""


@pytest.mark.parametrize(
    ("start", "taken"),
    [
        pytest.param(START._replace(program="restoring", config="drawn again"), [0], id="the restored trial"),
        pytest.param(START._replace(config="exploited"), [], id="a different config in the same program"),
        pytest.param(START._replace(trial_id="new", program="other"), [], id="a new trial with the same name"),
    ],
)
def test_only_reports_of_the_same_trial_are_used(earlier_run, start, taken):
    assert missing_reports(earlier_run(0), start=start) == taken


def test_configs_are_compared_without_the_addresses_of_functions_and_objects():
    first, second = ({"loss": lambda x: x, "data": Plain(), "lr": 0.1} for _ in range(2))

    assert repr(first) != repr(second)
    assert train_run.TrialStart.of("trial", "p", first) == train_run.TrialStart.of("trial", "p", second)
    assert train_run.TrialStart.of("trial", "p", first) != train_run.TrialStart.of("trial", "p", first | {"lr": 0.2})


@pytest.mark.parametrize("text", ["", "{"])
def test_an_unreadable_snapshot_of_reports_is_ignored(tmp_path, earlier_run, text):
    run_config = earlier_run(0)
    (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text(text)

    assert missing_reports(run_config) == []
    (tmp_path / "again" / ".began.json").unlink()
    assert missing_reports(run_config) == []


def test_a_snapshot_of_a_version_of_ray_that_does_not_number_reports_is_ignored(tmp_path, earlier_run, caplog):
    run_config = earlier_run(0)
    (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text('{"version": 0, "checkpoint_results": []}')

    assert missing_reports(run_config) == []
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"checkpoint_results": [{}]}',
        '{"checkpoint_report_indices": [0, 1], "checkpoint_results": []}',
        '{"checkpoint_report_indices": [0], "checkpoint_results": [{"metrics": {}}]}',
    ],
)
def test_a_snapshot_of_another_form_causes_a_warning(tmp_path, earlier_run, text, caplog):
    run_config = earlier_run(0)
    (tmp_path / "again" / "checkpoint_manager_snapshot.json").write_text(text)

    assert missing_reports(run_config) == []
    assert "resumes from the latest checkpoint that Tune saved" in caplog.text


@pytest.fixture(scope="module")
def finished_run(own_ray, tmp_path_factory):
    """Return the run config of a Train run with two reported checkpoints, and whether its reports were changed."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    folder = tmp_path_factory.mktemp("finished")
    run_config = train_run.RunConfig(name="finished", storage_path=str(folder))

    def loop():
        is_added = train_run.add_to_reports(lambda metrics: {**metrics, "is_changed": True})
        for number in range(2):
            with tempfile.TemporaryDirectory() as checkpoint:
                Path(checkpoint, "state").touch()
                metrics = {"number": number, "is_added": is_added}
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(checkpoint))

    train_run.begin_account(run_config, None, START)
    result = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
    return run_config, result.metrics


def test_the_reports_of_a_train_worker_are_changed(finished_run):
    _, metrics = finished_run

    assert metrics == {"number": 1, "is_added": True, "is_changed": True}


def test_the_snapshot_that_train_saves_has_the_expected_form(finished_run, caplog):
    """Otherwise, a trial whose program was killed would silently repeat its latest reports."""
    run_config, _ = finished_run
    numbers_reports = Version(ray.__version__) >= Version("2.54")

    found = [metrics["number"] for metrics, _ in train_run.unconsumed_reports(run_config, None, START)]

    assert found == ([0, 1] if numbers_reports else [])
    assert not caplog.records


def test_a_missing_api_for_reports_causes_a_warning(monkeypatch, caplog):
    monkeypatch.delattr("ray.train.v2._internal.execution.train_fn_utils.get_train_fn_utils")

    assert train_run.add_to_reports(dict) is False
    assert "lacks a part that resource usage in the results of a Train run needs" in caplog.text


@pytest.mark.parametrize(
    ("owner", "name", "since"),
    [
        ("ray._private.services.find_gcs_addresses", "cache_clear", "2.55"),
        ("ray._private.state.state", "_connect_and_get_accessor", "2.52"),
        (
            "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator",
            "get_or_create_autoscaling_coordinator",
            "2.53",
        ),
    ],
)
def test_names_that_only_newer_versions_of_ray_have_exist_from_the_stated_version_on(owner, name, since):
    """Without these names, ``ray_compat`` silently uses the form of older versions."""
    if Version(ray.__version__) < Version(since):
        pytest.skip(f"older than Ray {since}")

    assert hasattr(pkgutil.resolve_name(owner), name)


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
def test_ray_train_callbacks_define_the_overridden_methods(base, name):
    assert callable(getattr(base, name))


def test_ray_trains_controller_has_the_expected_name_and_an_abort_method():
    from ray.train.v2._internal.execution.controller import TrainController

    assert TrainController.__name__ == train_run.CONTROLLER_CLASS
    assert callable(TrainController.abort)


def test_reports_outside_of_a_train_worker_are_unchanged():
    assert train_run.add_to_reports(dict) is False
    assert "ray.train.v2._internal.execution.train_fn_utils" in sys.modules
