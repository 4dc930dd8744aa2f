"""Tests of the use of slots by their trials, and of the advice on a policy that runs more concurrent trials."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import ClusterCapacity, GpuMemoryPolicy
from tune_policies.cluster.capacity import GpuDevice, NodeCapacity
from tune_policies.trainers.usage.process_usage import ProcessUsage, SlotUse, advice, use_of_slot
from tune_policies.values.resources import Resources

GIB, MIB = 2**30, 2**20


def usage(**fields):
    return ProcessUsage(**{"elapsed_s": 100, "cpus": 4, "cpu_s": 80, "host_memory_bytes": GIB, **fields})


def test_the_use_of_a_slot_type_has_mean_times_and_peak_memory():
    first, second = usage(gpu_utilization=0.1), usage(cpu_s=40, host_memory_bytes=2 * GIB, gpu_utilization=0.3)

    use = use_of_slot([(first, 3 * GIB), (second, None)])

    assert (use.num_trials, use.cpus, use.used_cpus) == (2, 4, pytest.approx(0.6))
    assert (use.host_memory_bytes, use.gpu_utilization, use.gpu_memory_bytes) == (2 * GIB, pytest.approx(0.2), 3 * GIB)


def test_very_short_trials_are_ignored():
    assert use_of_slot([(usage(elapsed_s=1), None)]) is None


CPU_USE = SlotUse(num_trials=2, cpus=4, used_cpus=0.8, host_memory_bytes=GIB)
GPU_USE = CPU_USE.model_copy(update={"gpu_utilization": 0.12, "gpu_memory_bytes": int(3.1 * GIB)})
ON_CPUS = {"gpus": 0, "gpu_memory_bytes": None, "device_bytes": None, "at_once": 2}
ON_GPU = {"gpus": 1, "gpu_memory_bytes": int(3.1 * GIB), "device_bytes": 16 * GIB, "at_once": 2}


@pytest.mark.parametrize(
    ("use", "slot", "text"),
    [
        pytest.param(
            CPU_USE,
            ON_CPUS,
            'CpuPolicy(cpus=1, memory="1152MiB") would run up to 8 trials at once.',
            id="CPUs that are mostly idle",
        ),
        pytest.param(
            CPU_USE.model_copy(update={"used_cpus": 2.4}),
            ON_CPUS,
            "",
            id="CPUs that are mostly busy",
        ),
        pytest.param(
            GPU_USE,
            ON_GPU,
            'GpuMemoryPolicy(gpu_memory="3.5GiB") would run 4 trials on each GPU instead of 1.',
            id="a GPU that is mostly idle",
        ),
        pytest.param(
            GPU_USE.model_copy(update={"gpu_utilization": 0.45}),
            ON_GPU,
            'GpuMemoryPolicy(gpu_memory="8.0GiB") would run 2 trials on each GPU instead of 1.',
            id="no more trials than the utilization allows",
        ),
        pytest.param(
            GPU_USE,
            ON_GPU | {"gpu_memory_bytes": GIB, "device_bytes": 81_008 * MIB},
            'GpuMemoryPolicy(gpu_memory="9.8GiB") would run 8 trials on each GPU instead of 1.',
            id="a large GPU and small trials",
        ),
        pytest.param(
            GPU_USE,
            ON_GPU | {"gpus": 0.25, "at_once": 8},
            "",
            id="a fraction of a suitable size",
        ),
        pytest.param(
            GPU_USE.model_copy(update={"gpu_utilization": None}),
            ON_GPU,
            "",
            id="a GPU whose utilization is unknown",
        ),
        pytest.param(
            GPU_USE,
            ON_GPU | {"gpus": 2, "at_once": 1},
            "",
            id="several GPUs",
        ),
    ],
)
def test_advice_requires_measurements_that_support_it(use, slot, text):
    assert advice(use, **slot) == text


@given(
    utilization=st.floats(0, 0.5),
    memory_mib=st.integers(1, 200_000),
    device_mib=st.integers(2_000, 200_000),
    gpus=st.sampled_from([1, 0.5, 0.25, 0.1]),
)
def test_the_advised_policy_runs_the_stated_number_of_trials(utilization, memory_mib, device_mib, gpus):
    use = GPU_USE.model_copy(update={"gpu_utilization": utilization})

    text = advice(use, gpus=gpus, gpu_memory_bytes=memory_mib * MIB, device_bytes=device_mib * MIB, at_once=1)

    if text:
        pattern = r'GpuMemoryPolicy\(gpu_memory="(.*)"\) would run (\d+) trials on each GPU instead of (\d+)\.'
        memory, stated, now = re.fullmatch(pattern, text).groups()
        gpu = GpuDevice(index=0, name="GPU", memory_bytes=device_mib * MIB)
        node = NodeCapacity(node_id="a", resources=Resources(cpus=64, gpus=1), devices=(gpu,))
        plan = GpuMemoryPolicy(gpu_memory=memory).plan(ClusterCapacity(nodes=(node,)))
        assert plan.max_concurrent_trials == int(stated) > int(now)
        assert int(stated) <= 1 / max(utilization, 0.01)  # the GPU has time for no more trials
