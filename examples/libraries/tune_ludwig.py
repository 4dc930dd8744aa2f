"""Tune the learning rate of a Ludwig model, on fractions of a GPU if there is one, else on CPUs."""

import numpy as np
import pandas as pd
import ray
from ludwig.hyperopt.run import hyperopt

from tune_policies import CpuPolicy, GpuMemoryPolicy, applied

POLICY = GpuMemoryPolicy(gpu_memory="2GiB") | CpuPolicy(cpus=1)
CONFIG = {
    "input_features": [{"name": "x", "type": "number"}],
    "output_features": [{"name": "y", "type": "number"}],
    "trainer": {"epochs": 2, "batch_size": 32},
    "hyperopt": {
        "goal": "minimize",
        "metric": "loss",
        "output_feature": "y",
        "parameters": {"trainer.learning_rate": {"space": "loguniform", "lower": 1e-4, "upper": 1e-1}},
        "search_alg": {"type": "variant_generator"},
        "executor": {"type": "ray", "num_samples": 2, "cpu_resources_per_trial": 1},
    },
}


def main():
    ray.init(address="local", include_dashboard=False)  # otherwise Ludwig connects to any running Ray cluster
    x = np.linspace(0, 1, 200)
    table = pd.DataFrame({"x": x, "y": 2 * x})
    with applied(POLICY):
        results = hyperopt(CONFIG, dataset=table, backend="local", output_directory="results")
    for trial in results.experiment_analysis.trials:
        print(f"loss {trial.last_result['metric_score']:.3f} in a slot of {trial.last_result['slot']}")


if __name__ == "__main__":
    main()
