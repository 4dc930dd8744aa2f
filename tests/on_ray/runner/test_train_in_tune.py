"""Train runs inside Tune trials finish under a plan. With Ray's defaults, they would wait indefinitely."""

import pytest
import ray.train
from ray import tune
from ray.train import RunConfig
from ray.tune.integration.ray_train import TuneReportCallback

from tune_policies import CpuPolicy, PolicyScheduler

RAY = {"num_cpus": 2}


@pytest.mark.slow  # the test of the tutorial covers this with as_trainable
@pytest.mark.timeout(180)  # if each trial driver reserved a CPU, the runs would wait indefinitely
def test_two_train_runs_on_two_cpus_finish(tmp_path):
    pytest.importorskip("torch")
    from tune_policies.trainers import build_torch_trainer

    policy = CpuPolicy(cpus=1, num_workers=1)
    scheduler = PolicyScheduler(policy)

    def on_worker(config):
        ray.train.report({"square": config["x"] ** 2})

    def trial(config):
        build_torch_trainer(
            on_worker,
            plan=policy,
            train_loop_config=config,
            run_config=RunConfig(callbacks=[TuneReportCallback()], storage_path=str(tmp_path)),
        ).fit()

    results = tune.run(
        trial,
        scheduler=scheduler,
        config={"x": tune.grid_search([2, 3])},
        storage_path=str(tmp_path),
        verbose=0,
    )

    assert scheduler.plan.max_concurrent_trials == 2
    assert sorted(trial.last_result["square"] for trial in results.trials) == [4, 9]
