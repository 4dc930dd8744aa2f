"""A list of experiments in one `tune.run`, each with a plan of its own."""

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train_small(config):  # Tune tells trainables apart by their names
    tune.report({"loss": (config["lr"] - 0.1) ** 2})


def train_large(config):
    tune.report({"loss": (config["lr"] - 0.2) ** 2})


def main(storage_path=None):
    capacity = probe_cluster()
    space = {"lr": tune.grid_search([0.1, 0.2])}
    plans = {train_small: CpuPolicy(cpus=1).plan(capacity), train_large: CpuPolicy(cpus=2).plan(capacity)}
    return tune.run(
        [
            tune.Experiment(train.__name__, run=with_plan(train, plan), config=space, storage_path=storage_path)
            for train, plan in plans.items()
        ],
        verbose=1,
    )


if __name__ == "__main__":
    main()
