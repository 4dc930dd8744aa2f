"""On a real GPU, memory limits are enforced. `make test-gpu` runs these tests."""

import os
import subprocess
import sys
import textwrap

import pytest
from ray import tune

from tests.on_ray.rays import local_ray
from tune_policies import GpuPolicy, PolicyScheduler, probe_cluster
from tune_policies.oom import classify_oom
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage

pytestmark = pytest.mark.gpu

GIB = 2**30
CHUNK = 2**28  # elements of 4 bytes, fewer than 2**31 because JAX treats larger arrays differently
NEEDS = {"torch": "torch", "jax": "jax_plugins", "cupy": "cupy"}

ENFORCE = """
from tune_policies.trainers.process.current_process import CURRENT
from tune_policies.trainers.gpu_memory.fraction_limits import GpuShare, LimitOptions
CURRENT.bind_trial(1, GpuShare(fraction=0.25, memory_bytes=8 * 2**30), LimitOptions())
"""
ALLOCATE = {
    "torch": """
        import torch
        held = torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda")
        try: torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError: print("refused")
    """,
    "jax": """
        import jax, jax.numpy as jnp
        held = jnp.zeros(6 * 2**28, jnp.float32).block_until_ready()
        try: jnp.zeros(4 * 2**28, jnp.float32).block_until_ready()
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
def test_an_allocation_above_the_limit_fails(framework):
    pytest.importorskip(NEEDS[framework])

    assert run(ENFORCE + textwrap.dedent(ALLOCATE[framework])) == ["refused"]


LIFT = {
    "torch": "torch.cuda.set_per_process_memory_fraction(1.0)",
    "cupy": "cupy.get_default_memory_pool().set_limit(size=2**40)",
}
PRINT_LIMITS = """
print(*CURRENT.trial.gpu_memory_usage().limit_bytes)
"""


@pytest.mark.parametrize("framework", NEEDS)
def test_a_limit_is_still_enforced_after_allocations(framework):
    pytest.importorskip(NEEDS[framework])

    assert run(ENFORCE + textwrap.dedent(ALLOCATE[framework]) + PRINT_LIMITS) == ["refused", framework]


@pytest.mark.parametrize("framework", LIFT)
def test_a_limit_that_was_removed_is_not_reported(framework):
    pytest.importorskip(framework)

    assert run(ENFORCE + textwrap.dedent(ALLOCATE[framework]) + LIFT[framework] + PRINT_LIMITS) == ["refused"]


PRINT_CONTEXTS = f"""
from tune_policies.probe.nvml import read_device_use
from tune_policies.trainers.gpu_memory.mps import cuda_has_started
read_device_use()
has_started = cuda_has_started()
{ENFORCE}
import torch
print(has_started, torch._C._cuda_hasPrimaryContext(0))
torch.zeros(1, device="cuda")
print(cuda_has_started(), torch._C._cuda_hasPrimaryContext(0))
"""


def test_neither_nvml_nor_the_limit_of_torch_creates_a_cuda_context():
    assert run(PRINT_CONTEXTS) == ["False", "False", "True", "True"]


def test_torchs_asynchronous_allocator_respects_the_limit():
    code = ENFORCE + textwrap.dedent(ALLOCATE["torch"])

    assert run(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") == ["refused"]


def allocate_twice_the_limit_with_jax(config):
    import jax
    import jax.numpy as jnp

    held = []
    try:
        while len(held) * 4 * CHUNK < 2 * config["share"]:
            held.append(jnp.zeros(CHUNK, jnp.float32).block_until_ready())
    except jax.errors.JaxRuntimeError as error:
        found = classify_oom(error)
        tune.report({"kind": found.kind, "framework": found.framework, "taken": len(held) * 4 * CHUNK})
        return
    tune.report({"taken": len(held) * 4 * CHUNK})


def allocate_and_release(config):
    import jax.numpy as jnp

    taken = jnp.zeros(config["take"] // 4, jnp.float32).block_until_ready()
    tune.report({"bytes": taken.nbytes})


@pytest.fixture(scope="module")
def plan():
    with local_ray(num_cpus=4):
        yield GpuPolicy(gpus=0.25, cpus=1).plan(probe_cluster())


def run_trials(trainable, plan, tmp_path, **kwargs):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
        **kwargs,
    ).trials


def test_the_memory_of_a_jax_trial_is_limited(plan, tmp_path):
    pytest.importorskip("jax_plugins")
    share = plan.gpu_memory_bytes

    (trial,) = run_trials(allocate_twice_the_limit_with_jax, plan, tmp_path, config={"share": share})

    result = trial.last_result
    assert (result.get("kind"), result.get("framework")) == ("accelerator", "jax")
    assert 0.5 * share < result["taken"] < share


def test_a_process_that_ran_jax_is_reused_or_replaced_without_a_failure(plan, tmp_path):
    pytest.importorskip("jax_plugins")
    space = {"take": tune.grid_search([2 * GIB, GIB])}

    trials = run_trials(allocate_and_release, plan, tmp_path, config=space, reuse_actors=True, max_concurrent_trials=1)

    usages = [GpuMemoryUsage.from_dict(trial.last_result["gpu_memory"]) for trial in trials]
    assert [(trial.status, trial.num_failures) for trial in trials] == [("TERMINATED", 0)] * 2
    assert [usage.share_bytes for usage in usages] == [plan.gpu_memory_bytes] * 2
    # JAX reports the peak of the whole process, including earlier trials.
    assert usages[1].pid == usages[0].pid or usages[1].peak_allocated_bytes < 2 * GIB
