"""A GPU fraction that was planned from measurements is large enough for the measured memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tune_policies import ClusterCapacity, GpuMemoryPolicy, GpuMemoryProfile
from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.trainers.gpu_memory.fraction_limits import FractionLimits, GpuShare, LimitOptions
from tune_policies.trainers.gpu_memory.framework_overhead import (
    NOTHING_MEASURED,
    Assumption,
    MeasuredOverhead,
    Overheads,
)

GIB, MIB = 2**30, 2**20
CAPACITY = ClusterCapacity.of(
    gpu_node("a", gpu_memory_gib=80, accelerator_type="A100")
)  # the devices are also named A100


def measured(batch, peak, overhead, framework="torch", gpu_model="A100"):
    total = peak + (overhead or 0)
    return GpuMemoryMeasurement(
        config={"batch": batch},
        peak_bytes={framework: peak},
        overhead_bytes=overhead,
        total_bytes=total,
        gpu_model=gpu_model,
    )


def measured_overhead(framework, overhead_bytes):
    return MeasuredOverhead(
        gpu_model="A100",
        framework=framework,
        version="2.13.0",
        overhead_bytes=overhead_bytes,
        measured_on="2026-07-01",
        how="process",
    )


def planned(*measurements, **fields):
    return GpuMemoryPolicy(profile=GpuMemoryProfile(measurements=measurements), **fields).plan(CAPACITY)


def holding(slot, overheads=NOTHING_MEASURED):
    share = GpuShare(
        fraction=slot.worker.gpus,
        memory_bytes=slot.gpu_memory_bytes,
        overhead_bytes=slot.gpu_overhead_bytes,
        measured_with=slot.measured_with,
    )
    return FractionLimits(share, LimitOptions(overheads=overheads))


def budget(slot, framework="torch", version="2.13.0", **kwargs):
    limit = holding(slot, **kwargs).limit(framework, version, total_bytes=80 * GIB, gpu_model="A100")
    return limit.budget_bytes(framework)


@given(
    needs=st.lists(st.tuples(st.integers(0, 20 * GIB), st.none() | st.integers(0, 3 * GIB)), min_size=1, max_size=5),
    framework=st.sampled_from(["torch", "tensorflow", "jax", "cupy"]),
    gpu_model=st.sampled_from(["A100", "T4", None]),
    calibrated=st.none() | st.integers(0, 3 * GIB),
    headroom=st.sampled_from([0, 0.1]),
)
def test_measured_memory_fits_the_budget(needs, framework, gpu_model, calibrated, headroom):
    measurements = [
        measured(batch, max(1, peak), overhead, framework, gpu_model) for batch, (peak, overhead) in enumerate(needs)
    ]
    plan = planned(*measurements, headroom=headroom)
    found = [] if calibrated is None else [measured_overhead(framework, calibrated)]

    for each in measurements:
        slot = plan.slot_for(each.config)
        assert budget(slot, framework, overheads=Overheads(measured=tuple(found))) >= each.peak_bytes[framework]
        assert budget(plan.slots[0], framework) >= each.peak_bytes[framework]


def test_a_measured_overhead_applies_to_the_measured_gpu_model():
    slot = planned(measured(8, 64 * MIB, 500 * MIB)).slot_for({"batch": 8})

    assert slot.gpu_overhead_bytes == 500 * MIB
    assert slot.max_concurrent_trials > 100


@pytest.mark.parametrize("gpu_model", ["T4", None])
def test_on_another_gpu_model_the_safe_default_is_used(gpu_model):
    plan = planned(measured(8, 64 * MIB, 500 * MIB, gpu_model=gpu_model))

    assert plan.slots[0].gpu_overhead_bytes == int(0.85 * GIB)
    reason = "measured on T4, but trials may need more or less GPU memory on A100; the plan assumes"
    assert (reason in plan.explain()) == bool(gpu_model)


def test_without_a_measured_overhead_the_plan_has_no_overhead():
    plan = planned(GpuMemoryMeasurement(config={"batch": 8}, total_bytes=2 * GIB, gpu_model="A100"))

    assert plan.slots[0].gpu_overhead_bytes is None


def with_versions(overhead, **versions):
    profile = GpuMemoryProfile(measurements=(measured(8, GIB, overhead),), versions=versions)
    return GpuMemoryPolicy(profile=profile).plan(CAPACITY)


def test_a_version_other_than_the_measured_version_causes_a_warning():
    share = holding(with_versions(GIB, torch="2.12.0", ray="2.60.0").slots[0])
    share.limit("torch", "2.13.0", total_bytes=80 * GIB, gpu_model="A100")

    assert share.warnings == [
        "the memory was measured with torch 2.12.0, but torch 2.13.0 is installed and may need a different amount. "
        "Measure it again with the installed version"
    ]
    assert share.overheads["torch"] == (GIB, Assumption.PROFILE)


def test_the_plan_of_one_config_has_the_measured_versions():
    plan = with_versions(GIB, torch="2.12.0").for_config({"batch": 8})

    assert plan.slots[0].measured_with == {"torch": "2.12.0"}


SMALL = GpuMemoryProfile(measurements=(measured(8, 64 * MIB, 300 * MIB),), versions={"torch": "2.12.0"})


@pytest.mark.parametrize("measured_overhead", [300 * MIB, 3 * GIB])
def test_a_framework_that_was_not_measured_gets_at_least_the_safe_default(measured_overhead):
    share = holding(with_versions(measured_overhead, torch="2.12.0").slots[0])
    share.limit("cupy", "14.0.0", total_bytes=80 * GIB, gpu_model="A100")

    assert share.overheads["cupy"][0] == max(measured_overhead, safe_overhead_bytes("cupy", None))
    assert share.warnings == [
        "the memory was measured without cupy, which may need additional memory. Measure it again in "
        "trials that use cupy"
    ]


def test_an_unmeasured_framework_gets_a_minimum_budget_if_the_fraction_is_too_small_for_it():
    share = holding(GpuMemoryPolicy(profile=SMALL, headroom=0).plan(CAPACITY).slot_for({"batch": 8}))
    limit = share.limit("jax", "0.10.0", total_bytes=80 * GIB, gpu_model="A100")

    assert limit.budget_bytes("jax") >= 64 * MIB


def test_an_overhead_of_the_process_counts_once_for_all_frameworks():
    share = holding(planned(measured(8, GIB, GIB)).slots[0])
    for framework in ("torch", "cupy"):
        share.limit(framework, None, total_bytes=80 * GIB, gpu_model="A100")

    assert share.overhead_of(["torch", "cupy"]) == GIB
