"""Tests of the calibration of overheads with real child processes. Tests of the measurement are in ``tests/on_gpu``."""

import sys

import pytest

from tests.stand_ins import state_counts, write_stand_ins
from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, ProbeError, Resources
from tune_policies.trainers import calibrate_gpu_overhead, load_overheads
from tune_policies.trainers.profiling import measure_overhead
from tune_policies.trainers.profiling.measure_overhead import (
    Place,
    measure_on_this_gpu,
    overhead_fields,
    places_of_models,
    run_while_memory_is_allocated,
    use_once_settled,
)

MIB = 2**20
REPORTED = {"version": "2.13.0", "reserved_bytes": 40 * MIB}


def run(code, timeout_s=30.0):
    return run_while_memory_is_allocated(
        [sys.executable, "-c", code], lambda pid: ("read", pid > 0), timeout_s=timeout_s, environ={"ANSWER": "42"}
    )


@pytest.mark.parametrize(
    ("process_bytes", "expected", "how"),
    [(500 * MIB, 460 * MIB, "process"), (None, 560 * MIB, "device")],
    ids=["from the process", "from the device, before and after"],
)
def test_the_overhead_is_the_memory_reported_by_the_driver_minus_the_memory_of_the_allocator(
    process_bytes, expected, how
):
    fields = overhead_fields(
        REPORTED, "NVIDIA H200", used_before=100 * MIB, used_now=700 * MIB, process_bytes=process_bytes
    )

    assert (fields["overhead_bytes"], fields["how"], fields["gpu_model"]) == (expected, how, "NVIDIA H200")


def test_less_memory_reported_by_the_driver_than_by_the_allocator_is_an_error():
    fields = overhead_fields(REPORTED, "NVIDIA H200", used_before=100 * MIB, used_now=120 * MIB, process_bytes=None)

    assert list(fields) == ["error"]


def test_a_child_gets_the_environment_variables_and_its_memory_is_read_while_it_waits():
    code = 'import os; print("noise"); print(\'{"answer": %s}\' % os.environ["ANSWER"], flush=True); input()'

    assert run(code) == ({"answer": 42}, ("read", True))


def test_the_error_of_a_failing_child_is_reported():
    assert run("raise RuntimeError('no CUDA')") == ("RuntimeError: no CUDA", None)


def test_a_child_that_crashes_is_reported_with_its_signal():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"

    assert run(code) == ("the child process crashed with signal 11 (Segmentation fault)", None)


def test_a_child_that_ends_without_a_word_is_reported_with_its_exit_code():
    assert run("import os; os._exit(3)") == ("the child process ended with exit code 3 and printed nothing", None)


def test_a_child_that_hangs_is_terminated_at_the_deadline():
    assert run("import time; time.sleep(60)", timeout_s=0.5) == ("the child process did not respond within 0.5 s", None)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Install a stand-in for NVML with one GPU."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STAND_IN_NVML", str(write_stand_ins(tmp_path)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    state_counts(tmp_path / "nvml.json", total=2**34, free=2**34)
    yield
    sys.modules.pop("pynvml", None)


@pytest.mark.parametrize(
    ("model", "error"),
    [("Stand-in", "the framework is not installed on the node"), ("NVIDIA H200", "the driver no longer lists the GPU")],
)
def test_a_framework_that_cannot_be_measured_is_reported(model, error, gpu):
    (found,) = measure_on_this_gpu(["no_such_framework"], 1.0, model)

    assert found == {"framework": "no_such_framework", "error": error}


def test_the_memory_use_is_read_after_an_earlier_child_has_freed_its_memory_or_at_the_deadline():
    readings = iter([700 * MIB, 400 * MIB, 101 * MIB, 100 * MIB])

    assert use_once_settled(lambda: next(readings), 100 * MIB, poll_s=0.0) == 101 * MIB
    assert use_once_settled(lambda: 700 * MIB, 100 * MIB, timeout_s=0.05, poll_s=0.01) == 700 * MIB


def test_a_gpu_that_cannot_be_read_is_reported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # hide the GPU of the machine, if it has one

    (found,) = measure_on_this_gpu(["torch"], 1.0, "NVIDIA H200")

    assert found["error"].startswith("the GPU cannot be read: ")


def node(node_id, *models):
    devices = tuple(GpuDevice(index=index, name=name, memory_bytes=2**34) for index, name in enumerate(models))
    return NodeCapacity(node_id=node_id, resources=Resources(gpus=len(models)), devices=devices)


def test_a_measurement_reserves_one_gpu_of_a_node_with_equal_gpus_or_all_gpus_of_a_mixed_node():
    mixed, alike = node("mixed", "T4", "L4"), node("alike", "T4", "T4")

    assert places_of_models([mixed, alike]) == {"T4": Place("alike", 1), "L4": Place("mixed", 2)}
    assert places_of_models([mixed])["T4"] == Place("mixed", 2)


@pytest.fixture
def only_torch(monkeypatch, tmp_path):
    """Let a node with a GPU have PyTorch, but no other framework. Ray is not used."""
    torch = {"framework": "torch", **overhead_fields(REPORTED, "T4", used_before=0, used_now=0, process_bytes=2**29)}

    def measure_on(place, model, names, timeout_s):
        missing = {"error": "the framework is not installed on the node"}
        return [torch if name == "torch" else {"framework": name, **missing} for name in names]

    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path))
    monkeypatch.setattr(measure_overhead, "probe_cluster", lambda: ClusterCapacity.of(node("a", "T4")))
    monkeypatch.setattr(measure_overhead, "_measure_on", measure_on)


def test_by_default_only_the_installed_frameworks_are_measured_and_saved(only_torch):
    measured = calibrate_gpu_overhead()

    assert [overhead.framework for overhead in measured.measured] == ["torch"]
    assert load_overheads() == measured


def test_a_requested_framework_that_cannot_be_measured_is_an_error(only_torch):
    with pytest.raises(ProbeError, match="for jax on T4: the framework is not installed on the node"):
        calibrate_gpu_overhead(["torch", "jax"])
