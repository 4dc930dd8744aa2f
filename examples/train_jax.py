"""Train with JAX on two GPUs if available, else on one GPU, else on two CPUs, in one JAX process group."""

import tempfile

import ray.train

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_jax_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


def train_on_worker(config):
    import jax  # imported here, after the worker's GPU fraction has been set
    import jax.numpy as jnp
    from jax.experimental.multihost_utils import process_allgather

    x = jax.random.normal(jax.random.key(jax.process_index()), (256, 8))  # each worker has its own rows
    y = x @ jnp.arange(8.0)
    gradient = jax.jit(jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2)))
    w = jnp.zeros(8)
    for _ in range(50):
        loss, mine = gradient(w)
        w -= config["lr"] * process_allgather(mine).reshape(-1, 8).mean(axis=0)
    with tempfile.TemporaryDirectory() as folder:  # without a checkpoint, Ray's result has no metrics
        ray.train.report({"loss": float(loss)}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    return build_jax_trainer(train_on_worker, plan=POLICY, train_loop_config={"lr": 0.1}, run_config=run_config).fit()


if __name__ == "__main__":
    print(f"loss: {main().metrics['loss']:.4f}")
