"""Measures workloads on a real GPU."""

import pytest

from tests.on_ray.rays import local_ray
from tune_policies import probe_cluster
from tune_policies.benchmarks.record.machine import read_environment
from tune_policies.benchmarks.record.run_set import Configuration, Phase
from tune_policies.benchmarks.record.settings import Settings
from tune_policies.benchmarks.workloads.steps import Steps

pytestmark = pytest.mark.gpu

SIZE = 4096


def measured(settings):
    from tune_policies.benchmarks.measuring.rounds import measure, new_run_set

    with local_ray():
        capacity = probe_cluster()
        *_, last = measure(new_run_set(settings, capacity, read_environment(), "a test"), capacity)
    return last


@pytest.fixture(scope="module")
def run_set():
    devices = ("cpu", "gpu", "gpu@0.5")
    return measured(Settings(sizes={"matmul": (SIZE,)}, devices=devices, num_rounds=1, num_blocks=4))


@pytest.fixture(scope="module")
def on_cpu():
    """Measure a workload that is called for a GPU but computes on the CPU, and return the run set."""
    sizes = {f"{__name__}:stays_on_cpu": (64,)}
    return measured(Settings(sizes=sizes, devices=("gpu",), num_rounds=1, has_control=False))


def stays_on_cpu(size, device):
    import torch

    matrix = torch.rand(size, size)
    return Steps(lambda: (matrix @ matrix)[0, 0])


def run_on(run_set, device):
    (run,) = run_set.of(Configuration(workload="matmul", size=SIZE, device=device))
    return run


def test_all_requested_devices_are_measured(run_set):
    assert not run_set.failures
    assert {configuration.device for configuration in run_set.configurations} == {"cpu", "gpu", "gpu@0.5"}


def test_a_large_matrix_product_is_faster_on_a_gpu(run_set):
    cpu, gpu = (min(run_on(run_set, device).times_s(Phase.COMPUTE)) for device in ("cpu", "gpu"))

    assert gpu < cpu / 5


def test_steps_with_transfers_take_longer(run_set):
    run = run_on(run_set, "gpu")

    assert min(run.times_s(Phase.TRANSFERS)) > min(run.times_s(Phase.COMPUTE))


def test_times_include_the_execution_of_queued_gpu_work(run_set):
    """Without synchronization, the time would imply over 10^16 FP32 operations per second, which no GPU reaches."""
    assert min(run_on(run_set, "gpu").times_s(Phase.COMPUTE)) > 2 * SIZE**3 / 1e16


def test_only_a_process_on_a_gpu_reports_gpu_memory(run_set):
    assert run_on(run_set, "cpu").peak_gpu_bytes is None
    assert run_on(run_set, "gpu").peak_gpu_bytes >= 3 * 4 * SIZE**2


def test_a_gpu_workload_that_computes_on_the_cpu_is_recorded_as_a_failure(on_cpu):
    assert not on_cpu.runs
    assert "was called for a GPU, but used none" in on_cpu.failures[0].message
