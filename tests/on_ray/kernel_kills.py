"""Processes that the kernel kills because they use more host memory than their cgroup allows."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

_MIB = 2**20


@contextmanager
def small_group():
    """Create a cgroup of 200 MiB for :func:`be_killed`, or skip the test if this user may not create cgroups."""
    group = Path("/sys/fs/cgroup/memory", f"tune-policies-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * _MIB))
    except OSError:
        pytest.skip("this user cannot create cgroups (version 1) on this machine")
    try:
        yield str(group)
    finally:
        group.rmdir()


def be_killed(group):
    """Allocate more host memory in this process than the cgroup allows."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    b"x" * (400 * _MIB)
