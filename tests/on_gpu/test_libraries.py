"""Libraries train on a real GPU under a policy: RLlib's learner, and a Hugging Face `Trainer`. `make test-gpu`."""

import os

import pytest
import ray

from tests.on_ray.rays import local_ray
from tests.on_ray.test_libraries import run_library, trials_in
from tune_policies import GpuPolicy, run
from tune_policies.trainers import size_algorithm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # warnings depend on the version of the library
]


@pytest.fixture(scope="module", autouse=True)
def ray_with_gpu():
    with local_ray(num_cpus=8):
        yield


def usage_of(trial):
    return trial.last_result["gpu_memory"]


def test_learners_of_rllib_share_the_gpu_and_stay_within_their_limits(tmp_path):
    ppo = pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    policy = GpuPolicy(gpus=0.5, cpus=2)
    config = ppo.PPOConfig().environment("CartPole-v1")
    config.training(train_batch_size_per_learner=512, minibatch_size=64, num_epochs=2)

    trials = run(
        "PPO",
        policy,
        config=size_algorithm(config, policy),
        num_samples=2,
        stop={"training_iteration": 2},
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    assert [(trial.status, usage_of(trial)["gpus"]) for trial in trials] == [("TERMINATED", 0.5)] * 2
    # The learner is in the main process of the trial, so its memory is measured and limited.
    assert all(usage_of(trial)["peak_allocated_bytes"] > 0 for trial in trials)
    assert all(usage_of(trial)["isolation"] == "framework" for trial in trials)


def test_trials_of_a_hugging_face_search_use_the_gpu_although_its_program_has_none(tmp_path):
    pytest.importorskip("transformers")
    without_gpu = {"CUDA_VISIBLE_DEVICES": "", "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    offline = {"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}

    run_library("huggingface", tmp_path, {**os.environ, **without_gpu, **offline})

    trials = trials_in(tmp_path)
    assert [trial.status for trial in trials] == ["TERMINATED"] * 3
    assert all(0 < usage_of(trial)["gpus"] < 1 for trial in trials)
    assert all(usage_of(trial)["peak_allocated_bytes"] > 0 for trial in trials)
