"""Pass each kind of trainable to `run` or `tuner`, with one GPU for each trial if there is a GPU, else one CPU."""

import functools

from ray import tune

from tune_policies import AutoPolicy, run, tuner


def train(config, target):
    tune.report({"loss": (config["lr"] - target) ** 2})


class Study:
    def __init__(self, target):
        self.target = target

    def train(self, config):
        train(config, self.target)

    __call__ = train


class Training(tune.Trainable):
    def setup(self, config, target=0.1):
        self.loss = (config["lr"] - target) ** 2

    def step(self):
        return {"loss": self.loss, "done": True}


TRAINABLES = {
    "large data outside the config": tune.with_parameters(train, target=0.1),
    "functools.partial": functools.partial(train, target=0.1),
    "a method": Study(target=0.1).train,
    "a callable object": Study(target=0.1),
    "a class": Training,
}


def main(storage_path=None):
    config = {"lr": 0.2}
    results = {
        kind: run(trainable, AutoPolicy(), config=config, storage_path=storage_path, verbose=1)
        for kind, trainable in TRAINABLES.items()
    }
    run_config = tune.RunConfig(storage_path=storage_path, verbose=1)
    results["tune.Tuner"] = tuner(Training, AutoPolicy(), param_space=config, run_config=run_config).fit()
    return results


if __name__ == "__main__":
    for kind in main():
        print(f"done: {kind}")
