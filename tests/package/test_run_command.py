"""What the command ``run`` refuses before it starts a Ray."""

import sys

import pytest
import ray
from typer.testing import CliRunner

from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set import Settings
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set


def run(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((), "name what to run: matmul", id="no workload"),
        pytest.param(("matmull",), "did you mean 'matmul'?", id="an unknown workload"),
        pytest.param(("mywork:net",), "give them, such as --size 64", id="a size is missing"),
        pytest.param(("mywork:nat", "--size", 64), "has no 'nat'; did you mean 'net'?", id="an unknown function"),
        pytest.param(("mywrok:net", "--size", 64), "no module 'mywrok'", id="an unknown module"),
        pytest.param(("affine", "--device", "gpus"), "did you mean 'gpu'?", id="an unknown device"),
        pytest.param(("affine", "--device", "gpu@7/8"), "a number above 0", id="a share that is none"),
        pytest.param(("affine", "--cpus", "-1"), "cpus", id="fewer CPUs than none"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_ray_starts_and_writes_nothing(
    arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mywork.py").write_text("def net(size, device): ...\n")

    done = run(*arguments)

    assert done.exit_code == 2
    assert message in done.stderr
    assert not done.stdout
    assert not ray.is_initialized()
    assert [each.name for each in tmp_path.iterdir()] == ["mywork.py"]


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    output = tmp_path / "run.json"
    output.write_text("mine")

    done = run("affine", "--output", output)

    assert done.exit_code == 2
    assert f"--resume {output}" in done.stderr
    assert output.read_text() == "mine"


@pytest.mark.parametrize("option", [("--rounds", 9), ("--cpus", 1), ("--no-control",)], ids=lambda option: option[0])
def test_what_a_run_that_is_gone_on_with_would_not_heed_is_refused(option, tmp_path):
    done = run("--resume", tmp_path / "run.json", *option)

    assert done.exit_code == 2
    assert f"leave {option[0].replace('no-', '')} out" in done.stderr


def test_a_file_that_is_no_record_cannot_be_gone_on_with(tmp_path):
    (tmp_path / "run.json").write_text("{}")

    done = run("--resume", tmp_path / "run.json")

    assert done.exit_code == 2
    assert "not a run set" in done.stderr


def test_settings_beside_a_run_that_is_gone_on_with_are_not_passed_over(tmp_path):
    done = run("--resume", tmp_path / "run.json", "--rounds", "9")

    assert done.exit_code == 2
    assert "leave --rounds out" in done.stderr


def test_a_whole_run_that_is_gone_on_with_is_in_the_file_that_was_named(tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    write_run_set(a_run_set(sizes=(16,), settings=Settings(sizes={"mlp": (16,)}, devices=("cpu",))), before)

    done = run("--resume", before, "--output", after)

    assert done.exit_code == 0
    assert read_run_set(after) == read_run_set(before)


def test_without_the_packages_for_benchmarks_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyperf", None)
    for name in [name for name in sys.modules if name.startswith("tune_policies.benchmarks.measuring")]:
        monkeypatch.delitem(sys.modules, name)

    done = run("affine")

    assert done.exit_code == 2
    assert "error: run needs pyperf: pip install 'tune-policies[bench]'" in done.stderr
