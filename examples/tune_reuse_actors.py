"""A function whose process serves several trials: short trials do not wait for new processes."""

import os

from ray import tune

from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan


def train(config):
    tune.report({"process": os.getpid()})


def main(storage_path=None):
    plan = CpuPolicy(cpus=2).plan(probe_cluster())
    return tune.run(with_plan(train, plan), num_samples=4, reuse_actors=True, storage_path=storage_path, verbose=1)


if __name__ == "__main__":
    main()
