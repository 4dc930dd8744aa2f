"""The commands `tune-policies bench show`, `export` and `plot`."""

import csv
import json

import pytest
from typer.testing import CliRunner

from tests.run_sets import a_run_set
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set


@pytest.fixture
def benchmarks(tmp_path, monkeypatch):
    """The commands, in a folder with two run sets."""
    for name in ("a.json", "b.json"):
        write_run_set(a_run_set(workloads=("mlp",), sizes=(16, 1024), num_rounds=3, has_failure=False), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


def test_show_prints_the_table_on_stdout_and_json_for_programs(benchmarks):
    table, found = benchmarks("show", "a.json"), json.loads(benchmarks("show", "a.json", "--json").stdout)

    assert (table.exit_code, table.stderr) == (0, "")
    assert table.stdout.splitlines()[1].split()[:4] == ["Workload", "Device", "Size", "Compute"]
    assert [each["configuration"]["device"] for each in found["configurations"]] == ["cpu", "cpu", "gpu"] * 2
    assert found["problems"][0] == "the cluster has no TPU: no node has a TPU"


def test_export_writes_csv_or_the_file_of_the_run(benchmarks, tmp_path):
    rows = list(csv.DictReader(benchmarks("export", "a.json", "--format", "csv").stdout.splitlines()))
    done = benchmarks("export", "a.json", "--format", "json", "--redact", "--output", "public.json")

    assert {row["device"] for row in rows} == {"cpu", "gpu"}
    assert (done.exit_code, done.stdout) == (0, "")
    assert read_run_set(tmp_path / "public.json") == read_run_set(tmp_path / "a.json").redacted()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "none.json"), "cannot read the run set none.json: No such file or directory"),
        (("export", "a.json", "--format", "csv", "--output", "b.json"), "b.json already exists"),
        (
            ("export", "a.json", "--format", "csv", "--output", "b.json", "--force"),
            "b.json is another kind of file",
        ),
        (("plot", "a.json", "--output", "plot.svgx"), "unknown file type '.svgx'; did you mean 'svg'? (known: "),
    ],
    ids=["no file", "a record", "a record by force", "an unknown file type"],
)
def test_wrong_usage_is_explained_on_stderr(arguments, message, benchmarks):
    done = benchmarks(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.parametrize(("ending", "beginning"), [("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_times_against_sizes_are_drawn_to_a_file(ending, beginning, benchmarks, tmp_path):
    done = benchmarks("plot", "a.json", "--output", f"plot.{ending}")

    assert (done.exit_code, done.stderr) == (0, "")
    assert (tmp_path / f"plot.{ending}").read_bytes().startswith(beginning)
