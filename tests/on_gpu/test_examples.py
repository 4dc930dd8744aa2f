"""Runs the unchanged examples on a real GPU. `make test-gpu` runs these tests."""

from pathlib import Path

import pytest

from tests.on_gpu.device import sees_a_gpu
from tests.on_ray.examples import NAMES, run_example
from tests.on_ray.rays import local_ray

pytestmark = pytest.mark.gpu

PACKAGES = {
    "train_huggingface": "transformers",
    "train_jax": "jax",
    "train_lightgbm": "lightgbm",
    "train_lightning": "lightning",
    "train_tensorflow": "tf_keras",
    "train_xgboost": "xgboost",
    "tune_optuna_asha": "optuna",
    "tune_rllib": "ray.rllib",
    "tune_tensorflow": "tensorflow",
}


@pytest.fixture(scope="module", autouse=True)
def ray():
    with local_ray(num_cpus=8):
        yield


def skip_without_requirements(name):
    pytest.importorskip("sklearn")
    if package := PACKAGES.get(name):
        pytest.importorskip(package)
    if name == "train_lightgbm" and not any(Path("/etc/OpenCL/vendors").glob("*.icd")):
        pytest.skip("this machine has no OpenCL driver")
    for framework in ("tensorflow", "jax"):
        if framework in name and not sees_a_gpu(framework):
            pytest.skip(f"{framework} finds no GPU")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("tune_model_parallel", "tune_oom_retry")])
def test_every_trial_of_an_example_uses_the_gpu(name, tmp_path):
    skip_without_requirements(name)

    results = run_example(name, tmp_path)

    on_gpus = [result["gpu_memory"]["gpus"] > 0 for result in results if "gpu_memory" in result]
    assert on_gpus == [True] * (len(results) if name != "tune_mixed" else len(on_gpus))
    assert on_gpus


def test_the_trial_that_runs_out_of_memory_resumes_from_its_checkpoint_with_more_memory(tmp_path):
    small, large = run_example("tune_oom_retry", tmp_path)

    assert (small["started_at"], large["started_at"]) == (0, 1)
    assert large["gpu_memory"]["gpus"] > small["gpu_memory"]["gpus"]
