"""Under a decision, small trials run on CPUs, and large trials on a real GPU. `make test-gpu` runs this test."""

import pytest
from ray import tune

from tests.decisions import a_decision
from tests.on_ray.rays import local_ray
from tune_policies import BenchmarkedPolicy, CpuPolicy, GpuPolicy, PolicyScheduler

pytestmark = pytest.mark.gpu


def train(config):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tune.report({"device": torch.ones(8, device=device).sum().device.type})


def test_small_trials_run_on_cpus_and_large_trials_on_the_gpu(tmp_path):
    with local_ray(num_cpus=4):
        policy = BenchmarkedPolicy(
            a_decision(),
            gpu=GpuPolicy(cpus=1),
            cpu=CpuPolicy(cpus=2),
            accept_other_hardware=True,
            max_age_days=None,
        )
        analysis = tune.run(
            train,
            scheduler=PolicyScheduler(policy),
            config={"batch_size": tune.grid_search([16, 1000])},
            storage_path=str(tmp_path),
            verbose=0,
        )

    assert {each.config["batch_size"]: each.last_result["device"] for each in analysis.trials} == {
        16: "cpu",
        1000: "cuda",
    }
