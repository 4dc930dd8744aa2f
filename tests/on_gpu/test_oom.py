"""Tests that the cause of PyTorch's OOM error on a real GPU is found from the numbers in its message."""

import subprocess
import sys

import pytest

from tests.on_gpu.device import evaluate_with_torch, memory_in_use

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu]

ALLOCATE = """
import sys, torch
from tune_policies.oom import classify_oom

fraction, held, asked = map(float, sys.argv[1:])
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(fraction)
try:
    kept = torch.empty(int(held * total), dtype=torch.uint8, device="cuda")
    more = torch.empty(int(asked * total), dtype=torch.uint8, device="cuda")
except Exception as error:
    answer = classify_oom(error)
    limit = answer.limit_bytes and round(answer.limit_bytes / total, 2)
    print(answer.kind, answer.framework, round(answer.requested_bytes / total, 2), limit, answer.cause)
"""


def cause_of_oom(fraction, held, asked):
    """Return the classified error of a process that allocates ``held``, then ``asked``, as fractions of the GPU."""
    command = [sys.executable, "-c", ALLOCATE, str(fraction), str(held), str(asked)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_an_oom_error_at_the_limit_is_distinguished_from_a_device_filled_by_other_processes():
    assert cause_of_oom(0.25, 0.1, 0.2) == "accelerator torch 0.2 0.25 own_limit"

    with memory_in_use(int(0.8 * evaluate_with_torch("torch.cuda.get_device_properties(0).total_memory"))):
        assert cause_of_oom(0.5, 0.05, 0.2) == "accelerator torch 0.2 0.5 neighbour"
