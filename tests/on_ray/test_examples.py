"""Runs the unchanged examples on CPUs, and checks their policies on machines with and without GPUs."""

import functools
import re
import subprocess
import sys
from operator import getitem

import pytest

from tests.on_ray.examples import EXAMPLES, NAMES, load_example, run_example
from tests.rest_parameters import further
from tune_policies import ClusterCapacity, NodeCapacity, Resources

RAY = {"num_cpus": 2}

EXPECTED_METRICS = {  # the metric and the range of its best value, for each example that the demo does not run
    "train_huggingface": ("loss", 0, 0.5),
    "train_jax": ("loss", 0, 0.01),
    "train_lightgbm": ("train-binary_error", 0, 0.1),
    "train_lightning": ("loss", 0, 2),
    "train_tensorflow": ("accuracy", 0.8, 1),
    "train_xgboost": ("train-error", 0, 0.1),
    "tune_fsdp": ("loss", 0, 2),
    "tune_measured": ("loss", 0, 64),
    "tune_mixed": ("loss", 0, 1),
    "tune_model_parallel": ("loss", 0, 1),
    "tune_oom_retry": ("loss", 0, 64),
    "tune_optuna_asha": ("loss", 0, 30),
    "tune_pbt": ("loss", 0, 1),
    "tune_pytorch": ("accuracy", 0.9, 1),
    "tune_resume": ("threads", 2, 2),
    "tune_rllib": ("env_runners/episode_return_mean", 30, 500),
    "tune_trainables": ("loss", 0, 0.02),
}
# The tests of trainers and policies, which always run, cover the features of these examples.
SLOW = {
    *(
        "train_huggingface",
        "train_jax",
        "train_lightgbm",
        "train_lightning",
        "train_tensorflow",
        "train_xgboost",
        "tune_fsdp",
    ),
    *("tune_measured", "tune_mixed", "tune_model_parallel", "tune_oom_retry", "tune_optuna_asha", "tune_pytorch"),
    *("tune_resume", "tune_rllib"),
}
NUM_RESULTS = {"tune_trainables": 6, "tune_pbt": 4, "tune_optuna_asha": 4, "tune_pytorch": 4, "tune_mixed": 4}


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")  # RLlib's CartPole causes these warnings
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.rest) for name in EXPECTED_METRICS],
)
def test_an_example_reaches_its_expected_metric_on_cpus(name, tmp_path):
    metric, least, most = EXPECTED_METRICS[name]

    results = run_example(name, tmp_path)

    best = min if "loss" in metric or "error" in metric else max
    assert least <= best(functools.reduce(getitem, metric.split("/"), result) for result in results) <= most
    assert len(results) == NUM_RESULTS.get(name, len(results))


WITH_MEMORY = {"accelerator_type": "H100"}
CPUS = NodeCapacity(node_id="cpus", resources=Resources(cpus=8))
ONE_GPU = NodeCapacity(node_id="one", resources=Resources(cpus=16, gpus=1), **WITH_MEMORY)
FOUR_GPUS = NodeCapacity(node_id="four", resources=Resources(cpus=32, gpus=4), **WITH_MEMORY)

SLOW_TO_IMPORT = ("train_", "tune_rllib")
GPUS_OF_A_TRIAL = {  # on a machine with one GPU, and on a machine with four GPUs
    "train_in_tune": (2 / 19, 2 / 19),
    "tune_fsdp": (1, 2),
    "tune_mixed": (1 / 2, 1 / 2),
    "tune_model_parallel": (0, 2),
    "tune_oom_retry": (1 / 63, 1 / 62),
    "tune_optuna_asha": (1 / 39, 1 / 39),
    "tune_pbt": (1 / 4, 1),
    "tune_pytorch": (1 / 19, 1 / 19),
    "tune_rllib": (1, 1),
    "tune_tensorflow": (1 / 19, 1 / 19),
    **{name: (1, 2) for name in NAMES if name.startswith("train_") and name != "train_in_tune"},
}


def gpus_of_a_trial(policy, node):
    plan = policy.plan(ClusterCapacity.of(node))
    return plan.worker.gpus * max(1, plan.num_workers)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in GPUS_OF_A_TRIAL if not name.startswith(SLOW_TO_IMPORT)),
        *further(*(name for name in GPUS_OF_A_TRIAL if name.startswith(SLOW_TO_IMPORT))),
    ],
)
def test_the_policy_of_an_example_uses_gpus_if_available_and_otherwise_cpus(name):
    policy = load_example(name).POLICY

    gpus = tuple(gpus_of_a_trial(policy, node) for node in (CPUS, ONE_GPU, FOUR_GPUS))

    assert gpus == pytest.approx((0, *GPUS_OF_A_TRIAL[name]), abs=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_finds_good_classifiers_and_prints_the_resources_of_each_trial(tmp_path, isolated_environment):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        cwd=tmp_path,
        env={**isolated_environment, "COLUMNS": "140"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("Handwritten digits: every trial")[2]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["PyTorch"] * 4 + ["PyTorch Train, 2 workers"] * 2 + ["TensorFlow"] * 2
    assert all(re.search(r"\d (CPU|GPU)", row[3]) for row in rows)
    assert all(row[4] == "no GPU" or row[4].endswith("iB") for row in rows)
    assert max(float(row[2]) for row in rows) > 0.95


def test_every_example_is_tested():
    assert {*EXPECTED_METRICS, "train_in_tune", "tune_tensorflow"} == {*NAMES}
