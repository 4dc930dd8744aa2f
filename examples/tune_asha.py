"""ASHA stops the trials that fall behind."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler

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
        scheduler=ASHAScheduler(max_t=4, grace_period=1),
        max_concurrent_trials=plan.max_concurrent_trials,
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
