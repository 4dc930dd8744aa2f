"""Each trial of a run gets the resources that the policy chooses for its config."""

import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune

from tune_policies import ByConfigPolicy, CpuPolicy, GpuPolicy, run, tuner

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")

RAY = {"num_cpus": 4, "num_gpus": 2}
BY_ALGORITHM = ByConfigPolicy(
    "algo", {"SAC": GpuPolicy(cpus=1), "PPO": GpuPolicy(gpus=0.25, cpus=0.25)}, default=CpuPolicy()
)


def hold(config):
    """Record which other trials run at the same time, with their algorithms, nodes and GPUs."""
    folder = Path(config["folder"])
    context = ray.get_runtime_context()
    gpus = ",".join(map(str, ray.get_gpu_ids()))
    mine = folder / f"{config['algo']}+{tune.get_context().get_trial_id()}+{context.get_node_id()}+{gpus}"
    mine.touch()
    seen = set()
    end = time.monotonic() + config["seconds"]
    while time.monotonic() < end:
        seen |= {path.name for path in folder.iterdir()}
        time.sleep(0.05)
    mine.unlink()
    amounts = context.get_assigned_resources()
    tune.report({"gpus": amounts.get("GPU", 0), "cpus": amounts.get("CPU", 0), "name": mine.name, "seen": sorted(seen)})


def held(policy, algorithms, folder, seconds=2, **more):
    """Run one trial for each algorithm."""
    running = folder / "running"
    running.mkdir()
    return run(
        hold,
        policy,
        config={"algo": tune.grid_search(algorithms), "folder": str(running), "seconds": seconds},
        storage_path=str(folder / "results"),
        verbose=0,
        raise_on_failed_trial=False,
        **more,
    )


def algorithm_of(name):
    return name.split("+")[0]


def pairs_side_by_side(results):
    """Return the pairs of algorithms of which trials ran at the same time."""
    return {frozenset(map(algorithm_of, (result["name"], name))) for result in results for name in result["seen"]}


def pairs_on_a_gpu(results):
    """Return the pairs of algorithms of which trials shared a GPU."""
    shared = set()
    for result in results:
        _, _, node_id, gpus = result["name"].split("+")
        on_same = (name for name in result["seen"] if name.split("+")[2:] == [node_id, gpus])
        shared |= {frozenset((algorithm_of(result["name"]), algorithm_of(name))) for name in on_same}
    return shared


@pytest.mark.rest
def test_each_trial_gets_the_slot_for_its_config_and_all_kinds_run_side_by_side(tmp_path):
    done = held(BY_ALGORITHM, ["SAC", "PPO", "PPO", "A2C", "PPO"], tmp_path, seconds=6)

    results = list(done.results.values())
    assert Counter((algorithm_of(result["name"]), result["cpus"], result["gpus"]) for result in results) == {
        ("SAC", 1, 1): 1,
        ("PPO", 0.25, 0.25): 3,
        ("A2C", 1, 0): 1,
    }
    assert {frozenset(("SAC", "PPO")), frozenset(("SAC", "A2C")), frozenset(("PPO", "A2C"))} <= pairs_side_by_side(
        results
    )


@pytest.mark.rest
def test_trials_with_different_fractions_never_share_a_gpu(tmp_path):
    policy = ByConfigPolicy("algo", {"half": GpuPolicy(gpus=0.5, cpus=0.1), "third": GpuPolicy(gpus=1 / 3, cpus=0.1)})

    done = held(policy, ["half", "third", "third", "half", "third", "half"], tmp_path)

    results = list(done.results.values())
    assert len(results) == 6
    assert pairs_on_a_gpu(results) <= {frozenset(("half",)), frozenset(("third",))}


@pytest.mark.rest
def test_a_config_without_a_policy_fails_only_its_own_trial(tmp_path):
    policy = ByConfigPolicy("algo", {"SAC": GpuPolicy(cpus=1), "PPO": GpuPolicy(gpus=0.25, cpus=1)})

    done = held(policy, ["SAC", "SACC", "PPO"], tmp_path, seconds=0)

    assert {trial.config["algo"]: trial.status for trial in done.trials} == {
        "SAC": "TERMINATED",
        "SACC": "ERROR",
        "PPO": "TERMINATED",
    }
    (failed,) = (trial for trial in done.trials if trial.status == "ERROR")
    assert "Did you mean 'SAC'?" in Path(failed.error_file).read_text()


def report_amounts(config):
    amounts = ray.get_runtime_context().get_assigned_resources()
    tune.report({"width": config["width"], "gpus": amounts.get("GPU", 0)})


@pytest.mark.rest
def test_the_key_may_be_a_lambda_in_a_run_of_tuner(tmp_path):
    policy = ByConfigPolicy(lambda config: config["width"] > 512, {True: GpuPolicy(cpus=1), False: CpuPolicy()})

    results = tuner(
        report_amounts,
        policy,
        param_space={"width": tune.grid_search([64, 1024])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()

    assert {result.metrics["width"]: result.metrics["gpus"] for result in results} == {64: 0, 1024: 1}
