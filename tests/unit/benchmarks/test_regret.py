"""The regret of a policy is computed from measurements that the decision has not used."""

import pytest
from typer.testing import CliRunner

from tests.evidence.__main__ import app
from tests.evidence.regret import Case, cases_by_round, judged_cases, regret_of
from tests.measured_runs import a_run
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.values.errors import InvalidResourcesError


def test_the_regret_is_the_lost_part_of_the_shortest_total_time():
    cases = [Case("mlp", 1, "CPU", 8.0, 7.0), Case("mlp", 2, "GPU", 9.0, 3.0)]

    assert regret_of(cases) == pytest.approx((8 + 3) / (7 + 3) - 1)


def test_a_size_is_judged_by_a_run_that_measured_other_sizes():
    cases = [*judged_cases(a_run(sizes=(1, 256), rounds=3), a_run(sizes=(16, 512), rounds=1), 1000)]

    assert [(each.size, each.chosen) for each in cases] == [(16, "CPU"), (512, "GPU")]
    assert regret_of(cases) == 0


def test_each_round_is_judged_by_a_decision_from_the_other_rounds():
    cases = [*cases_by_round(a_run(sizes=(1, 256), rounds=3), 1000)]

    assert [(each.size, each.chosen) for each in cases] == 3 * [(1, "CPU"), (256, "GPU")]


def test_a_round_without_times_on_a_gpu_is_omitted():
    run = a_run(sizes=(1, 256), rounds=3)
    runs = [each for each in run.runs if (each.round, each.configuration.device) != (1, "gpu")]

    cases = [*cases_by_round(run.model_copy(update={"runs": tuple(runs)}), 1000)]

    assert [(each.size, each.chosen) for each in cases] == 2 * [(1, "CPU"), (256, "GPU")]


def test_one_round_cannot_judge_itself():
    with pytest.raises(InvalidResourcesError, match="fewer than two rounds"):
        [*cases_by_round(a_run(rounds=1), 1000)]


def test_the_command_exits_with_1_if_the_policy_chooses_the_slower_device(tmp_path):
    run = a_run(rounds=2)
    other = {"cpu": "gpu", "gpu": "cpu"}
    swapped = tuple(
        each.model_copy(
            update={"configuration": each.configuration.model_copy(update={"device": other[each.configuration.device]})}
        )
        for each in run.runs
    )
    write_run_set(run, tmp_path / "run.json")
    write_run_set(run.model_copy(update={"runs": swapped}), tmp_path / "judge.json")

    done = CliRunner().invoke(app, ["regret", str(tmp_path / "run.json"), str(tmp_path / "judge.json")])

    assert done.exit_code == 1
    assert "on the faster device" in done.stdout


def test_the_command_exits_with_0_if_the_regret_is_at_most_1_percent(tmp_path):
    write_run_set(a_run(rounds=2), tmp_path / "run.json")
    write_run_set(a_run(rounds=1), tmp_path / "judge.json")

    alone, judged = (
        CliRunner().invoke(app, ["regret", *(str(tmp_path / file) for file in files)])
        for files in (("run.json",), ("run.json", "judge.json"))
    )

    assert (alone.exit_code, judged.exit_code) == (0, 0)
    assert "regret: 0.00%" in alone.stdout
    assert "3 cases, 3 on the faster device" in judged.stdout
