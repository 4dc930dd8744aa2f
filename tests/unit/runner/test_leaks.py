"""Processes that use GPU memory after their trial are ended if the driver reports reliable process IDs."""

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tune_policies.probe.nvml import DeviceUse
from tune_policies.trainers.gpu_memory import free_memory as leaks


@pytest.fixture
def child(monkeypatch):
    """Yield a child process of a trial."""
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


def test_a_child_is_not_ended_if_the_driver_may_list_process_ids_of_the_host(child, monkeypatch):
    """In a container, an older driver lists process IDs of the host. One of them can equal a child's ID by chance."""
    in_a_container(monkeypatch)
    driver_lists(monkeypatch, child.pid)

    assert leaks.end_gpu_processes() == []
    assert child.poll() is None


@pytest.mark.filterwarnings("ignore:process .* of the trial still used:UserWarning")
@pytest.mark.parametrize("is_own_number_listed", [True, False], ids=["in a container", "on the host"])
def test_a_child_that_uses_gpu_memory_is_ended_if_the_process_ids_are_reliable(
    is_own_number_listed, child, monkeypatch
):
    if is_own_number_listed:
        in_a_container(monkeypatch)
        driver_lists(monkeypatch, os.getpid(), child.pid)
    else:
        on_the_host(monkeypatch)
        driver_lists(monkeypatch, child.pid)

    (message,) = leaks.end_gpu_processes()

    assert f"process {child.pid} of the trial still used 1 GiB of GPU memory after the end of the trial" in message
    assert not Path(f"/proc/{child.pid}").exists()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of other users")
SLEEPS = ["sleep", "120"]


@contextmanager
def a_process(**options):
    """Yield the ID of a process whose parent has ended."""
    start = f"import subprocess; print(subprocess.Popen({SLEEPS}, stdout=-3, stderr=-3, **{options}).pid)"
    done = subprocess.run([sys.executable, "-S", "-c", start], capture_output=True, text=True, check=True)
    number = int(done.stdout)
    try:
        yield number
    finally:
        with suppress(ProcessLookupError):
            os.kill(number, 9)


def on_the_host(monkeypatch):
    monkeypatch.setattr(leaks, "_HOST_PID_NAMESPACE", Path("/proc/self/ns/pid").stat().st_ino)


def exists(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] not in "ZX"
    except FileNotFoundError:
        return False


def mark():
    return {**os.environ, "TUNE_POLICIES_TRIAL": os.environ["TUNE_POLICIES_TRIAL"]}


@pytest.fixture
def trial(monkeypatch):
    """Mark this process as a trial's process."""
    monkeypatch.delenv("TUNE_POLICIES_TRIAL", raising=False)
    leaks.mark_processes()
    on_the_host(monkeypatch)


@pytest.mark.parametrize("carried", [None, "", "0" * 32, "another"], ids=str)
def test_a_process_without_the_mark_of_the_trial_is_not_ended(carried, trial, monkeypatch):
    others = {name: value for name, value in os.environ.items() if name != "TUNE_POLICIES_TRIAL"}
    environment = others if carried is None else {**others, "TUNE_POLICIES_TRIAL": carried}
    with a_process(env=environment) as number:
        driver_lists(monkeypatch, number)

        assert leaks.end_gpu_processes() == []
        assert exists(number)


@pytest.mark.filterwarnings("ignore:process .* of the trial still used:UserWarning")
def test_a_process_with_the_mark_of_the_trial_is_ended_even_if_its_parent_has_ended(trial, monkeypatch):
    with a_process(env=mark()) as number:
        driver_lists(monkeypatch, number)

        assert len(leaks.end_gpu_processes()) == 1
        assert not exists(number)


@needs_root
def test_a_process_of_another_user_is_not_ended(trial, monkeypatch):
    with a_process(env=mark(), user=65534) as number:
        driver_lists(monkeypatch, number)

        assert leaks.end_gpu_processes() == []
        assert exists(number)
