"""Tune an `Auto…` model of NeuralForecast, on fractions of a GPU if there is one, else on CPUs."""

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.auto import AutoMLP, RayOptions
from ray import tune

from tune_policies import CpuPolicy, GpuMemoryPolicy, PolicyScheduler

POLICY = GpuMemoryPolicy(gpu_memory="4GiB") | CpuPolicy(cpus=1)


def main():
    days = pd.date_range("2020-01-01", periods=120)
    series = pd.DataFrame({"unique_id": "sine", "ds": days, "y": np.sin(np.arange(len(days)) / 3)})
    space = {"input_size": tune.choice([12, 24]), "hidden_size": 16, "max_steps": 20, "logger": False}
    model = AutoMLP(
        h=6,
        config={**space, "learning_rate": tune.loguniform(1e-3, 1e-1), "enable_progress_bar": False},
        num_samples=3,
        ray_options=RayOptions(scheduler=PolicyScheduler(POLICY)),
    )
    forecast = NeuralForecast(models=[model], freq="D")
    forecast.fit(series, val_size=12)
    results = forecast.models[0].results
    for trial in results:
        print(f"loss {trial.metrics['loss']:.3f} in a slot of {trial.metrics['slot']}")
    best = results.get_best_result()
    print(f"best: loss {best.metrics['loss']:.3f} with learning_rate={best.config['learning_rate']:.4f}")


if __name__ == "__main__":
    main()
