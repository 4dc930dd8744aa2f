"""Workloads in plain Python with known run times, for tests of the measurement."""

import os
import sys
import threading
import time
from pathlib import Path

from tune_policies.benchmarks.workloads.steps import Steps


def spin(size, device):
    """A workload whose step takes ``size`` microseconds on every device, and 20 times as long with transfers."""
    return Steps(
        with_transfers=lambda: _wait(20 * size),
        compute=lambda: _wait(size),
        steps_per_epoch=4,
        dtype="float64",
        samples_per_step=8,
    )


def _wait(microseconds):
    end = time.perf_counter() + microseconds * 1e-6
    while time.perf_counter() < end:
        pass
    return 1.0


def environment(size, device):
    """A workload whose loss is the number of threads of the process, plus 100 if the GPUs are hidden."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return Steps(with_transfers=lambda: int(os.environ["OMP_NUM_THREADS"]) + 100 * hidden, tolerance=1e9)


def start_time(size, device):
    """A workload whose loss is the start time of the process, in seconds since the machine booted."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return Steps(with_transfers=lambda: ticks / os.sysconf("SC_CLK_TCK"))


def raises(size, device):
    def step():
        raise LookupError(f"no batch of {size}")

    return Steps(with_transfers=step)


def exits(size, device):
    sys.exit("enough")


def never_ends(size, device):
    return Steps(with_transfers=threading.Event().wait)


def dies(size, device):
    return Steps(with_transfers=lambda: os._exit(3))


def disagrees(size, device):
    return Steps(with_transfers=lambda: 1.0 if device == "cpu" else 2.0, steps_per_epoch=1)


def has_long_epochs(size, device):
    return Steps(with_transfers=lambda: _wait(size), steps_per_epoch=10**9)


def has_one_long_step(size, device):
    """A workload whose first step takes half of the test's time limit, so that no second step fits."""
    return Steps(with_transfers=lambda: _wait(4e6), steps_per_epoch=1)


def returns_nothing(size, device):
    return None
