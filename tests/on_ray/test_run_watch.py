"""What Ray waits for silently is found by the run: placement groups that are lost, and workers that cannot start."""

import threading
import time

import pytest
import ray
import ray.train
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.rays import wait_until
from tune_policies import CpuPolicy, InfeasibleRequestError, run
from tune_policies.ray_compat.gcs import placement_groups, remove_group

RAY = {"num_cpus": 2}


@pytest.fixture(autouse=True)
def without_loggers(monkeypatch):
    """Where a run is stopped, Tune's loggers do not close their files."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


@ray.remote(num_cpus=1)
class Holder:
    def is_there(self):
        return True


def report(config):
    tune.report({"loss": 1})


def train_with_rays_own_trainer(config):
    DataParallelTrainer(lambda: ray.train.report({"loss": 1}), scaling_config=ScalingConfig(num_workers=1)).fit()
    tune.report({"loss": 1})


@pytest.mark.timeout(200)
def test_a_placement_group_that_is_lost_is_requested_again(tmp_path, caplog):
    holders = [Holder.remote() for _ in range(2)]
    ray.get([each.is_there.remote() for each in holders])

    def lose_and_make_room():
        wait_until(lambda: any(group.is_pending for group in placement_groups()))
        time.sleep(3)  # the run knows of them
        for group in placement_groups():
            if group.is_pending:
                remove_group(group.group_id)
        wait_until(lambda: "was lost and is requested again" in caplog.text)
        for each in holders:
            ray.kill(each)

    losing = threading.Thread(target=lose_and_make_room)
    losing.start()
    trials = run(report, CpuPolicy(cpus=1), num_samples=2, storage_path=str(tmp_path), verbose=0).trials
    losing.join()

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2


@pytest.mark.timeout(200)
def test_a_run_says_who_holds_what_its_trials_wait_for(tmp_path, caplog):
    named = Holder.options(name="server").remote()
    group = ray.util.placement_group([{"CPU": 1}], name="reserved")
    ray.get([named.is_there.remote(), group.ready()])

    def make_room():
        wait_until(lambda: "plan on free resources" in caplog.text)
        ray.kill(named)
        ray.util.remove_placement_group(group)

    releasing = threading.Thread(target=make_room)
    releasing.start()
    run(report, CpuPolicy(cpus=1), num_samples=2, storage_path=str(tmp_path), verbose=0)
    releasing.join()

    assert (
        "2 trials wait for 1 CPU each: actor Holder 'server' of this program uses 1 CPU; "
        "placement group 'reserved' of this program uses 1 CPU. Wait until these are released, or plan on free "
        "resources with FreeCapacityPolicy(policy)"
    ) in caplog.text


@pytest.mark.timeout(200)
def test_a_run_in_which_no_trial_can_start_its_workers_ends_and_says_which_policy_makes_room(tmp_path, caplog):
    policy = CpuPolicy(cpus=1)

    with pytest.raises(InfeasibleRequestError, match="Give the policy num_workers=1"):
        run(train_with_rays_own_trainer, policy, num_samples=2, storage_path=str(tmp_path), verbose=0)

    assert "waits for workers that cannot start: one trial needs 1 worker with 1 CPU" in caplog.text


@pytest.mark.timeout(200)
def test_rays_own_trainer_needs_nothing_but_num_workers_in_the_policy(tmp_path):
    policy = CpuPolicy(cpus=1, num_workers=1)

    found = run(train_with_rays_own_trainer, policy, num_samples=2, storage_path=str(tmp_path), verbose=0)

    assert [trial.status for trial in found.trials] == ["TERMINATED"] * 2
