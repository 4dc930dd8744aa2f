"""Tests that files are written atomically, even if the writer is killed, the disk is full, or two processes write.

``replace_file`` writes a temporary file and renames it. Other functions that write files do the same.
"""

import os
import random
import resource
import signal
import time
from contextlib import contextmanager

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.files.writing import replace_file

LENGTHS = (1_000, 200_000)


def text_of(length):
    return f"# {length}\n" + "x" * length


def is_whole(text):
    return text in {text_of(length) for length in LENGTHS}


@contextmanager
def writing(path):
    """Start a process that writes the file repeatedly, and wait for its first write. Kill the process on exit."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in range(10**6):
                replace_file(path, text_of(LENGTHS[number % 2]))
                if number == 0:
                    os.write(tell, b".")
        finally:
            os._exit(1)
    os.close(tell)
    try:
        os.read(ready, 1)
        yield
    finally:
        os.kill(child, signal.SIGKILL)  # the child has not been reaped, so no other process can have its PID
        os.waitpid(child, 0)
        os.close(ready)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # the child starts no thread
def test_a_killed_writer_leaves_the_file_complete_and_blocks_no_other_writer(tmp_path):
    path, rng = tmp_path / "file", random.Random(0)

    for _ in range(20):
        with writing(path), writing(path):
            time.sleep(rng.uniform(0, 0.02))
        assert is_whole(path.read_text())

    replace_file(path, text_of(LENGTHS[0]))
    assert path.read_text() == text_of(LENGTHS[0])


def test_a_file_is_unchanged_if_the_new_text_exceeds_the_file_size_limit(tmp_path):
    path = tmp_path / "file"
    replace_file(path, text_of(LENGTHS[0]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LENGTHS[0] * 2, before[1]))
    try:
        with pytest.raises(InvalidResourcesError, match=r"cannot be written: File too large.*has free space"):
            replace_file(path, text_of(LENGTHS[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": text_of(LENGTHS[0])}
