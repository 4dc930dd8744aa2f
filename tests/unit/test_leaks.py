"""Which processes end with their trial: those that hold GPU memory, as far as the driver's numbers can be believed."""

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


@pytest.mark.filterwarnings("ignore:process .* of the trial still used:UserWarning")
@pytest.mark.parametrize("is_own_number_listed", [True, False], ids=["in a container", "on the host"])
def test_a_child_that_holds_memory_ends_where_the_numbers_are_those_of_here(is_own_number_listed, child, monkeypatch):
    if is_own_number_listed:
        in_a_container(monkeypatch)
        driver_lists(monkeypatch, os.getpid(), child.pid)
    else:
        monkeypatch.setattr(leaks, "_HOST_PID_NAMESPACE", Path("/proc/self/ns/pid").stat().st_ino)
        driver_lists(monkeypatch, child.pid)

    (message,) = leaks.end_gpu_processes()

    assert f"process {child.pid} of the trial still used 1 GiB of GPU memory after its end" in message
    assert not Path(f"/proc/{child.pid}").exists()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of other users")
SLEEPS = ["sleep", "120"]


@contextmanager
def a_process(**options):
    """A process whose parent has ended: it is nobody's child here."""
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


def is_there(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] not in "ZX"
    except FileNotFoundError:
        return False


def mark():
    return {**os.environ, "TUNE_POLICIES_TRIAL": os.environ["TUNE_POLICIES_TRIAL"]}


@pytest.fixture
def trial(monkeypatch):
    """This process as that of a trial."""
    monkeypatch.delenv("TUNE_POLICIES_TRIAL", raising=False)
    leaks.mark_processes()
    on_the_host(monkeypatch)


@pytest.mark.parametrize("carried", [None, "", "0" * 32, "another"], ids=str)
def test_a_process_of_this_user_with_no_mark_or_another_is_left_alone(carried, trial, monkeypatch):
    others = {name: value for name, value in os.environ.items() if name != "TUNE_POLICIES_TRIAL"}
    environment = others if carried is None else {**others, "TUNE_POLICIES_TRIAL": carried}
    with a_process(env=environment) as number:
        driver_lists(monkeypatch, number)

        assert leaks.end_gpu_processes() == []
        assert is_there(number)


@pytest.mark.filterwarnings("ignore:process .* of the trial still used:UserWarning")
def test_a_process_that_carries_the_mark_ends_though_its_parent_is_gone(trial, monkeypatch):
    with a_process(env=mark()) as number:
        driver_lists(monkeypatch, number)

        assert len(leaks.end_gpu_processes()) == 1
        assert not is_there(number)


@needs_root
def test_a_process_of_another_user_that_carries_the_mark_is_left_alone(trial, monkeypatch):
    with a_process(env=mark(), user=65534) as number:
        driver_lists(monkeypatch, number)

        assert leaks.end_gpu_processes() == []
        assert is_there(number)
