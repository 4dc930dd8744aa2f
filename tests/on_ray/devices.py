"""Real trials that report their visible devices."""

import os
import uuid
from pathlib import Path

from ray import tune

from tests.on_ray.rays import wait_until
from tune_policies import PolicyScheduler
from tune_policies.cluster.accelerators import FAMILIES

VARIABLES = {str(family): family.visibility_variable for family in FAMILIES}


def report_devices(config):
    """Wait until all planned trials run at the same time, then report the visible devices."""
    folder = Path(config["folder"])
    (folder / uuid.uuid4().hex).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= config["at_once"])
    tune.report({"shown": os.environ.get(config["variable"])})


def devices_of_each_trial(plan, variable, tmp_path):
    """Run all planned trials at the same time, and return the visible devices of each trial."""
    folder = tmp_path / "running"
    folder.mkdir()
    results = tune.run(
        report_devices,
        scheduler=PolicyScheduler(plan),
        config={"folder": str(folder), "at_once": plan.max_concurrent_trials, "variable": variable},
        num_samples=plan.max_concurrent_trials,
        storage_path=str(tmp_path),
        verbose=0,
    )
    return [trial.last_result["shown"].split(",") for trial in results.trials]


def all_devices(seen):
    return sorted(device for devices in seen for device in devices)
