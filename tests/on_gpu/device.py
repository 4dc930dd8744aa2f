"""What these tests ask of the GPU. The process of the tests themselves never opens a context on it."""

import json
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


def torch_says(expression):
    """Return what torch says of the device in a process of its own."""
    code = f"import json, torch; print(json.dumps({expression}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def sees_a_gpu(framework):
    """Return whether TensorFlow, or JAX, is installed and sees the device, asked in a process of its own."""
    code = {
        "tensorflow": "import tensorflow as t; print(bool(t.config.list_physical_devices('GPU')))",
        "jax": "import jax; print(jax.default_backend() == 'gpu')",
    }
    done = subprocess.run([sys.executable, "-c", code[framework]], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True"


def used_bytes():
    """Return what is used of this process's devices by the driver's count, whoever uses it."""
    return sum(device.used_bytes for device in read_device_use())


@contextmanager
def holding(amount):
    """Let another process hold so many bytes of the device."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(amount)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        yield
    finally:
        process.kill()
        process.communicate()
