"""`Tuner.restore` with another plan: what is unfinished runs again with its resources."""

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
    first = tune.Tuner(
        with_plan(train, small),
        param_space={"needs_threads": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(storage_path=storage_path, verbose=1),
    ).fit()
    return tune.Tuner.restore(first.experiment_path, with_plan(train, large), resume_errored=True).fit()


if __name__ == "__main__":
    main()
