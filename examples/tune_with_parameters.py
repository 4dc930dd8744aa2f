"""`tune.with_parameters` keeps large data out of the config; it goes inside `with_plan`, or around it."""

import numpy as np
from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config, data=None):
    tune.report({"loss": float(np.abs(data - config["guess"]).mean())})


def main(storage_path=None):
    plan = CpuPolicy(cpus=1).plan(probe_cluster())
    return tune.run(
        with_plan(tune.with_parameters(train, data=np.arange(1000)), plan),
        config={"guess": tune.grid_search([200, 500])},
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    main()
