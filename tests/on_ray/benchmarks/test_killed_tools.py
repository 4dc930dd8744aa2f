"""A benchmark that is killed during a measurement leaves no processes behind."""

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.on_ray.marked_processes import end_processes, processes_with
from tests.on_ray.rays import wait_until

ROOT = Path(__file__).parents[3]
MARK = "TEST_OF_KILLED_TOOLS"
COMMAND = "tune_policies.benchmarks run matmul --device cpu --rounds 50"


def programs_of(mark):
    """Return the command lines of the tool and of the processes that it started."""
    lines = []
    for process in processes_with(MARK, mark):
        try:
            lines.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # the process has ended
            continue
    return lines


@pytest.mark.slow
def test_a_killed_benchmark_leaves_no_process_behind(tmp_path):
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark, "RAY_AUTH_MODE": "disabled"}
    with (tmp_path / "log").open("wb") as log, tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        tool = subprocess.Popen(
            [sys.executable, "-m", *COMMAND.split()],
            cwd=tmp_path,
            env=environment | {"RAY_TMPDIR": folder},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: tool.poll() is not None or any("ray::" in line for line in programs_of(mark)))
            ended_before = tool.poll()
            tool.kill()
            tool.wait()

            assert ended_before is None, (tmp_path / "log").read_text()
            # The agents of a Ray node check only occasionally whether their raylet is alive.
            wait_until(lambda: not programs_of(mark), timeout_s=150)
        finally:
            end_processes(MARK, mark)
