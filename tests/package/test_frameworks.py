"""What frameworks call a device, and that none takes the CPU for it. JAX here, as it starts the fastest."""

import pytest

from tune_policies import ProbeError
from tune_policies.benchmarks.workloads.steps import jax_device


def test_the_cpu_is_there_in_every_framework():
    assert jax_device("cpu").platform == "cpu"


@pytest.mark.parametrize("device", ["TPU", "NPU"])
def test_a_device_that_a_framework_does_not_see_is_an_error_and_not_the_cpu(device):
    with pytest.raises(ProbeError, match=f"JAX sees no {device} in this process, and the benchmarks never measure"):
        jax_device(device)
