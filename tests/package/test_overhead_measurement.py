"""How an overhead is worked out, with real child processes; the measurement itself needs a GPU (on_gpu)."""

import sys
import time

import pytest

from trainers.gpu_memory.limits.overhead_measurement import measure_on_this_gpu, overhead_fields, run_while_it_holds

MIB = 2**20
SAID = {"version": "2.13.0", "reserved_bytes": 40 * MIB}


def run(code, timeout_s=30.0):
    return run_while_it_holds([sys.executable, "-c", code], lambda pid: ("read", pid > 0), timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("process_bytes", "expected", "how"),
    [(500 * MIB, 460 * MIB, "process"), (None, 560 * MIB, "device")],
    ids=["by the driver's count of the process", "else by the device's use before and after"],
)
def test_the_overhead_is_what_the_driver_counts_less_what_the_allocator_holds(process_bytes, expected, how):
    fields = overhead_fields(
        SAID, "NVIDIA H200", used_before=100 * MIB, used_now=700 * MIB, process_bytes=process_bytes
    )

    assert (fields["overhead_bytes"], fields["how"], fields["gpu_model"]) == (expected, how, "NVIDIA H200")


def test_less_than_the_allocator_holds_is_no_measurement():
    fields = overhead_fields(SAID, "NVIDIA H200", used_before=100 * MIB, used_now=120 * MIB, process_bytes=None)

    assert list(fields) == ["error"]


def test_a_child_is_read_while_it_waits_and_then_ended():
    code = 'print("noise"); print(\'{"reserved_bytes": 1}\', flush=True); input()'

    assert run(code) == ({"reserved_bytes": 1}, ("read", True))


def test_a_child_that_fails_says_why():
    assert run("raise RuntimeError('no CUDA')") == ("RuntimeError: no CUDA", None)


def test_a_child_that_hangs_is_ended_at_the_deadline():
    start = time.monotonic()

    assert run("import time; time.sleep(60)", timeout_s=0.5) == ("no answer within 0.5 s", None)
    assert time.monotonic() - start < 20


def test_a_framework_that_is_not_installed_is_said():
    (found,) = measure_on_this_gpu(["no_such_framework"], 1.0)

    assert found == {"framework": "no_such_framework", "error": "it is not installed on the node"}


def test_a_gpu_that_cannot_be_read_is_said(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")  # where there is one after all

    (found,) = measure_on_this_gpu(["torch"], 1.0)

    assert found["error"].startswith("the GPU cannot be read: ")
