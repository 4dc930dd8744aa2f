"""Which processes end with their trial: those that hold GPU memory, as far as the driver's numbers can be believed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tune_policies.probe.nvml import DeviceUse
from tune_policies.trainers.gpu_memory import free_memory as leaks


@pytest.fixture
def child(monkeypatch):
    """A process that a trial has started."""
    monkeypatch.delenv("TUNE_POLICIES_TRIAL", raising=False)
    leaks.mark_processes()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def driver_lists(monkeypatch, *pids):
    use = DeviceUse(uuid="GPU-1", total_bytes=2**34, free_bytes=2**33, bytes_by_process=dict.fromkeys(pids, 2**30))
    monkeypatch.setattr(leaks, "read_device_use", lambda: [use])


def in_a_container(monkeypatch):
    monkeypatch.setattr(leaks, "_HOST_PID_NAMESPACE", 0)


def test_a_child_is_left_alone_where_the_driver_may_mean_another_process_by_its_number(child, monkeypatch):
    """In a container an older driver lists the host's numbers, of which one may be a child's here by chance."""
    in_a_container(monkeypatch)
    driver_lists(monkeypatch, child.pid)

    assert leaks.end_gpu_processes() == []
    assert child.poll() is None


@pytest.mark.filterwarnings("ignore:process .* outlived it:UserWarning")
@pytest.mark.parametrize("is_own_number_listed", [True, False], ids=["in a container", "on the host"])
def test_a_child_that_holds_memory_ends_where_the_numbers_are_those_of_here(is_own_number_listed, child, monkeypatch):
    if is_own_number_listed:
        in_a_container(monkeypatch)
        driver_lists(monkeypatch, os.getpid(), child.pid)
    else:
        monkeypatch.setattr(leaks, "_HOST_PID_NAMESPACE", Path("/proc/self/ns/pid").stat().st_ino)
        driver_lists(monkeypatch, child.pid)

    (message,) = leaks.end_gpu_processes()

    assert f"process {child.pid}, started by the trial, outlived it with 1 GiB of GPU memory" in message
    assert not Path(f"/proc/{child.pid}").exists()
