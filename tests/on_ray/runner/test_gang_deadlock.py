"""Train runs whose workers can never start fail with an error that lists the missing resources. Other runs continue."""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
import ray.train
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError

from tests.on_ray.rays import wait_until
from tune_policies import InfeasibleRequestError
from tune_policies.ray_compat.gcs import read_records
from tune_policies.trainers import with_deadlock_check
from tune_policies.trainers.watches.stuck_train_runs import remove_abandoned_groups

# Older versions of Ray wrap every error that ends the controller in a ControllerError.
PASSED_ON = InfeasibleRequestError if hasattr(TrainController, "_run_controller_hook") else ControllerError
RAY = {"num_cpus": 2}


def trainer_for(tmp_path, loop, num_workers=1, **scaling):
    """Return a trainer without a framework, so that its workers start within a second."""
    return DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=num_workers, **scaling),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )


def report_once():
    ray.train.report({"done": 1})


@pytest.mark.rest
@pytest.mark.timeout(120)
def test_a_train_run_that_is_too_large_for_the_cluster_fails(tmp_path):
    trainer = with_deadlock_check(trainer_for(tmp_path, report_once, num_workers=3))

    with pytest.raises(PASSED_ON) as caught:
        trainer.fit()

    message = str(caught.value.controller_failure)
    assert message.startswith("one trial needs 3 workers, each with 1 CPU")
    assert "leave room for 2" in message
    assert "Request num_workers=2" in message


@pytest.mark.rest
@pytest.mark.timeout(180)
@pytest.mark.ray_border
def test_one_of_two_deadlocked_trial_drivers_fails_and_the_other_trains(tmp_path):
    def trial(config):
        with_deadlock_check(trainer_for(tmp_path / str(config["x"]), report_once)).fit()
        tune.report({"trained": 1})

    results = tune.run(
        tune.with_resources(trial, {"cpu": 1}),
        config={"x": tune.grid_search([0, 1])},
        storage_path=str(tmp_path / "tune"),
        raise_on_failed_trial=False,
        verbose=0,
    )

    failed = [trial for trial in results.trials if trial.status == "ERROR"]
    assert [trial.last_result.get("trained") for trial in results.trials].count(1) == 1
    assert len(failed) == 1
    assert re.search(r"2 CPUs - 2 CPUs reserved by 2 waiting drivers = 0 CPUs", str(failed[0].get_error()))
    assert "max_concurrent_trials=1" in str(failed[0].get_error())


@pytest.mark.rest
@pytest.mark.ray_border
def test_resources_of_a_run_whose_controller_was_killed_are_released():
    def reserve(self):
        self.group = ray.util.placement_group([{"CPU": 2}])
        return self.group.wait(10)

    controller = ray.remote(num_cpus=0)(type("TrainController", (), {"reserve": reserve})).remote()
    assert ray.get(controller.reserve.remote())
    ray.kill(controller)

    wait_until(
        lambda: remove_abandoned_groups(read_records()) or ray.available_resources().get("CPU") == 2, timeout_s=15
    )


OTHER_PROGRAM = """
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
server = ray.remote(num_cpus=1)(type("Server", (), {"ready": lambda self: True})).remote()
ray.get(server.ready.remote())
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_waits_for_actors_of_another_program(tmp_path):
    command = [sys.executable, "-c", OTHER_PROGRAM, ray.get_runtime_context().gcs_address, "25"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"

        result = with_deadlock_check(trainer_for(tmp_path, report_once, num_workers=2)).fit()

    assert result.error is None


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_waits_until_the_workers_of_another_run_finish(tmp_path):
    def train_for_long():
        time.sleep(12)  # longer than the timeout for blocked runs

    first = with_deadlock_check(trainer_for(tmp_path / "1", train_for_long, num_workers=2))
    second = with_deadlock_check(trainer_for(tmp_path / "2", report_once, num_workers=2))
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(first.fit), pool.submit(second.fit)]

    assert [run.result().error for run in runs] == [None, None]
