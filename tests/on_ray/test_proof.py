"""The proofs on a real Ray, as small as they are: what they claim is shown by many more runs."""

import pytest

from tests.evidence.verdicts.proof import ProofRecord
from tests.evidence.verdicts.proof_runs import ProofSize, measure_overhead_of_steps, run_proof
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.judge import Outcome

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_beside_a_busy_process_no_verdict_is_wrong_and_each_run_is_kept(tmp_path):
    file = tmp_path / "busy.json"

    record = run_proof("busy", ProofSize(num_runs=2, num_rounds=2, num_blocks=4), file)

    assert [run.truth for run in record.runs] == [Outcome.SAME, Outcome.SECOND]
    assert not any(run.is_wrong for run in record.runs)
    assert ProofRecord.from_json(file.read_text()) == record
    assert run_proof("busy", ProofSize(num_runs=1, num_rounds=2, num_blocks=4), file) == record
    with pytest.raises(InvalidResourcesError, match="holds the proof 'busy'"):
        run_proof("aa", ProofSize(num_runs=1, num_rounds=2, num_blocks=4), file)
    with pytest.raises(InvalidResourcesError, match="runs of 2 rounds with 4 blocks each, not of 3 with 4"):
        run_proof("busy", ProofSize(num_runs=3, num_rounds=3, num_blocks=4), file)


@pytest.mark.slow
def test_a_step_on_the_clock_is_recorded_as_long_as_it_waits():
    (parts,) = measure_overhead_of_steps((3000,), num_rounds=2).values()

    assert 0 <= min(parts) < 0.05  # other processes can only make a block longer
