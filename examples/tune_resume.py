"""`tune.run(resume=…)` with another plan: what is unfinished runs again with its resources."""

import os

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config):
    threads = int(os.environ["OMP_NUM_THREADS"])
    if threads < config["needs_threads"]:
        raise RuntimeError("too slow like this")
    tune.report({"threads": threads})


def main(storage_path=None):
    capacity = probe_cluster()
    small, large = CpuPolicy(cpus=1).plan(capacity), CpuPolicy(cpus=2).plan(capacity)
    options = {
        "name": "resumed",
        "config": {"needs_threads": tune.grid_search([1, 2])},
        "storage_path": storage_path,
        "raise_on_failed_trial": False,
        "verbose": 1,
    }
    tune.run(with_plan(train, small), **options)
    return tune.run(with_plan(train, large), resume="AUTO+ERRORED", **options)


if __name__ == "__main__":
    main()
