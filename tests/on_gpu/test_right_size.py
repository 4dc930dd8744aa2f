"""Compares memory estimates and measurements with a real GPU. `make test-gpu` runs these tests."""

import functools
import multiprocessing
import warnings

import pytest

from tests.on_gpu.device import used_bytes
from tests.on_ray.rays import local_ray
from tune_policies import GpuMemoryPolicy, GpuPolicy, PolicyScheduler, ProbeWarning, probe_cluster
from tune_policies.probe.nvml import bytes_of_process, read_device_use
from tune_policies.trainers import estimate_gpu_memory, measure_gpu_memory

torch = pytest.importorskip("torch")
from tests import models  # noqa: E402 (needs torch)

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu]

GIB = 2**30
# The models are so large that the workspaces of cuBLAS, by default 32 MiB each on Hopper, are negligible.
TRAININGS = {
    "mlp": models.mlp(batch=4096, width=4096),
    "resnet": models.resnet(batch=128, size=128),
    "transformer": models.transformer(batch=32, length=256, width=512, depth=6, words=10_000),
}
of_each_kind = pytest.mark.parametrize("kind", TRAININGS)


def train(kind):
    """Train for five steps. Return the allocator's peaks, the memory use, and whether the driver lists the process.

    The allocator keeps its reserved memory, so the driver reports the peak at the end.
    """
    before = used_bytes()
    TRAININGS[kind].train(torch.optim.AdamW, 5, "cuda")
    torch.cuda.synchronize()
    taken = used_bytes() - before
    is_listed = bytes_of_process(read_device_use()) is not None
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), taken, is_listed


@functools.cache
def train_in_new_process(kind):
    """Run ``train`` in a new process. The GPU must be idle, because the memory use of the whole device is counted."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(train, (kind,))


@of_each_kind
def test_the_estimate_is_within_15_percent_of_the_real_peak(kind):
    training = TRAININGS[kind]
    allocated, *_ = train_in_new_process(kind)

    estimate = estimate_gpu_memory(training.build, training.batch, torch.optim.AdamW, training.loss_fn)

    print(f"{kind}: estimated {estimate.peak_bytes / GIB:.3f} GiB, real {allocated / GIB:.3f} GiB")
    assert estimate.peak_bytes == pytest.approx(allocated, rel=0.15)


@pytest.fixture(scope="module")
def capacity():
    with local_ray(num_cpus=4, num_gpus=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        yield probe_cluster()


def train_and_report(config):
    from ray import tune

    train(config["kind"])
    tune.report({"done_with": config["kind"]})


@pytest.fixture(scope="module")
def profile(capacity):
    configs = [{"kind": kind} for kind in TRAININGS]
    return measure_gpu_memory(train_and_report, configs, timeout_s=120, capacity=capacity)


@of_each_kind
def test_the_measurement_is_within_5_percent_of_the_real_peak(kind, profile):
    _, reserved, taken, is_listed = train_in_new_process(kind)
    (measured,) = [each for each in profile.measurements if each.config["kind"] == kind]

    peak = measured.peak_bytes["torch"]
    print(f"{kind}: measured {measured.total_bytes / GIB:.3f} GiB, peak {peak / GIB:.3f}; taken {taken / GIB:.3f} GiB")
    assert peak == pytest.approx(reserved, rel=0.05)
    if is_listed:
        assert measured.total_bytes == pytest.approx(taken, rel=0.05)
    else:  # the driver does not report memory by process here, so the measured total is an upper bound
        assert peak < taken <= 1.05 * measured.total_bytes


def test_trials_run_within_the_measured_gpu_fractions(capacity, profile, tmp_path):
    from ray import tune

    plan = GpuMemoryPolicy(profile=profile, headroom=0.1, cpus=1).plan(capacity)
    print(plan.explain())

    trials = tune.run(
        train_and_report,
        scheduler=PolicyScheduler(plan),
        config={"kind": tune.grid_search(list(TRAININGS))},
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * 3
    assert all(trial.last_result["gpu_memory"]["share_kept"] for trial in trials)


def test_a_config_that_needs_more_than_the_device_is_recorded_as_out_of_memory(capacity):
    def allocate_too_much(config):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")

    profile = measure_gpu_memory(allocate_too_much, [{"size": 2}], capacity=capacity, policy=GpuPolicy(cpus=1))

    assert profile.measurements[0].ran_out
