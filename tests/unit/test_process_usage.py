"""Tests of the use of slots by their trials, and of the advice on a policy that runs more concurrent trials."""

import pytest

from tune_policies.tune.usage.process_usage import ProcessUsage, SlotUse, advice, use_of_slot

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


CPU_USE = SlotUse(num_trials=2, cpus=4, used_cpus=0.8, host_memory_bytes=GIB)
GPU_USE = CPU_USE.model_copy(update={"gpu_utilization": 0.12, "gpu_memory_bytes": int(3.1 * GIB)})


@pytest.mark.parametrize(
    ("use", "slot", "text"),
    [
        pytest.param(
            CPU_USE,
            {"gpus": 0, "device_bytes": None, "at_once": 2},
            'CpuPolicy(cpus=1, memory="1216MiB") would run up to 8 trials at once.',
            id="CPUs that are mostly idle",
        ),
        pytest.param(
            CPU_USE.model_copy(update={"used_cpus": 2.4}),
            {"gpus": 0, "device_bytes": None, "at_once": 2},
            "",
            id="CPUs that are mostly busy",
        ),
        pytest.param(
            GPU_USE,
            {"gpus": 1, "device_bytes": 16 * GIB, "at_once": 2},
            'GpuMemoryPolicy(gpu_memory="3.6GiB") would run 4 trials on each GPU instead of 1.',
            id="a GPU that is mostly idle",
        ),
        pytest.param(
            GPU_USE.model_copy(update={"gpu_utilization": 0.45}),
            {"gpus": 1, "device_bytes": 16 * GIB, "at_once": 2},
            'GpuMemoryPolicy(gpu_memory="3.6GiB") would run 2 trials on each GPU instead of 1.',
            id="no more trials than the utilization allows",
        ),
        pytest.param(
            GPU_USE, {"gpus": 0.25, "device_bytes": 16 * GIB, "at_once": 8}, "", id="a fraction of a suitable size"
        ),
        pytest.param(
            GPU_USE.model_copy(update={"gpu_utilization": None}),
            {"gpus": 1, "device_bytes": 16 * GIB, "at_once": 2},
            "",
            id="a GPU whose utilization is unknown",
        ),
        pytest.param(GPU_USE, {"gpus": 2, "device_bytes": 16 * GIB, "at_once": 1}, "", id="several GPUs"),
    ],
)
def test_advice_requires_measurements_that_support_it(use, slot, text):
    assert advice(use, **slot) == text
