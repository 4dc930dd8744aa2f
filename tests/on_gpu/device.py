"""Helpers that use the GPU in other processes, so that the test process never creates a CUDA context."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

from tune_policies.probe.nvml import read_device_use

HOLD = """
import sys, time, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(600)
"""


def evaluate_with_torch(expression):
    """Return the value of an expression that a new process evaluates with torch."""
    code = f"import json, torch; print(json.dumps({expression}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def sees_a_gpu(framework):
    """Return whether TensorFlow or JAX finds a GPU in a new process, or ``False`` if it is not installed."""
    code = {
        "tensorflow": "import tensorflow as t; print(bool(t.config.list_physical_devices('GPU')))",
        "jax": "import jax; print(jax.default_backend() == 'gpu')",
    }
    environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # by default, JAX takes 75 % of the GPU memory
    done = subprocess.run(
        [sys.executable, "-c", code[framework]], env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == "True"


def used_bytes():
    """Return the bytes that all processes use on the visible devices, as reported by the driver."""
    return sum(device.used_bytes for device in read_device_use())


def processes():
    """Return the memory of each process on the visible devices in bytes, or ``None`` if it is unknown, by its ID."""
    return {pid: amount for device in read_device_use() for pid, amount in device.bytes_by_process.items()}


@contextmanager
def memory_in_use(amount):
    """Keep this many bytes of GPU memory allocated in another process."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(amount)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        yield
    finally:
        process.kill()
        process.communicate()
