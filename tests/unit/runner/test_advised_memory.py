"""Tests of the advised amounts of GPU memory: as many trials fit as the advice states."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import (
    ClusterCapacity,
    GpuDevice,
    GpuMemoryPolicy,
    GpuPolicy,  # noqa: F401  # an advice contains it
    NodeCapacity,
    Resources,
)
from tune_policies.plan.headroom import HEADROOM, with_headroom
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.trainers.usage.advised_memory import (
    amount_to_write,
    equal_part_to_write,
    gpu_memory_to_write,
    trials_with,
)
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, RunUsage, TrialGpuMemory
from tune_policies.trainers.usage.usage_report import advice_of_run
from tune_policies.values.resources import TICKS

GIB = 2**30


@pytest.mark.parametrize(
    ("needed_gib", "device_gib", "choices"),
    [
        pytest.param(
            24.15,
            79.1,
            [
                'GpuMemoryPolicy(gpu_memory="26.6GiB"), with which 2 trials fit on a GPU of 79.1 GiB',
                'GpuMemoryPolicy(gpu_memory="26.3GiB"), with which 3 trials fit, because it adds 9% to what the trials '
                "needed instead of 10%",
            ],
            id="one more with slightly less headroom",
        ),
        pytest.param(
            25.5,
            79.1,
            ['GpuMemoryPolicy(gpu_memory="28.1GiB"), with which 2 trials fit on a GPU of 79.1 GiB'],
            id="one more with too little headroom",
        ),
        pytest.param(15.5, 16, ["GpuPolicy(), because 1 trial fits on a GPU of 16 GiB"], id="no room for headroom"),
        pytest.param(
            20,
            16,
            ['GpuMemoryPolicy(gpu_memory="22GiB"), which needs a larger GPU than a GPU of 16 GiB'],
            id="more than the GPU has",
        ),
    ],
)
def test_an_advised_amount_states_how_many_trials_fit(needed_gib, device_gib, choices):
    assert gpu_memory_to_write(int(needed_gib * GIB), int(device_gib * GIB)) == choices


def one_gpu(device_bytes):
    gpu = GpuDevice(index=0, name="GPU", memory_bytes=device_bytes)
    node = NodeCapacity(node_id="a", resources=Resources(cpus=1, gpus=1), devices=(gpu,))
    return ClusterCapacity(nodes=(node,))


@given(st.integers(GIB // 10, 80 * GIB), st.integers(GIB // 10, 80 * GIB))
def test_as_many_trials_fit_in_a_plan_as_the_advice_states(device_bytes, needed_bytes):
    for choice in gpu_memory_to_write(min(needed_bytes, device_bytes), device_bytes):
        policy = eval(choice.partition("), ")[0] + ")")  # the code that a user copies
        count = int(re.search(r"(\d+) trials? fit", choice)[1])

        assert policy.plan(one_gpu(device_bytes)).max_concurrent_trials == count


@given(st.integers(GIB, 300 * GIB), st.integers(1, 140))
def test_as_many_trials_fit_with_an_equal_part_as_were_requested(device_bytes, count):
    policy = GpuMemoryPolicy(gpu_memory=equal_part_to_write(device_bytes, count))

    plan = policy.plan(one_gpu(device_bytes))

    assert plan.max_concurrent_trials == TICKS // equal_device_fraction(count, 1)


@given(st.integers(2 * GIB, 300 * GIB), st.integers(1, 40))
def test_the_advice_after_out_of_memory_errors_runs_as_many_trials_as_it_states(device_bytes, parts):
    """The usage contains only the memory of the fraction, as with simulated GPUs."""
    share = {"gpus": TICKS // parts / TICKS, "share_bytes": device_bytes // parts, "num_ooms": 1}
    trials = tuple(TrialGpuMemory(name=name, usage=GpuMemoryUsage(**share)) for name in "abc")

    (line, *_) = advice_of_run(RunUsage(trials=trials)) or ("",)

    written = re.search(r"Write (.*\)), with (\d+) per GPU", line)
    if written is None:
        assert parts == 1
        return
    plan = eval(written[1]).plan(one_gpu(device_bytes))
    assert plan.max_concurrent_trials == int(written[2])


@given(st.integers(GIB // 10, 80 * GIB), st.integers(1, 20), st.integers(0, GIB))
def test_an_amount_with_headroom_is_not_rounded_up_past_an_equal_part_of_the_gpu(device_bytes, parts, spare):
    needed_bytes = max(1, int((device_bytes // parts - spare) / (1 + HEADROOM)))
    fit = device_bytes // with_headroom(needed_bytes, HEADROOM)

    amount = amount_to_write(needed_bytes, device_bytes)

    assert trials_with(amount, device_bytes) >= (TICKS // equal_device_fraction(fit, 1) if fit else 0)


@given(st.integers(GIB // 10, 80 * GIB), st.integers(1, 8), st.integers(-1000, 1000))
def test_a_near_miss_is_never_less_by_zero_percent(device_bytes, parts, more):
    plan = GpuMemoryPolicy(gpu_memory=device_bytes // parts + more).plan(one_gpu(device_bytes + 1000))

    assert "0.0% less" not in plan.explain()
