"""Tests of the memory usage of a trial whose memory the driver does not report, as in some containers."""

from dataclasses import replace

import pytest

from tune_policies.probe.nvml import NvmlError
from tune_policies.trainers.gpu_memory import fraction_limits, measure_trial_memory
from tune_policies.trainers.gpu_memory.fraction_limits import FractionLimits, GpuShare
from tune_policies.trainers.gpu_memory.framework_memory import FrameworkMemory
from tune_policies.trainers.gpu_memory.measure_trial_memory import TrialUsage
from tune_policies.trainers.usage.gpu_memory_records import needed_bytes

GIB = 2**30


def raise_nvml_error():
    raise NvmlError("Not Supported")


def test_a_trial_with_a_whole_gpu_needs_the_safe_overhead_too(monkeypatch):
    memory = FrameworkMemory(GIB, GIB, GIB, GIB, 0, "torch's allocator")
    monkeypatch.setattr(measure_trial_memory, "read_counters", lambda: {"torch": memory})
    monkeypatch.setattr(measure_trial_memory, "read_device_use", raise_nvml_error)

    usage = TrialUsage(FractionLimits(GpuShare(fraction=1.0))).read()

    assert (usage.overhead_bytes, usage.sources["overhead_bytes"]) == (int(0.85 * GIB), "torch: safe default")
    assert needed_bytes(usage) == GIB + int(0.85 * GIB)
    assert usage.share_kept is None


def test_a_trial_that_uses_no_framework_has_no_overhead(monkeypatch):
    monkeypatch.setattr(measure_trial_memory, "read_counters", dict)
    monkeypatch.setattr(measure_trial_memory, "read_device_use", raise_nvml_error)

    usage = TrialUsage(FractionLimits(GpuShare(fraction=1.0))).read()

    assert (usage.overhead_bytes, needed_bytes(usage)) == (None, None)


def test_news_are_a_higher_peak_and_a_failed_allocation(monkeypatch):
    """A peak that has grown by less than 5 % since the last reading is not reported without delay."""
    memory = FrameworkMemory(GIB, GIB, GIB, GIB, 0, "torch's allocator")
    counters = {"torch": memory}
    monkeypatch.setattr(measure_trial_memory, "read_counters", lambda: counters)
    monkeypatch.setattr(measure_trial_memory, "read_device_use", raise_nvml_error)
    usage = TrialUsage(FractionLimits(GpuShare(fraction=1.0)))
    news = [usage.has_news()]
    usage.read()

    for peak, num_ooms in [(GIB, 0), (1.04 * GIB, 0), (1.2 * GIB, 0), (GIB, 1)]:
        counters["torch"] = replace(memory, peak_reserved_bytes=int(peak), num_ooms=num_ooms)
        news.append(usage.has_news())
        usage.read()

    assert news == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("simulated", "source"),
    [
        pytest.param(True, "unknown, because the GPU is simulated", id="a simulated GPU"),
        pytest.param(False, "unknown, because NVIDIA's driver cannot be queried: Not Supported", id="a driver's error"),
    ],
)
def test_the_source_of_an_unknown_amount_is_the_reason(monkeypatch, simulated, source):
    monkeypatch.setattr(measure_trial_memory, "read_counters", dict)
    monkeypatch.setattr(measure_trial_memory, "read_device_use", raise_nvml_error)
    monkeypatch.setattr(fraction_limits, "are_gpus_simulated", lambda: simulated)

    usage = TrialUsage(FractionLimits(GpuShare(fraction=0.5))).read()

    assert (usage.process_bytes, usage.sources["process_bytes"]) == (None, source)
