import pytest

from tests.on_gpu.device import evaluate_with_torch
from tune_policies.benchmarks.record.machine import read_environment

pytestmark = pytest.mark.gpu


def test_the_memory_driver_clock_and_power_limit_of_a_gpu_are_read():
    gpus = read_environment(()).gpus

    assert evaluate_with_torch("torch.cuda.get_device_name(0)") in {gpu.name for gpu in gpus}
    for gpu in gpus:
        assert gpu.memory_bytes > 2**30
        assert gpu.driver
        assert gpu.max_clock_mhz > 100
        assert gpu.power_limit_w > 10
