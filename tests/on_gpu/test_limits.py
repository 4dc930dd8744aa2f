"""What only a real GPU can show of the limits: they hold, and overheads can be measured. Run by `make test-gpu`."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
import ray
from ray import tune

from tests.on_ray.rays import local_ray
from trainers import calibrate_gpu_overhead, load_overheads, with_plan
from tune_policies import GpuPolicy, probe_cluster

pytestmark = pytest.mark.gpu

GIB = 2**30
NEEDS = {"torch": "torch", "jax": "jax_plugins", "cupy": "cupy"}

ENFORCE = """
from trainers.gpu_memory.limits.enforcement import GpuShare, enforce
record = enforce(GpuShare(fraction=0.25, memory_bytes=8 * 2**30))
"""
ASK = {
    "torch": """
        import torch
        held = torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda")
        try: torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError: print("refused")
    """,
    "jax": """
        import jax, jax.numpy as jnp
        held = jnp.zeros(6 * 2**30, jnp.uint8).block_until_ready()
        try: jnp.zeros(4 * 2**30, jnp.uint8).block_until_ready()
        except jax.errors.JaxRuntimeError as error: print("refused" if "RESOURCE_EXHAUSTED" in str(error) else error)
    """,
    "cupy": """
        import cupy
        held = cupy.zeros(6 * 2**30, cupy.uint8)
        try: cupy.zeros(4 * 2**30, cupy.uint8)
        except cupy.cuda.memory.OutOfMemoryError: print("refused")
    """,
}


def run(code, **environ):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    return done.stdout.split() or [done.stderr]


@pytest.mark.parametrize("framework", NEEDS)
def test_a_process_is_refused_what_is_above_its_share(framework):
    pytest.importorskip(NEEDS[framework])

    assert run(ENFORCE + textwrap.dedent(ASK[framework])) == ["refused"]


LIFT = {
    "torch": "torch.cuda.set_per_process_memory_fraction(1.0)",
    "cupy": "cupy.get_default_memory_pool().set_limit(size=2**40)",
}
SAY = """
from trainers.gpu_memory.limits.enforcement import checked_enforcement
print(*checked_enforcement().limit_bytes)
"""


@pytest.mark.parametrize("framework", NEEDS)
def test_a_limit_still_holds_after_work(framework):
    pytest.importorskip(NEEDS[framework])

    assert run(ENFORCE + textwrap.dedent(ASK[framework]) + SAY) == ["refused", framework]


@pytest.mark.parametrize("framework", LIFT)
def test_a_limit_that_was_lifted_is_seen(framework):
    pytest.importorskip(framework)

    assert run(ENFORCE + textwrap.dedent(ASK[framework]) + LIFT[framework] + SAY) == ["refused"]


@pytest.mark.parametrize("framework", NEEDS)
def test_the_environment_alone_holds_a_process_as_well(framework):
    module = pytest.importorskip(framework)
    pytest.importorskip(NEEDS[framework])
    code = f"""
import os
from trainers import GpuMemoryLimit
from tune_policies.probing.devices import read_gpus
total = read_gpus()[0]["memory_bytes"]
os.environ |= GpuMemoryLimit("8GiB").environment({{"{framework}": "{module.__version__}"}}, total, os.environ)
"""

    assert run(code + textwrap.dedent(ASK[framework])) == ["refused"]


def test_torchs_asynchronous_allocator_refuses_what_is_above_the_share_too():
    code = ENFORCE + textwrap.dedent(ASK["torch"])

    assert run(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") == ["refused"]


def test_the_overhead_of_torch_is_measured_on_this_gpu(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path))
    with local_ray(num_cpus=2):
        measured = calibrate_gpu_overhead(["torch"], timeout_s=200)

    assert load_overheads() == measured
    overhead, source = measured.bytes_for(torch.cuda.get_device_name(0), "torch", torch.__version__)
    assert source.startswith("measured on")
    assert 0.1 * GIB < overhead < 1.5 * GIB


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_trials_that_take_all_they_get_stay_within_their_shares_for_two_minutes(tmp_path):
    with local_ray(num_cpus=8):
        plan = GpuPolicy(gpus=0.125, cpus=1).plan(probe_cluster())
        results = tune.run(
            with_plan(take_all_for_two_minutes, plan), num_samples=8, storage_path=str(tmp_path), verbose=0
        )

    assert [trial.status for trial in results.trials] == ["TERMINATED"] * 8
    assert max(trial.last_result["most"] for trial in results.trials) <= plan.gpu_memory_bytes


def take_all_for_two_minutes(config):
    """Fill the share over and over, and report the most that the driver counted for this process."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    index = int(ray.get_gpu_ids()[0])
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    most, end = 0, time.monotonic() + 120
    while time.monotonic() < end:
        held = []
        try:
            while True:
                held.append(torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass
        torch.cuda.synchronize()
        processes = {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        # In a container the driver has other process numbers: then an equal part of what the device's are all using.
        most = max(most, processes.get(os.getpid()) or sum(processes.values()) // len(processes))
        del held
    tune.report({"most": most})
