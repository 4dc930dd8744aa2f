"""A function with `tune.Tuner`: `plan.tune_config` fills in how many trials run at once."""

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config):
    tune.report({"loss": (config["lr"] - 0.1) ** 2})


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    tuner = tune.Tuner(
        with_plan(train, plan),
        param_space={"lr": tune.grid_search([0.1, 0.2])},
        tune_config=plan.tune_config(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=storage_path, verbose=1),
    )
    return tuner.fit()


if __name__ == "__main__":
    print(main().get_best_result().config)
