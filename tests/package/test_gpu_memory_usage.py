import subprocess
import sys

import pytest

TENSORFLOW = """
import tensorflow as tf
from trainers import peak_gpu_memory_bytes
before = peak_gpu_memory_bytes()
tf.config.threading.set_intra_op_parallelism_threads(2)  # refused once the runtime has started
tf.ones(1)
if not tf.config.list_physical_devices("GPU"):
    print(before, peak_gpu_memory_bytes())
"""

TORCH = """
import torch
from trainers import peak_gpu_memory_bytes
print(peak_gpu_memory_bytes())
"""


@pytest.mark.parametrize(("code", "said"), [(TENSORFLOW, "None None"), (TORCH, "None")], ids=["tensorflow", "torch"])
def test_asking_what_was_used_starts_no_framework_and_without_a_gpu_is_none(code, said):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (said, "")
