"""What becomes of the real frameworks under a share where there is no GPU; limits themselves need one (on_gpu)."""

import json
import os
import subprocess
import sys

import pytest

from tests.marks import further
from tests.stand_ins import state_counts, write_stand_ins

ENFORCE = """
from tune_policies.trainers.gpu_memory.enforcement import current_limit_report, enforce
from tune_policies.trainers.gpu_memory.share import GpuShare
enforce(GpuShare(fraction=0.5, memory_bytes=8 * 2**30))
"""


def run(code, tmp_path, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "CUDA_VISIBLE_DEVICES": "",
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("framework", ["torch", *further("tensorflow")])
def test_a_framework_that_sees_no_gpu_fails_at_its_import_unless_the_user_asks_for_a_warning(framework, tmp_path):
    """TensorFlow imports JAX on its way, which sees no GPU either: the error still names TensorFlow."""
    refused = f"Ray gave this process a share of a GPU, but {framework} sees no GPU"
    done = run(f"{ENFORCE}import {framework}", tmp_path)

    assert f"MemoryLimitError: {refused}" in done.stderr
    assert done.stderr.rstrip().endswith(
        'or plan with CpuPolicy. Pass on_void_limit="warn" to run without a limit that holds'
    )
    warned = ENFORCE.replace("))\n", '), on_void_limit="warn")\n')
    done = run(f"{warned}import {framework}; print(*current_limit_report().warnings, sep='|')", tmp_path)
    assert refused in done.stdout, done.stderr


def test_frameworks_that_others_bring_along_or_that_know_no_limit_are_written_down(tmp_path):
    """JAX and CuPy are real. xgboost is not installed here: only that a module of the name is imported counts.

    The second trial finds all of them imported, and JAX started, on the CPU.
    """
    (tmp_path / "xgboost.py").write_text("")
    code = f"""{ENFORCE}
import cupy, jax, xgboost, dataclasses, json
first = current_limit_report()
jax.numpy.ones(1).block_until_ready()
second = enforce(GpuShare(fraction=0.5, memory_bytes=8 * 2**30))
print(json.dumps([dataclasses.asdict(first), dataclasses.asdict(second)]))
"""

    done = run(code, tmp_path)

    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first == {**second, "warnings": ["cupy sees no GPU", "jax sees no GPU"]}
    assert second == {
        "share_bytes": 8 * 2**30,
        "limit_bytes": {},
        "overhead_bytes": {},
        "overhead_is_of_process": False,
        "overhead_sources": {},
        "not_enforceable": ["xgboost"],
        "isolation": None,
        "warnings": ["jax sees no GPU", "cupy sees no GPU"],
    }


GPU_CUPY = """
from types import SimpleNamespace
__version__ = "14.2.0"
class Device:
    def __init__(self, number): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
class Pool:
    limit = None
    def malloc(self, size): pass
    def total_bytes(self): return 0
    def set_limit(self, size): self.limit = size
    def get_limit(self): return self.limit
POOL = Pool()
get_default_memory_pool = lambda: POOL
runtime = SimpleNamespace(
    getDeviceCount=lambda: 1, getDeviceProperties=lambda device: {"totalGlobalMem": 2**36, "name": b"Stand-in GPU"}
)
cuda = SimpleNamespace(is_available=lambda: True, get_allocator=lambda: POOL.malloc, Device=Device, runtime=runtime)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_later_share_takes_the_place_of_an_earlier_one(when, tmp_path):
    """The next trial in the same process, for a framework that is imported before or after. CuPy is a stand-in here."""
    (tmp_path / "cupy.py").write_text(GPU_CUPY)
    enforce = """
from tune_policies.trainers.gpu_memory.enforcement import current_limit_report, enforce
from tune_policies.trainers.gpu_memory.share import GpuShare
enforce(GpuShare(fraction=0.5, memory_bytes=8 * 2**30))
{before}
enforce(GpuShare(fraction=0.25, memory_bytes=4 * 2**30))
import cupy
print(cupy.POOL.limit == current_limit_report().limit_bytes["cupy"] == 4 * 2**30 - int(0.85 * 2**30))
"""

    done = run(enforce.format(before="import cupy" if when == "before" else ""), tmp_path)

    assert done.stdout.strip() == "True", done.stderr


def test_two_frameworks_on_one_share_are_told_of(tmp_path):
    """Both are stand-ins. JAX, which is real, sees no GPU, but that is of no interest beside them."""
    (tmp_path / "cupy.py").write_text(GPU_CUPY)
    (tmp_path / "tensorflow.py").write_text(
        "from types import SimpleNamespace\n"
        "__version__ = '2.21.0'\n"
        "limits = []\n"
        "experimental = SimpleNamespace(get_device_details=lambda _: {}, get_memory_growth=lambda _: False)\n"
        "config = SimpleNamespace(experimental=experimental, list_physical_devices=lambda _: ['GPU:0'],\n"
        "    get_logical_device_configuration=lambda _: limits, LogicalDeviceConfiguration=SimpleNamespace,\n"
        "    set_logical_device_configuration=lambda _, wanted: limits.extend(wanted))\n"
    )

    done = run(f"{ENFORCE}import jax, cupy, tensorflow; print(*current_limit_report().warnings, sep='|')", tmp_path)

    assert done.stdout.strip() == ("cupy and tensorflow are each held to the share, but together they may take more"), (
        done.stderr
    )


CPU_TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cpu"
cuda = SimpleNamespace(is_available=lambda: False)
backends = SimpleNamespace()
"""

AT_A_RESULT = """
from tune_policies.trainers.gpu_memory.enforcement import (
    rechecked_limit_report, current_limit_report, enforce, note_whole_devices, require_limit
)
from tune_policies.trainers.gpu_memory.share import GpuShare
enforce(GpuShare(fraction=0.5, memory_bytes={share}))
{work}
require_limit()
print(rechecked_limit_report().isolation, *rechecked_limit_report().warnings, sep="|")
"""


@pytest.fixture
def beside_a_gpu(tmp_path):
    """Runs code in a process with a GPU of NVML's, a CuPy that sees it and a PyTorch that does not: stand-ins all."""
    state_counts(write_stand_ins(tmp_path), total=2**34, free=2**34)
    (tmp_path / "torch.py").write_text(CPU_TORCH)

    def run_beside_it(work, share=8 * 2**30):
        code = AT_A_RESULT.format(share=share, work=work)
        return run(code, tmp_path, CUDA_VISIBLE_DEVICES="0", STAND_IN_NVML=str(tmp_path / "nvml.json"))

    return run_beside_it


@pytest.mark.parametrize("order", ["torch, cupy", "cupy, torch"])
def test_a_torch_for_the_cpu_may_stand_beside_a_framework_that_is_held(order, beside_a_gpu):
    done = beside_a_gpu(f"import {order}")

    assert done.stdout.strip() == "framework", done.stderr


def test_a_torch_for_the_cpu_alone_fails_at_the_first_result(beside_a_gpu):
    done = beside_a_gpu("import torch; print(*current_limit_report().warnings)")

    assert done.stdout.strip() == "torch sees no GPU"
    assert "MemoryLimitError: Ray gave this process a share of a GPU, but torch sees no GPU" in done.stderr


def test_a_refusal_that_was_caught_is_written_down_and_raised_at_the_next_result(beside_a_gpu):
    work = """
try: import cupy
except Exception: pass
print(*current_limit_report().warnings)
"""

    done = beside_a_gpu(work, share=2**28)

    assert done.stdout.startswith("a share of 256 MiB leaves nothing for tensors: cupy")
    assert "MemoryLimitError: a share of 256 MiB leaves nothing for tensors: cupy" in done.stderr


def test_a_limit_that_was_lifted_is_not_claimed_any_more(beside_a_gpu):
    done = beside_a_gpu("import cupy; cupy.get_default_memory_pool().set_limit(size=2**34)")

    assert done.stdout.strip() == (
        "None|the limit of cupy was lifted or replaced after it was set, so it no longer holds"
    ), done.stderr


@pytest.mark.parametrize(("take", "expected"), [("note_whole_devices()", "mig"), ("import cupy", "framework")])
def test_only_a_process_with_the_whole_of_a_mig_device_is_held_by_it(take, expected, beside_a_gpu):
    done = beside_a_gpu(f"import pynvml; pynvml.nvmlDeviceGetUUID = lambda _: 'MIG-1'; {take}")

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


def test_a_share_of_an_npu_is_held_once_its_package_gives_torch_the_npus(tmp_path):
    """PyTorch is real, and sees no device until then, which is no error here; torch_npu is a stand-in."""
    (tmp_path / "torch_npu.py").write_text(NPU_TORCH)
    code = """
from tune_policies.trainers.gpu_memory.enforcement import current_limit_report, enforce
from tune_policies.trainers.gpu_memory.share import GpuShare
enforce(GpuShare(fraction=0.25, device="NPU"))
import torch, torch_npu
print(torch_npu.fractions == {0: (2**34 - int(0.85 * 2**30)) / 2**36}, current_limit_report().warnings)
"""

    done = run(code, tmp_path)

    assert done.stdout.strip() == "True []", done.stderr


@pytest.mark.rest
def test_the_frameworks_themselves_understand_what_the_environment_says(tmp_path):
    """JAX's own reader of its variables, CuPy's own parser, and the parser in PyTorch's library."""
    code = """
import os
from tune_policies.trainers import GpuMemoryLimit
limit = GpuMemoryLimit("8GiB", overhead_bytes=dict.fromkeys(["torch", "jax", "cupy"], 2**30))
os.environ["PYTORCH_ALLOC_CONF"] = "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64"
os.environ |= limit.environment({"jax": "0.10.2", "cupy": "14.2", "torch": "2.13"}, 14 * 2**30, os.environ)
from jaxlib import xla_client
options = xla_client.generate_pjrt_gpu_plugin_options()
assert (options["memory_fraction"], options["preallocate"], options["allocator"]) == (0.5, False, "default"), options
from cupy.cuda.memory import _parse_limit_string
assert _parse_limit_string(os.environ["CUPY_GPU_MEMORY_LIMIT"]) == {"size": 7 * 2**30, "fraction": None}
import torch
torch._C._accelerator_setAllocatorSettings(os.environ["PYTORCH_ALLOC_CONF"])
assert torch._C._accelerator_getAllocatorSettings() == os.environ["PYTORCH_ALLOC_CONF"]
print(os.environ["PYTORCH_ALLOC_CONF"])
"""

    done = run(code, tmp_path)

    assert done.stdout.strip() == (
        "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64,per_process_memory_fraction:0.500000"
    ), done.stderr


def test_the_allocator_of_cupy_tells_whether_it_was_replaced(tmp_path):
    code = """
import cupy
default = cupy.get_default_memory_pool().malloc
kept = cupy.cuda.get_allocator() == default
cupy.cuda.set_allocator(None)
print(kept, cupy.cuda.get_allocator() == default)
"""

    assert run(code, tmp_path).stdout.split() == ["True", "False"]
