"""Train LightGBM on two workers under a plan: each takes as many threads as the plan gives it CPUs."""

import lightgbm
import ray.train
from ray.train.lightgbm import RayTrainReportCallback, get_network_params
from sklearn.datasets import load_breast_cancer

from tune_policies import CpuPolicy, FirstFeasiblePolicy, probe_cluster
from tune_policies.trainers import build_lightgbm_trainer

POLICY = FirstFeasiblePolicy(CpuPolicy(cpus=1, num_workers=2), CpuPolicy(cpus=0.5, num_workers=2))


def train_on_worker(config):
    context = ray.train.get_context()
    x, y = load_breast_cancer(return_X_y=True)
    mine = slice(context.get_world_rank(), None, context.get_world_size())  # each worker has its own rows
    data = lightgbm.Dataset(x[mine], label=y[mine])
    lightgbm.train(
        {
            "objective": "binary",
            "metric": "binary_error",
            "learning_rate": config["learning_rate"],
            "tree_learner": "data_parallel",
            "pre_partition": True,
            **get_network_params(),  # how the workers find each other
        },
        data,
        num_boost_round=10,
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback(frequency=10)],
    )


def main(storage_path=None):
    plan = POLICY.plan(probe_cluster())
    print(plan.explain())
    run_config = ray.train.RunConfig(storage_path=storage_path)
    config = {"learning_rate": 0.3}
    return build_lightgbm_trainer(train_on_worker, plan=plan, train_loop_config=config, run_config=run_config).fit()


if __name__ == "__main__":
    print(f"training error: {main().metrics['train-binary_error']:.3f}")
