"""Tests that the CPU time and host memory of a trial include the use by its child processes."""

import subprocess
import sys

from tune_policies.trainers.usage.usage_meter import UsageMeter

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
    monkeypatch.setattr("tune_policies.trainers.usage.usage_meter._CHILDREN_EVERY_S", 0.0)
    meter = UsageMeter(1, has_gpu=False)
    before = meter.read()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"done\n"
        during = meter.read()
        child.communicate()

    after = meter.read()

    assert during.cpu_s - before.cpu_s >= 0.5
    assert during.host_memory_bytes - before.host_memory_bytes >= 200 * 2**20
    assert after.cpu_s >= during.cpu_s - 0.02
