"""Tests the runs of the packing benchmark on CPUs, although the benchmark itself requires a GPU."""

import pytest

from tune_policies import CappedPolicy, CpuPolicy, probe_cluster
from tune_policies.benchmarks.measuring.packing import ROUNDS, FailedRunError, Sharing, Training, run_trials
from tune_policies.benchmarks.record.packing_record import PackingMode

OWN_WORKLOAD = """
import os
import sys
from itertools import count

from tune_policies.benchmarks.workloads.steps import Steps

def counts(size, device):
    assert device == "cpu"
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/nonexistent"  # CUDA would use a running daemon
    assert "torch" not in sys.modules  # CUDA reads the variable when it starts
    steps = count(1)
    return Steps(with_transfers=lambda: size * next(steps))
"""


RAY = {"num_cpus": 2}


@pytest.fixture(scope="module")
def capacity():
    return probe_cluster()


@pytest.mark.slow
def test_a_run_counts_its_trials_and_all_trials_have_the_same_loss(capacity):
    plan = CappedPolicy(CpuPolicy(), 2).plan(capacity)

    sample = run_trials(Sharing(PackingMode.PACKED, Training("mlp", "mlp", 8, 20), 2, plan))

    assert sample.num_trials == 2 * ROUNDS
    assert (len(sample.losses), len(set(sample.losses))) == (2 * ROUNDS, 1)
    assert 0 < sample.trials_per_hour < 3600 * 2 * ROUNDS


@pytest.mark.rest
def test_a_trial_runs_a_workload_from_the_working_directory(capacity, tmp_path, monkeypatch):
    (tmp_path / "own_work.py").write_text(OWN_WORKLOAD)
    monkeypatch.chdir(tmp_path)
    plan = CpuPolicy().plan(capacity)

    sample = run_trials(Sharing(PackingMode.ALONE, Training("own_work:counts[3]", "own_work:counts", 3, 8), 1, plan))

    assert sample.workload == "own_work:counts[3]"
    assert sample.losses == (24.0,) * ROUNDS


@pytest.mark.slow
def test_a_run_with_mps_raises_an_error_if_mps_is_not_active(capacity):
    plan = CpuPolicy().plan(capacity)

    with pytest.raises(FailedRunError, match="mps did not limit the trials"):
        run_trials(Sharing(PackingMode.PACKED_WITH_MPS, Training("mlp", "mlp", 8, 4), 1, plan))
