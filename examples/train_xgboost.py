"""Train XGBoost on two GPUs if available, else on one GPU, else on two CPUs, with one thread per CPU."""

import ray
import ray.train
import xgboost
from ray.train.xgboost import RayTrainReportCallback
from sklearn.datasets import load_breast_cancer

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_xgboost_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


def train_on_worker(config):
    context = ray.train.get_context()
    x, y = load_breast_cancer(return_X_y=True)
    mine = slice(context.get_world_rank(), None, context.get_world_size())  # each worker has its own rows
    data = xgboost.DMatrix(x[mine], label=y[mine])
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": "error", "eta": config["eta"], "device": device},
        data,
        num_boost_round=10,
        evals=[(data, "train")],
        callbacks=[RayTrainReportCallback(frequency=10)],
    )


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    return build_xgboost_trainer(
        train_on_worker, plan=POLICY, train_loop_config={"eta": 0.5}, run_config=run_config
    ).fit()


if __name__ == "__main__":
    print(f"training error: {main().metrics['train-error']:.3f}")
