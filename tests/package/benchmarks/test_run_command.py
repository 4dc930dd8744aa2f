"""Tests that the command ``bench run`` reports invalid usage before Ray starts."""

import sys

import pytest
import ray
from typer.testing import CliRunner

from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set_file import write_run_set
from tune_policies.benchmarks.record.settings import Settings


def run(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((), "no workload is given. Choose one of matmul", id="no workload"),
        pytest.param(("matmull",), "did you mean 'matmul'?", id="an unknown workload"),
        pytest.param(("matmull@64",), "did you mean 'matmul'?", id="an unknown workload with sizes"),
        pytest.param(("affine@64", "--size", 16), "--size has no effect", id="sizes that no workload uses"),
        pytest.param(("affine@64,big",), "workload 'affine@64,big': after the @, write sizes", id="an invalid size"),
        pytest.param(("mywork:net",), "Pass sizes, such as --size 64", id="a size is missing"),
        pytest.param(("mywrok:net", "--size", 64), "no module 'mywrok'", id="an unknown module"),
        pytest.param(
            ("mywork:nat", "--size", 64),
            "mywork.py does not define 'nat'; did you mean 'net'?",
            id="an unknown function",
        ),
        pytest.param(("affine", "--device", "gpus"), "did you mean 'gpu'?", id="an unknown device"),
        pytest.param(("affine", "--device", "gpu@7/8"), "a number above 0", id="an invalid amount"),
        pytest.param(("affine", "--cpus", "-1"), "cpus", id="negative CPUs"),
    ],
)
def test_an_invalid_run_is_refused_before_ray_starts_and_writes_nothing(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mywork.py").write_text("def net(size, device): ...\n")

    done = run(*arguments)

    assert done.exit_code == 2
    assert message in done.stderr
    assert not done.stdout
    assert not ray.is_initialized()
    assert [each.name for each in tmp_path.iterdir()] == ["mywork.py"]


def test_an_existing_file_is_not_overwritten(tmp_path):
    output = tmp_path / "run.json"
    output.write_text("mine")

    done = run("affine", "--output", output)

    assert done.exit_code == 2
    assert f"--resume {output}" in done.stderr
    assert output.read_text() == "mine"


@pytest.mark.parametrize(
    "option",
    [("--rounds", 9), ("--cpus", 1), ("--no-control",), ("--quick",), ("--output", "b.json"), ("affine",)],
    ids=lambda option: option[0],
)
def test_a_resumed_run_rejects_options_because_its_file_contains_the_settings(option, tmp_path):
    done = run("--resume", tmp_path / "run.json", *option)

    assert done.exit_code == 2
    given = "WORKLOAD" if option == ("affine",) else option[0]
    assert f"Omit {given}" in done.stderr


def test_only_a_run_set_can_be_resumed(tmp_path):
    (tmp_path / "run.json").write_text("{}")

    done = run("--resume", tmp_path / "run.json")

    assert done.exit_code == 2
    assert "not a run set" in done.stderr


def test_a_complete_run_is_shown_and_not_repeated(tmp_path):
    file = tmp_path / "run.json"
    write_run_set(a_run_set(sizes=(16,), settings=Settings(sizes={"mlp": (16,)}, devices=("cpu",))), file)

    done = run("--resume", file)

    assert done.exit_code == 0
    assert "mlp" in done.stdout


def test_the_error_for_a_missing_benchmark_package_contains_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    for name in [name for name in sys.modules if name.startswith("tune_policies.benchmarks.measuring")]:
        monkeypatch.delitem(sys.modules, name)

    done = run("affine")

    assert done.exit_code == 2
    assert "error: run requires psutil. Run pip install 'tune-policies[bench]'" in done.stderr
