"""Resume a run under another policy. Only failed trials run again, with more resources."""

import os

from ray import tune

from tune_policies import CpuPolicy, GpuPolicy, run

SMALL = GpuPolicy(gpus=0.5, cpus=1) | CpuPolicy(cpus=1)
LARGE = GpuPolicy(gpus=1, cpus=2) | CpuPolicy(cpus=2)


def train(config):
    threads = int(os.environ["OMP_NUM_THREADS"])
    if threads < config["needs_threads"]:
        raise RuntimeError("too few threads")
    tune.report({"threads": threads})


def main(storage_path=None):
    options = {
        "name": "resumed",
        "config": {"needs_threads": tune.grid_search([1, 2])},
        "storage_path": storage_path,
        "raise_on_failed_trial": False,
        "verbose": 1,
    }
    run(train, SMALL, **options)
    return run(train, LARGE, resume="AUTO+ERRORED", **options)


if __name__ == "__main__":
    print(main().dataframe()[["config/needs_threads", "slot", "threads"]])
