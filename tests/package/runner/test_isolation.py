"""Tests of MPS and MIG with a stand-in for NVIDIA's control program, because the real daemon needs a GPU."""

import os
import pickle

import pytest

from tune_policies import MemoryLimitError
from tune_policies.trainers.gpu_memory import mps
from tune_policies.trainers.gpu_memory.fraction_limits import FractionLimits, GpuShare
from tune_policies.trainers.gpu_memory.framework_settings import OwnEnvironment
from tune_policies.trainers.process import current_process, process_devices

GIB = 2**30

ANSWERS = '#!/bin/sh\nread line; test "$line" = get_server_list && test "$CUDA_MPS_PIPE_DIRECTORY" = /tmp/mine'
REFUSES = "#!/bin/sh\necho Cannot find MPS control daemon process >&2; exit 1"
HANGS = "#!/bin/sh\nexec sleep 30"
BREAKS = "#!/no/such/interpreter"


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Return a function that installs a script in place of NVIDIA's control program."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # hide the GPU of the machine, if it has one
    for name in (mps.MEMORY_VARIABLE, mps.THREADS_VARIABLE):
        monkeypatch.setenv(name, "")  # restores the variable after the test
        monkeypatch.delenv(name)

    def write(text):
        if text:
            program = tmp_path / "nvidia-cuda-mps-control"
            program.write_text(text)
            program.chmod(0o755)

    return write


def variables():
    return os.environ.get(mps.MEMORY_VARIABLE), os.environ.get(mps.THREADS_VARIABLE)


def test_a_running_mps_daemon_limits_the_process(control):
    control(ANSWERS)
    limits = FractionLimits(GpuShare(fraction=0.25, memory_bytes=20 * GIB))

    mps.isolate_by_mps(limits)

    assert (limits.isolation, limits.warnings, variables()) == ("mps", [], ("0=20480M", "50"))


@pytest.mark.parametrize(
    ("program", "memory_bytes", "reason"),
    [
        (None, 20 * GIB, "nvidia-cuda-mps-control is not installed"),
        (REFUSES, 20 * GIB, "no MPS daemon responds. Start a daemon with nvidia-cuda-mps-control -d"),
        (BREAKS, 20 * GIB, "nvidia-cuda-mps-control cannot be run"),
        (ANSWERS, None, "the plan does not contain a worker's GPU memory"),
    ],
)
def test_a_warning_is_added_to_the_limits_if_mps_cannot_limit_the_process(control, program, memory_bytes, reason):
    control(program)
    limits = FractionLimits(GpuShare(fraction=0.25, memory_bytes=memory_bytes))

    mps.isolate_by_mps(limits)

    assert (limits.isolation, variables()) == (None, (None, None))
    assert limits.warnings[0].startswith(
        f"MPS does not limit this process, so only the limits of its frameworks apply: {reason}"
    )


def test_a_query_of_the_mps_daemon_times_out(control):
    control(HANGS)

    reason = mps.query_mps_daemon(timeout_s=0.3)

    assert reason == "the MPS daemon did not respond within 0.3 s"


@pytest.mark.parametrize(
    ("fraction", "gib", "own", "expected"),
    [
        pytest.param(0.125, 1, (None, None), ("0=1024M", "25"), id="twice the fraction of the threads"),
        pytest.param(0.001, 1, (None, None), ("0=1024M", "1"), id="at least 1 % of the threads"),
        pytest.param(0.5, 1, (None, "10"), ("0=1024M", "10"), id="the user's percentage is kept"),
        pytest.param(0.5, 4, ("0=512MB,1=1G", None), ("0=512M", "100"), id="the limit of the visible device applies"),
        pytest.param(0.5, 4, ("0=8G", None), ("0=4096M", "100"), id="the user's larger limit is replaced"),
        pytest.param(0.5, 4, ("much", None), ("0=4096M", "100"), id="an unreadable limit is replaced"),
    ],
)
def test_the_mps_variables_contain_the_limit_or_a_smaller_value_set_by_the_user(
    control, fraction, gib, own, expected, monkeypatch
):
    for name, value in zip((mps.MEMORY_VARIABLE, mps.THREADS_VARIABLE), own, strict=True):
        if value:
            monkeypatch.setenv(name, value)

    assert mps.start_mps(OwnEnvironment(), fraction, gib * GIB) is None
    assert variables() == expected


def test_the_next_trial_in_the_same_process_gets_its_own_mps_variables(control, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12")
    environment = OwnEnvironment()
    mps.start_mps(environment, 0.25, GIB)

    mps.start_mps(environment, 0.125, 2 * GIB)

    assert variables() == ("GPU-12=2048M", "25")


@pytest.mark.parametrize(("target", "expected"), [("/dev/nvidia-uvm", True), ("/dev/nvidiactl", False)])
def test_cuda_has_started_if_its_memory_device_is_open(tmp_path, target, expected):
    (tmp_path / "3").symlink_to(target)

    assert mps.cuda_has_started(tmp_path) == expected
    assert not mps.cuda_has_started()  # CUDA has not started in this process


def test_a_task_fails_if_cuda_has_started_on_another_gpu_in_its_process(monkeypatch):
    devices = process_devices.ProcessDevices()
    answers = iter((False, True, True))  # the answer for each task after the first
    monkeypatch.setattr(process_devices, "cuda_has_started", lambda: next(answers))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for task, gpus in enumerate(("0", "1", "1", "0")):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        if task < 3:
            devices.bind(f"task {task}")

    with pytest.raises(MemoryLimitError, match=r"assigned GPU 0 to this task, but .* on GPU 1, and CUDA cannot switch"):
        devices.bind("task 3")


@pytest.mark.parametrize(("visible", "expected"), [("MIG-4c12", True), ("GPU-77", False), ("0", False), ("", False)])
def test_a_visible_mig_device_is_recognized(visible, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert mps.is_mig() == expected


def test_the_state_of_a_process_is_pickled_by_reference():
    current = current_process.CURRENT

    assert pickle.loads(pickle.dumps(current)) is current
