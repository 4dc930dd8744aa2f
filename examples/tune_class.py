"""A `tune.Trainable` class; with `reuse_actors` its process serves the next trial too."""

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


class Training(tune.Trainable):
    def setup(self, config):
        self.lr = config["lr"]

    def reset_config(self, new_config):  # the next trial of this process
        self.setup(new_config)
        return True

    def step(self):
        return {"loss": (self.lr - 0.1) ** 2, "done": self.iteration == 1}


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    space = {"lr": tune.grid_search([0.1, 0.2, 0.3])}
    return tune.run(with_plan(Training, plan), config=space, reuse_actors=True, storage_path=storage_path, verbose=1)


if __name__ == "__main__":
    main()
