"""Tests some cells of the fault matrix on a real Ray cluster. ``python -m tests.evidence faults`` runs all cells."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def inject(*faults, way="policy-scheduler"):
    named = [word for fault in faults for word in ("--fault", fault)]
    command = [sys.executable, "-m", "tests.evidence", "faults", *named, "--way", way, "--number", "1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_trial_is_lost_if_a_worker_or_node_is_killed_and_other_trials_are_not_affected():
    done = inject("worker-killed", "node-killed-no-failure-allowed")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_that_loses_the_node_of_its_train_workers_is_requeued_even_with_max_failures_0():
    done = inject("node-killed-no-failure-allowed", way="as_trainable")

    assert done.returncode == 0, done.stdout + done.stderr
