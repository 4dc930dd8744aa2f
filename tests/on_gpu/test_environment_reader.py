import pytest

from tune_policies.benchmarks.record.machine import read_environment

pytestmark = pytest.mark.gpu


def test_the_memory_driver_clock_and_power_limit_of_a_gpu_are_read():
    import torch

    gpus = read_environment(()).gpus

    assert torch.cuda.get_device_name(0) in {gpu.name for gpu in gpus}
    for gpu in gpus:
        assert gpu.memory_bytes > 2**30
        assert gpu.driver
        assert gpu.max_clock_mhz > 100
        assert gpu.power_limit_w > 10
