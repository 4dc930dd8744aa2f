"""On a GPU node whose driver is broken, a run ends after its first trials. A stand-in for NVIDIA's driver fails."""

import pytest
from ray import tune

from tests.on_ray.rays import ray_with_stand_ins
from tune_policies import CpuPolicy, GpuPolicy, MemoryLimitError, run


@pytest.fixture(scope="module", autouse=True)
def broken_driver(tmp_path_factory):
    with ray_with_stand_ins(tmp_path_factory.mktemp("packages"), num_cpus=2, num_gpus=1):
        yield


def import_torch(config):
    import torch

    tune.report({"torch": torch.__version__})


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_a_run_ends_with_the_reason_and_starts_no_further_trial(tmp_path):
    config, policy = {"x": tune.grid_search([*range(8)])}, GpuPolicy(gpus=0.5) | CpuPolicy()

    with pytest.raises(MemoryLimitError, match=r"torch detects no GPU.*\. 6 waiting trials did not start"):
        run(import_torch, policy, config=config, max_failures=2, storage_path=str(tmp_path), verbose=0)
