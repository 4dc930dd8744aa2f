"""Tests that the programs of the page on plain Tune fail or wait with plain Tune, as the page states.

``test_pages.py`` runs the same programs under a policy. If a test fails, a Ray version has solved the problem, and the
page must be changed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.test_pages import files, page_environment

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "plain-tune-failures.md"
DEADLINE_S = 60
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def output_of(tmp_path, isolated_environment):
    """Return a function that runs a program of the page, and returns its exit status (``None``: no end) and output."""
    for file, content in files(PAGE):
        (tmp_path / file).write_text(content)

    def run(program, deadline_s):
        process = subprocess.Popen(
            [sys.executable, program],
            cwd=tmp_path,
            env=page_environment(isolated_environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=60)
            return None, output
        return process.returncode, output

    return run


def test_one_trial_with_too_much_host_memory_ends_a_run_of_plain_tune(output_of):
    status, output = output_of("host_memory.py", 250)

    assert status == 1
    assert "RuntimeError: Caught unexpected exception" in output


def test_a_trial_with_too_much_gpu_memory_fails_in_plain_tune(output_of):
    status, output = output_of("gpu_memory.py", 250)

    assert (status, "2 of 3 trials finished" in output) == (0, True)


@pytest.mark.parametrize("program", ["too_large.py", "train_in_tune.py"])
def test_trials_that_cannot_get_their_resources_wait_in_plain_tune(output_of, program):
    status, output = output_of(program, DEADLINE_S)

    assert (status, "finished" in output) == (None, False)
