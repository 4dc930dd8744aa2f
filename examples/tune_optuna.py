"""Optuna suggests the configs."""

from ray import tune
from ray.tune.search.optuna import OptunaSearch

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config):
    for iteration in range(1, 5):
        tune.report({"loss": (config["lr"] - 0.1) ** 2 + 1 / iteration})


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        with_plan(train, plan),
        config={"lr": tune.uniform(0, 1)},
        num_samples=4,
        metric="loss",
        mode="min",
        search_alg=OptunaSearch(seed=0),
        max_concurrent_trials=plan.max_concurrent_trials,
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
