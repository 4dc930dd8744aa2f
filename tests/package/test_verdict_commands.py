"""The output and the exit status of the command ``bench compare``."""

import json

import pytest
from typer.testing import CliRunner

from tests.unit.timed_runs import processes, run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set import DeviceFound
from tune_policies.benchmarks.record.run_set_file import write_run_set


@pytest.fixture
def compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = run_set(processes("cpu", 3), processes("gpu", 1), processes("gpu@0.5", 2.99))
    write_run_set(runs, tmp_path / "run.json")
    missing = (DeviceFound(device="gpu", why_missing="no node has a GPU"),)
    write_run_set(run_set(processes("cpu", 1), devices=missing, is_complete=True), tmp_path / "cpu.json")
    return lambda *arguments: CliRunner().invoke(app, ["compare", *arguments])


def test_compare_prints_a_row_for_each_device_other_than_the_cpu(compare):
    done = compare("run.json")

    assert done.exit_code == 0
    assert done.stdout.count("compute") == 2
    assert "GPU" in done.stdout


def test_the_json_contains_the_verdict_in_a_word(compare):
    found = json.loads(compare("run.json", "--json").stdout)

    assert [(each["second"], each["word"]) for each in found] == [("gpu", "GPU"), ("gpu@0.5", "same")]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run.json", "--same-within", "5"], 2, "same_within must be between 0 and 1"),
        (["run.json", "--phase", "with-transfers"], 1, "needs two devices with times of the same workload and size"),
        (["cpu.json"], 1, "the run measured cpu, but a comparison needs two devices"),
        (["missing.json"], 2, "missing.json"),
    ],
    ids=["a percentage", "a phase without times", "one device", "no file"],
)
def test_the_exit_status_is_1_if_nothing_can_be_compared_and_2_for_invalid_usage(arguments, status, message, compare):
    done = compare(*arguments)

    assert done.exit_code == status
    assert message in done.stderr
