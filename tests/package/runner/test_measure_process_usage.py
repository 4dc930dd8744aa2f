"""Tests of the CPU time and host memory that a trial used, and of the results that contain them."""

import resource
import subprocess
import sys
import time

from tune_policies.trainers.gpu_memory import fraction_limits
from tune_policies.trainers.gpu_memory.fraction_limits import GpuShare, LimitOptions
from tune_policies.trainers.process.current_trial import CurrentTrial
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.measure_process_usage import ProcessMeter

BURN = """
import sys, time
held = bytearray(200 * 2**20)
held[::4096] = b"x" * len(held[::4096])
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_running_and_ended_child_processes_are_included(monkeypatch):
    monkeypatch.setattr("tune_policies.trainers.usage.measure_process_usage._CHILDREN_EVERY_S", 0.0)
    meter = ProcessMeter(1, has_gpu=False)
    before = meter.read()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"done\n"
        during = meter.read()
        child.communicate()

    after = meter.read()

    assert during.cpu_s - before.cpu_s >= 0.5
    assert during.host_memory_bytes - before.host_memory_bytes >= 200 * 2**20
    assert after.cpu_s >= during.cpu_s - 0.02


def test_the_cpu_time_of_an_ended_grandchild_is_included_while_its_parent_runs(monkeypatch):
    monkeypatch.setattr("tune_policies.trainers.usage.measure_process_usage._CHILDREN_EVERY_S", 0.0)
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], stdin=subprocess.DEVNULL)"
    meter = ProcessMeter(1, has_gpu=False)
    before = meter.read()
    with subprocess.Popen(
        [sys.executable, "-c", f"{start}; print('ended', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert [child.stdout.readline() for _ in range(2)] == [b"done\n", b"ended\n"]
        during = meter.read()
        child.communicate()

    assert during.cpu_s - before.cpu_s >= 0.5


def test_the_usage_is_due_at_first_and_again_after_an_interval(monkeypatch):
    monkeypatch.setattr("tune_policies.trainers.usage.measure_process_usage._READ_EVERY_S", 0.2)
    meter = ProcessMeter(1, has_gpu=False)
    due = [meter.is_due()]
    meter.read()
    due.append(meter.is_due())
    time.sleep(0.21)

    due.append(meter.is_due())

    assert due == [True, False, True]


def test_the_usage_is_due_as_soon_as_the_peak_of_the_host_memory_has_grown():
    meter = ProcessMeter(1, has_gpu=False)
    before = meter.read()
    held = b"x" * int(1.2 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

    is_due = meter.is_due()

    assert (is_due, meter.is_due()) == (True, True)
    assert meter.read().host_memory_bytes > before.host_memory_bytes + len(held) // 10
    assert not meter.is_due()


def test_a_result_omits_what_no_result_of_a_trial_without_a_gpu_contains():
    trial = CurrentTrial()
    trial.bind(1, None, LimitOptions(), "")

    assert set(trial.with_usage({})["usage"]) == {"elapsed_s", "cpus", "cpu_s", "host_memory_bytes"}


def test_the_result_of_a_trial_on_a_simulated_gpu_omits_what_is_unknown(monkeypatch):
    monkeypatch.setattr(fraction_limits, "are_gpus_simulated", lambda: True)
    trial = CurrentTrial()
    trial.bind(1, GpuShare(fraction=0.5), LimitOptions(), "")

    fields = trial.with_usage({})["gpu_memory"]

    assert not {None, ""} & set(fields.values())
    assert GpuMemoryUsage.from_dict(fields).gpus == 0.5
