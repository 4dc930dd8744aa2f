"""A Tune run in which each trial raises the real out-of-memory error of one framework once.

It runs in a separate process, because unpickling an error imports its framework into the driver.
"""

import json
import sys
import tempfile

import ray
from ray import tune

from tests.on_ray.rays import local_ray
from tune_policies import OomRetryScheduler


def torch_error():
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def tensorflow_error():
    import tensorflow as tf

    return tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[65536,65536]")


def jax_error():
    import jax

    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.")


def cupy_error():
    import cupy

    return cupy.cuda.memory.OutOfMemoryError(2**30, 2**29, 2**30)


def ray_error():
    return ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")


ERRORS = {
    "torch": torch_error,
    "tensorflow": tensorflow_error,
    "jax": jax_error,
    "cupy": cupy_error,
    "ray": ray_error,
    "python": MemoryError,
}


def run_out_once(config):
    assigned = ray.get_runtime_context().get_assigned_resources()
    if assigned["GPU"] < 0.5 and "memory" not in assigned:
        raise ERRORS[config["raises"]]()
    tune.report({"gpus": assigned["GPU"], "memory": assigned.get("memory")})


def main():
    with tempfile.TemporaryDirectory() as folder, local_ray(num_cpus=4, num_gpus=2):
        trials = tune.run(
            run_out_once,
            scheduler=OomRetryScheduler(),
            config={"raises": tune.grid_search(list(ERRORS))},
            resources_per_trial={"cpu": 1, "gpu": 0.25},
            storage_path=folder,
            raise_on_failed_trial=False,
            verbose=0,
        ).trials
        found = {
            trial.config["raises"]: [trial.status, trial.last_result.get("gpus"), trial.last_result.get("memory")]
            for trial in trials
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
