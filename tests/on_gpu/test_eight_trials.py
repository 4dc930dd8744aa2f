"""Eight trials share a GPU. Each trial stays within its limit, and an OOM error affects only its own trial."""

import threading
import warnings
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from ray import tune

from tests.on_gpu.device import used_bytes
from tests.on_ray.rays import local_ray
from tune_policies import GpuPolicy, OomRetryScheduler, PolicyScheduler, ProbeWarning, probe_cluster
from tune_policies.oom import classify_oom
from tune_policies.probe.nvml import read_device_use

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_TRIALS = 8
SHARE = 0.1
SECONDS = 120


@pytest.fixture(scope="module")
def plan():
    with local_ray(num_cpus=NUM_TRIALS), warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        yield GpuPolicy(gpus=SHARE).plan(probe_cluster())


@contextmanager
def recorded_usage():
    """Sample the additional memory use of the GPU, as reported by the driver, twice per second."""
    before, there_before = used_bytes(), processes().keys()
    samples, is_over = [], threading.Event()

    def watch():
        while not is_over.wait(0.5):
            new = [amount for pid, amount in processes().items() if pid not in there_before]
            samples.append(Sample(used_bytes() - before, new))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        is_over.set()
        watcher.join()


def processes():
    return {pid: amount for device in read_device_use() for pid, amount in device.bytes_by_process.items()}


class Sample(NamedTuple):
    taken_bytes: int
    of_processes: list[int | None]


def fill_and_free(config):
    """Repeatedly compute and fill the GPU memory with tensors of random sizes."""
    import random
    import time

    import torch

    conv = torch.nn.Conv2d(3, 16, 3).cuda()
    end = time.monotonic() + SECONDS
    held, refused = [], 0
    while time.monotonic() < end:
        is_full = False
        try:
            conv(torch.rand(8, 3, 64, 64, device="cuda")).square().sum().backward()
            (torch.rand(512, 512, device="cuda") @ torch.rand(512, 512, device="cuda")).sum().item()
            held.append(torch.rand(random.randint(1, 2**28), device="cuda"))
        except torch.OutOfMemoryError:
            is_full = True
        if is_full:
            refused += 1
            random.shuffle(held)
            del held[: len(held) // 2 + 1]
    tune.report({"refused": refused})


def test_every_process_stays_within_its_memory_limit_for_two_minutes(plan, tmp_path):
    with recorded_usage() as samples:
        trials = tune.run(
            fill_and_free,
            scheduler=PolicyScheduler(plan),
            num_samples=NUM_TRIALS,
            storage_path=str(tmp_path),
            verbose=0,
        ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * NUM_TRIALS
    assert all(trial.last_result["refused"] > 0 for trial in trials)
    share = plan.gpu_memory_bytes
    # The limits leave some memory of the device free, which trials without limits would use.
    assert 0.5 * NUM_TRIALS * share < max(sample.taken_bytes for sample in samples) <= NUM_TRIALS * share
    known = [[amount for amount in sample.of_processes if amount is not None] for sample in samples]
    most = max((max(each, default=0) for each in known), default=0)
    if max(map(len, known)) >= NUM_TRIALS:
        print(f"highest use of a process, by the driver: {most / share:.1%} of its limit in {len(samples)} samples")
    else:
        print("the driver does not report memory by process here, so only the sum of all trials was checked")
    assert most <= share


def count_steps(config):
    """Allocate the memory of the config in ten steps, with a checkpoint after each step."""
    import json
    import tempfile
    from pathlib import Path

    import torch

    first = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = json.loads((Path(folder) / "step").read_text())
    held = []
    for step in range(first, 10):
        held.append(torch.empty(config["bytes"] // 10, dtype=torch.uint8, device="cuda"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step").write_text(json.dumps(step + 1))
            tune.report({"step": step, "began_at": first}, checkpoint=tune.Checkpoint.from_directory(folder))


def test_a_trial_that_exceeds_its_limit_is_requeued_without_affecting_other_trials(plan, tmp_path):
    share = plan.gpu_memory_bytes
    wanted = [int(1.5 * share), *[share // 4] * (NUM_TRIALS - 1)]

    trials = tune.run(
        count_steps,
        config={"bytes": tune.grid_search(wanted)},
        scheduler=PolicyScheduler(plan, OomRetryScheduler()),
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * NUM_TRIALS
    greedy, *others = trials
    assert [trial.run_metadata.num_failures for trial in others] == [0] * (NUM_TRIALS - 1)
    assert greedy.last_result["began_at"] > 0  # it resumed from its checkpoint
    assert greedy.placement_group_factory.required_resources["GPU"] == pytest.approx(2 * SHARE)


def allocate_twice_the_limit(config):
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(int(2 * SHARE * total), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        found = classify_oom(error)
        tune.report({"kind": found.kind, "cause": found.cause, "framework": found.framework})


def test_an_oom_error_at_the_limit_is_distinguished_from_a_full_device(plan, tmp_path):
    scheduler = PolicyScheduler(plan)
    (trial,) = tune.run(allocate_twice_the_limit, scheduler=scheduler, storage_path=str(tmp_path), verbose=0).trials

    found = {key: trial.last_result[key] for key in ("kind", "cause", "framework")}
    assert found == {"kind": "accelerator", "cause": "own_limit", "framework": "torch"}
