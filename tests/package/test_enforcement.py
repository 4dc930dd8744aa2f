"""What becomes of a framework that a trial imports after it was set up; limits themselves need a GPU (on_gpu)."""

import os
import subprocess
import sys

import pytest

CODE = """
from trainers.gpu_memory.enforcement import GpuShare, enforce
enforce(GpuShare(fraction=0.5, memory_bytes=8 * 2**30))
import {framework}
"""


def run_after_enforcing(framework, tmp_path):
    # Not installed here; only that a module of the name is imported counts.
    (tmp_path / "cupy.py").write_text("")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", CODE.format(framework=framework)],
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_framework_that_has_no_limit_here_is_warned_of(tmp_path):
    done = run_after_enforcing("cupy", tmp_path)

    assert done.returncode == 0, done.stderr
    assert "UserWarning: cupy is not held to this process's share of the GPU" in done.stderr


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_framework_that_sees_no_gpu_fails_at_its_import(framework, tmp_path):
    done = run_after_enforcing(framework, tmp_path)

    assert f"MemoryLimitError: Ray gave this process a share of a GPU, but {framework} sees no GPU" in done.stderr
