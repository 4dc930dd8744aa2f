"""Tests of GPU memory counters with stand-ins for frameworks on a device."""

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from tune_policies.trainers.gpu_memory.framework_memory import (
    FrameworkMemory,
    read_counters,
    release_unused,
    release_workspaces,
    reset_peaks,
)

NAMES = ("torch", "tensorflow", "tensorflow.python.eager.context", "jax", "jax._src.xla_bridge", "cupy")


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs a stand-in as the only framework in ``sys.modules``."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name, module: monkeypatch.setitem(sys.modules, name, module)


def torch_with(*devices, is_initialized=True):
    calls = []
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: len(devices),
        memory_stats=lambda index: devices[index],
        reset_peak_memory_stats=lambda index: calls.append(("reset", index)),
        empty_cache=lambda: calls.append("empty"),
    )
    clear = lambda: calls.append("clear workspaces")  # noqa: E731
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_clearCublasWorkspaces=clear)), calls


STATS = {
    "allocated_bytes.all.current": 1,
    "allocated_bytes.all.peak": 3,
    "reserved_bytes.all.current": 5,
    "reserved_bytes.all.peak": 7,
    "num_ooms": 1,
}


def test_the_memory_of_torchs_devices_is_added_up(install):
    install("torch", torch_with(STATS, STATS, {})[0])

    assert read_counters() == {"torch": FrameworkMemory(2, 10, 6, 14, 2, "torch's allocator")}


def test_torch_resets_peaks_on_each_device_and_releases_workspaces_and_memory_once(install):
    torch, calls = torch_with(STATS, STATS)
    install("torch", torch)

    reset_peaks()
    release_workspaces()
    release_unused()

    assert calls == [("reset", 0), ("reset", 1), "clear workspaces", "empty"]


def test_no_garbage_collection_runs_if_no_framework_uses_a_device(install):
    """In a process that has imported Tune, a collection takes 0.1 s."""
    install("torch", torch_with(STATS, is_initialized=False)[0])
    collections = gc.get_stats()[2]["collections"]

    release_unused()

    assert gc.get_stats()[2]["collections"] == collections


def test_torch_is_not_read_before_it_uses_a_device(install):
    install("torch", torch_with(STATS, is_initialized=False)[0])

    assert read_counters() == {}


def test_a_partly_imported_framework_is_not_read(install):
    half = ModuleType("cupy")
    half.__spec__ = ModuleSpec("cupy", None)
    half.__spec__._initializing = True
    install("cupy", half)

    assert read_counters() == {}
    release_unused()
    reset_peaks()


def test_jax_is_not_read_before_its_back_end_starts(install):
    install("jax", SimpleNamespace())
    install("jax._src.xla_bridge", SimpleNamespace(backends_are_initialized=lambda: False))

    assert read_counters() == {}


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"bytes_in_use": 1, "peak_bytes_in_use": 3, "pool_bytes": 5, "peak_pool_bytes": 7}, (2, 10, 6, 14)),
        ({"bytes_in_use": 1, "peak_bytes_in_use": 3}, (2, None, 6, None)),
    ],
    ids=["with a pool", "without"],
)
def test_the_memory_of_jaxs_devices_is_added_up(install, stats, expected):
    install("jax", SimpleNamespace(local_devices=lambda: [SimpleNamespace(memory_stats=lambda: stats)] * 2))
    install("jax._src.xla_bridge", SimpleNamespace(backends_are_initialized=lambda: True))

    memory = read_counters()["jax"]

    peaks = (memory.peak_allocated_bytes, memory.peak_reserved_bytes)
    assert (memory.allocated_bytes, memory.reserved_bytes, *peaks) == expected


@pytest.mark.parametrize("started", [True, False])
def test_tensorflow_is_read_after_its_runtime_has_started(install, started):
    info = {"current": 1, "peak": 3}
    config = SimpleNamespace(
        list_logical_devices=lambda kind: [SimpleNamespace(name="GPU:0"), SimpleNamespace(name="GPU:1")],
        experimental=SimpleNamespace(get_memory_info=lambda name: info),
    )
    context = SimpleNamespace(context_safe=lambda: SimpleNamespace(_initialized=started))
    install("tensorflow", SimpleNamespace(config=config))
    install("tensorflow.python.eager.context", context)

    found = read_counters().get("tensorflow")

    assert (found and (found.held_bytes, found.peak_allocated_bytes, found.peak_reserved_bytes)) == (
        (2, 6, None) if started else None
    )
