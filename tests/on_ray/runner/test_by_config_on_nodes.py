"""On two nodes, each trial gets the resources for its config, and no GPU is divided into different fractions."""

import pytest
import ray

from tests.on_ray.rays import cluster_of
from tests.on_ray.runner.test_by_config import algorithm_of, held, pairs_on_a_gpu, pairs_side_by_side
from tune_policies import ByConfigPolicy, GpuPolicy

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")


@pytest.fixture(scope="module", autouse=True)
def two_nodes():
    small_store = {"object_store_memory": 100 * 2**20}
    with cluster_of(*[{"num_cpus": 2, "num_gpus": 1, **small_store}] * 2) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield


@pytest.mark.rest
def test_whole_gpus_and_fractions_run_side_by_side_on_two_nodes_and_unequal_fractions_do_not(tmp_path):
    policies = {
        "whole": GpuPolicy(cpus=0.5),
        "half": GpuPolicy(gpus=0.5, cpus=0.5),
        "third": GpuPolicy(gpus=1 / 3, cpus=0.5),
    }
    algorithms = ["half", "whole", "half", "third", "third", "whole"]

    done = held(ByConfigPolicy("algo", policies), algorithms, tmp_path, seconds=4)

    results = list(done.results.values())
    assert sorted(algorithm_of(result["name"]) for result in results) == sorted(algorithms)
    assert pairs_on_a_gpu(results) <= {frozenset((name,)) for name in policies}
    assert {len(pair) for pair in pairs_side_by_side(results)} == {1, 2}
    assert frozenset(("half", "third")) not in pairs_side_by_side(results)
