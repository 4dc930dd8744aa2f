"""Real trials that report which devices they see."""

import os
import time
import uuid
from pathlib import Path

from ray import tune

from tune_policies import PolicyScheduler
from tune_policies.cluster.accelerators import FAMILIES

VARIABLES = {str(family): family.visibility_variable for family in FAMILIES}


def report_devices(config):
    """Report what the variable shows, once as many trials as planned are at it."""
    folder = Path(config["folder"])
    (folder / uuid.uuid4().hex).touch()
    deadline = time.monotonic() + 200
    while len(list(folder.iterdir())) < config["at_once"]:
        assert time.monotonic() < deadline, "not as many trials run at once as planned"
        time.sleep(0.02)
    tune.report({"shown": os.environ.get(config["variable"])})


def devices_of_each_trial(plan, variable, tmp_path):
    """Run as many trials as planned, all at once, and return what each sees."""
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


def all_of(seen):
    return sorted(device for devices in seen for device in devices)
