"""Tune a function and a classifier with FLAML, with one CPU for each trial."""

import flaml
from ray import tune
from sklearn.datasets import load_iris

from tune_policies import CpuPolicy, PolicyScheduler

POLICY = CpuPolicy(cpus=1)


def evaluate(config):
    return {"loss": (config["x"] - 3) ** 2}


def main():
    analysis = flaml.tune.run(
        evaluate,
        config={"x": tune.uniform(0, 10)},
        metric="loss",
        mode="min",
        num_samples=4,
        use_ray=True,
        scheduler=PolicyScheduler(POLICY),
    )
    for trial in analysis.trials:
        print(f"loss {trial.last_result['loss']:.3f} in a slot of {trial.last_result['slot']}")
    print(f"best: {analysis.best_config}")

    features, classes = load_iris(return_X_y=True)
    automl = flaml.AutoML()
    ray_options = {"scheduler": PolicyScheduler(POLICY)}
    automl.fit(features, classes, task="classification", estimator_list=["lgbm"], max_iter=4, use_ray=ray_options)
    print(f"best: {automl.best_estimator}, loss {automl.best_loss:.3f}, with {automl.best_config}")


if __name__ == "__main__":
    main()
