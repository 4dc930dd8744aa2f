"""CPUs by the trial's config: what `tune.with_resources` says around a plan holds, and the threads follow it."""

import os

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config):
    tune.report({"threads": int(os.environ["OMP_NUM_THREADS"])})


def resources(config):
    return tune.PlacementGroupFactory([{"CPU": 2 if config["model"] == "large" else 1}])


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        tune.with_resources(with_plan(train, plan), resources),
        config={"model": tune.grid_search(["small", "large"])},
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    main()
