"""Tests that errors of a failed device or driver are distinguished from errors of a trial's own program."""

import pytest

from tune_policies import MemoryLimitError
from tune_policies.oom.unusable_device import is_unusable_device

COUNT = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error "
)


@pytest.mark.parametrize(
    "text",
    [
        f"{COUNT}802: system not yet initialized",
        f"{COUNT}805: MPS client failed to connect to the MPS control daemon or the MPS server",
        "cudaErrorSystemNotReady: system not yet initialized",
        "CUDA error: system not yet initialized",
        "No CUDA GPUs are available",
        "CUDA error: uncorrectable ECC error encountered",
        "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA",
    ],
)
def test_an_error_of_the_driver_or_the_device_is_recognized(text):
    assert is_unusable_device(RuntimeError(text))


def test_the_cause_of_an_error_is_also_examined():
    error = ValueError("the trial failed")
    error.__cause__ = MemoryLimitError("process 1 uses the GPU")

    assert is_unusable_device(error)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA out of memory.",
        f"{COUNT}2: out of memory",
        f"{COUNT}700: an illegal memory access was encountered",
        "the file system not yet initialized",
    ],
)
def test_an_error_of_the_program_is_not_an_unusable_device(text):
    assert not is_unusable_device(RuntimeError(text))
