"""What is written is whole or as it was, whatever happens to the writer: a kill at any moment, a rival, a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.evidence.faults.kills import little_room, small_files, why_lost_on_a_full_disk
from tests.evidence.faults.writers import writers
from tune_policies import InvalidResourcesError

ROOT = Path(__file__).parents[2]
WRITERS = {each.name: each for each in writers()}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """What a writer sets to where it is to write, is set back."""
    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path))


@pytest.mark.rest
def test_no_kill_leaves_half_a_file():
    """Two hundred of each are tried by ``python -m tests.evidence kills``."""
    command = [sys.executable, "-m", "tests.evidence", "kills", "--number", "8"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"lint --fix"}))  # before which the test itself writes a file
def test_a_file_that_may_not_grow_is_as_it_was(name, tmp_path):
    writer = WRITERS[name]
    writer.write(tmp_path, 1)
    before = (tmp_path / writer.file).read_bytes()

    with small_files(), pytest.raises(InvalidResourcesError, match=r"cannot be written: File too large.*has room"):
        writer.write(tmp_path, 3)

    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {writer.file: before}


@pytest.mark.rest
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(name):
    try:
        with little_room() as folder:
            why = why_lost_on_a_full_disk(WRITERS[name], folder)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may mount nothing")

    assert why == ""
