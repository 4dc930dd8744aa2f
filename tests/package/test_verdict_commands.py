"""The commands ``compare`` and ``check`` as a user meets them: what they print, and how they end."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from tests.evidence.verdicts.neighbour import busy_neighbour
from tests.unit.timed_runs import processes, run_set
from tune_policies import MeasurementError
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.compare.machine_check import StepProcess
from tune_policies.benchmarks.record.run_set_file import write_run_set


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.json"
    write_run_set(run_set(processes("cpu", 3), processes("gpu", 1), processes("gpu@0.5", 0.99)), path)
    return path


def test_compare_prints_a_row_for_each_other_device(run, invoke):
    done = invoke("compare", run)

    assert done.exit_code == 0
    assert done.stdout.count("compute") == 2
    assert "GPU" in done.stdout


def test_compare_prints_json_for_machines(run, invoke):
    done = invoke("compare", run, "--between", "gpu", "gpu@0.5", "--json")

    (found,) = json.loads(done.stdout)
    assert (found["first"], found["second"], found["word"]) == ("gpu", "gpu@0.5", "same")


def test_compare_fails_above_a_limit_and_names_the_arm(run, invoke):
    done = invoke("compare", run, "--between", "gpu", "cpu", "--fail-above", "1.05")

    assert done.exit_code == 1
    assert "slower than the limit of 1.05: mlp[1] compute: GPU" in done.stderr


def test_what_is_above_the_limit_never_counts_as_the_same(tmp_path, invoke):
    path = tmp_path / "run.json"
    write_run_set(run_set(processes("gpu", 1), processes("cpu", 1.04)), path)

    assert invoke("compare", path, "--between", "gpu", "cpu", "--fail-above", "1.02").exit_code == 1
    assert invoke("compare", path, "--between", "gpu", "cpu").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--between", "cpu", "gpo"], "did you mean 'gpu'?"),
        (["--same-within", "5"], "same_within must be between 0 and 1"),
        (["missing.json"], "missing.json"),
    ],
)
def test_compare_ends_with_2_where_it_is_used_wrongly(arguments, message, run, invoke):
    done = invoke("compare", run, *arguments)

    assert done.exit_code == 2
    assert message in done.stderr


def test_check_is_not_quiet_beside_a_busy_process(invoke):
    with busy_neighbour():
        done = invoke("check", "--duration-s", 1)

    assert done.exit_code == 1
    assert "* other processes used" in done.stdout


def test_check_tells_machines_what_it_read(invoke):
    found = json.loads(invoke("check", "--duration-s", 1, "--json").stdout)

    assert 0.5 < found["comparison"]["ratio"] < 2
    assert len(found["noise"]) == found["comparison"]["num_rounds"]


def test_a_process_that_was_ended_is_told_so():
    with StepProcess(100) as process:
        assert process.seconds(10) > 0
        os.kill(process.pid, signal.SIGKILL)

        with pytest.raises(MeasurementError, match="gave no answer"):
            process.seconds(10)
