"""Tests of real frameworks with a GPU fraction on a machine without a GPU. ``tests/on_gpu`` tests real limits."""

import os
import subprocess
import sys

import pytest

from tests.rest_parameters import further
from tests.stand_ins import PYNVML, state_counts, write_stand_ins

ENFORCE = """
from tune_policies.trainers.process.current_process import CURRENT
from tune_policies.trainers.gpu_memory.fraction_limits import GpuShare, LimitOptions

def enforce(gib=8, fraction=0.5, device="GPU", **options):
    share = GpuShare(fraction=fraction, memory_bytes=gib and int(gib * 2**30), device=device)
    CURRENT.bind_trial(1, share, LimitOptions(**options))

"""


def run(code, tmp_path, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "CUDA_VISIBLE_DEVICES": "",
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def broken_driver(tmp_path):
    """Install a stand-in for NVIDIA's driver that fails, so that the machine looks like a GPU node."""
    (tmp_path / "pynvml.py").write_text(PYNVML)


@pytest.mark.parametrize("framework", ["torch", *further("tensorflow")])
def test_on_simulated_gpus_a_framework_runs_without_a_limit_and_warns_once(framework, tmp_path):
    done = run(f"{ENFORCE}enforce()\nimport {framework}; print(*CURRENT.trial.limits.warnings, sep='|')", tmp_path)

    assert done.stdout.strip() == "the GPU is simulated, so its memory limit is not enforced", done.stderr


@pytest.mark.parametrize(
    ("framework", "option"), [("torch", "raise"), ("torch", "warn"), *further(("tensorflow", "raise"))]
)
def test_a_framework_without_a_visible_gpu_fails_at_import_unless_warnings_are_enabled(
    framework, option, tmp_path, broken_driver
):
    """TensorFlow imports JAX, which does not detect a GPU either, but the error must be about TensorFlow."""
    code = (
        f"{ENFORCE}enforce(on_unenforced_limit='{option}')\nimport {framework}; print(*CURRENT.trial.limits.warnings)"
    )
    refused = f"Ray assigned this process a fraction of a GPU, but {framework} detects no GPU"

    done = run(code, tmp_path)

    assert refused in done.stdout if option == "warn" else f"UnenforcedLimitError: {refused}" in done.stderr, (
        done.stderr
    )


def test_frameworks_that_are_imported_indirectly_or_have_no_limit_are_reported(tmp_path, broken_driver):
    """JAX and CuPy are real. xgboost is a stand-in, because only the name of an imported module matters.

    In the second trial, the modules are already imported, and JAX is initialized on the CPU.
    """
    (tmp_path / "xgboost.py").write_text("")
    code = f"""{ENFORCE}
enforce()
import cupy, jax, xgboost
first = CURRENT.trial.limits
jax.numpy.ones(1).block_until_ready()
enforce()
for limits in (first, CURRENT.trial.limits):
    print(limits.share_bytes // 2**30, limits.limit_bytes, limits.not_enforceable, limits.isolation, limits.warnings)
"""

    done = run(code, tmp_path)

    assert done.stdout.splitlines() == [
        "8 {} ['xgboost'] None ['cupy detects no GPU', 'jax detects no GPU']",
        "8 {} ['xgboost'] None ['jax detects no GPU', 'cupy detects no GPU']",
    ], done.stderr


def test_the_limit_of_the_next_trial_replaces_the_earlier_limit(tmp_path):
    """The next trial runs in the same process. CuPy is a stand-in."""
    write_stand_ins(tmp_path)
    code = f"""{ENFORCE}
enforce()
import cupy
enforce(4, 0.25)
limit_bytes = CURRENT.trial.limits.limit_bytes["cupy"]
print(cupy.get_default_memory_pool().get_limit() == limit_bytes == 4 * 2**30 - int(0.85 * 2**30))
"""

    done = run(code, tmp_path)

    assert done.stdout.strip() == "True", done.stderr


def test_two_frameworks_on_one_gpu_fraction_are_reported(tmp_path):
    """CuPy and TensorFlow are stand-ins. JAX is real, but has no limit, because it does not detect a GPU."""
    write_stand_ins(tmp_path)
    (tmp_path / "tensorflow.py").write_text(
        "from types import SimpleNamespace\n"
        "__version__ = '2.21.0'\n"
        "limits = []\n"
        "experimental = SimpleNamespace(get_device_details=lambda _: {}, get_memory_growth=lambda _: False)\n"
        "config = SimpleNamespace(experimental=experimental, list_physical_devices=lambda _: ['GPU:0'],\n"
        "    get_logical_device_configuration=lambda _: limits, LogicalDeviceConfiguration=SimpleNamespace,\n"
        "    set_logical_device_configuration=lambda _, wanted: limits.extend(wanted))\n"
    )

    done = run(
        f"{ENFORCE}enforce()\nimport jax, cupy, tensorflow; print(*CURRENT.trial.limits.warnings, sep='|')", tmp_path
    )

    assert (
        done.stdout.strip()
        == "cupy and tensorflow are limited separately, so together they may use more than the GPU fraction"
    ), done.stderr


CPU_TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cpu"
cuda = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
backends = SimpleNamespace()
"""


@pytest.fixture
def beside_a_gpu(tmp_path):
    """Return a function that runs code with stand-ins: NVML and CuPy detect a GPU, and PyTorch does not."""
    state_counts(write_stand_ins(tmp_path), total=2**34, free=2**34)
    (tmp_path / "torch.py").write_text(CPU_TORCH)

    def run_beside_it(work, share="8"):
        at_a_result = (
            "CURRENT.trial.require_limit(); usage = CURRENT.trial.gpu_memory_usage(); "
            "print(usage.isolation, *usage.warnings)"
        )
        code = f"{ENFORCE}enforce({share})\n{work}\n{at_a_result}"
        return run(code, tmp_path, CUDA_VISIBLE_DEVICES="0", STAND_IN_NVML=str(tmp_path / "nvml.json"))

    return run_beside_it


@pytest.mark.parametrize("order", ["torch, cupy", "cupy, torch"])
def test_a_cpu_build_of_torch_is_accepted_next_to_a_limited_framework(order, beside_a_gpu):
    done = beside_a_gpu(f"import {order}")

    assert done.stdout.strip() == "framework", done.stderr


def test_a_cpu_build_of_torch_alone_fails_at_the_first_result(beside_a_gpu):
    done = beside_a_gpu("import torch; print(*CURRENT.trial.limits.warnings)")

    assert done.stdout.strip() == "torch detects no GPU"
    assert (
        "UnenforcedLimitError: Ray assigned this process a fraction of a GPU, but torch detects no GPU" in done.stderr
    )


def test_a_limit_error_that_the_trial_catches_is_a_warning_and_is_raised_at_the_next_result(beside_a_gpu):
    done = beside_a_gpu("try: import cupy\nexcept Exception: pass\nprint(*CURRENT.trial.limits.warnings)", share="0.25")

    assert done.stdout.startswith("a limit of 256 MiB leaves no memory for tensors, because cupy")
    assert "MemoryLimitError: a limit of 256 MiB leaves no memory for tensors, because cupy" in done.stderr


def test_a_removed_limit_is_reported_as_a_warning(beside_a_gpu):
    done = beside_a_gpu("import cupy; cupy.get_default_memory_pool().set_limit(size=2**34)")

    assert done.stdout.strip() == (
        "None the GPU memory limit of cupy was removed or replaced, so it is no longer enforced"
    ), done.stderr


@pytest.mark.parametrize(
    ("share", "expected"), [("None, 1", "mig"), ("8", "framework")], ids=["the whole device", "a partial device"]
)
def test_a_mig_device_limits_only_a_process_that_uses_the_whole_device(share, expected, beside_a_gpu):
    uuid = "import pynvml; pynvml.nvmlDeviceGetUUID = lambda _: 'MIG-1'"

    done = beside_a_gpu(f"{uuid}; enforce({share}); import cupy")

    assert done.stdout.strip() == expected, done.stderr


NPU_TORCH = """
import sys
from types import SimpleNamespace
fractions = {}
sys.modules["torch"].npu = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 1, memory_reserved=lambda device: 0,
    get_device_properties=lambda device: SimpleNamespace(total_memory=2**36, name="Stand-in NPU"),
    set_per_process_memory_fraction=lambda fraction, device: fractions.update({device: fraction}))
"""


def test_an_npu_fraction_is_limited_after_torch_npu_is_imported(tmp_path):
    """PyTorch is real and detects no NPU before torch_npu, a stand-in, is imported. This must not be an error."""
    (tmp_path / "torch_npu.py").write_text(NPU_TORCH)
    code = f"""{ENFORCE}
enforce(None, 0.25, "NPU")
import torch, torch_npu
print(torch_npu.fractions == {{0: (2**34 - int(0.85 * 2**30)) / 2**36}}, CURRENT.trial.limits.warnings)
"""

    done = run(code, tmp_path)

    assert done.stdout.strip() == "True []", done.stderr


@pytest.mark.rest
def test_jax_reads_the_environment_variables_of_its_limit(tmp_path):
    code = """
import os
from tune_policies.trainers.gpu_memory.framework_settings import jax_variables
os.environ |= jax_variables(0.5, {})
from jaxlib import xla_client
options = xla_client.generate_pjrt_gpu_plugin_options()
print(options["memory_fraction"], options["preallocate"], options["allocator"])
"""

    assert run(code, tmp_path).stdout.split() == ["0.5", "False", "default"]


def test_a_replaced_allocator_of_cupy_is_detected(tmp_path):
    code = """
import cupy
default = cupy.get_default_memory_pool().malloc
kept = cupy.cuda.get_allocator() == default
cupy.cuda.set_allocator(None)
print(kept, cupy.cuda.get_allocator() == default)
"""

    assert run(code, tmp_path).stdout.split() == ["True", "False"]
