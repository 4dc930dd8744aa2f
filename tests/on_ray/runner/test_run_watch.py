"""A run waits without using a CPU, and detects lost placement groups and Train workers that can never start."""

import threading
import time
from types import SimpleNamespace

import pytest
import ray
import ray.train
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.evidence.faults.simulated_ray import Clock
from tests.on_ray.rays import wait_until
from tune_policies import CpuPolicy, InfeasibleRequestError, run
from tune_policies.ray_compat import trial_actors
from tune_policies.ray_compat.gcs import placement_groups, remove_group
from tune_policies.ray_compat.placement_groups import PlacementGroups

RAY = {"num_cpus": 2}

pytestmark = pytest.mark.usefixtures("without_loggers")


@ray.remote(num_cpus=1)
class Holder:
    def ready(self):
        return True


def report(config):
    tune.report({"loss": 1})


def train_with_a_trainer_of_ray(config):
    DataParallelTrainer(lambda: ray.train.report({"loss": 1}), scaling_config=ScalingConfig(num_workers=1)).fit()
    tune.report({"loss": 1})


def test_a_step_of_a_run_whose_trials_all_wait_for_nodes_does_not_return_at_once(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trial_actors, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=clock.advance))
    actors = trial_actors.TrialActors(PlacementGroups())
    actors.handler = SimpleNamespace(starts_more=False)

    assert not actors.next(timeout=0.1)
    assert clock.now_s == pytest.approx(0.1)


@pytest.mark.rest
@pytest.mark.timeout(200)
def test_a_lost_placement_group_is_requested_again(tmp_path, caplog):
    holders = [Holder.remote() for _ in range(2)]
    ray.get([each.ready.remote() for each in holders])

    def remove_groups_and_release():
        wait_until(lambda: any(group.is_pending for group in placement_groups()))
        time.sleep(3)  # wait until the run has registered the groups
        for group in placement_groups():
            if group.is_pending:
                remove_group(group.group_id)
        wait_until(lambda: "was lost and is requested again" in caplog.text)
        for each in holders:
            ray.kill(each)

    losing = threading.Thread(target=remove_groups_and_release)
    losing.start()
    trials = run(report, CpuPolicy(cpus=1), num_samples=2, storage_path=str(tmp_path), verbose=0).trials
    losing.join()

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2


@pytest.mark.rest
@pytest.mark.timeout(200)
def test_a_run_logs_which_actors_and_groups_reserve_the_resources_of_pending_trials(tmp_path, caplog):
    named = Holder.options(name="server").remote()
    group = ray.util.placement_group([{"CPU": 1}], name="reserved")
    ray.get([named.ready.remote(), group.ready()])

    def release_resources():
        wait_until(lambda: "plan on free resources" in caplog.text)
        ray.kill(named)
        ray.util.remove_placement_group(group)

    releasing = threading.Thread(target=release_resources)
    releasing.start()
    run(report, CpuPolicy(cpus=1), num_samples=2, storage_path=str(tmp_path), verbose=0)
    releasing.join()

    assert (
        "2 trials wait for 1 CPU each: actor Holder 'server' of this program uses 1 CPU; "
        "placement group 'reserved' of this program uses 1 CPU. Wait until these resources are released, or plan "
        "on free resources with FreeCapacityPolicy(policy)"
    ) in caplog.text


@pytest.mark.rest
@pytest.mark.timeout(200)
def test_a_run_whose_train_workers_cannot_start_fails_with_advice(tmp_path, caplog):
    policy = CpuPolicy(cpus=1)

    with pytest.raises(InfeasibleRequestError, match="Set num_workers=1 in the policy"):
        run(train_with_a_trainer_of_ray, policy, num_samples=2, storage_path=str(tmp_path), verbose=0)

    assert "waits for workers that cannot start: one trial needs 1 worker with 1 CPU" in caplog.text
