"""BOHB: HyperBand whose configs come from a model. Needs `pip install hpbandster ConfigSpace`."""

from ray import tune
from ray.tune.schedulers import HyperBandForBOHB
from ray.tune.search.bohb import TuneBOHB

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


class Training(tune.Trainable):
    def setup(self, config):
        self.loss = 1.0

    def step(self):
        self.loss *= 1 - self.config["lr"]
        return {"loss": self.loss}

    def save_checkpoint(self, checkpoint_dir):
        return {"loss": self.loss}

    def load_checkpoint(self, checkpoint):
        self.loss = checkpoint["loss"]


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        with_plan(Training, plan),
        config={"lr": tune.uniform(0.01, 0.5)},
        num_samples=3,
        metric="loss",
        mode="min",
        stop={"training_iteration": 3},
        scheduler=HyperBandForBOHB(max_t=3),
        search_alg=TuneBOHB(seed=0),
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
