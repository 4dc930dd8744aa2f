"""RLlib algorithms run under a policy and keep the placement group bundles of their actors."""

import os
import signal
import time
from pathlib import Path

import pytest
from ray import tune

from tests.on_ray.rays import wait_until
from tests.on_ray.runner.test_run import most_at_once
from tune_policies import CpuPolicy, GpuPolicy, InvalidResourcesError, run, tuner
from tune_policies.trainers import size_algorithm

RAY = {"num_cpus": 4, "num_gpus": 2}

# The memory of simulated GPUs cannot be read. Gymnasium warns about the spaces that RLlib uses.
pytestmark = [
    pytest.mark.ci,
    pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:gymnasium"),
]

CPUS = CpuPolicy(cpus=2)


@pytest.fixture(scope="module")
def ppo():
    """Import RLlib once, because the import takes seconds."""
    return pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)


class InterruptOnce(tune.Callback):
    """Sends Ctrl-C once, after the first checkpoint."""

    def __init__(self, marker):
        self.marker = marker

    def on_trial_save(self, **info):
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("without_loggers")
@pytest.mark.slow
def test_an_algorithm_is_restored_and_its_checkpoint_loads_in_rllib(ppo, tmp_path):
    config = ppo.PPOConfig().environment("CartPole-v1")
    config.training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=1)
    run_config = tune.RunConfig(
        name="ppo",
        storage_path=str(tmp_path),
        stop={"training_iteration": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        callbacks=[InterruptOnce(tmp_path / "marker")],
        verbose=0,
    )

    space = size_algorithm(config, CPUS)
    tuner("PPO", CPUS, param_space=space, run_config=run_config).fit()
    (result,) = tune.Tuner.restore(str(tmp_path / "ppo"), "PPO", param_space=space).fit()

    assert (tmp_path / "marker").exists()
    assert result.error is None
    assert (result.metrics["slot"], result.metrics["training_iteration"]) == ("2 CPUs", 2)
    assert result.metrics["iterations_since_restore"] == 1
    algorithm = ppo.PPO.from_checkpoint(result.checkpoint.path)
    algorithm.stop()
    assert (type(algorithm), algorithm.config.num_env_runners) == (ppo.PPO, 1)


class LikePPO(tune.Trainable):
    """Reserves the bundles of an algorithm without its actors, and waits until ``at_once`` trials run."""

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory(config["bundles"])

    def step(self):
        start = time.time()
        folder = Path(self.config["folder"])
        (folder / self.trial_id).touch()
        wait_until(lambda: len(list(folder.iterdir())) >= self.config["at_once"])
        gpus = os.environ["CUDA_VISIBLE_DEVICES"]
        return {"gpus": len(gpus.split(",")) if gpus else 0, "start": start, "end": time.time(), "done": True}


def bundles_of(ppo, policy):
    sized = size_algorithm(ppo.PPOConfig(), policy)
    return ppo.PPO.default_resource_request(sized.to_dict()).bundles


@pytest.mark.rest
@pytest.mark.parametrize(
    ("policy", "at_once", "gpus", "slot"),
    [
        pytest.param(GpuPolicy(cpus=2), 2, 1, "2 CPUs, 1 GPU", id="learning in the main process"),
        pytest.param(
            GpuPolicy(cpus=2, num_workers=2),
            1,
            0,
            "4 CPUs, 2 GPUs",
            id="remote learners",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_main_process_sees_only_the_gpus_of_its_own_bundle(ppo, tmp_path, policy, at_once, gpus, slot):
    folder = tmp_path / "running"
    folder.mkdir()

    trials = run(
        LikePPO,
        policy,
        config={"bundles": bundles_of(ppo, policy), "folder": str(folder), "at_once": at_once},
        num_samples=3,
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    results = [trial.last_result for trial in trials]
    assert [(result["gpus"], result["slot"]) for result in results] == [(gpus, slot)] * 3
    assert most_at_once(results) == at_once


def test_a_cpu_policy_is_rejected_for_learners_with_gpus_before_the_run_starts(ppo, tmp_path):
    config = {"bundles": bundles_of(ppo, GpuPolicy(cpus=2)), "folder": str(tmp_path), "at_once": 1}

    with pytest.raises(
        InvalidResourcesError, match="the policy plans trials without a GPU, but the trainable reserves"
    ):
        run(LikePPO, CPUS, config=config, storage_path=str(tmp_path / "results"), verbose=0)

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
