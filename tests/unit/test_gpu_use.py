"""Whether a workload that was requested a GPU is known to have used one."""

import pytest

from tune_policies.benchmarks.measuring.process import has_used_gpu
from tune_policies.trainers.gpu_memory.counters import FrameworkMemory
from tune_policies.values.errors import ProbeError


def memory(peak_bytes, *, held_bytes=0):
    return FrameworkMemory(held_bytes, held_bytes, peak_bytes, peak_bytes, None, "made up")


def test_who_has_put_something_on_a_gpu_has_used_it():
    assert has_used_gpu({"torch": memory(4)}, {"torch"})


def test_who_keeps_no_peak_has_used_it_where_it_holds_something():
    assert has_used_gpu({"cupy": memory(None, held_bytes=4)}, {"cupy"})


@pytest.mark.parametrize(
    "counters", [{}, {"torch": memory(0)}, {"jax": memory(0, held_bytes=4)}], ids=["not begun", "waited for", "a pool"]
)
def test_a_framework_that_put_nothing_on_a_gpu_is_refused(counters):
    with pytest.raises(ProbeError, match="was requested gpu, but used none"):
        has_used_gpu(counters, {"torch", "numpy"})


@pytest.mark.parametrize("imported", [{"numpy"}, {"torch", "xgboost"}], ids=["none that tells", "one that does not"])
def test_of_a_library_that_does_not_tell_it_is_not_known(imported):
    assert not has_used_gpu({}, imported)
