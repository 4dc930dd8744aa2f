"""Processes that the kernel kills for want of host memory: in a cgroup that is smaller than what they take."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

_MIB = 2**20


@contextmanager
def small_group():
    """A cgroup of 200 MiB for :func:`be_killed`; skips the test where this user cannot make one."""
    group = Path("/sys/fs/cgroup/memory", f"tune-policies-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * _MIB))
    except OSError:
        pytest.skip("this user cannot make cgroups (version 1) here")
    try:
        yield str(group)
    finally:
        group.rmdir()


def be_killed(group):
    """Take more than the group has, in this process."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    b"x" * (400 * _MIB)
