"""Tune AutoGluon's tabular predictor, on fractions of a GPU if there is one, else on CPUs."""

from autogluon.common import space
from autogluon.tabular import TabularPredictor
from ray import tune
from sklearn.datasets import load_iris

from tune_policies import CpuPolicy, GpuMemoryPolicy, applied

POLICY = GpuMemoryPolicy(gpu_memory="2GiB") | CpuPolicy(cpus=1)


def main():
    table = load_iris(as_frame=True).frame
    predictor = TabularPredictor(label="target", path="predictor")
    with applied(POLICY):
        predictor.fit(
            table,
            hyperparameters={"NN_TORCH": {"num_epochs": 3, "learning_rate": space.Real(1e-3, 1e-1, log=True)}},
            hyperparameter_tune_kwargs={"num_trials": 3, "searcher": "random", "scheduler": "FIFO"},
            fit_weighted_ensemble=False,
        )
    print(predictor.leaderboard())
    for trial in tune.ExperimentAnalysis(f"{predictor.path}/models/NeuralNetTorch").trials:
        score, slot = (trial.last_result[key] for key in ("validation_performance", "slot"))
        print(f"accuracy {score:.3f} in a slot of {slot}")


if __name__ == "__main__":
    main()
