"""Tests usage records and the handling of memory leaks on a real GPU. `make test-gpu` runs these tests."""

import contextlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from ray import tune

from tests.on_gpu.device import HOLD, memory_in_use, sees_a_gpu, used_bytes
from tests.on_ray.rays import local_ray
from tune_policies import GpuPolicy, MemoryLimitError, PolicyScheduler, ProbeWarning, probe_cluster
from tune_policies.probe.nvml import read_device_use
from tune_policies.trainers.gpu_memory.fraction_limits import GpuShare
from tune_policies.trainers.gpu_memory.free_memory import wait_for_free_memory
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.oom_report import OomReport

pytestmark = pytest.mark.gpu

GIB = 2**30
MIB = 2**20


@pytest.fixture(scope="module")
def plan():
    with local_ray(num_cpus=8), warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        yield GpuPolicy(gpus=0.25).plan(probe_cluster())


def run(trainable, plan, tmp_path, **kwargs):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
        **kwargs,
    ).trials


def usage_of(trial):
    return GpuMemoryUsage.from_dict(trial.last_result["gpu_memory"])


def allocate_with_torch(config):
    before = used_bytes()
    import torch

    held = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    conv = torch.nn.Conv2d(3, 16, 3).cuda()
    conv(torch.rand(8, 3, 64, 64, device="cuda")).square().sum().backward()
    (torch.rand(256, 256, device="cuda") @ torch.rand(256, 256, device="cuda")).sum().item()
    tune.report({"taken_of_the_device": used_bytes() - before, "allocated": held.numel()})


@pytest.mark.whole_gpu
def test_the_memory_use_of_torch_is_its_peak_plus_its_overhead(plan, tmp_path):
    (trial,) = run(allocate_with_torch, plan, tmp_path)

    usage, taken = usage_of(trial), trial.last_result["taken_of_the_device"]
    print(f"taken {taken / GIB:.3f} GiB, reserved {usage.peak_reserved_bytes / GIB:.3f}, {usage.sources}")
    assert 2 * GIB <= usage.peak_allocated_bytes < 2 * GIB + 256 * MIB
    assert usage.share_kept is True
    if usage.process_bytes is None:  # in some containers, where the assumed overhead must be large enough
        assert usage.sources["process_bytes"].startswith("unknown")
        assert 100 * MIB < taken - usage.peak_reserved_bytes <= usage.overhead_bytes
    else:
        assert usage.process_bytes == pytest.approx(taken, abs=64 * MIB)


def allocate_with_tensorflow(config):
    import tensorflow as tf

    held = tf.zeros((GIB,), tf.uint8)
    tune.report({"held": int(held.shape[0])})


def allocate_with_jax(config):
    import jax.numpy as jnp

    held = jnp.zeros((GIB,), jnp.uint8).block_until_ready()
    tune.report({"held": held.nbytes})


@pytest.mark.parametrize(("framework", "take"), [("tensorflow", allocate_with_tensorflow), ("jax", allocate_with_jax)])
def test_tensorflow_and_jax_report_their_peak_memory(plan, tmp_path, framework, take):
    if not sees_a_gpu(framework):
        pytest.skip(f"{framework} is not installed or finds no GPU")

    (trial,) = run(take, plan, tmp_path)

    assert GIB <= usage_of(trial).peak_allocated_bytes < GIB + 300 * MIB


def run_out(config):
    import torch

    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    torch.empty(100 * config["share"], dtype=torch.uint8, device=held.device)


def test_the_error_file_of_an_out_of_memory_trial_contains_its_usage(plan, tmp_path):
    (trial,) = run(run_out, plan, tmp_path, config={"share": plan.gpu_memory_bytes})

    lines = [line for line in Path(trial.error_file).read_text().splitlines() if "out_of_memory: " in line]
    usage = OomReport.from_text(lines[-1]).gpu_memory
    assert (usage.num_ooms, usage.share_kept) == (1, True)
    assert usage.peak_allocated_bytes >= GIB


def keep(config):
    import torch

    torch.kept = torch.empty(config["keep"], dtype=torch.uint8, device="cuda")
    matrix = torch.rand(256, 256, device="cuda")
    tune.report({"loss": (matrix @ matrix).sum().item()})


def test_a_process_with_a_large_leak_is_replaced_without_a_failed_trial(plan, tmp_path):
    space = {"keep": tune.grid_search([int(plan.gpu_memory_bytes * 0.5), MIB, MIB])}

    trials = run(keep, plan, tmp_path, config=space, reuse_actors=True, max_concurrent_trials=1)

    first, second, third = (trial.last_result["pid"] for trial in trials)
    assert [trial.num_failures for trial in trials] == [0, 0, 0]
    assert first != second == third
    assert usage_of(trials[1]).left_over_bytes == 0
    # Torch allocates 2 MiB for the tensor of 1 MiB. The workspaces of cuBLAS were released.
    assert usage_of(trials[2]).left_over_bytes <= 4 * MIB


def leave_a_child(config):
    import torch

    # The driver lists this process, which shows that it reports process IDs of this PID namespace.
    torch.zeros(1, device="cuda")
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(GIB)], stdout=subprocess.PIPE)
    child.stdout.readline()
    listed = any(child.pid in device.bytes_by_process for device in read_device_use())
    tune.report({"child": child.pid, "listed": listed})


def test_a_child_process_that_outlives_its_trial_is_terminated(plan, tmp_path):
    (trial,) = run(leave_a_child, plan, tmp_path)

    if not trial.last_result["listed"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(trial.last_result["child"], 9)
        pytest.skip("the driver does not list processes by their IDs in this container")
    deadline = time.monotonic() + 20
    while Path(f"/proc/{trial.last_result['child']}").exists():
        assert time.monotonic() < deadline, "the child still runs"
        time.sleep(0.1)


@pytest.mark.whole_gpu
def test_a_trial_does_not_start_on_a_device_without_enough_free_memory(plan):
    total = read_device_use()[0].total_bytes

    with memory_in_use(2 * plan.gpu_memory_bytes):
        with pytest.raises(MemoryLimitError, match=r"less than the .* of this trial's GPU fraction"):
            wait_for_free_memory(GpuShare(fraction=0.75, memory_bytes=int(total * 0.75)), timeout_s=1)
        with pytest.raises(MemoryLimitError, match="less than the 80%"):
            wait_for_free_memory(GpuShare(fraction=1.0), timeout_s=1)
