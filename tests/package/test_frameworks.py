"""Tests that functions for a framework's device never return the CPU instead of a missing device.

The tests use JAX, because it starts fastest.
"""

import pytest

from tune_policies import ProbeError
from tune_policies.benchmarks.workloads.steps import jax_device


def test_every_framework_has_a_cpu_device():
    assert jax_device("cpu").platform == "cpu"


@pytest.mark.parametrize("device", ["TPU", "NPU"])
def test_a_device_that_a_framework_does_not_see_raises_an_error(device):
    with pytest.raises(ProbeError, match=f"JAX sees no {device} in this process, and the CPU is not measured instead"):
        jax_device(device)
