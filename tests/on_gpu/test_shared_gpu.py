"""Up to 16 trials share a GPU. Each trial stays within its limit, and failed trials do not affect the other trials."""

import os
import signal
import threading
import time
import warnings
from bisect import bisect
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from ray import tune

from tests.on_gpu.device import evaluate_with_torch, processes, used_bytes
from tests.on_ray.rays import local_ray, wait_until
from tune_policies import GpuPolicy, OomRetryScheduler, PolicyScheduler, ProbeWarning, probe_cluster
from tune_policies.oom import classify_oom
from tune_policies.plan.default_overhead import TORCH_OVERHEAD_BYTES
from tune_policies.probe.nvml import read_device_use
from tune_policies.trainers import calibrate_gpu_overhead, load_overheads

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu, pytest.mark.slow, pytest.mark.timeout(600)]

GIB = 2**30
SECONDS = 60
SHARE = 0.1
# Eight trials leave a fifth of the device free, which trials without limits would use.
SHARES = {2: 1 / 2, 4: 1 / 4, 8: SHARE, 16: 1 / 16}


@pytest.fixture(scope="module", autouse=True)
def idle_bytes():
    return used_bytes()


@pytest.fixture(scope="module")
def capacity():
    with local_ray(num_cpus=8), warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        yield probe_cluster()


@pytest.fixture
def plan(capacity):
    return GpuPolicy(gpus=SHARE).plan(capacity)


def run(trainable, plan, tmp_path, scheduler=None, **kwargs):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan, scheduler),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
        **kwargs,
    ).trials


def test_the_overhead_of_torch_is_measured_and_below_the_safe_default(capacity, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path))
    model, version = evaluate_with_torch("[torch.cuda.get_device_name(0), torch.__version__]")

    measured = calibrate_gpu_overhead(["torch"], timeout_s=200)

    assert load_overheads() == measured
    overhead, source = measured.bytes_for(model, "torch", version)
    print(f"overhead of torch: {overhead / GIB:.3f} GiB {source}, safe default {TORCH_OVERHEAD_BYTES / GIB:.3f} GiB")
    assert source in measured.measured
    assert 0.1 * GIB < overhead <= TORCH_OVERHEAD_BYTES


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


class Sample(NamedTuple):
    taken_bytes: int
    of_processes: list[int | None]


def fill_and_free(config):
    """Repeatedly compute, and fill the GPU memory with tensors of random sizes."""
    import random

    import torch

    conv = torch.nn.Conv2d(3, 16, 3).cuda()
    end = time.monotonic() + SECONDS
    held, causes = [], set()
    while time.monotonic() < end:
        conv(torch.rand(8, 3, 64, 64, device="cuda")).square().sum().backward()
        (torch.rand(512, 512, device="cuda") @ torch.rand(512, 512, device="cuda")).sum().item()
        try:
            while True:
                held.append(torch.rand(random.randint(1, 2**28), device="cuda"))
        except torch.OutOfMemoryError as error:
            causes.add(classify_oom(error).cause)
        random.shuffle(held)
        del held[: len(held) // 2 + 1]
    tune.report({"causes": sorted(causes)})


@pytest.mark.parametrize("num_trials", SHARES)
def test_every_process_stays_within_its_memory_limit(capacity, idle_bytes, tmp_path, num_trials):
    plan = GpuPolicy(gpus=SHARES[num_trials]).plan(capacity)
    wait_until(lambda: used_bytes() < idle_bytes + GIB / 16, timeout_s=30)  # earlier trials may still be ending

    with recorded_usage() as samples:
        trials = run(fill_and_free, plan, tmp_path, num_samples=num_trials)

    assert [trial.status for trial in trials] == ["TERMINATED"] * num_trials
    # No trial failed to get memory because another trial exceeded its limit.
    assert [trial.last_result["causes"] for trial in trials] == [["own_limit"]] * num_trials
    share, taken = plan.gpu_memory_bytes, max(sample.taken_bytes for sample in samples)
    unused = read_device_use()[0].total_bytes - taken
    assert 0.5 * num_trials * share < taken <= num_trials * share
    known = [[amount for amount in sample.of_processes if amount is not None] for sample in samples]
    most = max((max(each, default=0) for each in known), default=0)
    if max(map(len, known)) >= num_trials:
        highest = f"highest use of a process, by the driver: {most / share:.1%} of its fraction"
    else:
        highest = "the driver does not report memory by process here, so only the sum of all trials was checked"
    print(f"{num_trials} trials: {highest}; {len(samples)} samples; {unused / GIB:.2f} GiB of the device stay unused")
    assert most <= share


def count_steps(config):
    """Allocate the memory of the config in ten steps, with a checkpoint after each step."""
    import json
    import tempfile

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
    wanted = [int(1.5 * share), *[share // 4] * 7]

    trials = run(count_steps, plan, tmp_path, OomRetryScheduler(), config={"bytes": tune.grid_search(wanted)})

    assert [trial.status for trial in trials] == ["TERMINATED"] * 8
    greedy, *others = trials
    assert [trial.run_metadata.num_failures for trial in others] == [0] * 7
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
    (trial,) = run(allocate_twice_the_limit, plan, tmp_path)

    found = {key: trial.last_result[key] for key in ("kind", "cause", "framework")}
    assert found == {"kind": "accelerator", "cause": "own_limit", "framework": "torch"}


WINDOW_S = 10


def hold_or_compute(config):
    """Allocate memory. Then wait for the end of this process, or compute until ``end`` exists and report all times."""
    import torch

    folder = Path(config["folder"])
    held = torch.empty(config["bytes"], dtype=torch.uint8, device="cuda")
    matrix = torch.rand(2048, 2048, device=held.device)
    times = []
    (folder / f"{config['number']}.started").write_text(str(os.getpid()))
    while not (folder / "end").exists():
        if config["number"] == 0:
            time.sleep(0.1)
            continue
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()
        times.append(time.monotonic())
    tune.report({"times": times})


def kill_first_trial(folder, num_bytes):
    """Kill the process of trial 0. Return the time, and the seconds until the driver reports its memory as free."""
    try:
        wait_until(lambda: len(list(folder.glob("*.started"))) == 4)
        time.sleep(WINDOW_S + 1)
        used, killed_at = used_bytes(), time.monotonic()
        os.kill(int((folder / "0.started").read_text()), signal.SIGKILL)
        wait_until(lambda: used_bytes() <= used - num_bytes, timeout_s=30)
        released_after_s = time.monotonic() - killed_at
        time.sleep(WINDOW_S)
        return killed_at, released_after_s
    finally:
        (folder / "end").touch()


def test_the_memory_of_a_killed_trial_is_released_and_other_trials_keep_their_speed(capacity, tmp_path):
    plan = GpuPolicy(gpus=0.25).plan(capacity)
    num_bytes = plan.gpu_memory_bytes // 2
    config = {"number": tune.grid_search([0, 1, 2, 3]), "bytes": num_bytes, "folder": str(tmp_path)}

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_first_trial, tmp_path, num_bytes)
        killed, *others = run(hold_or_compute, plan, tmp_path / "results", config=config)
        killed_at, released_after_s = killing.result()

    changes = [change_of_speed(trial.last_result["times"], killed_at) for trial in others]
    print(f"released after {released_after_s:.2f} s; speed after the end / before: {changes}")
    assert [trial.status for trial in (killed, *others)] == ["ERROR", *["TERMINATED"] * 3]
    assert released_after_s < 2
    assert changes == pytest.approx([1, 1, 1], rel=0.05)


def change_of_speed(times, at):
    before, now, after = (bisect(times, at + shift) for shift in (-WINDOW_S, 0, WINDOW_S))
    return (after - now) / (now - before)
