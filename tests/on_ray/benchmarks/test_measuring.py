"""Measures workloads in plain Python. Their speed does not depend on the simulated GPU."""

import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tests.on_ray.rays import wait_until
from tune_policies import probe_cluster
from tune_policies.benchmarks.measuring.rounds import measure, new_run_set
from tune_policies.benchmarks.measuring.timed_workload import GPU_USE_UNKNOWN
from tune_policies.benchmarks.record.missing_measurements import num_missing
from tune_policies.benchmarks.record.run_set import Environment, Phase
from tune_policies.benchmarks.record.run_set_file import read_run_set
from tune_policies.benchmarks.record.settings import Settings
from tune_policies.probe.probe_cluster import ProbeWarning

HERE = "tests.on_ray.benchmarks.measured_workloads"
ROOT = Path(__file__).parents[3]


RAY = {"num_cpus": 4, "num_gpus": 1}


@pytest.fixture(scope="module")
def capacity():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)  # the memory of a simulated GPU cannot be read
        return probe_cluster()


def measure_steps(capacity, *workloads, **fields):
    sizes = {f"{HERE}:{name}": (300,) for name in workloads}
    fields = {"devices": ("cpu", "gpu"), "num_rounds": 1, "num_blocks": 4, "process_timeout_s": 20, **fields}
    settings = Settings(sizes=sizes, **fields)
    environment = Environment(cpu_model="CPU", num_cpus=os.cpu_count())
    return measure(new_run_set(settings, capacity, environment, "a test"), capacity)


def measured(capacity, *workloads, **fields):
    *_, run_set = measure_steps(capacity, *workloads, **fields)
    return run_set


@pytest.fixture(scope="module")
def steps(capacity):
    """Return the run sets that a measurement with two rounds yields. Its workload takes 300 µs per step."""
    return list(measure_steps(capacity, "spin", devices=("cpu", "gpu", "TPU"), num_rounds=2))


@pytest.mark.ci
def test_each_configuration_has_a_new_process_in_each_round(steps):
    runs = steps[-1].runs

    assert sorted(str(run.configuration).partition(" on ")[2] for run in runs if run.round == 0) == [
        "cpu",
        "cpu (control)",
        "gpu",
    ]
    assert len({run.pid for run in runs}) == len(runs) == 6


@pytest.mark.rest
def test_a_measurement_never_uses_a_prestarted_process(capacity):
    run_set = measured(capacity, "start_time", devices=("cpu",), has_control=False, num_blocks=1)

    (run,) = run_set.runs
    requested_at = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - run.started_at.timestamp())
    assert run.losses[0] > requested_at - 0.05


def test_the_run_set_is_updated_after_each_round(steps):
    assert [(len(each.runs), each.is_complete) for each in steps] == [(0, False), (3, False), (6, False), (6, True)]


def test_a_run_records_the_times_losses_and_peak_memory_of_its_process(steps):
    """The time of the first epoch includes the start of the process. Warm-up steps are marked."""
    run = steps[-1].runs[0]
    compute, transfers = (run.times_s(phase) for phase in (Phase.COMPUTE, Phase.TRANSFERS))

    # Other processes can only slow a step down, and starting a process takes at least 0.2 s.
    assert 300e-6 <= min(compute) < 6e-3 <= min(transfers)
    assert len(compute) == len(transfers) == 4
    assert [block.is_warmup for block in run.blocks if block.phase is Phase.COMPUTE] == [True] * 2 + [False] * 4
    assert all(each.first_epoch_s >= 0.2 + each.steps_per_epoch * 6e-3 for each in steps[-1].runs)
    assert (run.dtype, run.samples_per_step, run.losses) == ("float64", 8, (1.0,) * 4)
    assert 2**20 < run.peak_host_bytes < 2**40
    assert run.peak_gpu_bytes is None


def test_configurations_are_interleaved_in_random_order(steps):
    for number in (0, 1):
        blocks = sorted(
            (block.order, run.order) for run in steps[-1].runs if run.round == number for block in run.blocks
        )
        turns = [process for _, process in blocks]

        assert [order for order, _ in blocks] == [*range(len(blocks))]
        assert sum(first != second for first, second in itertools.pairwise(turns)) > len(turns) / 4


def test_system_load_unknown_gpu_usage_and_missing_devices_are_recorded(steps):
    missing = steps[-1].devices[2]

    assert {run.configuration.device: run.warnings for run in steps[-1].runs} == {"cpu": (), "gpu": (GPU_USE_UNKNOWN,)}
    assert [reading.round for reading in steps[-1].noise] == [0, 1]
    assert all(0 <= reading.load <= os.cpu_count() for reading in steps[-1].noise)
    assert (missing.device, missing.slot) == ("TPU", None)
    assert "short of TPU" in missing.why_missing
    assert {configuration.device for configuration in steps[-1].configurations} == {"cpu", "gpu"}


@pytest.mark.slow
def test_a_resumed_run_measures_only_the_missing_configurations(steps, capacity):
    half = steps[-1].model_copy(update={"runs": steps[1].runs, "is_complete": False})
    other = [run for run in steps[-1].runs if run not in steps[1].runs]

    *_, whole = measure(half, capacity)

    assert num_missing(half) == 1
    assert whole.runs[:3] == half.runs
    assert {(run.configuration, run.round, run.order) for run in whole.runs[3:]} == {
        (r.configuration, r.round, r.order) for r in other
    }


@pytest.mark.rest
def test_processes_run_sequentially_if_there_are_too_few_gpus(capacity):
    run_set = measured(capacity, "spin", devices=("gpu",), num_blocks=2)

    assert not run_set.is_interleaved
    assert [len(run.times_s(Phase.COMPUTE)) for run in run_set.runs] == [2, 2]


@pytest.mark.rest
def test_processes_share_cpus_and_are_interleaved_if_there_are_too_few_cpus(capacity):
    run_set = measured(capacity, "environment", cpus=4, num_blocks=2)

    assert run_set.is_interleaved
    assert {run.configuration.device: run.losses[0] for run in run_set.runs} == {"cpu": 104, "gpu": 4}
    assert max(run.blocks[0].order for run in run_set.runs) < 3


FAILURES = {
    "raises": ("raised", "LookupError: no batch of 300"),
    "exits": ("raised", "SystemExit: enough"),
    "never_ends": ("timed_out", "after 6 s, it was still running"),
    "returns_nothing": ("raised", "but must return Steps"),
}


@pytest.mark.rest
def test_a_failed_workload_is_recorded_once_and_a_crashed_process_is_retried_in_the_next_round(capacity):
    run_set = measured(
        capacity, *FAILURES, "dies", devices=("cpu",), has_control=False, process_timeout_s=6, num_rounds=2
    )

    def failures(name):
        return [each for each in run_set.failures if each.configuration.workload == f"{HERE}:{name}"]

    for name, (kind, message) in FAILURES.items():
        (failure,) = failures(name)
        assert (failure.kind, message in failure.message) == (kind, True), failure
    assert [(each.kind, each.round) for each in failures("dies")] == [("died", 0), ("died", 1)]
    assert run_set.is_complete


@pytest.mark.rest
def test_a_long_first_epoch_is_cut_short_and_steps_are_timed(capacity):
    run_set = measured(
        capacity, "has_long_epochs", devices=("cpu",), has_control=False, num_blocks=1, process_timeout_s=20
    )

    (run,) = run_set.runs
    assert run.first_epoch_s is None
    assert "first epoch was stopped early" in run.warnings[0]
    assert len(run.times_s(Phase.TRANSFERS)) == 1


@pytest.mark.slow
def test_the_time_of_the_first_epoch_is_recorded_if_the_time_limit_allows_no_further_step(capacity):
    run_set = measured(capacity, "has_one_long_step", devices=("cpu",), has_control=False, process_timeout_s=8)

    (run,) = run_set.runs
    assert run.first_epoch_s > 4
    assert not run.blocks
    assert "its timing stopped early because of --process-timeout-s=8" in run.warnings


@pytest.mark.rest
def test_different_losses_on_two_devices_are_recorded_as_a_failure(capacity):
    run_set = measured(capacity, "disagrees", has_control=False, num_blocks=1)

    (failure,) = run_set.failures
    assert (failure.kind, failure.configuration.device) == ("disagreed", "gpu")
    assert len(run_set.runs) == 2


@pytest.mark.rest
def test_ctrl_c_keeps_the_measurements_and_exits_with_130(tmp_path, isolated_environment):
    output = tmp_path / "run.json"
    command = ["run", f"{HERE}:spin", "--size", "300", "--device", "cpu", "--rounds", "999", "--output", str(output)]
    with subprocess.Popen(
        [sys.executable, "-m", "tune_policies", "bench", *command],
        cwd=ROOT,
        env=isolated_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        wait_until(lambda: program.poll() is not None or (output.exists() and read_run_set(output).runs))
        program.send_signal(signal.SIGINT)
        _, stderr = program.communicate(timeout=60)

    kept = read_run_set(output)
    assert program.returncode == 130, stderr
    assert kept.runs
    assert not kept.is_complete
    assert f"wrote {output}" in stderr
