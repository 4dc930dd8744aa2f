"""PyTorch's own error on a real GPU: who had taken the memory, by the numbers that the error has."""

import subprocess
import sys

import pytest

from tests.on_gpu.device import holding, torch_says

pytestmark = pytest.mark.gpu

ASK = """
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


def ask(fraction, held, asked):
    """Return what is said when a process holds one part of the device and asks for another."""
    command = [sys.executable, "-c", ASK, str(fraction), str(held), str(asked)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_a_process_that_reached_its_share_is_told_from_one_whose_neighbour_filled_the_device():
    assert ask(0.25, 0.1, 0.2) == "accelerator torch 0.2 0.25 own_limit"

    with holding(int(0.8 * torch_says("torch.cuda.get_device_properties(0).total_memory"))):
        assert ask(0.5, 0.05, 0.2) == "accelerator torch 0.2 0.5 neighbour"
