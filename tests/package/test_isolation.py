"""MPS with a stand-in for NVIDIA's control program on the path: the real daemon needs a GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers import process_setup
from tune_policies.trainers.gpu_memory import enforcement as isolation
from tune_policies.trainers.gpu_memory.limit import OwnEnvironment
from tune_policies.trainers.gpu_memory.share import GpuShare, LimiterContext

GIB = 2**30
ROOT = Path(__file__).parents[2]

ANSWERS = '#!/bin/sh\nread line; test "$line" = get_server_list && test "$CUDA_MPS_PIPE_DIRECTORY" = /tmp/mine'
REFUSES = "#!/bin/sh\necho Cannot find MPS control daemon process >&2; exit 1"
HANGS = "#!/bin/sh\nexec sleep 30"
BREAKS = "#!/no/such/interpreter"


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Puts a program in the place of NVIDIA's control program."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # where there is a GPU after all
    monkeypatch.setattr(isolation, "PROCESS_ENVIRONMENT", OwnEnvironment())
    for name in (isolation.MEMORY_VARIABLE, isolation.THREADS_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is taken back after the test
        monkeypatch.delenv(name)

    def write(text):
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(text)
        program.chmod(0o755)

    return write


def variables():
    return {name: os.environ.get(name) for name in (isolation.MEMORY_VARIABLE, isolation.THREADS_VARIABLE)}


ENFORCE = """
import json, os
from tune_policies.trainers.gpu_memory.enforcement import enforce
from tune_policies.trainers.gpu_memory.share import GpuShare
record = enforce(GpuShare(fraction=0.25, memory_bytes=20 * 2**30), isolation="mps")
variables = {name: os.environ[name] for name in os.environ if name.startswith("CUDA_MPS_") and "PIPE" not in name}
print(json.dumps([record.isolation, record.warnings, variables]))
"""


def test_a_daemon_that_answers_holds_the_process(control):
    control(ANSWERS)

    done = subprocess.run([sys.executable, "-c", ENFORCE], capture_output=True, text=True, check=True, cwd=ROOT)

    assert json.loads(done.stdout) == [
        "mps",
        [],
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
    ]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "nvidia-cuda-mps-control is not installed"),
        (REFUSES, "no MPS daemon answers: start one with nvidia-cuda-mps-control -d"),
        (BREAKS, "nvidia-cuda-mps-control cannot be run"),
    ],
)
def test_a_daemon_that_is_not_there_is_a_warning_in_the_result(control, program, reason):
    if program:
        control(program)

    held = LimiterContext(GpuShare(fraction=0.25, memory_bytes=20 * GIB))

    isolation.isolate_by_mps(held)

    assert held.report.isolation is None
    assert held.report.warnings[0].startswith(
        f"MPS does not limit this process, only its frameworks' own limits do: {reason}"
    )
    assert variables() == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None}


@pytest.mark.parametrize(
    ("program", "reason"),
    [(None, "nvidia-cuda-mps-control is not installed"), (ANSWERS, "the plan does not state a worker's GPU memory")],
)
def test_a_share_of_a_device_that_cannot_be_read_is_not_held_by_mps(control, program, reason):
    if program:
        control(program)
    held = LimiterContext(GpuShare(fraction=0.25))

    isolation.isolate_by_mps(held)

    assert held.report.isolation is None
    assert reason in held.report.warnings[0]


def test_a_daemon_that_hangs_is_waited_for_until_the_deadline_only(control):
    control(HANGS)
    start = time.monotonic()

    reason = isolation.ask_mps_daemon(timeout_s=0.3)

    assert reason == "the MPS daemon did not answer within 0.3 s"
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.125, "25"), (0.3333, "67"), (0.5, "100"), (0.75, "100"), (0.001, "1")]
)
def test_a_client_of_mps_gets_twice_its_share_of_the_threads(fraction, expected):
    assert isolation.mps_variables(fraction, GIB, "0")[isolation.THREADS_VARIABLE] == expected


def test_a_percentage_that_the_user_chose_is_kept(control, monkeypatch):
    control(ANSWERS)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")

    assert isolation.start_mps(0.5, GIB) is None
    assert variables() == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}


def test_the_next_share_in_the_same_process_gets_its_own_percentage(control):
    control(ANSWERS)
    isolation.start_mps(0.25, GIB)

    isolation.start_mps(0.125, 2 * GIB)

    assert variables() == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [("0=1G", "0=1024M"), ("0=8G", "0=4096M"), ("0=512MB,1=1G", "0=512M"), ("1=1G", "0=4096M"), ("much", "0=4096M")],
)
def test_a_smaller_limit_that_the_user_set_for_mps_is_kept(own, expected, control, monkeypatch):
    control(ANSWERS)
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", own)

    isolation.start_mps(0.5, 4 * GIB)

    assert variables()["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == expected


def test_a_device_of_mps_is_named_by_its_uuid_where_that_is_known():
    named = isolation.mps_variables(0.5, 8 * GIB, "GPU-12")

    assert named[isolation.MEMORY_VARIABLE] == "GPU-12=8192M"


@pytest.mark.parametrize(("target", "expected"), [("/dev/nvidia-uvm", True), ("/dev/nvidiactl", False)])
def test_cuda_has_started_where_its_memory_device_is_open(tmp_path, target, expected):
    (tmp_path / "3").symlink_to(target)

    assert isolation.cuda_has_started(tmp_path) == expected


def test_a_task_is_refused_on_another_gpu_than_the_one_on_which_its_process_has_started_cuda(monkeypatch):
    monkeypatch.setattr(process_setup, "_gpus_of_cuda", None)
    answers = iter((False, True, True))  # at each task after the first
    monkeypatch.setattr(process_setup, "cuda_has_started", lambda: next(answers))
    for gpus in ("0", "1", "1"):
        process_setup.check_gpus_of_cuda(gpus)

    with pytest.raises(MemoryLimitError, match=r"assigned GPU 0 to this task, but .* on GPU 1, and CUDA keeps"):
        process_setup.check_gpus_of_cuda("0")


def test_cuda_has_not_started_in_this_process():
    assert not isolation.cuda_has_started()


@pytest.mark.parametrize(("visible", "expected"), [("MIG-4c12", True), ("GPU-77", False), ("0", False), ("", False)])
def test_a_visible_mig_device_isolates(visible, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert isolation.is_mig() == expected
