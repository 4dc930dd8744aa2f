"""A tool that is killed in the middle of its work leaves no process behind."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.evidence.guard import end_processes, processes_with
from tests.on_ray.rays import wait_until

ROOT = Path(__file__).parents[2]
MARK = "TEST_OF_KILLED_TOOLS"
EVIDENCE = "tests.evidence"


def programs_of(mark):
    """The command lines of the processes that the tool has started, and its own."""
    lines = []
    for process in processes_with(MARK, mark):
        try:
            lines.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended
            continue
    return lines


def are_running(programs, mark):
    lines = programs_of(mark)
    return all(sum(each in line for line in lines) >= programs.count(each) for each in programs)


@pytest.mark.parametrize(
    ("command", "programs", "killed_by"),
    [
        # The head's raylet and that of a node that the autoscaler has launched.
        pytest.param(
            f"{EVIDENCE} autoscaling --scenario node-starts", ["raylet/raylet"] * 2, signal.SIGKILL, id="nodes"
        ),
        pytest.param(
            f"{EVIDENCE} ray-agreement --clusters 2 --jobs 2 --seed 3",
            ["multiprocessing.spawn", "raylet/raylet"],
            signal.SIGABRT,
            marks=pytest.mark.rest,
            id="a pool of processes",
        ),
        pytest.param(
            f"{EVIDENCE} prove busy --runs 1",
            ["while time.monotonic() < end: pass", "raylet/raylet"],
            signal.SIGKILL,
            marks=pytest.mark.rest,
            id="a neighbour",
        ),
        pytest.param(
            f"{EVIDENCE} kills --number 1000",
            [f"{EVIDENCE} kills"] * 2,
            signal.SIGKILL,
            marks=pytest.mark.rest,
            id="forks",
        ),
        pytest.param(
            "tune_policies.benchmarks run matmul --device cpu --rounds 50",
            ["raylet/raylet", "ray::"],
            signal.SIGKILL,
            marks=pytest.mark.rest,
            id="a measurement",
        ),
    ],
)
def test_a_tool_that_is_killed_leaves_no_process_behind(tmp_path, command, programs, killed_by):
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark, "RAY_AUTH_MODE": "disabled"}
    with (tmp_path / "log").open("wb") as log, tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        tool = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            cwd=tmp_path,
            env=environment | {"RAY_TMPDIR": folder},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: tool.poll() is not None or are_running(programs, mark))
            ended_before = tool.poll()
            tool.send_signal(killed_by)
            tool.wait()

            assert ended_before is None, (tmp_path / "log").read_text()
            # Ray's agents of a node look for their raylet only now and then.
            wait_until(lambda: not programs_of(mark), timeout_s=30 if EVIDENCE in command else 150)
        finally:
            end_processes(MARK, mark)
