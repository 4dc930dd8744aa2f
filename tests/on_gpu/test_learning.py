"""A run learns from a real GPU how much memory its trials need. `make test-gpu` runs these tests."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu]


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Run a small sweep under ``LearningPolicy()`` in a new process, and return what is known of its trials."""
    record = tmp_path_factory.mktemp("sweep") / "record.json"
    command = [sys.executable, "-m", "tests.on_gpu.learning_sweep", "learning", str(record), "--trials", "12"]
    subprocess.run(command, check=True, timeout=280)
    return json.loads(record.read_text())["trials"]


def test_no_trial_is_lost(trials):
    assert {trial["status"] for trial in trials} == {"TERMINATED"}


def test_the_observed_memory_is_within_5_percent_of_what_the_driver_reports(trials):
    known = [trial for trial in trials if trial["driver_bytes"] and trial["observed_bytes"]]

    assert known
    for trial in known:
        assert trial["observed_bytes"] == pytest.approx(trial["driver_bytes"], rel=0.05)
