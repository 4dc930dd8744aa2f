"""Tests of the use of slots by their trials."""

import pytest

from tune_policies.plan.trial_observation import NOTHING
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.process_usage import ProcessUsage, SlotUse, use_of_slot
from tune_policies.trainers.usage.run_facts import need_of

GIB = 2**30


def usage(**fields):
    return ProcessUsage(**{"elapsed_s": 100, "cpus": 4, "cpu_s": 80, "host_memory_bytes": GIB, **fields})


def test_the_use_of_a_slot_type_has_mean_times_and_peak_memory():
    first, second = usage(gpu_utilization=0.1), usage(cpu_s=40, host_memory_bytes=2 * GIB, gpu_utilization=0.3)

    use = use_of_slot([(first, 3 * GIB), (second, None)])

    assert (use.num_trials, use.cpus, use.used_cpus) == (2, 4, pytest.approx(0.6))
    assert (use.host_memory_bytes, use.gpu_utilization, use.gpu_memory_bytes) == (2 * GIB, pytest.approx(0.2), 3 * GIB)


def test_very_short_trials_are_ignored():
    assert use_of_slot([(usage(elapsed_s=1), None)]) is None


def test_memory_of_0_bytes_is_not_a_need():
    """The kernel reports no memory for a process that is ending, and a driver may report 0 bytes for a process."""
    ending = usage(elapsed_s=1, host_memory_bytes=0)

    assert need_of(ending, GpuMemoryUsage(process_bytes=0, peak_reserved_bytes=0), 1) == NOTHING


@pytest.mark.parametrize(
    ("earlier", "later", "together"), [(0.2, 0.5, 0.3), (None, 0.5, 0.5), (0.2, None, 0.2), (None, None, None)]
)
def test_two_parts_of_a_run_have_the_mean_gpu_utilization_of_their_trials(earlier, later, together):
    parts = [
        SlotUse(num_trials=number, cpus=1, used_cpus=1, host_memory_bytes=1, gpu_utilization=rate)
        for number, rate in ((2, earlier), (1, later))
    ]

    found = parts[0].combined_with(parts[1])

    assert (found.num_trials, found.used_cpus) == (3, 1)
    assert found.gpu_utilization == (together if together is None else pytest.approx(together))


@pytest.mark.parametrize(("earlier", "later", "together"), [(5, 3, 5), (None, 3, 3), (5, None, 5), (None, None, None)])
def test_two_parts_of_a_run_have_the_larger_peak_of_gpu_memory(earlier, later, together):
    parts = [
        SlotUse(num_trials=1, cpus=1, used_cpus=1, host_memory_bytes=1, gpu_memory_bytes=peak)
        for peak in (earlier, later)
    ]

    assert parts[0].combined_with(parts[1]).gpu_memory_bytes == together
