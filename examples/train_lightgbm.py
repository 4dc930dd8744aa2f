"""Train LightGBM on two GPUs if available, else on one GPU, else on two CPUs, with one thread per CPU.

LightGBM's wheels use a GPU through OpenCL. If `clinfo` shows no GPU, use only CPUs, because the driver does not support
OpenCL.
"""

import lightgbm
import ray
import ray.train
from ray.train.lightgbm import RayTrainReportCallback, get_network_params
from sklearn.datasets import load_breast_cancer

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_lightgbm_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


def train_on_worker(config):
    context = ray.train.get_context()
    x, y = load_breast_cancer(return_X_y=True)
    mine = slice(context.get_world_rank(), None, context.get_world_size())  # each worker has its own rows
    data = lightgbm.Dataset(x[mine], label=y[mine])
    lightgbm.train(
        {
            "objective": "binary",
            "device_type": "gpu" if ray.get_gpu_ids() else "cpu",
            "metric": "binary_error",
            "learning_rate": config["learning_rate"],
            "tree_learner": "data_parallel",
            "pre_partition": True,
            **get_network_params(),  # the addresses of the other workers
        },
        data,
        num_boost_round=10,
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback(frequency=10)],
    )


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    config = {"learning_rate": 0.3}
    return build_lightgbm_trainer(train_on_worker, plan=POLICY, train_loop_config=config, run_config=run_config).fit()


if __name__ == "__main__":
    print(f"training error: {main().metrics['train-binary_error']:.3f}")
