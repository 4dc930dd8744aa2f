import importlib.util
import subprocess
import sys

import pytest

READ = "from tune_policies.trainers import peak_gpu_memory_bytes; print(peak_gpu_memory_bytes())"
CODE = {
    "tensorflow": f"""
import tensorflow as tf
{READ}
tf.config.threading.set_intra_op_parallelism_threads(2)  # refused once the runtime has started
tf.ones(1)
if not tf.config.list_physical_devices("GPU"):
    {READ}
""",
    "torch": f"import torch\n{READ}",
    "jax": f"""
import jax
{READ}
assert not jax._src.xla_bridge.backends_are_initialized()
jax.numpy.ones(1)
if jax.default_backend() == "cpu":
    {READ}
""",
    "cupy": f"import cupy\n{READ}",
}


@pytest.mark.rest
@pytest.mark.parametrize("framework", CODE)
def test_reading_the_usage_initializes_no_framework_and_returns_none_without_a_gpu(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    done = subprocess.run([sys.executable, "-c", CODE[framework]], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"None"}
