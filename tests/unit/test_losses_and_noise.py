"""Whether devices did the same work, and how quiet it was meanwhile."""

import os
import time

import pytest

from tune_policies.benchmarks.measuring.noise import NoiseCounters, noise_between, read_noise, worse
from tune_policies.benchmarks.measuring.runner import disagreements
from tune_policies.benchmarks.record.run_set import Arm, NoiseReading, ProcessRun


def on(device, losses, **fields):
    return ProcessRun(
        arm=Arm(workload="mlp", size=1, device=device),
        round=3,
        order=0,
        pid=1,
        node="host",
        started_at="2026-01-02T03:04:05Z",
        losses=losses,
        **fields,
    )


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param((2.0, 1.0), id="equal"),
        pytest.param((2.03, 0.99), id="within the tolerance"),
        pytest.param((2.0,), id="of fewer steps"),
        pytest.param((), id="none"),
    ],
)
def test_devices_whose_losses_are_alike_agree(losses):
    assert not list(disagreements([on("cpu", (2.0, 1.0)), on("gpu", losses)]))


def test_devices_whose_losses_differ_did_not_do_the_same_work():
    (failure,) = disagreements([on("cpu", (2.0, 1.0)), on("gpu", (2.0, 1.5))])

    assert (failure.arm.device, failure.round, failure.kind) == ("gpu", 3, "disagreed")
    assert "step 2 of the first epoch gave 1.5 here and 1 on cpu" in failure.message


def test_a_workload_says_how_far_its_losses_may_differ():
    assert not list(disagreements([on("cpu", (1.0,), tolerance=0.5), on("gpu", (1.4,))]))


def counters(at_s, busy_s, own_s, host="a", **fields):
    return NoiseCounters(host=host, at_s=at_s, busy_s=busy_s, own_s=own_s, **fields)


def test_load_is_what_others_used_of_the_cpus():
    before = [counters(0, 100, {1: 5.0}), counters(0.1, 100, {2: 1.0})]
    after = [counters(9.9, 120, {1: 7.0}), counters(10, 120, {2: 1.0, 3: 3.0})]

    assert noise_between(0, before, after).load == pytest.approx((20 - 2 - 3) / 10)


def test_a_process_that_two_others_count_counts_once():
    before = [counters(0, 0, {1: 0.0}), counters(0, 0, {1: 0.0, 2: 0.0})]
    after = [counters(10, 10, {1: 6.0}), counters(10, 10, {1: 6.0, 2: 4.0})]

    assert noise_between(0, before, after).load == 0


def test_of_several_hosts_the_busiest_counts():
    before = [counters(0, 0, {}), counters(0, 0, {}, host="b")]
    after = [counters(10, 1, {}), counters(10, 5, {}, host="b")]

    assert noise_between(0, before, after).load == 0.5


def test_throttling_and_clocks_are_told():
    before = [counters(0, 0, {}, throttled_s=1.0)]
    after = [counters(1, 0, {}, throttled_s=1.5, cpu_mhz=2000.0, gpu_throttled=("power cap",))]

    expected = NoiseReading(round=2, load=0, throttled_s=0.5, gpu_throttled=("power cap",), cpu_mhz=2000)
    assert noise_between(2, before, after) == expected


def test_of_two_readings_of_a_round_the_noisier_counts():
    first = NoiseReading(round=0, load=0.1, throttled_s=1.0, cpu_mhz=3000)
    second = NoiseReading(round=0, load=0.5, gpu_throttled=("power cap",), cpu_mhz=2000)

    expected = NoiseReading(round=0, load=0.5, throttled_s=1.0, gpu_throttled=("power cap",), cpu_mhz=2000)
    assert worse(first, second) == expected


def test_what_this_process_used_is_known_of_it_and_of_the_host():
    before = read_noise()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass

    after = read_noise()

    pid = os.getpid()
    assert after.own_s[pid] - before.own_s[pid] >= 0.08  # counted in hundredths
    assert after.busy_s - before.busy_s >= 0.06
