"""The runs of the benchmark of throughput, on CPUs: the benchmark itself needs a GPU."""

import pytest

from benchmarks.packing.runs import WAVES, Arm, FailedRunError, run_arm
from tests.on_ray.rays import local_ray
from tune_policies import CappedPolicy, CpuPolicy, probe_cluster


@pytest.fixture(scope="module")
def capacity():
    with local_ray(num_cpus=2):
        yield probe_cluster()


def test_a_run_counts_its_trials_and_keeps_their_losses_by_seed(capacity):
    plan = CappedPolicy(CpuPolicy(), 2).plan(capacity)

    sample = run_arm(Arm("packed", "mlp", 2, plan), work=0.001)

    assert sample.num_trials == 2 * WAVES
    assert len(set(sample.losses)) == 2 * WAVES
    assert 0 < sample.trials_per_hour < 3600 * 2 * WAVES


def test_a_run_in_which_mps_holds_nothing_does_not_count(capacity):
    plan = CpuPolicy().plan(capacity)

    with pytest.raises(FailedRunError, match="mps did not hold the trials"):
        run_arm(Arm("alone", "mlp", 1, plan, isolation="mps"), work=0.001)
