"""A method of an object, which goes to each trial with the object's state."""

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


class Experiment:
    def __init__(self, target):
        self.target = target

    def train(self, config):
        tune.report({"loss": (config["lr"] - self.target) ** 2})


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        with_plan(Experiment(target=0.1).train, plan),
        config={"lr": tune.grid_search([0.1, 0.2])},
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    main()
