"""An object that can be called with a config."""

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


class Training:
    def __init__(self, target):
        self.target = target

    def __call__(self, config):
        tune.report({"loss": (config["lr"] - self.target) ** 2})


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        with_plan(Training(target=0.1), plan),
        config={"lr": tune.grid_search([0.1, 0.2])},
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    main()
