"""A decision places trials with small configs on CPUs, and trials with large configs on GPUs."""

import os
from importlib.metadata import version

import pytest
import ray
from ray import tune

from tests.decisions import a_decision
from tune_policies import (
    BenchmarkedPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    PolicyScheduler,
    probe_cluster,
)

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")


RAY = {"num_cpus": 4, "num_gpus": 2}


@pytest.fixture(scope="module")
def capacity():
    return probe_cluster()


def policy_of(**fields):
    slots = {"gpu": GpuPolicy(cpus=1), "cpu": CpuPolicy(cpus=2)}
    accepted = {"accept_other_hardware": True, "max_age_days": None}
    return BenchmarkedPolicy(**{"decision": a_decision(), **slots, **accepted, **fields})


def train(config):
    tune.report(
        {
            "gpus": len(ray.get_gpu_ids()),
            "sees_gpus": os.environ["CUDA_VISIBLE_DEVICES"] != "",
            "threads": int(os.environ["OMP_NUM_THREADS"]),
        }
    )


@pytest.mark.rest
def test_each_trial_runs_on_the_device_that_the_decision_chose(tmp_path):
    analysis = tune.run(
        train,
        scheduler=PolicyScheduler(policy_of()),
        config={"batch_size": tune.grid_search([8, 64, "unknown"])},
        storage_path=str(tmp_path),
        verbose=0,
    )

    names = ("gpus", "sees_gpus", "threads", "slot")
    on_cpu, on_gpu = [0, False, 2, "2 CPUs"], [1, True, 1, "1 CPU, 1 GPU"]
    assert {trial.config["batch_size"]: [trial.last_result[name] for name in names] for trial in analysis.trials} == {
        8: on_cpu,
        64: on_gpu,
        "unknown": on_gpu,
    }


@pytest.mark.rest
def test_a_cluster_whose_cpu_differs_from_the_measured_cpu_is_rejected(capacity):
    (node,) = capacity.nodes
    if node.cpu_model is None:
        pytest.skip("the CPU model of this machine cannot be read")

    with pytest.raises(
        InfeasibleRequestError, match="the policy's decision was measured on a CPU: short of a decision for this CPU"
    ):
        policy_of(accept_other_hardware=False).plan(capacity)


@pytest.mark.rest
def test_a_decision_measured_with_other_package_versions_is_rejected_before_the_run_starts(tmp_path):
    measured_with = a_decision(versions={"ray": version("ray"), "pydantic": "0.1"})

    with pytest.raises(InvalidResourcesError, match=r"benchmarks with pydantic 0\.1"):
        tune.run(train, scheduler=PolicyScheduler(policy_of(decision=measured_with)), storage_path=str(tmp_path))

    accepted = PolicyScheduler(policy_of(decision=measured_with, accept_other_versions=True))
    config = {"batch_size": 8}
    (trial,) = tune.run(train, scheduler=accepted, config=config, storage_path=str(tmp_path), verbose=0).trials
    assert trial.status == "TERMINATED"
