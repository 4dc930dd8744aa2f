"""A long life: what a run has held is free when it has ended, however many there were."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_after_many_runs_in_one_process_no_more_is_held_than_before():
    """A thousand are tried by ``python -m tests.evidence soak``: threads, files, placement groups, actors, requests."""
    command = [sys.executable, "-m", "tests.evidence", "soak", "--cycles", "9", "--warm-up", "3", "--starts", "0"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
