import importlib.util
import subprocess
import sys

import pytest

TENSORFLOW = """
import tensorflow as tf
from tune_policies.trainers import peak_gpu_memory_bytes
before = peak_gpu_memory_bytes()
tf.config.threading.set_intra_op_parallelism_threads(2)  # refused once the runtime has started
tf.ones(1)
if not tf.config.list_physical_devices("GPU"):
    print(before, peak_gpu_memory_bytes())
"""

TORCH = """
import torch
from tune_policies.trainers import peak_gpu_memory_bytes
print(peak_gpu_memory_bytes())
"""

JAX = """
import jax
from tune_policies.trainers import peak_gpu_memory_bytes
print(peak_gpu_memory_bytes(), end=" ")
assert not jax._src.xla_bridge.backends_are_initialized()
jax.numpy.ones(1)
print(peak_gpu_memory_bytes() if jax.default_backend() == "cpu" else None)
"""

CUPY = """
import cupy
from tune_policies.trainers import peak_gpu_memory_bytes
print(peak_gpu_memory_bytes())
"""


CODE = {"tensorflow": TENSORFLOW, "torch": TORCH, "jax": JAX, "cupy": CUPY}


@pytest.mark.rest
@pytest.mark.parametrize("framework", CODE)
def test_reading_the_usage_starts_no_framework_and_returns_none_without_a_gpu(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    done = subprocess.run([sys.executable, "-c", CODE[framework]], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"None"}
