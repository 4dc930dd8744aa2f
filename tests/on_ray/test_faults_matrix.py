"""A few cells of the fault matrix on a real Ray; ``python -m tests.evidence faults`` runs all."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.rest
@pytest.mark.timeout(300)
def test_kills_of_workers_and_nodes_lose_no_trial_and_disturb_no_neighbour():
    faults = ["--fault", "worker-killed", "--fault", "node-killed-no-failure-allowed"]
    command = [sys.executable, "-m", "tests.evidence", "faults", *faults, "--way", "policy-scheduler", "--number", "2"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
