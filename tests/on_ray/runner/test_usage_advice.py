"""If a run follows the advice of an earlier run, more trials run concurrently within their resources."""

import time
from pathlib import Path

import pytest
from ray import tune

from tune_policies import CpuPolicy, LearningPolicy, PolicyCallback, run
from tune_policies.trainers.usage.resource_usage import USAGE_FILE, ResourceUsage

RAY = {"num_cpus": 4}

MIB = 2**20


def wait_mostly(config):
    held = bytearray(100 * MIB)
    for _ in range(14):
        time.sleep(0.5)
        tune.report({"held": len(held)})


def usage_of(policy, folder, name):
    kwargs = {"num_samples": 4, "storage_path": str(folder), "name": name, "verbose": 0, "reuse_actors": False}
    trials = run(wait_mostly, policy, callbacks=[PolicyCallback()], **kwargs).trials
    return trials, ResourceUsage.from_json(Path(folder, name, USAGE_FILE).read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_the_advised_policy_runs_more_concurrent_trials_within_its_limits(tmp_path):
    _, first = usage_of(CpuPolicy(cpus=2), tmp_path, "first")
    line, separator, _ = first.slots[0].advice.partition(" would run up to 4 trials at once instead of 2")
    assert separator
    policy = eval(line, {"CpuPolicy": CpuPolicy, "LearningPolicy": LearningPolicy})

    trials, second = usage_of(policy, tmp_path, "second")

    reserved = getattr(policy, "memory", None)
    assert (first.max_trials_at_once, second.max_trials_at_once) == (2, 4)
    assert (first.num_rounds, second.num_rounds) == (2, 1)
    assert reserved is None or all(trial.last_result["usage"]["host_memory_bytes"] <= reserved for trial in trials)
    assert second.slots[0].advice == ""
