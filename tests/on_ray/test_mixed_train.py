"""Train workers and slots of other types run on the same nodes at the same time."""

import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.train import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.rays import cluster_of
from tune_policies import CappedPolicy, CpuPolicy, MixedPolicy, PolicyScheduler
from tune_policies.trainers.trial_process import plan_of_trial

NUM_PROCESSES = 5
"""One trial without Train workers, and two trials with two Train workers each."""


def meet(config):
    """Record the node of this process, and wait until all training processes run."""
    notes = Path(config["folder"], "notes")
    with notes.open("a") as file:
        file.write(f"{ray.get_runtime_context().get_node_id()} {config['trial']}\n")
    deadline = time.monotonic() + 100
    while len(notes.read_text().splitlines()) < NUM_PROCESSES:
        assert time.monotonic() < deadline, "a worker did not start"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_train_workers_start_on_the_resources_that_other_slots_leave_free(tmp_path):
    """The two workers of a trial run on different nodes, and other slots use all remaining resources."""
    policy = MixedPolicy(CappedPolicy(CpuPolicy(cpus=2), 1), CpuPolicy(cpus=1, num_workers=2))

    def trial(config):
        plan = plan_of_trial(policy)
        config = {**config, "trial": tune.get_context().get_trial_id()}
        if plan.num_workers == 0:
            meet(config)
            return
        run_config = RunConfig(name=config["trial"], storage_path=str(tmp_path / "train"))
        DataParallelTrainer(
            meet, train_loop_config=config, scaling_config=plan.scaling_config(), run_config=run_config
        ).fit()

    with cluster_of({"num_cpus": 3}, {"num_cpus": 3}) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        scheduler = PolicyScheduler(policy)
        trials = tune.run(
            trial,
            config={"folder": str(tmp_path)},
            num_samples=3,
            scheduler=scheduler,
            storage_path=str(tmp_path / "results"),
            raise_on_failed_trial=False,
            verbose=0,
        ).trials

    assert scheduler.plan.max_concurrent_trials == 3
    assert [each.status for each in trials] == ["TERMINATED"] * 3
    places = Counter(line.split()[0] for line in (tmp_path / "notes").read_text().splitlines())
    assert sorted(places.values()) == [2, 3]
