"""Tests of the check that a workload for a GPU has used the GPU."""

import pytest

from tune_policies.benchmarks.measuring.timed_workload import has_used_gpu
from tune_policies.trainers.gpu_memory.framework_memory import FrameworkMemory
from tune_policies.values.errors import ProbeError


def memory(peak_bytes, *, held_bytes=0):
    return FrameworkMemory(held_bytes, held_bytes, peak_bytes, peak_bytes, None, "made up")


def test_a_framework_that_allocated_gpu_memory_has_used_the_gpu():
    assert has_used_gpu({"torch": memory(4)}, {"torch"})


def test_without_a_peak_the_current_use_shows_that_the_gpu_was_used():
    assert has_used_gpu({"cupy": memory(None, held_bytes=4)}, {"cupy"})


@pytest.mark.parametrize(
    "counters",
    [{}, {"torch": memory(0)}, {"jax": memory(0, held_bytes=4)}],
    ids=["not initialized", "only initialized", "a memory pool"],
)
def test_a_gpu_workload_without_allocations_on_the_gpu_is_rejected(counters):
    with pytest.raises(ProbeError, match="was called for a GPU, but used none"):
        has_used_gpu(counters, {"torch", "numpy"})


@pytest.mark.parametrize(
    "imported", [{"numpy"}, {"torch", "xgboost"}], ids=["no framework", "a library without counters"]
)
def test_without_counters_the_use_of_the_gpu_is_not_confirmed(imported):
    assert not has_used_gpu({}, imported)
