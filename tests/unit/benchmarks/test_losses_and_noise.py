"""Tests of the comparison of losses between devices, and of readings of the load from other processes."""

import os
import time

import psutil
import pytest

from tune_policies.benchmarks.measuring.noise import NoiseCounters, noise_between, read_noise
from tune_policies.benchmarks.measuring.rounds import disagreements
from tune_policies.benchmarks.record.run_set import Configuration, NoiseReading, ProcessRun


def on(device, losses, **fields):
    return ProcessRun(
        configuration=Configuration(workload="mlp", size=1, device=device),
        round=3,
        order=0,
        pid=1,
        node="host",
        started_at="2026-01-02T03:04:05Z",
        losses=losses,
        **fields,
    )


@pytest.mark.parametrize(
    ("losses", "fields", "message"),
    [
        pytest.param((2.0, 1.0), {}, None, id="equal"),
        pytest.param((2.03, 0.99), {}, None, id="within the tolerance"),
        pytest.param((2.0,), {}, None, id="of fewer steps"),
        pytest.param((), {}, None, id="none"),
        pytest.param((2.0, 1.4), {"tolerance": 0.5}, None, id="within a tolerance of its own"),
        pytest.param((2.0, 1.5), {}, "the loss of step 2 in the first epoch is 1.5, but 1 on cpu", id="another loss"),
    ],
)
def test_a_device_with_a_different_loss_is_reported(losses, fields, message):
    failures = list(disagreements([on("cpu", (2.0, 1.0)), on("gpu", losses, **fields)]))

    assert [(each.configuration.device, each.round, each.kind) for each in failures] == (
        [("gpu", 3, "disagreed")] if message else []
    )
    assert all(message in each.message for each in failures)


def counters(at_s, busy_s, own_s, host="a", **fields):
    return NoiseCounters(host=host, at_s=at_s, busy_s=busy_s, own_s=own_s, **fields)


@pytest.mark.parametrize(
    ("before", "after", "load"),
    [
        pytest.param(
            [counters(0, 100, {1: 5.0}), counters(0.1, 100, {2: 1.0})],
            [counters(9.9, 120, {1: 7.0}), counters(10, 120, {2: 1.0, 3: 3.0})],
            (20 - 2 - 3) / 10,
            id="measured processes are subtracted",
        ),
        pytest.param(
            [counters(0, 0, {1: 0.0}), counters(0, 0, {1: 0.0, 2: 0.0})],
            [counters(10, 10, {1: 6.0}), counters(10, 10, {1: 6.0, 2: 4.0})],
            0,
            id="a process that two others read is subtracted once",
        ),
        pytest.param(
            [counters(0, 0, {}), counters(0, 0, {}, host="b")],
            [counters(10, 1, {}), counters(10, 5, {}, host="b")],
            0.5,
            id="the busiest host counts",
        ),
    ],
)
def test_the_load_is_the_cpu_use_of_other_processes(before, after, load):
    assert noise_between(0, before, after).load == pytest.approx(load)


def test_throttling_is_read():
    before = [counters(0, 0, {}, throttled_s=1.0)]
    after = [counters(1, 0, {}, throttled_s=1.5, gpu_throttled=("power cap",))]

    expected = NoiseReading(round=2, load=0, throttled_s=0.5, gpu_throttled=("power cap",))
    assert noise_between(2, before, after) == expected


def test_the_cpu_times_of_this_process_and_of_the_host_are_read():
    before = read_noise()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass

    after = read_noise()

    pid = os.getpid()
    assert after.own_s[pid] - before.own_s[pid] >= 0.08  # the resolution is 0.01 s
    assert after.busy_s - before.busy_s >= 0.06


def test_slow_reading_of_processes_does_not_change_the_time_of_the_counters(monkeypatch):
    """Otherwise, the time between two readings would be too short, and the load larger than the number of CPUs."""
    clock = [0.0]

    class SlowProcess(psutil.Process):
        def children(self, recursive=False):
            clock[0] += 5
            return super().children(recursive)

    monkeypatch.setattr(psutil, "Process", SlowProcess)
    monkeypatch.setattr(time, "time", lambda: clock[0])

    assert read_noise().at_s == 0
