"""Tune RLlib's PPO on CartPole: each trial has a GPU for its learner, if available, and env runners on its CPUs."""

from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig

from tune_policies import EvenSplitPolicy, GpuPolicy, run
from tune_policies.trainers import size_algorithm

POLICY = GpuPolicy() | EvenSplitPolicy(num_trials=2)


def main(storage_path=None):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(lr=tune.grid_search([1e-3, 3e-3]), train_batch_size_per_learner=512, minibatch_size=64, num_epochs=6)
        .debugging(seed=0)
    )
    return run(
        "PPO",
        POLICY,
        config=size_algorithm(config, POLICY),  # sets the numbers of env runners and learners
        stop={"training_iteration": 4},
        metric="env_runners/episode_return_mean",
        mode="max",
        storage_path=storage_path,
        verbose=0,  # otherwise Tune prints the whole config of the algorithm
    )


if __name__ == "__main__":
    print(f"best mean return: {main().best_result['env_runners']['episode_return_mean']:.0f}")
